"""Numbers that must not be negative, such as variances and scales, stay what they are: one of them below 0 ends a model.

An array counts as one of theirs if it holds no negative number, neither in the model that was sent nor in half of the
replies or more. A new number in such an array that is below half of the median of these replies becomes that median. A mean
of numbers that are not negative is never less than half of their median with the same weights, so rounds without lies are
left as they are; and a lie that is made to end just above 0 gains nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhold.result import REJECTED, STATUSES, Aggregation

__all__ = ["positive_after", "stay_positive"]

LEAST = 0.49  # of the median. A mean has at least half of it, and the rest is room for rounding.
BLOCK = 1 << 16  # columns that are sorted at once

Arrays = Mapping[str, NDArray[Any]]


def stay_positive(
    new: Arrays, replies: Sequence[Arrays], weights: ArrayLike, sent: Arrays | None = None
) -> tuple[dict[str, NDArray[Any]], int]:
    """The arrays of `new` in which numbers were too low, corrected, by key; and how many numbers these were.

    new      the next model, as a rule or an optimiser made it
    replies  the models of the admitted clients
    weights  of the replies in the new model; equal ones for rules without weights
    sent     the model that was sent; None where it is not known, and the replies alone decide

    >>> import numpy as np
    >>> replies = [{"running_var": np.array([value, 1.0])} for value in (0.2, 0.2, 0.3, -5.0)]
    >>> stay_positive({"running_var": np.array([-1.1, 1.0])}, replies, np.ones(4))
    ({'running_var': array([0.2, 1. ])}, 1)
    """
    corrected, count, shares = dict[str, NDArray[Any]](), 0, np.asarray(weights, np.float64)
    for key, array in new.items():
        if array.dtype.kind != "f" or not array.size or (sent is not None and sent[key].min() < 0):
            continue
        chosen = [i for i, reply in enumerate(replies) if reply[key].min() >= 0]
        if 2 * len(chosen) < len(replies) or not chosen:
            continue
        votes = shares[chosen] if shares[chosen].any() else np.ones(len(chosen))
        values, rows = array.reshape(-1), [replies[i][key].reshape(-1) for i in chosen]
        highest = np.maximum.reduce(rows)
        questionable = np.flatnonzero(
            values < LEAST * highest
        )  # No median is beyond the highest: seldom are there any.
        for start in range(0, len(questionable), BLOCK):
            columns = questionable[start : start + BLOCK]
            median = _median(np.array([row[columns] for row in rows], np.float64), votes)
            low = values[columns] < LEAST * median
            if low.any():
                values = corrected.setdefault(key, array.copy()).reshape(-1)
                values[columns[low]] = median[low]
                count += int(low.sum())
    return corrected, count


def positive_after(
    result: Aggregation, new: Arrays, replies: Sequence[Arrays], sent: Arrays | None = None
) -> tuple[dict[str, NDArray[Any]], int]:
    """stay_positive() with the clients and weights of a result of aggregate(), in each of its groups.

    result   what aggregate() made of the replies, and of nothing else before them
    replies  the models of all clients; those that were rejected are not read
    """
    corrected, count = dict[str, NDArray[Any]](), 0
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


def _median(rows: NDArray[np.float64], votes: NDArray[np.float64]) -> NDArray[np.float64]:
    """The weighted median of every column; of two, the upper one."""
    order = np.argsort(-rows, axis=0)
    reached = np.cumsum(votes[order], axis=0) >= 0.5 * (1 - 1e-9) * votes.sum()
    found: NDArray[np.float64] = np.take_along_axis(rows, order, axis=0)[
        reached.argmax(axis=0), np.arange(rows.shape[1])
    ]
    return found
