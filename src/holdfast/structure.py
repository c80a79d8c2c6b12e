"""The structure of one update: an array, or lists and dicts of arrays to any depth; and the way back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.arrays import Vector, from_host, is_array, kind

__all__ = ["Leaf", "Path", "Signature", "count", "describe", "flatten", "rebuild", "signature"]

Path = tuple[Any, ...]
Signature = tuple[tuple[Path, tuple[int, ...], str], ...]

DEEPEST = 16  # deeper nests are a mistake or an attack, and would exhaust the stack


@dataclass(frozen=True)
class Leaf:
    """One array of an update, and where it stands in it."""

    path: Path
    array: Any


def flatten(update: object, path: Path = ()) -> list[Leaf]:
    """The arrays of an update in a fixed order: dict keys sorted, so that key order never matters.

    Raises TypeError, with a reason fit for a report, where something is neither an array nor a list or dict of them.
    """
    if is_array(update):
        return [Leaf(path, update)]
    if len(path) == DEEPEST:
        raise TypeError(f"nested deeper than {DEEPEST} levels")
    if isinstance(update, Mapping):
        keys = sorted(update, key=lambda key: (type(key).__name__, str(key)))
        return [leaf for key in keys for leaf in flatten(update[key], (*path, key))]
    if isinstance(update, list | tuple):
        return [leaf for i, part in enumerate(update) for leaf in flatten(part, (*path, i))]
    where = f" at {describe_path(path)}" if path else ""
    raise TypeError(f"{type(update).__name__}{where} is not an array")


def signature(leaves: list[Leaf]) -> Signature:
    """What must be alike in all clients: paths, shapes and kinds of dtype."""
    return tuple((leaf.path, tuple(leaf.array.shape), kind(leaf.array)) for leaf in leaves)


def describe_path(path: Path) -> str:
    return "".join(f"[{part!r}]" for part in path)


def describe(found: Signature, expected: Signature) -> str:
    """The first way in which `found` differs from `expected`, in words."""
    mine, theirs = ({path: rest for path, *rest in s} for s in (found, expected))
    for path in theirs:
        if path not in mine:
            return f"misses {describe_path(path) or 'the array itself'}"
    for path in mine:
        if path not in theirs:
            return f"has an extra {describe_path(path) or 'array'}"
    for path, (shape, sort) in mine.items():
        where = f" at {describe_path(path)}" if path else ""
        if shape != theirs[path][0]:
            return f"shape {shape}{where}, expected {theirs[path][0]}"
        if sort != theirs[path][1]:
            return f"dtype of kind {sort}{where}, expected {theirs[path][1]}"
    return "another structure"


def rebuild(template: object, vector: Vector, dtypes: list[Any]) -> Any:
    """`vector` in the structure of `template`; its arrays take the given dtypes, in the order of `flatten`."""
    offset = 0
    built: dict[Path, Any] = {}
    for leaf, dtype in zip(flatten(template), dtypes, strict=True):
        size = count(leaf.array)
        built[leaf.path] = from_host(vector[offset : offset + size], leaf.array, dtype)
        offset += size
    return _fill(template, built, ())


def _fill(template: object, built: dict[Path, Any], path: Path) -> Any:
    if path in built:
        return built[path]
    if isinstance(template, Mapping):
        return {key: _fill(part, built, (*path, key)) for key, part in template.items()}
    assert isinstance(template, list | tuple)
    parts = [_fill(part, built, (*path, i)) for i, part in enumerate(template)]
    return tuple(parts) if isinstance(template, tuple) else parts


def count(array: Any) -> int:
    """Numbers in an array, in every library."""
    total = 1
    for extent in array.shape:
        total *= int(extent)
    return total
