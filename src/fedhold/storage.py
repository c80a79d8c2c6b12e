"""Files that appear whole or not at all, and the checkpoint of a run."""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

__all__ = ["Checkpoint", "fingerprint", "whole_file", "write_whole"]


@contextmanager
def whole_file(path: Path, *, sync: bool = False) -> Iterator[BinaryIO]:
    """A file to write to beside `path`, which is put in its place at the end; whoever is killed before leaves the old one.

    With `sync`, the numbers are on the disk, not in the machine's memory alone, before the name is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def write_whole(path: Path, data: bytes) -> None:
    """Write beside the file, then put it in its place: whoever is killed here leaves the old file or the new one."""
    with whole_file(path) as file:
        file.write(data)


def fingerprint(**facts: Any) -> str:
    """A hash of everything that decides how a run goes on; functions count by name, arrays by their numbers."""
    digest = hashlib.sha256()
    for name, fact in sorted(facts.items()):
        digest.update(f"{name}={_told(fact)};".encode())
    return digest.hexdigest()


def _told(fact: Any) -> str:
    if isinstance(fact, np.ndarray):
        numbers = hashlib.sha256(np.ascontiguousarray(fact).data).hexdigest()
        return f"{fact.dtype}{fact.shape}{numbers}"
    if isinstance(fact, Mapping):
        return str({str(name): _told(value) for name, value in sorted(fact.items())})
    if callable(fact):
        return str(getattr(fact, "__qualname__", type(fact).__qualname__))
    return repr(fact)


class Checkpoint:
    """The state of a run after its last round, in one file; without a path it keeps nothing.

    A file that is not whole counts as none: the run starts over, and ends with the same bits.
    """

    def __init__(self, path: Path | None, run: str) -> None:
        self.path, self.run = path, run
        self._told = list[str]()  # the history as JSON, row by row: it only ever grows

    def load(self, rounds: int) -> tuple[dict[str, NDArray[Any]], list[dict[str, Any]]] | None:
        """The arrays and the history saved last, or None; ValueError where the file is of another run, or a longer one."""
        if self.path is None:
            return None
        try:
            with np.load(io.BytesIO(self.path.read_bytes()), allow_pickle=False) as saved:
                arrays = {name: saved[name] for name in saved.files}
            notes = json.loads(arrays.pop("notes").tobytes())
        except (FileNotFoundError, zipfile.BadZipFile, EOFError, ValueError, KeyError):
            return None
        if notes["run"] != self.run:
            raise ValueError(f"checkpoint {self.path} is of another run. Delete it, or name another file.")
        if len(notes["history"]) > rounds:
            raise ValueError(f"checkpoint {self.path} is past round {rounds}. Delete it, or ask for more rounds.")
        return arrays, notes["history"]

    def save(self, arrays: Mapping[str, NDArray[Any]], history: Sequence[Mapping[str, Any]]) -> None:
        if self.path is None:
            return
        self._told += [json.dumps(row) for row in history[len(self._told) :]]
        notes = f'{{"run": {json.dumps(self.run)}, "history": [{", ".join(self._told)}]}}'.encode()
        file = io.BytesIO()
        np.savez(file, allow_pickle=False, notes=np.frombuffer(notes, np.uint8), **arrays)
        write_whole(self.path, file.getvalue())
