"""The structure of one update: an array, or lists and dicts of arrays to any depth; and how to build one from d numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import count as counter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import Vector, from_host, is_array, kind
from fedhold.updates.files import DamagedFileError, StoredArray

__all__ = [
    "Leaf",
    "Path",
    "Rejection",
    "Signature",
    "count",
    "describe",
    "filled",
    "flatten",
    "form",
    "rebuild",
    "signature",
]

Path = tuple[Any, ...]
Signature = tuple[tuple[Path, tuple[int, ...], str], ...]

DEEPEST = 16  # levels. A deeper update is a mistake, or an attack that would exhaust the stack.
MOST = 100_000  # parts. Ten nested lists, each of which holds the next ten times, have 10**10 and would take forever.


@dataclass(frozen=True)
class Rejection:
    """In a list of updates it stands for a client that cannot take part."""

    reason: str


class Leaf(NamedTuple):
    """One array of an update, and its path: the keys and indices that lead to it."""

    path: Path
    array: Any


def flatten(update: object) -> list[Leaf]:
    """The arrays of an update in a fixed order: dict keys are sorted, so that their order never matters.

    Raises TypeError, with a reason for the report, where a part is neither an array nor a list or dict of arrays.
    """
    visited, leaves = counter(), list[Leaf]()

    def walk(part: object, path: Path) -> None:
        if next(visited) == MOST:
            raise TypeError(f"more than {MOST:,} parts")
        if isinstance(part, np.ndarray):  # This is asked first because it is answered fast, and most often yes.
            leaves.append(Leaf(path, part))
        elif isinstance(part, dict | list | tuple | Mapping):
            if len(path) == DEEPEST:
                raise TypeError(f"nested deeper than {DEEPEST} levels")
            keys = _sorted(part) if isinstance(part, Mapping) else range(len(part))
            for key in keys:
                walk(part[key], (*path, key))
        elif is_array(part) or isinstance(part, StoredArray):
            leaves.append(Leaf(path, part))
        elif isinstance(part, DamagedFileError | Rejection):
            raise TypeError(part.reason)
        else:
            where = f" at {_describe_path(path)}" if path else ""
            raise TypeError(f"{type(part).__name__}{where} is not an array")

    walk(update, ())
    return leaves


def _sorted(keys: Iterable[Any]) -> list[Any]:
    """Keys of any types, in an order of their own; that of the texts where all are texts, which is found faster."""
    return sorted(keys) if all(type(key) is str for key in keys) else sorted(keys, key=_order)


def _order(key: object) -> tuple[str, str]:
    return type(key).__name__, str(key)


def form(update: object) -> object:
    """What may differ between clients with the same signature: kinds of containers, and the library of each array."""
    if isinstance(update, np.ndarray):
        return "numpy"
    if isinstance(update, list | tuple):
        return "tuple" if isinstance(update, tuple) else "list", tuple(map(form, update))
    if isinstance(update, dict | Mapping):
        return "dict", frozenset((key, form(part)) for key, part in update.items())
    return type(update).__module__.partition(".")[0]


def signature(leaves: list[Leaf]) -> Signature:
    """What must be the same for all clients: paths, shapes and kinds of dtype."""
    return tuple((leaf.path, tuple(leaf.array.shape), kind(leaf.array)) for leaf in leaves)


def _describe_path(path: Path) -> str:
    return "".join(f"[{part!r}]" for part in path)


def describe(found: Signature, expected: Signature) -> str:
    """The first way in which `found` differs from `expected`, in words."""
    mine, theirs = ({path: rest for path, *rest in s} for s in (found, expected))
    for path in theirs:
        if path not in mine:
            return f"misses {_describe_path(path) or 'the array itself'}"
    for path in mine:
        if path not in theirs:
            return f"has an extra {_describe_path(path) or 'array'}"
    for path, (shape, sort) in mine.items():
        where = f" at {_describe_path(path)}" if path else ""
        if shape != theirs[path][0]:
            other_rank = (
                " (an adapter of another rank: send its product B @ A instead)" if "lora" in where.lower() else ""
            )
            return f"shape {shape}{where}, expected {theirs[path][0]}{other_rank}"
        if sort != theirs[path][1]:
            return f"dtype of kind {sort}{where}, expected {theirs[path][1]}"
    return "another structure"


def rebuild(template: object, vector: Vector, dtypes: list[str], known: Mapping[Path, NDArray[Any]]) -> Any:
    """An update with the numbers of `vector` in the structure of `template`.

    dtypes  the names of the dtypes of its arrays, in the order of `flatten`
    known   by path, the numbers of the arrays that `vector` leaves out
    """
    offset, names = 0, iter(dtypes)

    def made(path: Path, array: Any) -> Any:
        nonlocal offset
        numbers = known.get(path)
        if numbers is None:
            start, offset = offset, offset + count(array)
            numbers = vector[start:offset]
        return from_host(numbers, array.stand_in if isinstance(array, StoredArray) else array, next(names))

    return filled(template, made)


def filled(template: Any, made: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """The structure of `template` with made(path, array) in place of every array, called in the order of `flatten`."""
    if isinstance(template, Mapping):
        parts = {key: filled(template[key], made, (*path, key)) for key in _sorted(template)}
        return {key: parts[key] for key in template}
    if isinstance(template, list | tuple):
        found = [filled(part, made, (*path, i)) for i, part in enumerate(template)]
        return tuple(found) if isinstance(template, tuple) else found
    return made(path, template)


def count(array: Any) -> int:
    """How many numbers an array has, in every library."""
    total = 1
    for extent in array.shape:
        total *= int(extent)
    return total
