"""Files that appear whole or not at all, and the one kind of checkpoint that both the laboratory and Flower runs write."""

import io
import json
import pickle

import numpy as np
import pytest

from fedhold.storage import Checkpoint, DamagedCheckpointError, read_checkpoint, whole_file, write_checkpoint

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
    changed = [data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :] for at in range(len(data))]
    complaints = []
    for damaged in [*changed, *(data[:at] for at in range(len(data)))]:
        path.write_bytes(damaged)
        try:
            holds_what_was_written(path)  # what changed was a date, say, that nobody reads
        except DamagedCheckpointError as problem:
            complaints.append(str(problem))
    assert len(complaints) > 1.5 * len(data)
    assert all("Put back a copy of it, or delete it" in complaint for complaint in complaints)


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
        with whole_file(path, sync=True) as file:
            file.write(b"half of ")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    holds_what_was_written(path)
    assert [file.name for file in path.parent.iterdir()] == [path.name]


# The laboratory's runs

HISTORY = [{"round": 1, "loss": 0.5}, {"round": 2, "loss": float("inf")}]


def old_file(notes):
    """A checkpoint as holdfast wrote it: without a header."""
    file = io.BytesIO()
    np.savez(file, notes=np.frombuffer(json.dumps(notes).encode(), np.uint8), **ARRAYS)
    return file.getvalue()


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


def test_a_run_of_the_laboratory_under_the_old_name_goes_on(tmp_path):
    path = tmp_path / "run"
    path.write_bytes(old_file({"run": "print", "history": HISTORY}))
    arrays, history = Checkpoint(path, "print").load(5)
    assert history == HISTORY
    np.testing.assert_array_equal(arrays["w"], ARRAYS["w"])


def test_the_laboratory_refuses_other_runs(tmp_path):
    path = tmp_path / "run"
    for data in (old_file({"run": "other", "history": HISTORY}), old_file({"format": 1, "run": "uuid", "keys": []})):
        path.write_bytes(data)
        with pytest.raises(ValueError, match=r"is of another run\. Delete it, or name another file"):
            Checkpoint(path, "print").load(5)
    write_checkpoint(path, "Flower run", ARRAYS, json.dumps({"run": "print"}))
    with pytest.raises(ValueError, match=r"holds a Flower run, not a laboratory run\. Name another file"):
        Checkpoint(path, "print").load(5)
    Checkpoint(path, "print").save(ARRAYS, HISTORY)
    with pytest.raises(ValueError, match="past round 1"):
        Checkpoint(path, "print").load(1)
