"""CIFAR-10: files as Python 2 pickled them, and files that are missing, damaged, too large or hostile."""

import hashlib
import os
import pickle
import struct

import numpy as np
import pytest

from fedhold.lab import DataError, cifar10, datasets, prepare, scenarios

EACH = 5  # images in a batch; the originals have 10,000


def text(word):
    """A str of Python 2."""
    return b"U" + bytes([len(word)]) + word.encode()


def number(value):
    return b"J" + struct.pack("<i", value)


def pickled(pixels, labels):
    """A batch as the originals are: protocol 2 of Python 2.7, with an array of an old NumPy."""
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + number(0) + b"\x85" + text("b") + b"\x87R"
        b"(" + number(1) + number(pixels.shape[0]) + number(pixels.shape[1]) + b"\x86"
        b"cnumpy\ndtype\n" + text("u1") + number(0) + number(1) + b"\x87R(" + number(3) + text("|") + b"NNN"
        b""
        + number(-1)
        + number(-1)
        + number(0)
        + b"tb\x89T"
        + struct.pack("<i", pixels.size)
        + pixels.tobytes()
        + b"tb"
    )
    classes = b"](" + b"".join(b"K" + bytes([int(label)]) for label in labels) + b"e"
    names = b"](" + b"".join(text(f"photo_s_{k:06}.png") for k in range(len(labels))) + b"e"
    entries = text("batch_label") + text("training batch 1 of 5") + text("labels") + classes
    return b"\x80\x02}(" + entries + text("data") + array + text("filenames") + names + b"u."


@pytest.fixture
def batches(monkeypatch, tmp_path):
    """Six small files whose checksums are those that are wanted, and what is in them."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    held = {}
    for name in datasets.CIFAR10:
        pixels, labels = rng.integers(0, 256, (EACH, 3072)).astype(np.uint8), rng.integers(0, 10, EACH)
        held[name] = pixels, labels
        write(folder / name, pickled(pixels, labels), monkeypatch)
    monkeypatch.setenv("FEDHOLD_DATA", str(tmp_path))
    for kept in (scenarios._prepare, scenarios._images):
        kept.cache_clear()
    yield folder, held
    for kept in (scenarios._prepare, scenarios._images):
        kept.cache_clear()


def write(path, data, monkeypatch):
    path.write_bytes(data)
    monkeypatch.setitem(datasets.CIFAR10, path.name, hashlib.md5(data, usedforsecurity=False).hexdigest())


def test_the_batches_in_their_order(batches):
    images, (_, held) = cifar10(), batches
    *train, test = held.values()
    for samples, parts in ((images.train, train), (images.test, [test])):
        np.testing.assert_array_equal(samples.inputs, np.concatenate([pixels for pixels, _ in parts]))
        np.testing.assert_array_equal(samples.targets, np.concatenate([labels for _, labels in parts]))
        assert (samples.inputs.dtype, samples.targets.dtype) == (np.uint8, np.int64)


@pytest.mark.usefixtures("batches")
def test_in_a_scenario():
    scenario = prepare("cifar10(samples=20, hidden=4)", "balanced", 5, 0)
    assert scenario.shards.counts.tolist() == [4] * 5
    assert scenario.shards.inputs.dtype == np.uint8
    assert scenario.task.d == (3072 + 1) * 4 + (4 + 1) * 10


def test_a_scenario_with_the_first_test_images(batches):
    task = prepare("cifar10(samples=20, tests=3)", "balanced", 5, 0).task
    pixels, labels = batches[1]["test_batch"]
    np.testing.assert_array_equal(task.samples.inputs, pixels[:3])
    np.testing.assert_array_equal(task.samples.targets, labels[:3])
    with pytest.raises(ValueError, match="tests"):
        prepare("cifar10(samples=20, tests=0)", "balanced", 5, 0)


def test_a_file_that_is_not_the_original_is_not_opened(batches, monkeypatch):
    path = batches[0] / "data_batch_3"
    path.write_bytes(path.read_bytes()[:-1])
    monkeypatch.setattr(datasets, "_ArraysOnly", lambda *_, **__: pytest.fail("it was opened"))
    monkeypatch.setattr(datasets, "CIFAR10", {"data_batch_3": datasets.CIFAR10["data_batch_3"]})
    with pytest.raises(DataError, match=r"data_batch_3 has MD5 .*, the original .* Put the original in its place"):
        cifar10()


def test_a_pickle_may_make_arrays_and_nothing_else(batches, monkeypatch, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "harm"),)

    write(batches[0] / "data_batch_1", pickle.dumps(Evil(), protocol=2), monkeypatch)
    with pytest.raises(DataError, match=r"data_batch_1 is not opened: its pickle asks for (posix|nt|os)\.mkdir"):
        cifar10()
    assert not (tmp_path / "harm").exists()


def test_what_is_missing_or_too_large(batches, monkeypatch):
    folder, _ = batches
    with monkeypatch.context() as patch:
        patch.setattr(datasets, "LARGEST_FILE", 1000)
        with pytest.raises(DataError, match=r"data_batch_1 has more than 1,000 bytes"):
            cifar10()
    (folder / "test_batch").unlink()
    with pytest.raises(DataError, match=r"there is no file .*test_batch\. Put the original there"):
        cifar10()
    monkeypatch.setenv("FEDHOLD_DATA", str(folder))
    with pytest.raises(
        DataError, match=r"no folder cifar-10-batches-py in .* Put the files data_batch_1 to .*FEDHOLD_DATA"
    ):
        cifar10()
    monkeypatch.delenv("FEDHOLD_DATA")
    with pytest.raises(DataError, match="FEDHOLD_DATA, which is not set"):
        cifar10()
