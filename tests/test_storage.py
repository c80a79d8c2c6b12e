"""Files that appear whole or not at all, and the one kind of checkpoint that both the laboratory and Flower runs write."""

import json
import os
import pickle
import signal
import stat
import subprocess
import sys
import threading
import time
import zipfile

import numpy as np
import pytest

from fedhold.storage import (
    Checkpoint,
    DamagedCheckpointError,
    read_checkpoint,
    whole_file,
    write_checkpoint,
    write_whole,
)

KIND = "test run"
ARRAYS = {"w": np.arange(3, dtype=np.float32), "steps": np.array(7), "none": np.empty((0, 2))}
NOTES = {"run": "5eed", "loss": [0.5, None]}


@pytest.fixture
def path(tmp_path):
    """A checkpoint."""
    path = tmp_path / "deep" / "run.npz"
    write_checkpoint(path, KIND, ARRAYS, json.dumps(NOTES))
    return path


def holds_what_was_written(path):
    found = read_checkpoint(path, KIND)
    assert found.notes == NOTES
    assert list(found.arrays) == list(ARRAYS)
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(found.arrays[name], array, strict=True)


def rewritten(path, header=None, **members):
    """Write the file anew with other members."""
    with np.load(path) as file:
        members = {**{name: file[name] for name in file.files}, **members}
    if header is not None:
        members["header"] = np.frombuffer(json.dumps(header).encode(), np.uint8)
    np.savez(path, **members)


def test_what_was_written_comes_back(path):
    holds_what_was_written(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_the_header_names_program_kind_and_format(path):
    with np.load(path, allow_pickle=False) as file:
        header = json.loads(file["header"].tobytes())
    assert header == {"program": "fedhold", "kind": KIND, "format": 1, "arrays": list(ARRAYS)}


def test_no_damage_goes_unnoticed(path):
    """Whatever byte changes, and wherever the file ends: the same contents, or one error with a remedy."""
    data = path.read_bytes()
    changed = [data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :] for at in range(len(data))]
    entries = [at for at in range(len(data)) if data.startswith(b"PK\x01\x02", at)]  # of the zip file's directory
    changed += [data[: at + 8] + b"\x01" + data[at + 9 :] for at in entries]  # "encrypted"
    changed += [data[: at + 10] + b"\x63" + data[at + 11 :] for at in entries]  # an unknown method of compression
    complaints = []
    for damaged in [*changed, *(data[:at] for at in range(len(data)))]:
        path.write_bytes(damaged)
        try:
            holds_what_was_written(path)  # what changed was a date, say, that nobody reads
        except DamagedCheckpointError as problem:
            complaints.append(str(problem))
    assert len(complaints) > 1.5 * len(data)
    # All that zipfile raises is told in the same words, also what it has no error of its own for.
    assert {"BadZipFile", "NotImplementedError", "RuntimeError"} <= {
        complaint.partition("(")[2].partition(":")[0] for complaint in complaints
    }
    assert all("Put back a copy of it, or delete it" in complaint for complaint in complaints)


def test_a_checkpoint_that_would_inflate_is_damaged(path):
    """We write numbers as they are. A compressed member could be a thousand times as large as the file."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(name, content)
    with pytest.raises(DamagedCheckpointError, match="compressed"):
        read_checkpoint(path, KIND)


def test_no_pickle_is_loaded(path):
    class Bomb:
        def __reduce__(self):
            return (exec, ("raise SystemExit('a pickle was loaded')",))

    rewritten(path, w=np.array([Bomb()], dtype=object))
    with pytest.raises(DamagedCheckpointError, match="allow_pickle"):
        read_checkpoint(path, KIND)
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(DamagedCheckpointError):
        read_checkpoint(path, KIND)


HEADER = {"program": "fedhold", "kind": KIND, "format": 1, "arrays": list(ARRAYS)}


@pytest.mark.parametrize(
    ("header", "complaint"),
    [
        ({**HEADER, "program": "another"}, "was written by another, and not by fedhold"),
        ({**HEADER, "kind": "Flower run"}, "holds a Flower run, not a test run"),
        ({**HEADER, "format": 2}, r"has format 2, this version reads 1\. Update fedhold"),
        ({**HEADER, "arrays": ["w"]}, "is damaged"),
        ({"program": "fedhold"}, "is damaged"),
    ],
)
def test_files_of_others_are_refused(path, header, complaint):
    rewritten(path, header)
    with pytest.raises(ValueError, match=complaint):
        read_checkpoint(path, KIND)


def test_what_cannot_be_read_back_is_not_written(path):
    with pytest.raises(ValueError, match="cannot be called 'notes'"):
        write_checkpoint(path, KIND, {"notes": np.zeros(2)}, "{}")
    with pytest.raises(TypeError, match="'x' of a checkpoint holds objects"):
        write_checkpoint(path, KIND, {"x": np.array([None])}, "{}")
    holds_what_was_written(path)


def test_whoever_fails_while_writing_leaves_the_old_file(path):
    def fail():
        with whole_file(path) as file:
            file.write(b"half of ")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    holds_what_was_written(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# Several writers at once

CONTENTS = [bytes([letter]) * (50_000 * letter) for letter in (1, 2, 3)]


def test_threads_that_write_one_file_never_mix(tmp_path):
    path, failures = tmp_path / "result.npy", list[Exception]()
    write_whole(path, CONTENTS[0])

    def write(content):
        try:
            for _ in range(20):
                write_whole(path, content, sync=False)
        except Exception as problem:
            failures.append(problem)

    writers = [threading.Thread(target=write, args=(content,)) for content in 2 * CONTENTS]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        assert path.read_bytes() in CONTENTS
    assert failures == []
    assert path.read_bytes() in CONTENTS
    assert os.listdir(tmp_path) == ["result.npy"]


WRITER = """
import os, sys
from pathlib import Path
from fedhold.storage import whole_file
os.getpid = lambda: 7  # as the first process of each of two containers may have it
path, letter, count = Path(sys.argv[1]), sys.argv[2].encode(), int(sys.argv[3])
for _ in range(200):
    with whole_file(path, sync=False) as file:
        for _ in range(count):
            file.write(letter * 1000)
            file.flush()
"""


def test_containers_with_the_same_process_number_never_mix(tmp_path):
    path = tmp_path / "result.npy"
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, path, letter, str(count)], stderr=subprocess.PIPE)
        for letter, count in (("a", 5), ("b", 9))
    ]
    seen = set()
    while any(writer.poll() is None for writer in writers):
        if path.exists():
            seen.add(path.read_bytes())
    told = [writer.communicate(timeout=60)[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], told
    assert seen <= {b"a" * 5000, b"b" * 9000}
    assert os.listdir(tmp_path) == ["result.npy"]


BEGINNER = """
import sys, time
from pathlib import Path
from fedhold.storage import whole_file
with whole_file(Path(sys.argv[1])) as file:
    file.write(b"half")
    file.flush()
    print("begun", flush=True)
    sys.stdin.read()
"""


def begin_to_write(path):
    """A process that has written half of a file, and goes on when its standard input is closed."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", BEGINNER, path], **pipes)
    assert process.stdout.readline() == b"begun\n"
    return process


def write_in_a_new_process(path):
    code = "import sys; from pathlib import Path; from fedhold.storage import write_whole; "
    subprocess.run([sys.executable, "-c", code + "write_whole(Path(sys.argv[1]), b'all')", path], check=True)


def test_what_a_killed_process_left_behind_is_removed(tmp_path):
    killed, alive = begin_to_write(tmp_path / "killed.npy"), begin_to_write(tmp_path / "alive.npy")
    killed.send_signal(signal.SIGKILL)
    killed.communicate(timeout=30)
    assert len(os.listdir(tmp_path)) == 2
    os.mkfifo(tmp_path / f".x.{'0' * 32}.tmp")  # Whoever opened it to write would wait for ever.
    (tmp_path / ".mine.tmp").touch()
    yesterday = time.time() - 25 * 3600
    os.utime(next(tmp_path.glob(".killed.npy.*")), (yesterday, yesterday))
    write_in_a_new_process(tmp_path / "other.npy")
    being_written, *others = sorted(os.listdir(tmp_path))
    assert being_written.startswith(".alive.npy.")
    assert others == [".mine.tmp", f".x.{'0' * 32}.tmp", "other.npy"]
    alive.communicate(timeout=30)
    assert alive.returncode == 0
    assert (tmp_path / "alive.npy").read_bytes() == b"half"


def test_a_link_in_the_place_of_the_file_is_replaced_and_not_followed(tmp_path):
    (tmp_path / "target").write_bytes(b"precious")
    (tmp_path / "file").symlink_to("target")
    write_whole(tmp_path / "file", b"new")
    assert (tmp_path / "target").read_bytes() == b"precious"
    assert (tmp_path / "file").read_bytes() == b"new"


def test_a_name_may_be_as_long_as_the_file_system_allows(tmp_path):
    write_whole(tmp_path / ("ü" * 127), b"new")
    assert len(os.listdir(tmp_path)) == 1


# The laboratory's runs

HISTORY = [{"round": 1, "loss": 0.5}, {"round": 2, "loss": float("inf")}]


def test_a_run_grows_round_by_round(tmp_path):
    path = tmp_path / "run"
    checkpoint = Checkpoint(path, "print")
    assert checkpoint.load(5) is None
    for t in (1, 2):
        checkpoint.save(ARRAYS, HISTORY[:t])
        arrays, history = Checkpoint(path, "print").load(5)
        assert history == HISTORY[:t]
        assert list(arrays) == list(ARRAYS)
    Checkpoint(None, "print").save(ARRAYS, HISTORY)
    assert Checkpoint(None, "print").load(5) is None


def test_the_laboratory_refuses_other_runs(tmp_path):
    path = tmp_path / "run"
    for notes in ({"run": "other", "history": HISTORY}, {"keys": []}):
        write_checkpoint(path, "laboratory run", ARRAYS, json.dumps(notes))
        with pytest.raises(ValueError, match=r"is of another run\. Delete it, or name another file"):
            Checkpoint(path, "print").load(5)
    write_checkpoint(path, "Flower run", ARRAYS, json.dumps({"run": "print"}))
    with pytest.raises(ValueError, match=r"holds a Flower run, not a laboratory run\. Name another file"):
        Checkpoint(path, "print").load(5)
    Checkpoint(path, "print").save(ARRAYS, HISTORY)
    with pytest.raises(ValueError, match="past round 1"):
        Checkpoint(path, "print").load(1)


def test_a_checkpoint_is_its_owners_alone(tmp_path):
    """It holds the seed, which tells who will be asked and what a rule draws."""
    old = os.umask(0o022)
    try:
        write_checkpoint(tmp_path / "run" / "checkpoint.npz", "test run", {}, "{}")
        write_whole(tmp_path / "page" / "page.html", b"")
    finally:
        os.umask(old)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"run": 0o700, "checkpoint.npz": 0o600, "page": 0o755, "page.html": 0o644}
