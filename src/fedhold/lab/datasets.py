"""Samples to learn from: the paper's synthesized regression, MNIST, Fashion-MNIST and CIFAR-10.

MNIST and Fashion-MNIST are read from the first of these places that has all of their files; every file must have the MD5 of
the original:

    $FEDHOLD_DATA/mnist, $FEDHOLD_DATA/fashion-mnist   the four idx files, gzipped or not
    the user's cache, ~/.cache/fedhold                 what pooch (the extra `data`) has fetched from a public mirror

CIFAR-10 is read from $FEDHOLD_DATA/cifar-10-batches-py, the folder that its archive for Python unpacks to, and is not
downloaded. There is a binary version without pickles, too; but this one is what torchvision leaves on disks, and its files have
known checksums. A pickle is opened only if it is the original, and by a reader that can make arrays and nothing else.
"""

import gzip
import hashlib
import io
import os
import pickle
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import integer, positive
from fedhold.kernels import Vector


@dataclass(frozen=True, eq=False)
class Samples:
    """inputs (N, p) and one target each: (N,) floats for regression, int64 classes for classification."""

    inputs: NDArray[Any]
    targets: NDArray[Any]

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, eq=False)
class Regression:
    """Samples of a linear model, and the true w* behind them."""

    train: Samples
    truth: Vector


@dataclass(frozen=True, eq=False)
class Images:
    """Images as rows of pixels, with their classes 0..9: float32 in [0, 1], or bytes, where 0 to 255 stands for 0 to 1."""

    name: str
    train: Samples
    test: Samples


class DataError(RuntimeError):
    """No place has the data set, or a file of it is damaged."""


def synthesized(
    rng: np.random.Generator,
    *,
    samples: int = 10_000,
    d: int = 50,
    parts: Sequence[NDArray[np.intp]] | None = None,
    variance: float = 0.0,
) -> Regression:
    """Linear regression with standard normal noise; with a variance, every client has a slightly different true model.

    V_j = <U_j, w* + Delta(i)> + W_j for the samples j of client i, with U_j, w*, W_j ~ N(0, 1) and
    Delta(i) ~ N(0, variance) in every coordinate. Plain and heterogeneous data of one seed share U, w* and W.

    rng       the generator that everything is drawn from
    samples   the number of samples
    d         the number of coordinates of w*
    parts     the indices of every client's samples, as a function of PARTITIONS returns them
    variance  of the clients' own models around w*; needs `parts` where it is above 0

    Paper, sections 7.1 and 7.4; it does not say how U is distributed, nor whether its N(0, 0.2) names the variance or the
    standard deviation (for the latter, pass its square).

    >>> synthesized(np.random.default_rng(0), samples=6, d=2).train.inputs.shape
    (6, 2)
    """
    samples, d = integer(samples, "samples", at_least=1), integer(d, "d", at_least=1)
    variance = positive(variance, "variance", zero=True)
    truth = rng.standard_normal(d)
    inputs = rng.standard_normal((samples, d))
    targets = inputs @ truth + rng.standard_normal(samples)
    if variance > 0:
        if parts is None:
            raise ValueError("variance > 0 needs the clients' samples. Pass parts=balanced(samples, m, rng).")
        for part in parts:
            targets[part] += inputs[part] @ (np.sqrt(variance) * rng.standard_normal(d))
    return Regression(Samples(inputs, targets), truth)


def mnist() -> Images:
    """60,000 training and 10,000 test images of handwritten digits, 28 x 28.

    Raises DataError, with everything that was tried, where no place has them.  LeCun, Cortes, Burges 1998.
    """
    return _load(MNIST)


def fashion_mnist() -> Images:
    """60,000 training and 10,000 test images of clothes, 28 x 28.

    Raises DataError, with everything that was tried, where no place has them.  Xiao, Rasul, Vollgraf 2017.
    """
    return _load(FASHION_MNIST)


def cifar10() -> Images:
    """50,000 training and 10,000 test photographs of ten kinds of things, 32 x 32 in three colours.

    A row has 3,072 bytes: the red pixels of the image row by row, then the green and the blue ones; 0 to 255 stands for 0 to 1.

    Raises DataError where a file is missing or is not the original.  Krizhevsky 2009.
    """
    folder = data_folder(
        "cifar-10-batches-py", "the files data_batch_1 to data_batch_5 and test_batch of cifar-10-python.tar.gz"
    )
    batches = [_cifar_batch(folder / name, md5) for name, md5 in CIFAR10.items()]
    train = Samples(*(np.concatenate(parts) for parts in zip(*batches[:-1], strict=True)))
    return Images("cifar10", train, Samples(*batches[-1]))


def _cifar_batch(path: Path, md5: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Pixels and classes of one file, which is unpickled only if it is the original."""
    data = read_original(path, md5)
    try:
        batch = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()  # written by Python 2, whose texts are bytes
    except pickle.UnpicklingError as reason:
        raise DataError(f"{path} is not opened: {reason}. Put the original in its place.") from None
    return batch[b"data"], np.array(batch[b"labels"], dtype=np.int64)


def data_folder(name: str, contents: str) -> Path:
    """The folder of this name in $FEDHOLD_DATA; a DataError that says what to put there where there is none.

    name      of the folder
    contents  what it holds, for the error
    """
    own = os.environ.get("FEDHOLD_DATA")
    folder = Path(own or "") / name
    if not own or not folder.is_dir():
        where = f"in {own}" if own else "in $FEDHOLD_DATA, which is not set"
        raise DataError(
            f"there is no folder {name} {where}. Put {contents} into a folder of this name, and set the environment variable "
            "FEDHOLD_DATA to the folder above it."
        )
    return folder


def read_within(path: Path, most: int) -> bytes:
    """The bytes of a file; a DataError where there is none, or it is larger than `most` bytes.

    path  the file
    most  bytes, beyond which it is none of ours: it is not read into memory
    """
    if not path.is_file():  # A FIFO would keep us waiting for ever.
        raise DataError(f"there is no file {path}. Put the original there.")
    try:
        with path.open("rb") as file:
            data = file.read(most + 1)
    except OSError as reason:
        raise DataError(f"cannot read {path}: {reason.strerror}. Make it readable.") from None
    if len(data) > most:
        raise DataError(f"{path} has more than {most:,} bytes, the most that is read. Put the original in its place.")
    return data


def read_original(path: Path, md5: str) -> bytes:
    """The bytes of a file; a DataError where they do not have this MD5.

    path  the file
    md5   of the original
    """
    data = read_within(path, LARGEST_FILE)
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != md5:
        raise DataError(f"{path} has MD5 {found}, the original {md5}. Put the original in its place.")
    return data


class _ArraysOnly(pickle.Unpickler):
    """Loads pickles that name nothing but the functions that make arrays: a pickle may call anything it names."""

    # The public way to the function that rebuilds a pickled array; where NumPy keeps it differs between versions.
    ALLOWED: Mapping[str, Any] = {"_reconstruct": np.empty(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in self.ALLOWED:
            return self.ALLOWED[name]
        raise pickle.UnpicklingError(f"its pickle asks for {module}.{name}")


@dataclass(frozen=True)
class _Collection:
    """A data set of four idx files: train images and labels, test images and labels, in this order.

    files  name -> the MD5 of the file, and that of the gzipped file that mirrors have
    """

    folder: str
    files: Mapping[str, tuple[str, str]]
    mirrors: tuple[str, ...]


def _load(collection: _Collection) -> Images:
    """The collection from the user's folder or the cache, which is filled where neither has it."""
    own = os.environ.get("FEDHOLD_DATA")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedhold" / collection.folder
    places = {"$FEDHOLD_DATA": Path(own) / collection.folder if own else None, "cache": cache}
    folder = next((place for place in places.values() if place and not _missing(place, collection)), None)
    if folder is None:
        reasons = {name: _missing(place, collection) if place else "not set" for name, place in places.items()}
        _download(collection, cache, [f"{name}: {reason}" for name, reason in reasons.items()])
        folder = cache
    arrays = (_read(_path(folder, name), *sums) for name, sums in collection.files.items())
    images, labels, test_images, test_labels = arrays
    return Images(collection.folder, _samples(images, labels), _samples(test_images, test_labels))


def _path(folder: Path, name: str) -> Path:
    """The file, gzipped or not; the name of the gzipped one where there is neither."""
    zipped, plain = folder / f"{name}.gz", folder / name
    return plain if plain.is_file() and not zipped.is_file() else zipped


def _missing(folder: Path, collection: _Collection) -> str:
    """Which file a folder lacks; "" where it has all."""
    paths = (_path(folder, name) for name in collection.files)
    return next((f"no {path.name} in {folder}" for path in paths if not path.is_file()), "")


def _download(collection: _Collection, cache: Path, tried: list[str]) -> None:
    """Fill the cache from the first mirror that has all files; a DataError with all that was tried where none has."""
    try:
        import pooch
    except ImportError:
        tried.append("mirrors: downloads need pooch. From a checkout of fedhold: pip install '.[data]'")
    else:
        for url in collection.mirrors:
            try:
                for name, (_, md5) in collection.files.items():
                    fetch = pooch.HTTPDownloader(timeout=TIMEOUT)
                    pooch.retrieve(f"{url}{name}.gz", f"md5:{md5}", f"{name}.gz", cache, downloader=fetch)
            except (OSError, ValueError) as reason:  # no answer, or no place for it; another checksum
                tried.append(f"{url}: {reason}")
            else:
                return
    wanted = ", ".join(f"{name}.gz" for name in collection.files)
    raise DataError(
        f"{collection.folder} was found nowhere. Tried, in this order:\n  " + "\n  ".join(tried) + "\n"
        f"Put {wanted} into a folder named {collection.folder} and set the environment variable FEDHOLD_DATA to the "
        "folder above it."
    )


def _read(path: Path, md5: str, md5_zipped: str) -> NDArray[np.uint8]:
    """The array in a file: two zeros, 8 for bytes, the number of axes, their lengths as big-endian integers, then the bytes."""
    zipped = path.suffix == ".gz"
    data = read_original(path, md5_zipped if zipped else md5)
    data = gzip.decompress(data) if zipped else data
    axes = data[3]
    shape = struct.unpack_from(f">{axes}I", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _samples(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Samples:
    inputs = images.reshape(len(images), -1).astype(np.float32)
    inputs /= 255
    return Samples(inputs, labels.astype(np.int64))


TIMEOUT = 20.0  # seconds without an answer after which the next mirror is asked
LARGEST_FILE = 2**26  # bytes; the largest original has 47 million
MNIST = _Collection(
    "mnist",
    {
        "train-images-idx3-ubyte": ("6bbc9ace898e44ae57da46a324031adb", "f68b3c2dcbeaaa9fbdd348bbdeb94873"),
        "train-labels-idx1-ubyte": ("a25bea736e30d166cdddb491f175f624", "d53e105ee54ea40749a09fcbcd1e9432"),
        "t10k-images-idx3-ubyte": ("2646ac647ad5339dbf082846283269ea", "9fb629c4189551a2d022fa330f9573f3"),
        "t10k-labels-idx1-ubyte": ("27ae3e4e09519cfbb04c329615203637", "ec29112dd5afa0611ce80d1b7f02629c"),
    },
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
)
FASHION_MNIST = _Collection(
    "fashion-mnist",
    {
        "train-images-idx3-ubyte": ("f4a8712d7a061bf5bd6d2ca38dc4d50a", "8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        "train-labels-idx1-ubyte": ("9018921c3c673c538a1fc5bad174d6f9", "25c81989df183df01b3e8a0aad5dffbe"),
        "t10k-images-idx3-ubyte": ("8181f5470baa50b63fa0f6fddb340f0a", "bef4ecab320f06d8554ea6380940ec79"),
        "t10k-labels-idx1-ubyte": ("15d484375f8d13e6eb1aabb0c3f46965", "bb300cfdad3c16e7a12a480ee83cd310"),
    },
    (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
    ),
)
CIFAR10 = {  # the MD5 of each file; the last one is to test on
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
