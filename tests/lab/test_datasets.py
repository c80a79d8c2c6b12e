"""Data sets: the synthesized model, and images from every place, whole and damaged. Mirrors are servers on loopback."""

import gzip
import hashlib
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from fedhold.lab import DataError, balanced, datasets, synthesized
from fedhold.lab.datasets import _Collection, _load

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array):
    """The format as its inventor describes it: magic 0 0 8 axes, big-endian lengths, bytes."""
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


def zipped(data):
    return gzip.compress(data, 1, mtime=0)


def md5(data):
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, shape).astype(np.uint8) for shape in ((7, 28, 28), (7,), (3, 28, 28), (3,))]


@pytest.fixture
def files(arrays):
    return {name: idx(array) for name, array in zip(NAMES, arrays, strict=True)}


class Mirrors:
    """Two mirrors on loopback: what each has, and the paths that were asked for."""

    def __init__(self, address):
        self.urls = tuple(f"http://{address[0]}:{address[1]}/{name}/" for name in ("one", "two"))
        self.has, self.asked = {}, []

    def answer(self, path):
        self.asked.append(path)
        return self.has.get(path)


@pytest.fixture
def mirrors(monkeypatch):
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            data = mirrors.answer(self.path)
            self.send_response(404 if data is None else 200)
            self.send_header("Content-Length", str(len(data or b"")))
            self.end_headers()
            self.wfile.write(data or b"")

        def log_message(self, *_):
            pass

    monkeypatch.setenv("NO_PROXY", "*")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        mirrors = Mirrors(server.server_address)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield mirrors
        server.shutdown()


@pytest.fixture
def tiny(files, mirrors):
    return _Collection("tiny", {name: (md5(one), md5(zipped(one))) for name, one in files.items()}, mirrors.urls)


@pytest.fixture(autouse=True)
def places(monkeypatch, tmp_path):
    """An empty folder of the user's own, and an empty cache."""
    real = os.environ.get("FEDHOLD_DATA")
    monkeypatch.setenv("FEDHOLD_DATA", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return {"own": tmp_path / "own" / "tiny", "cache": tmp_path / "cache" / "fedhold" / "tiny", "real": real}


def put(folder, files, *, as_zipped):
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / (f"{name}.gz" if as_zipped else name)).write_bytes(zipped(data) if as_zipped else data)


def assert_is(images, arrays):
    for samples, (x, y) in zip((images.train, images.test), (arrays[:2], arrays[2:]), strict=True):
        np.testing.assert_allclose(samples.inputs, x.reshape(len(x), 784) / 255, rtol=1e-6)
        np.testing.assert_array_equal(samples.targets, y)
        assert samples.inputs.dtype == np.float32
        assert samples.targets.dtype == np.int64


@pytest.mark.parametrize("as_zipped", [True, False])
@pytest.mark.parametrize("place", ["own", "cache"])
def test_folders_zipped_or_not(place, as_zipped, places, files, tiny, arrays, mirrors):
    put(places[place], files, as_zipped=as_zipped)
    assert_is(_load(tiny), arrays)
    assert mirrors.asked == []


def test_a_mirror_fills_the_cache_and_is_not_asked_again(mirrors, places, files, tiny, arrays):
    """The second one has all files; the first one has one of them, which is then taken from there."""
    mirrors.has = {f"/two/{name}.gz": zipped(data) for name, data in files.items()}
    mirrors.has[f"/one/{NAMES[0]}.gz"] = zipped(files[NAMES[0]])
    assert_is(_load(tiny), arrays)
    assert mirrors.asked == [*(f"/one/{name}.gz" for name in NAMES[:2]), *(f"/two/{name}.gz" for name in NAMES[1:])]
    assert sorted(path.name for path in places["cache"].iterdir()) == sorted(f"{name}.gz" for name in NAMES)
    mirrors.asked.clear()
    assert_is(_load(tiny), arrays)
    assert mirrors.asked == []


def test_a_mirror_that_lies_is_passed_over_and_reported(mirrors, places, files, tiny):
    mirrors.has = {f"/one/{name}.gz": zipped(data) for name, data in files.items()}
    mirrors.has[f"/one/{NAMES[2]}.gz"] = zipped(files[NAMES[2]][:-1] + b"?")
    with pytest.raises(DataError) as caught:
        _load(tiny)
    assert f"{mirrors.urls[0]}: MD5 hash of downloaded file ({NAMES[2]}.gz)" in str(caught.value)
    assert f"{mirrors.urls[1]}: 404" in str(caught.value)
    assert not (places["cache"] / f"{NAMES[2]}.gz").exists()


def test_an_error_lists_all_that_was_tried(places, tiny, mirrors):
    with pytest.raises(DataError) as caught:
        _load(tiny)
    message = str(caught.value)
    tried = ["$FEDHOLD_DATA: no train-images", "cache: no train-images", *mirrors.urls, "set the environment"]
    assert [message.find(word) for word in tried] == sorted(message.find(word) for word in tried)
    assert all(word in message for word in tried)
    assert list(places["cache"].glob("*")) == []


def test_an_unset_variable_is_named(monkeypatch, tiny):
    monkeypatch.delenv("FEDHOLD_DATA")
    with pytest.raises(DataError, match=r"\$FEDHOLD_DATA: not set"):
        _load(tiny)


def test_without_pooch_an_error_says_how_to_install_it(monkeypatch, tiny, mirrors):
    monkeypatch.setitem(sys.modules, "pooch", None)
    with pytest.raises(DataError, match=r"downloads need pooch\. From a checkout of fedhold: pip install '\.\[data\]'"):
        _load(tiny)
    assert mirrors.asked == []


def test_a_cache_that_cannot_be_written_is_said(places, files, tiny, mirrors):
    mirrors.has = {f"/one/{name}.gz": zipped(data) for name, data in files.items()}
    places["cache"].parent.parent.mkdir()
    places["cache"].parent.touch()  # a file where a folder should be
    with pytest.raises(DataError, match=rf"{mirrors.urls[0]}: .*{places['cache'].parent}"):
        _load(tiny)


@pytest.mark.parametrize("harm", ["truncated", "other bytes", "not gzip", "raw and short"])
@pytest.mark.parametrize("place", ["own", "cache"])
def test_a_damaged_file_is_an_error_at_once(place, harm, places, files, tiny, mirrors):
    put(places[place], files, as_zipped=harm != "raw and short")
    name = NAMES[1]
    path = places[place] / (name if harm == "raw and short" else f"{name}.gz")
    damaged = {
        "truncated": path.read_bytes()[:-9],
        "other bytes": zipped(files[name][:-1] + b"!"),
        "not gzip": b"<html>",
        "raw and short": files[name][:-1],
    }
    path.write_bytes(damaged[harm])
    with pytest.raises(DataError, match=rf"{path.name} has MD5 .*, the original .*\. Put the original in its place"):
        _load(tiny)
    assert mirrors.asked == []


REAL = {
    "mnist": (
        [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949],
        [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009],
    ),
    "fashion_mnist": ([6000] * 10, [1000] * 10),
}


@pytest.mark.parametrize("name", REAL)
def test_the_real_thing(name, places, monkeypatch):
    if not places["real"]:
        pytest.skip("set FEDHOLD_DATA to a folder with mnist/ and fashion-mnist/ (four idx .gz files each) to run this")
    monkeypatch.setenv("FEDHOLD_DATA", places["real"])
    images = getattr(datasets, name)()
    for samples, counts in zip((images.train, images.test), REAL[name], strict=True):
        assert samples.inputs.shape == (sum(counts), 784)
        assert np.bincount(samples.targets).tolist() == counts
        assert (samples.inputs.min(), samples.inputs.max()) == (0, 1)


def test_synthesized_is_the_model():
    made = synthesized(np.random.default_rng(0))
    u, v = made.train.inputs, made.train.targets
    assert u.shape == (10_000, 50)
    noise = v - u @ made.truth
    assert np.std(noise) == pytest.approx(1, abs=0.03)
    assert np.std(made.truth) == pytest.approx(1, abs=0.3)
    assert np.std(u) == pytest.approx(1, abs=0.01)


def test_heterogeneous_clients_differ_by_the_variance():
    """Plain data of the same seed plus <U_j, Delta(i)>: solve for Delta(i) and measure it."""
    parts = balanced(20_000, 100, np.random.default_rng(1))
    plain = synthesized(np.random.default_rng(0), samples=20_000, d=10)
    shifted = synthesized(np.random.default_rng(0), samples=20_000, d=10, parts=parts, variance=0.2)
    np.testing.assert_array_equal(plain.train.inputs, shifted.train.inputs)
    u, extra = plain.train.inputs, shifted.train.targets - plain.train.targets
    shifts = np.array([np.linalg.lstsq(u[part], extra[part])[0] for part in parts])
    residual = np.concatenate([extra[part] - u[part] @ shift for part, shift in zip(parts, shifts, strict=True)])
    assert np.abs(residual).max() < 1e-12
    assert shifts.var() == pytest.approx(0.2, rel=0.1)
    assert np.abs(np.corrcoef(shifts[:-1].ravel(), shifts[1:].ravel())[0, 1]) < 0.1


def test_synthesized_errors():
    with pytest.raises(ValueError, match="Pass parts=balanced"):
        synthesized(np.random.default_rng(0), variance=0.2)
    with pytest.raises(ValueError, match="variance"):
        synthesized(np.random.default_rng(0), variance=-1)
