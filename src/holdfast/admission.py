"""Admission: who may take part, and why not. The same for every rule, before any of them sees a number."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast.arrays import Vector, dtype_name, host, is_array, kind, to_host
from holdfast.checks import positive
from holdfast.structure import Leaf, Signature, count, describe, flatten, rebuild, signature
from holdfast.updates import Source, Updates

__all__ = ["Admission", "admit"]

AGGREGABLE = ("float", "integer")
FARTHEST = 1e100  # a start beyond this could not be squared


@dataclass(frozen=True)
class Admission:
    """The admitted clients' updates, and what was found out about every client.

    admitted  the index in the input of each admitted client
    samples   the n_i used, one per admitted client
    claimed   the n_i as given, one per client
    reasons   one per client: why it was rejected, or what was changed; '' where nothing was
    """

    updates: Updates
    admitted: NDArray[np.intp]
    samples: Vector
    claimed: Vector
    reasons: tuple[str, ...]
    template: Any
    dtypes: list[Any]

    def shaped(self, vector: Vector) -> Any:
        """A vector of d numbers as one update."""
        return rebuild(self.template, vector, self.dtypes)

    def vector(self, update: object, name: str) -> Vector:
        """One update as a vector of d numbers; an error where it does not fit the clients' or is out of range."""
        leaves, expected = _template(update, name), signature(flatten(self.template))
        shapes = [(path, shape) for path, shape, _ in signature(leaves)]
        if shapes != [(path, shape) for path, shape, _ in expected]:
            raise ValueError(f"{name} must be shaped as the updates: {describe(signature(leaves), expected)}.")
        flat = np.concatenate([to_host(host(leaf.array), np.float64).reshape(-1) for leaf in leaves])
        if not (np.abs(flat) <= FARTHEST).all():
            raise ValueError(
                f"{name} has numbers that are not finite, or beyond {FARTHEST:g}. Pass the last sound one."
            )
        return flat


def _template(update: object, name: str) -> list[Leaf]:
    """The arrays of an update that the caller, not a client, gave."""
    try:
        leaves = flatten(update)
    except TypeError as problem:
        raise TypeError(f"{name} must be shaped as one update: {problem}. Pass arrays, as in the updates.") from None
    for leaf in leaves:
        if kind(leaf.array) not in AGGREGABLE:
            raise TypeError(f"{name} must hold floats or integers, got dtype {kind(leaf.array)}.")
    return leaves


def admit(updates: object, samples: ArrayLike | None, sample_cap: float | None, like: object | None) -> Admission:
    """Check structure, dtypes, samples and finiteness of every client; reject alone those who fail."""
    clients = _clients(updates)
    stacked = is_array(updates)
    reasons = [""] * len(clients)
    # The rows of one array are alike: one of them stands for all.
    leaves: list[list[Leaf] | None] = [flatten(clients[0])] if stacked else _flattened(clients, reasons)
    expected = _expected(leaves, like)
    signatures = [None if own is None else signature(own) for own in leaves]
    for i in range(len(clients)):
        own = signatures[0 if stacked else i]
        if own is not None and own != expected:
            reasons[i] = describe(own, expected)
    claimed = _claimed(samples, len(clients))
    for i in np.flatnonzero(~(np.isfinite(claimed) & (claimed > 0))).tolist():
        reasons[i] = reasons[i] or f"samples {claimed[i]:g}: not a positive number"
    sound = np.array([i for i, reason in enumerate(reasons) if not reason], dtype=np.intp)
    _someone(sound, reasons)

    sources = _sources(updates, leaves, sound)
    everyone = len(sound) == len(clients)
    matrix = Updates(sources, len(sound), clients=sound if stacked and not everyone else None)
    magnitudes = matrix.magnitudes()
    finite = np.isfinite(magnitudes)
    for i in sound[~finite].tolist():
        reasons[i] = "numbers that are not finite"
    admitted = sound[finite]
    _someone(admitted, reasons)
    if not finite.all():
        matrix = matrix.take(np.flatnonzero(finite))
    used = _capped(claimed, admitted, sample_cap, reasons)
    template = like if like is not None else clients[admitted[0]]
    return Admission(
        matrix.scaled(magnitudes[finite]),
        admitted,
        used,
        claimed,
        tuple(reasons),
        template,
        _dtypes(leaves, [0] if stacked else admitted.tolist()),
    )


def _clients(updates: object) -> Sequence[Any]:
    """The updates one by one, whatever they came in."""
    if isinstance(updates, Mapping):
        raise TypeError("updates must be an array or a list with one update per client. Pass list(updates.values()).")
    if is_array(updates):
        shape = tuple(updates.shape)  # type: ignore[attr-defined]
        if len(shape) < 2:
            raise ValueError(
                f"updates must have one row per client, got shape {shape}. Pass an (m, d) array; for one number per client, "
                "updates.reshape(-1, 1)."
            )
        if kind(updates) not in AGGREGABLE:
            raise TypeError(f"updates of dtype {kind(updates)} cannot be aggregated. Pass floats or integers.")
    elif not isinstance(updates, list | tuple):
        raise TypeError(f"updates must be an array or a list with one update per client, got {type(updates).__name__}.")
    if len(updates) == 0:  # type: ignore[arg-type]
        raise ValueError("updates holds no clients. Keep the current model for this round.")
    return updates  # type: ignore[return-value]


def _flattened(clients: Sequence[Any], reasons: list[str]) -> list[list[Leaf] | None]:
    out: list[list[Leaf] | None] = []
    for i, update in enumerate(clients):
        try:
            leaves = flatten(update)
        except TypeError as problem:
            reasons[i] = str(problem)
            out.append(None)
            continue
        bad = next((leaf for leaf in leaves if kind(leaf.array) not in AGGREGABLE), None)
        if bad is not None:
            reasons[i] = f"dtype {kind(bad.array)} is neither float nor integer"
        out.append(None if bad is not None else leaves)
    return out


def _expected(leaves: list[list[Leaf] | None], like: object | None) -> Signature:
    """The structure to ask of everyone: that of `like`, or the one most clients share."""
    if like is not None:
        expected = signature(_template(like, "like"))
    else:
        ranking = Counter(signature(own) for own in leaves if own is not None).most_common(2)
        if not ranking:
            return ()
        if len(ranking) == 2 and ranking[0][1] == ranking[1][1]:
            raise ValueError(
                f"updates come in structures that equally many clients share ({describe(ranking[1][0], ranking[0][0])}). "
                "Pass like=<one update>, such as the model you sent, to say which is right."
            )
        expected = ranking[0][0]
    if sum(int(np.prod(shape)) for _, shape, _ in expected) == 0:
        raise ValueError("updates hold no numbers: every array is empty. Pass updates with at least one number.")
    return expected


def _claimed(samples: ArrayLike | None, m: int) -> Vector:
    if samples is None:
        return np.ones(m)
    try:
        claimed = np.asarray(samples)
    except ValueError as problem:
        raise ValueError(f"samples must be {m} numbers, one per client: {problem}.") from None
    if claimed.dtype.kind not in "iuf":
        raise TypeError(f"samples must be numbers, got dtype {claimed.dtype}. Pass one n_i per client, or None.")
    if claimed.shape != (m,):
        raise ValueError(f"samples must be {m} numbers, one per client, got shape {claimed.shape}.")
    return claimed.astype(np.float64)


def _capped(claimed: Vector, admitted: NDArray[np.intp], sample_cap: float | None, reasons: list[str]) -> Vector:
    """n_i, none beyond sample_cap times the median of the admitted clients'."""
    used = claimed[admitted]
    if sample_cap is None:
        return used
    if positive(sample_cap, "sample_cap", infinite=True) < 1:
        raise ValueError(f"sample_cap must be at least 1, got {sample_cap}: it is a multiple of the median n_i.")
    limit = sample_cap * float(np.median(used))
    for i in admitted[used > limit].tolist():
        reasons[i] = f"samples {claimed[i]:g} capped at {limit:g}"
    return np.minimum(used, limit)


def _someone(left: NDArray[np.intp], reasons: list[str]) -> None:
    if len(left) == 0:
        first = Counter(reasons).most_common(1)[0]
        raise ValueError(
            f"all {len(reasons)} clients were rejected; {first[1]} of them because: {first[0]}. Keep the current model."
        )


def _sources(updates: object, leaves: list[list[Leaf] | None], sound: NDArray[np.intp]) -> tuple[Source, ...]:
    """One source per array of the model. A stacked array stays one array; lists keep only the sound clients."""
    if is_array(updates):
        array = host(updates)
        size = count(array) // len(array)
        flat = array if array.ndim == 2 else array.reshape(len(array), size)
        return (Source.of(flat, size),)
    chosen = [own for i in sound if (own := leaves[i]) is not None]
    return tuple(
        Source.of([host(own[k].array) for own in chosen], count(chosen[0][k].array)) for k in range(len(chosen[0]))
    )


def _dtypes(leaves: list[list[Leaf] | None], admitted: list[int]) -> list[Any]:
    """For each array of the model the dtype that most admitted clients sent it in."""
    chosen = [own for i in admitted if (own := leaves[i]) is not None]
    out = []
    for k in range(len(chosen[0])):
        names = Counter(dtype_name(own[k].array) for own in chosen)
        common = names.most_common(1)[0][0]
        out.append(next(own[k].array.dtype for own in chosen if dtype_name(own[k].array) == common))
    return out
