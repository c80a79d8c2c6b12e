"""Numbers that must not be negative, such as variances and scales, stay what they are: one of them below 0 ends a model.

An array counts as one of theirs if it holds no negative number, neither in the model that was sent nor in half of the
replies or more. A new number in such an array that is below half of the median of these replies becomes that median. A mean
of numbers that are not negative is never less than half of their median with the same weights, so rounds without lies are
left as they are; and a lie that is made to end just above 0 gains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhold.kernels import dtype_name, from_host, is_array, kind
from fedhold.result import REJECTED, STATUSES, Aggregation
from fedhold.sizes import COUNTED
from fedhold.updates import part_of

__all__ = ["positive_after", "stay_positive"]

LEAST = 0.49  # of the median. A mean has at least half of it, and the rest is room for rounding.

Arrays = Mapping[str, Any]
"""Arrays of any library, or on disk, by key."""


def stay_positive(
    new: Arrays, replies: Sequence[Arrays], weights: ArrayLike, sent: Arrays | None = None
) -> tuple[dict[str, Any], int]:
    """The arrays of `new` in which numbers were too low, corrected, by key; and how many numbers these were.

    new      the next model, as a rule or an optimiser made it
    replies  the models of the admitted clients; on disk they are read in parts, and most arrays hardly at all
    weights  of the replies in the new model; equal ones for rules without weights
    sent     the model that was sent; None where it is not known, and the replies alone decide

    >>> import numpy as np
    >>> replies = [{"running_var": np.array([value, 1.0])} for value in (0.2, 0.2, 0.3, -5.0)]
    >>> stay_positive({"running_var": np.array([-1.1, 1.0])}, replies, np.ones(4))
    ({'running_var': array([0.2, 1. ])}, 1)
    """
    corrected, count, shares = dict[str, Any](), 0, np.asarray(weights, np.float64)
    for key, array in new.items():
        if not is_array(array) or kind(array) != "float" or (sent is not None and _has_negative(sent[key])):
            continue
        chosen = [i for i, reply in enumerate(replies) if not _has_negative(reply[key])]
        if 2 * len(chosen) < len(replies) or not chosen:
            continue
        votes = shares[chosen] if shares[chosen].any() else np.ones(len(chosen))
        values, size = None, prod(array.shape)
        for start in range(0, size, COUNTED):
            stop = min(start + COUNTED, size)
            part, rows = part_of(array, start, stop), [part_of(replies[i][key], start, stop) for i in chosen]
            questionable = np.flatnonzero(part < LEAST * np.maximum.reduce(rows))  # No median is beyond the highest.
            median = _median(np.array([row[questionable] for row in rows], np.float64), votes)
            low = part[questionable] < LEAST * median
            if low.any():
                values = np.array(part_of(array, 0, size)) if values is None else values
                values[start + questionable[low]] = median[low]
                count += int(low.sum())
        if values is not None:
            corrected[key] = from_host(values, array, dtype_name(array))
    return corrected, count


def positive_after(
    result: Aggregation, new: Arrays, replies: Sequence[Arrays], sent: Arrays | None = None
) -> tuple[dict[str, Any], int]:
    """stay_positive() with the clients and weights of a result of aggregate(), in each of its groups.

    result   what aggregate() made of the replies, and of nothing else before them
    replies  the models of all clients; those that were rejected are not read
    """
    corrected, count = dict[str, Any](), 0
    for part in result.groups.values() or [result]:
        keys = [path[0] for path in part.value] if result.groups else list(new)
        statuses = part.clients.statuses[: len(replies)]
        admitted = np.flatnonzero(statuses != STATUSES[REJECTED]).tolist()
        voters = [replies[i] for i in admitted]
        weights = np.ones(len(voters)) if part.weights is None else part.weights[admitted]
        rest = 0.0 if part.weights is None else 1 - part.weights.sum()
        if sent is not None and rest > 1e-6:  # Rules that shorten updates leave the model that was sent a share.
            voters, weights = [*voters, sent], np.append(weights, rest)
        found, more = stay_positive({key: new[key] for key in keys}, voters, weights, sent)
        corrected, count = corrected | found, count + more
    return corrected, count


def _has_negative(array: Any) -> bool:
    """Whether one of the numbers is negative. It is read up to the first of these: where it has some, they are not rare."""
    start, width, size = 0, 1024, prod(array.shape)
    while start < size:
        if (part_of(array, start, min(start + width, size)) < 0).any():
            return True
        start, width = start + width, COUNTED
    return False


def _median(rows: NDArray[np.float64], votes: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weighted median of every column; of two, the upper one."""
    order = np.argsort(-rows, axis=0)
    reached = np.cumsum(votes[order], axis=0) >= 0.5 * (1 - 1e-9) * votes.sum()
    found: NDArray[np.float64] = np.take_along_axis(rows, order, axis=0)[
        reached.argmax(axis=0), np.arange(rows.shape[1])
    ]
    return found
