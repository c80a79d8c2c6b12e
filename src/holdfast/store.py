"""Files that appear whole or not at all, and the checkpoint of a run."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.saved import whole_file

__all__ = ["Checkpoint", "fingerprint", "packed", "unpacked", "write_whole"]


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


def packed(weights: NDArray[np.float16] | None) -> str | None:
    """An array of half floats as text, for JSON."""
    return None if weights is None else base64.b64encode(zlib.compress(weights.astype("<f2").tobytes())).decode()


def unpacked(text: str | None, shape: tuple[int, int]) -> NDArray[np.float16] | None:
    """And back."""
    if text is None:
        return None
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<f2").reshape(shape).astype(np.float16)
