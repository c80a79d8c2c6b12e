"""Kernels on their way to the workers of a cluster: as bytes, with holes where vectors of d numbers were.

Kernels are closures over such vectors: they read a place, or write a centre, column by column. Here a vector that lies on the
cluster stays behind, and a worker finds the piece of it that belongs to its block in its place: pickle's "persistent objects".
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle

__all__ = ["pack", "unpack"]


class _Packer(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO, kind: type) -> None:
        super().__init__(file, protocol=pickle.HIGHEST_PROTOCOL)
        self.kind, self.holes = kind, list[Any]()

    def persistent_id(self, thing: object) -> int | None:
        if not isinstance(thing, self.kind):
            return None
        for number, known in enumerate(self.holes):
            if known is thing:
                return number
        self.holes.append(thing)
        return len(self.holes) - 1


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, fillings: Sequence[Any]) -> None:
        super().__init__(file)
        self.fillings = fillings

    def persistent_load(self, number: int) -> Any:
        return self.fillings[number]


def pack(thing: object, kind: type) -> tuple[bytes, list[Any]]:
    """`thing` without the objects of this kind in it, and those objects."""
    file = io.BytesIO()
    packer = _Packer(file, kind)
    packer.dump(thing)
    return file.getvalue(), packer.holes


def unpack(packed: bytes, fillings: Sequence[Any]) -> Any:
    """What was packed, with `fillings` where those objects were."""
    return _Unpacker(io.BytesIO(packed), fillings).load()
