"""Updates in files: what is read is what was written, a bad file costs its client alone, a result is whole or not there."""

import contextlib
import glob
import io
import json
import os
import socket
import subprocess
import sys
import tracemalloc
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
import torch
from click.testing import CliRunner
from hypothesis import HealthCheck, example, given, settings
from rich.console import Console
from safetensors.torch import load_file

import fedhold.updates.files
import fedhold.updates.tiles
from cases import assert_refused, honest_updates, parameters
from fedhold import RULES, aggregate, open_update, open_updates, save_update
from fedhold.cli.aggregate import bar, read_samples
from fedhold.cli.app import app
from fedhold.geometry import Geometry
from fedhold.plan import PAIRED
from fedhold.report import ProgressLines
from fedhold.storage import whole_file
from fedhold.updates.files import CODES, DamagedFileError

DTYPES = [np.dtype(code) for code in CODES.values() if code != "bfloat16"]
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)
M, D = 23, 40


def as_dict(vector):
    return {"layer.weight": vector[:35].reshape(5, 7), "layer.bias": vector[35:]}


def store(directory, rows, *, dicts=False):
    """One file per row; the updates that were stored."""
    directory.mkdir(exist_ok=True)
    updates = [as_dict(row) if dicts else row for row in rows]
    for i, update in enumerate(updates):
        save_update(update, directory / f"client{i:03}.{'safetensors' if dicts else 'npy'}")
    return updates


def flat(value):
    return np.concatenate([np.ravel(value[name]) for name in sorted(value)]) if isinstance(value, dict) else value


def safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


# What is read is what was written


@every_dtype
@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4, 5), (0,), (2, 0)], ids=str)
def test_round_trip(tmp_path, dtype, shape):
    array = (100 * np.random.default_rng(0).random(shape)).astype(dtype)
    save_update(array, tmp_path / "a.npy")
    save_update({"x": array, "y": np.arange(3, dtype=np.int8)}, tmp_path / "a.safetensors")
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), array)
    for stored in (open_update(tmp_path / "a.npy"), open_update(tmp_path / "a.safetensors")["x"]):
        assert (stored.shape, stored.dtype) == (shape, dtype.name)
        assert np.asarray(stored).dtype == dtype
        np.testing.assert_array_equal(np.asarray(stored), array)
        part = np.empty(max(array.size - 2, 0))
        stored.read(1, part)
        np.testing.assert_array_equal(part, array.reshape(-1)[1 : 1 + len(part)])


@every_dtype
def test_numpy_writes_what_we_read(tmp_path, dtype):
    array = np.arange(12).reshape(3, 4).astype(dtype.newbyteorder(">"))
    np.save(tmp_path / "a.npy", array)
    stored = open_update(tmp_path / "a.npy")
    assert stored.dtype == dtype.name
    np.testing.assert_array_equal(np.asarray(stored), array)


def test_bfloat16_comes_back_as_bfloat16(tmp_path):
    """It is read as float32, exactly; an aggregate of such files, and a copy of one, are bfloat16 again."""
    values = np.array([1.0, -2.5, 3e38, 2.0**-126, 0.0], np.float32)
    upper = (values.view(np.uint32) >> 16).astype("<u2")
    header = {"x": {"dtype": "BF16", "shape": [5], "data_offsets": [0, 10]}, "__metadata__": {"format": "pt"}}
    for i in range(3):
        (tmp_path / f"{i}.safetensors").write_bytes(safetensors(header, upper.tobytes()))
    result = aggregate(tmp_path, "median")
    assert result.value["x"].dtype == "bfloat16"
    for value in (result.value, open_update(tmp_path / "0.safetensors")):
        np.testing.assert_allclose(np.asarray(value["x"], np.float32), values, rtol=2**-8)
        save_update(value, tmp_path / "again" / "a.safetensors")
        stored = open_update(tmp_path / "again" / "a.safetensors")["x"]
        assert stored.dtype == "bfloat16"
        np.testing.assert_array_equal(np.asarray(stored).view(np.uint32) >> 16, upper)


def test_a_state_dict_of_torch_is_saved_with_gradients_and_bfloat16(tmp_path):
    layer = torch.nn.Linear(3, 2)
    sent = {"weight": layer.weight, "half": layer.weight.detach().bfloat16().T, "steps": torch.tensor(7)}
    assert sent["weight"].requires_grad
    save_update(sent, tmp_path / "a.safetensors")
    written = load_file(tmp_path / "a.safetensors")
    assert all(torch.equal(written[name], array) and written[name].dtype == array.dtype for name, array in sent.items())
    with pytest.raises(TypeError, match="bfloat16"):
        save_update(sent["half"], tmp_path / "a.npy")


def test_safetensors_are_written_as_the_format_says(tmp_path):
    save_update({"b": np.ones(3, np.int8), "a": np.arange(2.0)}, tmp_path / "a.safetensors")
    data = (tmp_path / "a.safetensors").read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert length % 8 == 0
    assert json.loads(data[8 : 8 + length]) == {
        "a": {"dtype": "F64", "shape": [2], "data_offsets": [0, 16]},
        "b": {"dtype": "I8", "shape": [3], "data_offsets": [16, 19]},
    }
    assert data[8 + length :] == np.arange(2.0).tobytes() + b"\x01\x01\x01"


# aggregate() makes of files what it makes of arrays


@pytest.mark.parametrize("dicts", [False, True], ids=["npy", "safetensors"])
@pytest.mark.parametrize("rule", [*RULES, "nearest_neighbour_mixing(f=4) | trimmed_mean(f=4)", "bucketing | krum(f=1)"])
def test_agrees_with_memory(tmp_path, monkeypatch, rule, dicts):
    monkeypatch.setattr(fedhold.updates.tiles, "FILES", 16 * M * 100)  # several slabs
    rows = honest_updates(M, D, dtype=np.float32)
    rows[:4] += 7
    updates = store(tmp_path / "updates", rows, dicts=dicts)
    given = parameters(rule, 4) if rule in RULES else {"rng": 0}
    expected = aggregate(updates, rule, **given)
    for source in (tmp_path / "updates", str(tmp_path / "updates"), sorted((tmp_path / "updates").iterdir())):
        found = aggregate(source, rule, **given)
        assert type(found.value) is type(expected.value)
        assert flat(found.value).dtype == np.float32
        np.testing.assert_allclose(flat(found.value), flat(expected.value), rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(found.clients.distances, expected.clients.distances, rtol=1e-5, atol=1e-5)
        assert found.clients.statuses.tolist() == expected.clients.statuses.tolist()


def test_certificate_start_and_like(tmp_path):
    rows = honest_updates(M, D)
    store(tmp_path, rows)
    updates = open_updates(tmp_path)
    assert aggregate(tmp_path).certificate.radius(3) == pytest.approx(aggregate(rows).certificate.radius(3), rel=1e-5)
    found = aggregate(updates, "centered_clipping", start=updates[3], like=updates[0])
    np.testing.assert_allclose(found.value, aggregate(rows, "centered_clipping", start=rows[3]).value, rtol=1e-9)
    found = aggregate(updates, "fl_trust", root=updates[3])
    np.testing.assert_allclose(found.value, aggregate(rows, "fl_trust", root=rows[3]).value, rtol=1e-9)


def test_numbers_of_all_sizes(tmp_path):
    rows = honest_updates(M, D)
    rows[0], rows[1] = 1e200, 1e-200
    store(tmp_path, rows)
    np.testing.assert_allclose(aggregate(tmp_path).value, aggregate(rows).value, rtol=1e-6)


def test_bytes_read_are_told(tmp_path):
    store(tmp_path, honest_updates(M, D))
    told = []
    aggregate(open_updates(tmp_path, on_read=told.append), "mean")
    assert sum(told) % (M * D * 8) == 0
    assert sum(told) > 0


# A bad file costs its client alone


def npy(array=None, *, cut=0, more=b""):
    file = io.BytesIO()
    np.save(file, np.ones(D) if array is None else array, allow_pickle=True)
    return file.getvalue()[: -cut or None] + more


BAD_NPY = {
    "empty": (b"", "header"),
    "no header": (b"hello", "header"),
    "header cut": (npy()[:20], "header"),
    "numbers cut": (npy(cut=9), "311 bytes of numbers"),
    "too long": (npy(more=b"x"), "321 bytes of numbers"),
    "another shape": (npy(np.ones(D + 1)), "shape (41,), expected (40,)"),
    "not finite": (npy(np.full(D, np.nan)), "not finite"),
    "pickle": (npy(np.array([print] * D)), "object"),
    "text": (npy(np.array(["a"] * D)), "neither float nor integer"),
    "bool": (npy(np.ones(D, bool)), "neither float nor integer"),
    "Fortran": (npy(np.asfortranarray(np.ones((5, 8)))), "Fortran"),
    "negative shape": (npy().replace(b"(40,)", b"(-4,)"), "bytes of numbers"),
    "code for a header": (npy().replace(b"{'descr'", b"exit(1) "), "header"),
}


@pytest.mark.parametrize("bad", BAD_NPY)
def test_bad_npy(tmp_path, bad):
    content, reason = BAD_NPY[bad]
    store(tmp_path, honest_updates(9, D))
    (tmp_path / "client004.npy").write_bytes(content)
    result = aggregate(tmp_path)
    assert result.clients.with_status("rejected") == [4]
    assert reason in result.clients[4].reason
    assert np.isfinite(result.value).all()


def entry(dtype="F64", shape=(2,), offsets=(0, 16)):
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


DATA = np.ones(2).tobytes()
BAD_SAFETENSORS = {
    "empty": (b"", "its header alone has 8"),
    "huge header": (b"\xff" * 20, "the most that is read"),
    "header beyond the file": ((1000).to_bytes(8, "little") + b"{}", "its header alone has"),
    "no JSON": (safetensors(b"{'x': 1}"), "not JSON"),
    "deep": (safetensors(b'{"x":' + b"[" * 100_000), "not JSON"),
    "a list": (safetensors([1]), "not that of"),
    "many arrays": (safetensors({f"{i}": entry("F32", [0], [0, 0]) for i in range(10_001)}), "10,000 are the most"),
    "twice": (safetensors(b'{"x": 1, "x": 2}'), "twice"),
    "no entry": (safetensors({"x": 3}), "dtype None"),
    "dtype": (safetensors({"x": entry("F8_E4M3")}, DATA), "F8_E4M3"),
    "dtype of no kind": (safetensors({"x": entry(["F64"])}, DATA), "dtype"),
    "cut": (safetensors({"x": entry()}, DATA[:-1]), "where its header says"),
    "too long": (safetensors({"x": entry()}, DATA + b"x"), "where its header says"),
    "shape": (safetensors({"x": entry(shape=[3])}, DATA), "does not fit"),
    "negative": (safetensors({"x": entry(shape=[-2, -1])}, DATA), "does not fit"),
    "float shape": (safetensors({"x": entry(shape=[2.0])}, DATA), "does not fit"),
    "overflow": (safetensors({"x": entry(shape=[2**40, 2**40])}, DATA), "does not fit"),
    "backwards": (safetensors({"x": entry(offsets=[16, 0])}, DATA), "does not fit"),
    "overlap": (safetensors({"x": entry(), "y": entry()}, DATA), "overlap"),
    "gap": (safetensors({"x": entry(offsets=[8, 24])}, DATA + DATA), "gap"),
    "another name": (safetensors({"z": entry()}, DATA), "misses ['x']"),
}


@pytest.mark.parametrize("bad", BAD_SAFETENSORS)
def test_bad_safetensors(tmp_path, bad):
    content, reason = BAD_SAFETENSORS[bad]
    for i in range(9):
        save_update({"x": np.full(2, 1 + i / 10)}, tmp_path / f"{i}.safetensors")
    (tmp_path / "4.safetensors").write_bytes(content)
    result = aggregate(tmp_path)
    assert result.clients.with_status("rejected") == [4]
    assert reason in result.clients[4].reason


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["F64", "BF16", "shape"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["x", "__metadata__", "dtype", "shape", "data_offsets"]), inner)
    ),
)
headers = (
    st.binary(max_size=200)
    | anything.map(safetensors)
    | st.builds(
        lambda dtype, shape, offsets, data: safetensors({"x": entry(dtype, shape, offsets)}, data),
        st.sampled_from([*CODES, "BOOL"]),
        st.lists(st.integers(-1, 5), max_size=3),
        st.lists(st.integers(-1, 60), min_size=1, max_size=3),
        st.binary(max_size=60),
    )
)


@given(content=headers)
@example(content=safetensors({"x": entry(offsets=(0, 16))}, DATA))
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused(tmp_path, content):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    (update,) = open_updates([path])
    if isinstance(update, DamagedFileError):
        assert update.reason
        return
    read = sum(array.stand_in.nbytes // (2 if array.dtype == "bfloat16" else 1) for array in update.values())
    assert read == len(content) - 8 - int.from_bytes(content[:8], "little")
    assert all(np.asarray(array).shape == array.shape for array in update.values())


def test_a_file_cut_after_it_was_opened(tmp_path):
    rows = honest_updates(9, D)
    store(tmp_path, rows)
    updates = open_updates(tmp_path)
    os.truncate(updates[4].path, 200)
    updates[6].path.unlink()
    result = aggregate(updates)
    assert result.clients.with_status("rejected") == [4, 6]
    assert "changed since it was opened" in result.clients[4].reason
    assert "cannot be read" in result.clients[6].reason
    np.testing.assert_allclose(result.value, aggregate(rows[[0, 1, 2, 3, 5, 7, 8]]).value, rtol=1e-5)


def test_a_file_changed_later_is_an_error(tmp_path, monkeypatch):
    """Where a certificate has to read files again: the first look at few files has found all that it needs."""
    monkeypatch.setattr(Geometry, "known_residuals", lambda *_: None)
    store(tmp_path, honest_updates(9, D))
    result = aggregate(tmp_path)
    save_update(np.ones(D), tmp_path / "client004.npy")
    with pytest.raises(DamagedFileError, match="changed since it was opened"):
        _ = result.certificate


@pytest.mark.parametrize("rule", ["spectral_huber", "huber", "median_of_means(f=2)", "screen | mean"])
def test_a_file_rewritten_between_two_passes_costs_its_client_the_round(tmp_path, rule):
    """Its size stays, and its time is set back. Each rule reads the files once to look at them, and then again or in parts."""
    rows = honest_updates(9, 3000)
    store(tmp_path, rows)
    path, told, done = tmp_path / "client004.npy", [], []
    before = path.stat()

    def on_read(count):
        told.append(count)
        if not done and sum(told) > rows.nbytes / 2:  # The first pass is under way.
            done.append(True)
            with path.open("r+b") as file:
                file.seek(-8 * 3000, os.SEEK_END)
                file.write(np.full(3000, 1e6).tobytes())
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    result = aggregate(open_updates(tmp_path, on_read=on_read), rule, rng=0)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert result.clients.with_status("rejected") == [4]
    assert "changed since it was opened" in result.clients[4].reason
    less = rule.replace("f=2", "f=1")  # The rejected client is one of the f.
    np.testing.assert_allclose(result.value, aggregate(np.delete(rows, 4, axis=0), less, rng=0).value, atol=1e-6)


def test_a_file_replaced_by_another_is_noticed(tmp_path):
    """The new one has the size and the times of the old one, as far as a client can set them."""
    rows = honest_updates(9, D)
    store(tmp_path, rows)
    updates, path = open_updates(tmp_path), tmp_path / "client004.npy"
    before = path.stat()
    save_update(1e6 * rows[4], path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert aggregate(updates).clients.with_status("rejected") == [4]


def test_a_folder_that_is_written_anew_is_looked_at_once_more_and_not_once_per_file(tmp_path):
    rows = honest_updates(30, D)
    store(tmp_path, rows)
    told = []
    updates = open_updates(tmp_path, on_read=told.append)
    for i in range(10):
        save_update(rows[i], tmp_path / f"client{i:03}.npy")
    assert aggregate(updates, "mean").clients.with_status("rejected") == list(range(10))
    assert sum(told) <= 3 * rows.nbytes


def test_a_file_that_is_being_written_to_is_not_trusted(tmp_path, monkeypatch):
    """Two changes within one tick of the file system's clock look like one, so that a file must rest for a tick."""
    store(tmp_path, honest_updates(9, D))
    waited = []

    def write_meanwhile(seconds):
        waited.append(seconds)
        if len(waited) == 5:
            with (tmp_path / "client004.npy").open("ab") as file:
                file.write(b"more")

    monkeypatch.setattr(fedhold.updates.files, "TICK", 10**12)  # All files are younger than that.
    monkeypatch.setattr(fedhold.updates.files.time, "sleep", write_meanwhile)
    result = aggregate(tmp_path)
    assert waited == [1000.0] * 9
    assert result.clients.with_status("rejected") == [4]
    assert "it is being written to" in result.clients[4].reason


def fifo(path):
    os.mkfifo(path)


def socket_file(path):
    with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(path.parent):  # Names of sockets must be short.
        bound.bind(path.name)


ODD_FILES = {
    "FIFO": (fifo, "client004.npy", "it is a FIFO, and no regular file"),
    "socket": (socket_file, "client004.npy", "it is a socket, and no regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "client004.npy", "it is a device, and no regular file"),
    "directory": (Path.mkdir, "client004.npy", "it is a directory, and no regular file"),
    "dangling link": (lambda path: path.symlink_to("nowhere.npy"), "client004.npy", "No such file"),
    "link to itself": (lambda path: path.symlink_to(path.name), "client004.npy", "symbolic links"),
    "link to a FIFO": (
        lambda path: (os.mkfifo(path.with_name(".fifo")), path.symlink_to(".fifo")),
        "client004.npy",
        "it is a FIFO",
    ),
    "stray extension": (Path.touch, "client004.txt", "neither in .npy nor in .safetensors"),
    "no extension": (Path.touch, "client004", "neither in .npy nor in .safetensors"),
    "the other kind": (
        lambda path: save_update({"x": np.ones(D)}, path),
        "client004.safetensors",
        "misses the array itself",
    ),
    "hidden size": (
        lambda path: path.write_bytes(b"\x93NUMPY\x02\x00\xff\xff\xff\x7f" + bytes(2**17)),
        "client004.npy",
        "header",
    ),
}


@pytest.mark.parametrize("odd", ODD_FILES)
def test_an_odd_file_costs_its_client_the_round(tmp_path, odd):
    """From a process of its own, which a FIFO that is opened to be read would stop for ever."""
    make, name, reason = ODD_FILES[odd]
    rows = honest_updates(9, D)
    store(tmp_path / "in", rows)
    (tmp_path / "in" / "client004.npy").unlink()
    make(tmp_path / "in" / name)
    out, report = tmp_path / "out.npy", tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, "-m", "fedhold", "aggregate", tmp_path / "in", "--out", out, "--report", report],
        **{"capture_output": True, "text": True, "timeout": 120},
    )
    assert (done.returncode, done.stderr) == (0, "")
    clients = json.loads(report.read_text())["clients"]
    assert [row["file"] for row in clients if row["status"] == "rejected"] == [name]
    assert reason in clients[4]["reason"]
    np.testing.assert_allclose(np.load(out), aggregate(np.delete(rows, 4, axis=0)).value, rtol=1e-5)


def test_a_listed_file_that_has_vanished_costs_its_client_the_round(tmp_path):
    store(tmp_path, honest_updates(9, D))
    paths = sorted(tmp_path.iterdir())
    paths[4].unlink()
    assert aggregate(paths).clients.with_status("rejected") == [4]
    with pytest.raises(DamagedFileError, match="No such file"):
        open_update(paths[4])


def test_nobody_left(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.npy").write_bytes(b"nothing")
    assert_refused(ValueError, "all 3 clients were rejected", "header", call=lambda: aggregate(tmp_path))


# A call that cannot work


def test_directories_that_hold_no_updates(tmp_path):
    assert_refused(ValueError, "holds no files", call=lambda: aggregate(tmp_path))
    assert_refused(ValueError, "holds no files", call=lambda: open_updates([]))
    assert_refused(FileNotFoundError, "nowhere", call=lambda: open_updates(tmp_path / "nowhere"))
    (tmp_path / ".hidden").touch()
    store(tmp_path, honest_updates(3, D))
    assert len(open_updates(tmp_path)) == 3
    assert_refused(ValueError, "all 1 clients", "No such file", call=lambda: aggregate([tmp_path / "nowhere.npy"]))
    assert_refused(TypeError, "single file", call=lambda: aggregate(open_update(tmp_path / "client000.npy")))


def test_paths_may_be_text(tmp_path):
    rows = honest_updates(3, D)
    store(tmp_path, rows)
    paths = sorted(glob.glob(str(tmp_path / "*.npy")))
    np.testing.assert_allclose(aggregate(paths, "mean").value, aggregate(rows, "mean").value, rtol=1e-14)
    # Text among updates is what one client has sent, and no path.
    result = aggregate([*rows, paths[0]], "mean")
    assert result.clients[3].reason == "str is not an array"


# A result is whole or not there


@pytest.mark.parametrize("problem", [KeyboardInterrupt, OSError, MemoryError])
@pytest.mark.parametrize("before", [None, b"old"])
def test_an_interrupted_save_leaves_nothing(tmp_path, monkeypatch, problem, before):
    path = tmp_path / "result.npy"
    if before is not None:
        path.write_bytes(before)

    def interrupted(_):
        raise problem

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(problem):
        save_update(np.ones(10), path)
    assert [file.read_bytes() for file in tmp_path.iterdir()] == ([] if before is None else [before])


def test_a_file_is_there_at_the_end_only(tmp_path):
    with whole_file(tmp_path / "a" / "b") as file:
        file.write(b"some")
        assert not (tmp_path / "a" / "b").exists()
    assert (tmp_path / "a" / "b").read_bytes() == b"some"


@pytest.mark.parametrize(
    ("value", "name", "kind", "word"),
    [
        (np.ones(3), "a.safetensors", ValueError, ".npy for an array"),
        ({"a": np.ones(3)}, "a.npy", ValueError, ".safetensors for a dict"),
        (np.ones(3), "a.txt", ValueError, ".npy for an array"),
        (np.ones(3, complex), "a.npy", TypeError, "complex128"),
        ({1: np.ones(3)}, "a.safetensors", TypeError, "[1]"),
        ([{}, 3], "a.npy", TypeError, "object"),
    ],
)
def test_what_cannot_be_saved(tmp_path, value, name, kind, word):
    with pytest.raises(kind) as problem:
        save_update(value, tmp_path / name)
    assert word in str(problem.value)
    assert not list(tmp_path.iterdir())


# The command


def run(*arguments):
    result = CliRunner().invoke(app, ["aggregate", *map(str, arguments)], env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.parametrize("dicts", [False, True], ids=["npy", "safetensors"])
def test_command(tmp_path, dicts):
    rows = honest_updates(30, D)
    updates = store(tmp_path / "in", rows, dicts=dicts)
    suffix = "safetensors" if dicts else "npy"
    (tmp_path / "in" / f"client007.{suffix}").write_bytes(b"damaged")
    claims = {f"client{i:03}.{suffix}": 50 + i for i in range(30)}
    (tmp_path / "samples.json").write_text(json.dumps(claims))
    (tmp_path / "samples.csv").write_text("file,samples\n" + "".join(f"{name},{n}\n" for name, n in claims.items()))
    kept = [i for i in range(30) if i != 7]
    expected = aggregate([updates[i] for i in kept], "krum(f=3)", samples=[50 + i for i in kept])
    for samples in ("samples.json", "samples.csv"):
        out, report = tmp_path / f"out.{suffix}", tmp_path / "report.json"
        told = run(
            *(tmp_path / "in", "--rule", "krum(f=3)", "--out", out),
            *("--samples", tmp_path / samples, "--report", report),
        )
        assert told.exit_code == 0, told.output
        assert f"client007.{suffix}" in told.output.splitlines()[4]
        assert "rejected" in told.output
        found = open_update(out)
        value = {name: np.asarray(array) for name, array in found.items()} if dicts else np.asarray(found)
        np.testing.assert_array_equal(flat(value), flat(expected.value))
        clients = json.loads(report.read_text())["clients"]
        assert [row["file"] for row in clients] == list(claims)
        assert [row["samples"] for row in clients] == list(claims.values())
        assert [row["status"] for row in clients].count("kept") == 1


def test_command_with_files(tmp_path):
    rows = honest_updates(5, D)
    store(tmp_path, rows)
    told = run(*sorted(tmp_path.iterdir()), "--out", tmp_path / "mean.npy", "--rule", "mean")
    assert told.exit_code == 0, told.output
    np.testing.assert_allclose(np.load(tmp_path / "mean.npy"), rows.mean(axis=0))


def test_command_says_what_to_do(tmp_path):
    store(tmp_path / "in", honest_updates(5, D))
    (tmp_path / "samples.json").write_text("[1, 2]")
    (tmp_path / "few.csv").write_text("client000.npy,3\n")
    for arguments, word in (
        ([tmp_path / "in", "--rule", "hubr"], "Did you mean 'huber'?"),
        ([tmp_path / "in", "--rule", "krum"], "krum needs f"),
        ([tmp_path / "in", "--rule", "krum(f=2)"], "m >= 2f + 3"),
        ([tmp_path / "in", "--out", tmp_path / "out.safetensors"], "must end in .npy"),
        ([tmp_path / "in", "--out", tmp_path / "in" / "out.npy"], "among the updates"),
        ([tmp_path / "in", "--samples", tmp_path / "samples.json"], "2 samples for 5 files"),
        ([tmp_path / "in", "--samples", tmp_path / "few.csv"], "no samples for client001.npy"),
        ([tmp_path / "in", "--samples", tmp_path / "none.csv"], "cannot be read"),
        ([tmp_path / "nowhere"], "does not exist"),
    ):
        told = run("--out", tmp_path / "out.npy", *arguments)
        assert told.exit_code == 2, told.output
        assert word in " ".join(told.output.split())
        assert not (tmp_path / "out.npy").exists()


def test_command_when_the_disk_is_full(tmp_path, monkeypatch):
    store(tmp_path / "in", honest_updates(5, D))

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    told = run(tmp_path / "in", "--out", tmp_path / "out.npy")
    assert told.exit_code == 1
    assert "No space left" in told.output
    assert not (tmp_path / "out.npy").exists()


def test_samples_that_are_no_numbers_are_an_error_at_once(tmp_path):
    (tmp_path / "samples.csv").write_text("a.npy,many\nb.npy,3\n")
    with pytest.raises(ValueError, match=r"the n_i of a\.npy"):
        read_samples(tmp_path / "samples.csv", ["a.npy", "b.npy"])


@pytest.mark.parametrize(("patience", "shown"), [(0.0, True), (60.0, False)])
def test_bar(patience, shown):
    screen = io.StringIO()
    with bar(100, Console(file=screen, force_terminal=True), patience) as on_read:
        for _ in range(15):
            on_read(10)
    assert ("reading, time 2" in screen.getvalue()) == shown


def test_lines_instead_of_a_bar_where_nobody_looks_at_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("fedhold.cli.aggregate.ProgressLines", lambda: ProgressLines(every=0))
    with bar(100, Console(file=io.StringIO()), 0.0) as on_read:
        for _ in range(3):
            on_read(40)
    assert capsys.readouterr().err.splitlines() == [
        "reading, time 1: 40%",
        "reading, time 1: 80%",
        "reading, time 2: 20%",
    ]


@pytest.mark.parametrize(
    ("rule", "most"), [("huber", 2.1), ("krum(f=2)", 1.2), ("median", 1.0), ("trimmed_mean(f=2)", 1.0)]
)
def test_files_are_read_as_seldom_as_promised(tmp_path, rule, most):
    """A pass each to learn and to verify; a sample of the columns, and the rows Krum chooses, come on top."""
    rows = honest_updates(20, 50_000).astype(np.float32)
    store(tmp_path, rows)
    told = []
    result = aggregate(open_updates(tmp_path, on_read=told.append), rule)
    assert sum(told) <= most * rows.nbytes
    np.testing.assert_allclose(result.value, aggregate(rows, rule).value, atol=1e-5)


def test_many_clients_take_no_memory_for_all_their_pairs(tmp_path):
    """The products of all pairs would take a thousand times the memory of the data."""
    rows = honest_updates(PAIRED + 500, 4, dtype=np.float32)
    for i, row in enumerate(rows):
        np.save(tmp_path / f"{i:04}.npy", row)
    updates = open_updates(tmp_path)
    tracemalloc.start()
    try:
        result = aggregate(updates)
        assert tracemalloc.get_traced_memory()[1] < 8 * len(rows) ** 2 / 2
    finally:
        tracemalloc.stop()
    np.testing.assert_allclose(result.value, aggregate(rows).value, atol=1e-5)


def test_products_of_all_pairs_are_added_up_while_a_part_is_read(tmp_path, monkeypatch):
    """A list of one m x m matrix for every few columns could be larger than the data."""
    monkeypatch.setattr(fedhold.updates.tiles, "FILES", 16 * 200 * 16)
    rows = honest_updates(200, 1600, dtype=np.float32)
    for i, row in enumerate(rows):
        np.save(tmp_path / f"{i:04}.npy", row)
    updates = open_updates(tmp_path)
    tracemalloc.start()
    try:
        aggregate(updates, "krum", f=10)
        assert tracemalloc.get_traced_memory()[1] < rows.nbytes + 15 * 8 * len(rows) ** 2
    finally:
        tracemalloc.stop()
