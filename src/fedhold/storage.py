"""Files that appear whole or not at all, and checkpoints: one kind of file that every run of fedhold goes on from.

In: bytes, or arrays and notes. Out: files, and the same arrays and notes again. Imports nothing of fedhold.

A checkpoint is one .npz file, read without pickle. Its members are the arrays, `notes` (JSON, the rest of the state) and
`header` (JSON: the program, the kind of run, the version of the format, and the names of the arrays).
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

PROGRAM = "fedhold"
FORMAT = 1  # of checkpoints; a change that older versions would misread raises it
HEADER, NOTES = "header", "notes"  # the members of a checkpoint that are no arrays of the run
LABORATORY = "laboratory run"


# A temporary file is hidden, begins as the file that it will become, and has a name that nobody else has drawn: neither another
# thread nor a process of the same number in another container.
TEMPORARY = re.compile(r"\..{0,40}\.[0-9a-f]{32}\.tmp", re.DOTALL)
ABANDONED = (
    24 * 3600.0
)  # seconds after which a temporary file that nobody wrote to was left by a process that was killed


@contextmanager
def whole_file(path: Path, *, sync: bool = True, private: bool = False) -> Iterator[BinaryIO]:
    """Open a temporary file beside `path`, which takes its place when the block ends.

    A process that is killed inside the block leaves the old file as it was, or no file where there was none. Of two that write
    at once, the file of the one that ends later stays; they never mix. The temporary file of a process that was killed is
    removed a day later, when another process first writes into the same folder.

    path     the file to write; its folder is made where it is missing
    sync     wait until the bytes are on the disk, and not only in the machine's memory, before the file takes its place
    private  let nobody but the owner read the file, and enter the folder if it is made
    """
    path.parent.mkdir(mode=0o700 if private else 0o777, parents=True, exist_ok=True)
    _remove_leftovers(path.parent.absolute())
    temporary = path.with_name(f".{path.name[:40]}.{secrets.token_hex(16)}.tmp")
    try:
        # "x" refuses a file or a link that is there already.
        with open(temporary, "xb", opener=partial(os.open, mode=0o600 if private else 0o666)) as file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    if sync:
        with suppress(OSError):  # Not every system can be asked to wait until the new name of a file is on the disk.
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)


@lru_cache(maxsize=1024)  # once per folder: to look through a large one takes longer than to write a file
def _remove_leftovers(folder: Path) -> None:
    for name in filter(TEMPORARY.fullmatch, os.listdir(folder)):
        with suppress(OSError):  # A leftover that cannot be removed does not stop the writing of another file.
            found = (folder / name).lstat()
            if stat.S_ISREG(found.st_mode) and found.st_mtime < time.time() - ABANDONED:
                (folder / name).unlink()


def write_whole(path: Path, data: bytes, *, sync: bool = True, private: bool = False) -> None:
    """Write `data` to the file at `path`, whole or not at all; see `whole_file`."""
    with whole_file(path, sync=sync, private=private) as file:
        file.write(data)


class DamagedCheckpointError(ValueError):
    """A checkpoint whose bytes are not what was written."""

    def __init__(self, path: Path, problem: Exception) -> None:
        super().__init__(
            f"checkpoint {path} is damaged ({type(problem).__name__}: {problem}). Put back a copy of it, or delete it and "
            "start over."
        )


class Contents(NamedTuple):
    """What a checkpoint holds: the arrays of a run, and the rest of its state as plain JSON values."""

    arrays: dict[str, NDArray[Any]]
    notes: dict[str, Any]


def write_checkpoint(
    path: Path, kind: str, arrays: Mapping[str, NDArray[Any]], notes: str, *, sync: bool = True
) -> None:
    """Write a checkpoint, whole or not at all. Only its owner can read it: it may hold the seed of a run.

    path    the file
    kind    what sort of run this is, such as "Flower run"; it must be the same when the file is read
    arrays  the arrays of the run by name, none of them of objects
    notes   the rest of its state, as the text of a JSON object
    sync    as for `whole_file`
    """
    for name, array in arrays.items():
        if name in (HEADER, NOTES):
            raise ValueError(f"an array of a checkpoint cannot be called {name!r}. Give it another name.")
        if array.dtype.hasobject:
            raise TypeError(f"array {name!r} of a checkpoint holds objects, which only pickle could write. Convert it.")
    header = {"program": PROGRAM, "kind": kind, "format": FORMAT, "arrays": list(arrays)}
    texts = {HEADER: json.dumps(header), NOTES: notes}
    members: dict[str, Any] = {name: np.frombuffer(text.encode(), np.uint8) for name, text in texts.items()} | dict(
        arrays
    )
    file = io.BytesIO()
    np.savez(file, **members)
    write_whole(path, file.getvalue(), sync=sync, private=True)


def read_checkpoint(path: Path, kind: str) -> Contents:
    """Read a checkpoint of this kind.

    A missing file is a FileNotFoundError, a damaged one a DamagedCheckpointError. A file of another program, of another kind
    of run, or of a later version is a ValueError that says so.
    """
    data = path.read_bytes()
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            if any(member.compress_size != member.file_size for member in file.zip.infolist()):
                raise ValueError("it is compressed, and could be much larger than it seems")
            members = {name: file[name] for name in file.files}
        notes = dict(json.loads(members.pop(NOTES).tobytes()))
        header = dict(json.loads(members.pop(HEADER).tobytes()))
        program, met, version = header["program"], header["kind"], header["format"]
        if list(members) != header["arrays"]:  # a zip file whose directory is damaged may just seem to hold less
            raise ValueError(f"it has the arrays {list(members)}, and should have {header['arrays']}")
    except Exception as problem:  # whatever NumPy, zipfile and json raise when they meet bytes they did not write
        raise DamagedCheckpointError(path, problem) from None
    if program != PROGRAM:
        raise ValueError(f"checkpoint {path} was written by {program}, and not by {PROGRAM}. Name another file.")
    if version != FORMAT:
        raise ValueError(f"checkpoint {path} has format {version}, this version reads {FORMAT}. Update {PROGRAM}.")
    if met != kind:
        raise ValueError(f"checkpoint {path} holds a {met}, not a {kind}. Name another file.")
    return Contents(members, notes)


class Checkpoint:
    """The state of a laboratory run after its last round, in one file.

    A damaged file counts as no file: the run then starts over, and ends with the same bits.

    path  the file; None keeps nothing
    run   the fingerprint of the run, which must be the same when the file is read
    """

    def __init__(self, path: Path | None, run: str) -> None:
        self.path, self.run = path, run
        self._rows = list[str]()  # the history as JSON, row by row: it only grows, so each row is written out once

    def load(self, rounds: int) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]] | None:
        """The arrays and the history that were saved last, or None.

        A file of another run, or one past round `rounds`, is a ValueError.
        """
        if self.path is None:
            return None
        try:
            saved = read_checkpoint(self.path, LABORATORY)
        except (FileNotFoundError, DamagedCheckpointError):
            return None
        history: list[dict[str, Any]] = saved.notes.get("history", [])
        if saved.notes.get("run") != self.run:
            raise ValueError(f"checkpoint {self.path} is of another run. Delete it, or name another file.")
        if len(history) > rounds:
            raise ValueError(f"checkpoint {self.path} is past round {rounds}. Delete it, or ask for more rounds.")
        return saved.arrays, history

    def save(self, arrays: Mapping[str, NDArray[Any]], history: Sequence[Mapping[str, Any]]) -> None:
        """Keep the arrays and the history, in place of what was kept before.

        arrays   the arrays of the run by name
        history  one row per round so far; the rows of earlier calls must not have changed
        """
        if self.path is None:
            return
        self._rows += [json.dumps(row) for row in history[len(self._rows) :]]
        notes = f'{{"run": {json.dumps(self.run)}, "history": [{", ".join(self._rows)}]}}'
        # A file that a power failure has damaged only costs time, and to wait for the disk would cost it in every round.
        write_checkpoint(self.path, LABORATORY, arrays, notes, sync=False)


def fingerprint(**facts: Any) -> str:
    """A hash of the facts that decide how a run goes on; functions count by name, arrays by their numbers."""
    digest = hashlib.sha256()
    for name, fact in sorted(facts.items()):
        digest.update(f"{name}={_as_text(fact)};".encode())
    return digest.hexdigest()


def _as_text(fact: Any) -> str:
    if isinstance(fact, np.ndarray):
        return f"{fact.dtype}{fact.shape}{hashlib.sha256(np.ascontiguousarray(fact).data).hexdigest()}"
    if isinstance(fact, Mapping):
        return str({str(name): _as_text(value) for name, value in sorted(fact.items())})
    return str(getattr(fact, "__qualname__", type(fact).__qualname__)) if callable(fact) else repr(fact)
