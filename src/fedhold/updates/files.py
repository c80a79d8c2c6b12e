"""Updates on disk: arrays in .npy and .safetensors files, read a part at a time, and written whole or not at all.

Files are read, not mapped into memory: mapped pages count as resident memory, and if a mapped file is cut short, the process
is killed. No file stays open, so there may be more clients than a process may open files.
"""

from __future__ import annotations

import io
import json
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedhold.errors import listed, visible
from fedhold.kernels import BFLOAT16, between, dtype_name, host, narrowed, to_host, widened
from fedhold.sizes import TILE
from fedhold.storage import whole_file
from fedhold.updates.mistakes import mistake

__all__ = [
    "CODES",
    "DamagedFileError",
    "StoredArray",
    "Told",
    "open_update",
    "open_updates",
    "opened",
    "part_of",
    "paths_of",
    "save_update",
    "without_damaged",
]

CODES = {
    **{"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "bfloat16"},
    **{"I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1"},
    "BOOL": "|b1",
}
"""The .safetensors dtypes that can be read, and NumPy's codes for them."""

LONGEST_HEADER = 2**22  # bytes, enough for tens of thousands of arrays. A hostile file must not cost more memory.
LONGEST_NPY_HEADER = 2**16  # bytes; NumPy itself reads no more than 10,000 of them
MOST_ARRAYS = 10_000  # The largest language models have some thousands.
MOST_AXES, LONGEST_AXIS = 32, 2**48  # No array of a model comes near these.
KINDS = (".npy", ".safetensors")
TICK = 20_000_000  # nanoseconds. The clock that stamps files moves in steps of at most 10 ms.
NAMES = {code: name for name, code in CODES.items()}

Told = Callable[[int], None]
"""A function that is called with the number of bytes after every read, by the thread that has read them."""


class DamagedFileError(ValueError):
    """A file that does not hold what its header says. In a list of updates it stands for its client, which is then rejected."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{visible(path)}: {reason}. Write the file anew, or leave it out.")
        self.path, self.reason = path, reason


class Stamp(NamedTuple):
    """What changes when a file is written to or replaced by another.

    Whoever may write to a file can also set the time of its last change back, but not the time of that: `status_changed`.
    """

    device: int
    inode: int
    size: int
    changed: int
    status_changed: int


@dataclass(frozen=True)
class StoredArray:
    """An array in a file, of which only the header has been read.

    path     the file
    offset   where the numbers begin in it, in bytes
    shape    the shape of the array
    code     NumPy's code for its dtype, or 'bfloat16', which NumPy lacks
    stamp    of the file when it was opened; if it has changed, the file is not what was admitted
    on_read  called with the number of bytes after every read
    """

    path: Path
    offset: int
    shape: tuple[int, ...]
    code: str
    stamp: Stamp
    on_read: Told | None = field(default=None, repr=False, compare=False)

    @property
    def dtype(self) -> str:
        """The name of the dtype, in the machine's byte order."""
        return self.code if self.code == "bfloat16" else np.dtype(self.code).newbyteorder("=").name

    @property
    def stand_in(self) -> NDArray[Any]:
        """Zeros of this shape and dtype that take no memory (for bfloat16, float32 where ml_dtypes is not installed)."""
        return np.broadcast_to(np.zeros((), _bfloat16() if self.code == "bfloat16" else self.dtype), self.shape)

    def read(self, start: int, out: NDArray[Any]) -> None:
        """Fill the one-dimensional array `out` with the numbers from `start` on."""
        stored = np.dtype("<u2" if self.code == "bfloat16" else self.code)
        direct = out.dtype == stored and out.flags.c_contiguous
        raw = out if direct else np.empty(len(out), stored)
        self._fill(raw.view(np.uint8).data, self.offset + start * stored.itemsize)
        if self.code == "bfloat16":
            out[:] = widened(raw.astype(np.uint16, copy=False).view(BFLOAT16))
        elif stored.kind == "b":
            # A file may hold any byte; what NumPy makes of those beyond 0 and 1 is not defined.
            out[:] = raw.view(np.uint8) != 0
        elif not direct:
            out[:] = to_host(raw, None)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """The whole array in memory, for callers that need all of it; bfloat16 as float32."""
        if copy is False:
            raise ValueError(f"{self.path} is on disk: an array of it is a copy. Leave copy=False out.")
        numbers = np.empty(prod(self.shape), "float32" if self.code == "bfloat16" else self.dtype)
        self.read(0, numbers)
        return numbers.reshape(self.shape).astype(dtype or numbers.dtype, copy=False)

    def verify(self) -> None:
        """Raise DamagedFileError if the file is not the one that was opened, or cannot be opened any more."""
        with _regular_file(self.path) as file:
            self._verify(file)

    def _verify(self, file: io.FileIO) -> None:
        if _stamp(file) != self.stamp:
            raise DamagedFileError(self.path, "it has changed since it was opened")

    def _fill(self, buffer: memoryview, offset: int) -> None:
        with _regular_file(self.path) as file:
            file.seek(offset)
            done = 0
            while done < len(buffer) and (got := file.readinto(buffer[done:])):
                done += got
            self._verify(file)  # It is asked for after the read, because the file may be written to at any moment.
            if done < len(buffer):
                raise DamagedFileError(self.path, "it ends before its numbers do")
            if hasattr(os, "posix_fadvise"):  # The disk reads on ahead while we compute.
                os.posix_fadvise(file.fileno(), offset + done, done, os.POSIX_FADV_WILLNEED)
        if self.on_read is not None:
            self.on_read(len(buffer))


def part_of(array: Any, start: int, stop: int) -> NDArray[Any]:
    """The numbers from start to stop of an array on disk or of any library, in its own dtype; bfloat16 as float32."""
    if isinstance(array, StoredArray):
        numbers = np.empty(stop - start, "float32" if array.code == "bfloat16" else array.dtype)
        array.read(start, numbers)
        return numbers
    return to_host(host(between(array, start, stop)), None)


@cache
def _bfloat16() -> np.dtype[Any]:
    """The dtype of bfloat16 that NumPy lacks and ml_dtypes has, or float32."""
    try:
        import ml_dtypes
    except ImportError:
        return np.dtype("float32")
    return np.dtype(ml_dtypes.bfloat16)


@contextmanager
def _regular_file(path: Path) -> Iterator[io.FileIO]:
    """Open a file to read it, without a buffer; DamagedFileError where it cannot be read, or is none that ends.

    A FIFO would wait for a writer for ever, and to open some devices does something to them.
    """
    try:
        _require_regular(path, os.stat(path))
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        with io.FileIO(os.open(path, flags)) as file:
            _require_regular(path, os.fstat(file.fileno()))  # Another file may have taken its place meanwhile.
            yield file
    except OSError as problem:
        raise DamagedFileError(path, f"it cannot be read: {problem.strerror}") from None


def _require_regular(path: Path, status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        kinds = {stat.S_IFDIR: "a directory", stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket"}
        raise DamagedFileError(path, f"it is {kinds.get(stat.S_IFMT(status.st_mode), 'a device')}, and no regular file")


def open_update(path: str | os.PathLike[str], *, on_read: Told | None = None) -> StoredArray | dict[str, StoredArray]:
    """Open the array of a .npy file, or the arrays of a .safetensors file by name; their numbers stay on disk.

    path     a .npy or .safetensors file
    on_read  called with the number of bytes after every read, by the thread that has read them; None calls nothing

    Raises DamagedFileError where the file is missing, no regular file, not what its header says, being written to, or holds a
    dtype that cannot be aggregated.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from fedhold import open_update, save_update
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = Path(directory) / "client.safetensors"
    ...     save_update({"weight": np.ones((2, 3)), "bias": np.zeros(2)}, path)
    ...     update = open_update(path)
    ...     print(update["weight"].shape, np.asarray(update["bias"]))
    (2, 3) [0. 0.]
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in KINDS:
        raise DamagedFileError(path, "its name ends neither in .npy nor in .safetensors")
    with _regular_file(path) as raw, io.BufferedReader(raw) as file:
        stamp = _settled_stamp(raw, path)
        if kind == ".npy":
            return StoredArray(path, *_npy(file, path, stamp.size), stamp, on_read)
        tensors = _safetensors(file, path, stamp.size)
        return {name: StoredArray(path, *where, stamp, on_read) for name, where in tensors.items()}


def open_updates(
    source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]], *, on_read: Told | None = None
) -> list[Any]:
    """Open one update per file, for `aggregate`; their numbers stay on disk.

    source   a directory, whose files are taken in the order of their names, or the paths of the files, in the order to keep
    on_read  called with the number of bytes after every read, by the thread that has read them; None calls nothing

    A file that is damaged, missing, of another kind than .npy and .safetensors or no regular file becomes a DamagedFileError
    in the list, for which `aggregate` rejects that client alone.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from fedhold import aggregate, open_updates, save_update
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     for number in (1.0, 2.0, 99.0):
    ...         save_update(np.array([number, 0.0]), Path(directory) / f"client_{number:02.0f}.npy")
    ...     aggregate(open_updates(directory), "median").value
    array([2., 0.])
    """
    paths = paths_of(source)
    if problem := mistake(paths):
        raise problem
    return [_or_damaged(path, on_read) for path in paths]


def paths_of(source: str | os.PathLike[str] | Iterable[str | os.PathLike[str]]) -> list[Path]:
    """The files that `open_updates` opens, in its order."""
    if isinstance(source, str | os.PathLike):
        directory = Path(source)
        if not directory.is_dir():
            raise FileNotFoundError(
                f"updates: there is no directory {str(source)!r}. Pass a directory of .npy or .safetensors files, one per "
                "client, or a list of such files."
            )
        paths = sorted(path for path in directory.iterdir() if not path.name.startswith("."))
    else:
        paths = [Path(path) for path in source]
    if not paths:
        raise ValueError(f"updates: {source} holds no files. Pass .npy or .safetensors files, one per client.")
    return paths


def opened(updates: Any) -> Any:
    """Updates that came as paths, opened; anything else as it is.

    A list is one of paths if all of its entries are, as text or as paths. A server that passes on what clients have sent must
    not pass text on: no client may choose which files are read.
    """
    if isinstance(updates, StoredArray):
        raise TypeError("updates are a single file. Pass a directory, or a list with one file per client.")
    several = (
        isinstance(updates, list | tuple) and updates and all(isinstance(path, str | os.PathLike) for path in updates)
    )
    return open_updates(updates) if several or isinstance(updates, str | os.PathLike) else updates


def without_damaged(updates: Any, problem: DamagedFileError) -> list[Any]:
    """The updates, in which the client of a damaged file is marked as such; the problem is raised where it is nobody's.

    All files that have changed are marked at once: where a whole folder is being written anew, one look is enough.
    """
    if not any(problem.path in _paths(update) for update in updates):
        raise problem
    return [problem if problem.path in _paths(update) else _verified(update) for update in updates]


def _verified(update: Any) -> Any:
    """The update, or the DamagedFileError that stands for it if its file has changed."""
    arrays = update.values() if isinstance(update, dict) else [update]
    try:
        for array in {part.path: part for part in arrays if isinstance(part, StoredArray)}.values():
            array.verify()
    except DamagedFileError as problem:
        return problem
    return update


def _paths(update: object) -> set[Path]:
    parts = update.values() if isinstance(update, dict) else [update]
    return {part.path for part in parts if isinstance(part, StoredArray)}


def _or_damaged(path: Path, on_read: Told | None) -> Any:
    try:
        return open_update(path, on_read=on_read)
    except DamagedFileError as problem:
        return problem


def _stamp(file: io.FileIO) -> Stamp:
    status = os.fstat(file.fileno())
    return Stamp(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _settled_stamp(file: io.FileIO, path: Path) -> Stamp:
    """The stamp of a file, such that any later change to the file changes it.

    Two changes within one step of the file system's clock leave the same stamp, so a step must have passed since the last one.
    """
    stamp = _stamp(file)
    if abs(time.time_ns() - stamp.status_changed) < TICK:
        time.sleep(TICK / 1e9)
        if _stamp(file) != stamp:
            raise DamagedFileError(path, "it is being written to")
    return stamp


Where = tuple[int, tuple[int, ...], str]
"""Of one array: its offset in the file, its shape, and its code."""


def _npy(file: BinaryIO, path: Path, size: int) -> Where:
    beginning = io.BytesIO(file.read(LONGEST_NPY_HEADER))  # NumPy would read as many bytes as the file claims to have.
    readers = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
    try:
        shape, fortran, dtype = readers[np.lib.format.read_magic(beginning)](beginning)
    except Exception:  # A header is a Python literal, and a hostile one may raise anything.
        raise DamagedFileError(path, "its header is not that of a .npy file") from None
    if dtype.kind not in "fiub":
        raise DamagedFileError(path, f"dtype {dtype} is neither float nor integer")
    if fortran:
        raise DamagedFileError(
            path, "it is in Fortran order; numpy.ascontiguousarray gives the order that is read here"
        )
    begin = beginning.tell()
    if not _sound(shape) or begin + prod(shape) * dtype.itemsize != size:
        raise DamagedFileError(
            path, f"{size - begin:,} bytes of numbers, where its header says shape {shape} of {dtype}"
        )
    return begin, shape, dtype.str


def _safetensors(file: BinaryIO, path: Path, size: int) -> dict[str, Where]:
    length = int.from_bytes(file.read(8), "little")
    if length > LONGEST_HEADER:
        raise DamagedFileError(path, f"a header of {length:,} bytes; {LONGEST_HEADER:,} are the most that is read here")
    begin = 8 + length
    if begin > size:
        raise DamagedFileError(path, f"{size:,} bytes, where its header alone has {begin:,}")
    try:
        header = json.loads(file.read(length).decode(), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError):
        raise DamagedFileError(path, "its header is not JSON, or names something twice") from None
    if not isinstance(header, dict):
        raise DamagedFileError(path, "its header is not that of a .safetensors file")
    header.pop("__metadata__", None)
    if len(header) > MOST_ARRAYS:
        raise DamagedFileError(path, f"{len(header):,} arrays; {MOST_ARRAYS:,} are the most that are read here")
    spans = {name: _span(path, name, entry) for name, entry in header.items()}
    # The format demands that the arrays fill the file one after the other, without gaps or overlaps.
    end = 0
    for first, last, _, _ in sorted(spans.values()):
        if first != end:
            raise DamagedFileError(path, f"its arrays overlap or leave a gap at byte {begin + end:,}")
        end = last
    if begin + end != size:
        raise DamagedFileError(path, f"{size:,} bytes, where its header says {begin + end:,}")
    return {name: (begin + first, shape, code) for name, (first, _, shape, code) in spans.items()}


def _span(path: Path, name: str, entry: object) -> tuple[int, int, tuple[int, ...], str]:
    """First and last byte, shape and code of one array, as its entry in the header says."""
    entry = entry if isinstance(entry, dict) else {}
    shape, offsets, dtype = entry.get("shape"), entry.get("data_offsets"), entry.get("dtype")
    code = CODES.get(dtype) if isinstance(dtype, str) else None
    if code is None:
        raise DamagedFileError(path, f"dtype {visible(dtype, 20)} at [{name!r:.60}] is none of {listed(CODES)}")
    itemsize = 2 if code == "bfloat16" else np.dtype(code).itemsize
    whole = _sound(shape) and _sound(offsets) and len(offsets) == 2  # type: ignore[arg-type]
    if not whole or offsets[1] - offsets[0] != prod(shape) * itemsize:  # type: ignore[index, arg-type]
        raise DamagedFileError(
            path, f"shape {visible(shape, 60)} of {dtype} at [{name!r:.60}] does not fit bytes {visible(offsets, 60)}"
        )
    return offsets[0], offsets[1], tuple(shape), code  # type: ignore[index, arg-type]


def _sound(numbers: object) -> bool:
    """Whether `numbers` is a list of what could be extents or offsets."""
    return (
        isinstance(numbers, list | tuple)
        and len(numbers) <= MOST_AXES
        and all(type(number) is int and 0 <= number < LONGEST_AXIS for number in numbers)
    )


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) < len(pairs):
        raise ValueError("a name twice")
    return dict(pairs)


# Writing.


def save_update(value: Any, path: str | os.PathLike[str]) -> None:
    """Write one update, such as `result.value`: an array to a .npy file, a dict of arrays to a .safetensors file.

    value  an array, or a dict of arrays by name, such as a state dict of torch; of floats or integers, bfloat16 in dicts only
    path   where to write: a name that ends in .npy for an array, in .safetensors for a dict

    If the write is interrupted, the file is not there, or is the one that was there before.

    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from fedhold import save_update
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     save_update(np.array([1.0, 2.0]), Path(directory) / "model.npy")
    ...     np.load(Path(directory) / "model.npy")
    array([1., 2.])
    """
    path = Path(path)
    suffix = path.suffix.lower()
    arrays = value if isinstance(value, dict) else {"": value}
    if suffix != (".safetensors" if isinstance(value, dict) else ".npy"):
        raise ValueError(f"{path} must end in .npy for an array, or in .safetensors for a dict of arrays. Rename it.")
    parts = {name: _in_memory(array) for name, array in arrays.items()}
    for name, part in parts.items():
        if not isinstance(name, str) or _code(part) not in NAMES or (suffix == ".npy" and _code(part) == "bfloat16"):
            raise TypeError(
                f"dtype {dtype_name(part)} at [{name!r}] cannot be saved. Pass an array, or a dict of arrays by name, of "
                f"floats or integers: {listed(NAMES[code] for code in NAMES)}."
            )
    with whole_file(path) as file:
        if suffix == ".npy":
            header = {"descr": _code(parts[""]), "fortran_order": False, "shape": parts[""].shape}
            np.lib.format.write_array_header_1_0(file, header)
            _write(file, parts[""])
            return
        # The widest numbers come first, as in files of the format's own writer: then all arrays are aligned.
        ordered = sorted(parts, key=lambda name: (-parts[name].itemsize, name))
        file.write(_safetensors_header(ordered, parts))
        for name in ordered:
            _write(file, parts[name])


def _in_memory(array: Any) -> NDArray[Any]:
    """An array of any library in host memory, without its gradient; bfloat16 as BFLOAT16."""
    if isinstance(array, StoredArray) and array.code == "bfloat16":
        return narrowed(np.asarray(array), BFLOAT16)  # They were bfloat16, so nothing is rounded.
    return np.asarray(host(array.cpu() if hasattr(array, "cpu") else array))


def _code(array: NDArray[Any]) -> str:
    return "bfloat16" if dtype_name(array) == "bfloat16" else array.dtype.newbyteorder("<").str


def _safetensors_header(ordered: list[str], parts: dict[str, NDArray[Any]]) -> bytes:
    entries, end = {}, 0
    for name in ordered:
        part = parts[name]
        span = [end, end + part.nbytes]
        entries[name] = {"dtype": NAMES[_code(part)], "shape": part.shape, "data_offsets": span}
        end = span[1]
    text = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write(file: BinaryIO, array: NDArray[Any]) -> None:
    code = _code(array)
    numbers, code = (array.view(np.uint16), "<u2") if code == "bfloat16" else (array, code)
    for start in range(0, numbers.size, TILE):
        file.write(numbers.flat[start : start + TILE].astype(code, copy=False).data)
