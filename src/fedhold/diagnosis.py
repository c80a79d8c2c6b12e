"""What the updates alone say about who belongs together, and what they cannot say.

distances between all pairs -> average linkage -> the first jump of its heights -> groups, and clients that stand alone
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedhold.errors import require
from fedhold.geometry import Geometry
from fedhold.kernels import Matrix, one_blas_thread
from fedhold.sizes import MAX_PAIRED
from fedhold.updates import AllPairs, DamagedFileError, admit, gather, opened, without_damaged

__all__ = ["Diagnosis", "diagnose", "diagnosed"]

# Of 36 rounds of Fashion-MNIST clients without groups (iid, Dirichlet .1 and .5, two classes each), none is cut in two by these
# numbers; of 18 with a group of five or eight in twenty that holds three classes, all are. Among random points the shares of
# false alarms are 0 from ten dimensions on, and 2 to 7 % in five.
JUMP = 1.5  # times the height before: where average linkage joins groups, and no longer members of one
APART = 2.0  # times the median height: groups are at least so far from each other


@dataclass(frozen=True)
class Diagnosis:
    """Which clients form groups.

    groups    the indices of the clients of every group, the largest first; a group has two clients or more
    alone     the clients that are far from all others
    rejected  those that sent nothing that can be compared
    """

    groups: tuple[tuple[int, ...], ...]
    alone: tuple[int, ...]
    rejected: tuple[int, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of the groups."""
        return tuple(map(len, self.groups))

    @property
    def differ(self) -> bool:
        """Whether there is more than one group, or a client alone."""
        return len(self.groups) + len(self.alone) > 1

    @property
    def text(self) -> str:
        """What can be known from the updates, and what cannot."""
        present = sum(self.sizes) + len(self.alone)
        if not self.differ:
            return f"The clients form one group of {present}. Lies that keep within honest differences would not show here."
        sizes = " and ".join(map(str, self.sizes))
        told = [f"{len(self.groups)} group{'s' * (len(self.groups) != 1)} of {sizes}"] if self.groups else []
        told += [f"{len(self.alone)} alone"] if self.alone else []
        said = f"The clients form {', and '.join(told)}."
        if 2 * max(self.sizes, default=1) <= present:
            return f"{said} No group has a majority, so no rule can know whom to follow. A guard with data of your own can."
        return (
            f"{said} The default rule follows the largest. Whether the others lie, or hold data that nobody else has, no rule "
            "can know from their updates. If they are honest, pass a guard, aggregate each group by itself, or use huber "
            "for a minority of about two fifths."
        )

    def __str__(self) -> str:
        return self.text


@one_blas_thread
def diagnose(updates: Any, *, like: Any = None) -> Diagnosis:
    """Which clients form groups, by the distances between all pairs; and in words, what no rule can know.

    updates  as for aggregate(); of at most 4,096 clients
    like     as for aggregate()

    Groups are joined by average linkage. Where its heights jump for the first time, in their upper half, to 1.5 times the one
    before and twice the median, members of one group end and groups begin. Moving, turning or scaling all updates changes
    nothing, and one far client costs the others nothing: it stands alone. In fewer than five dimensions, chance makes groups.

    >>> rng = np.random.default_rng(0)
    >>> updates = rng.standard_normal((20, 50))
    >>> updates[:5] += 4
    >>> found = diagnose(updates)
    >>> found.sizes, found.groups[1]
    ((15, 5), (0, 1, 2, 3, 4))
    """
    given = opened(updates)
    while True:
        try:
            sent = gather(given, None, None, like)
            m = sent.updates.m
            remedy = "Diagnose a sample of the clients."
            require(m <= MAX_PAIRED, "diagnose", needs=f"at most {MAX_PAIRED:,} clients", remedy=remedy, m=m)
            admission = admit(sent, AllPairs(), around_zero=False)
            geometry = Geometry(admission.updates, admission.samples, admission.look)
            return diagnosed(geometry.squared_distances, np.asarray(admission.admitted), len(admission.reasons))
        except DamagedFileError as problem:
            given = without_damaged(given, problem)


def diagnosed(squares: Matrix, admitted: np.ndarray[Any, np.dtype[np.intp]], m: int) -> Diagnosis:
    """The diagnosis from squared distances.

    squares   between the admitted clients
    admitted  their indices
    m         how many clients there are in all
    """
    joins = _joined(np.sqrt(squares))
    heights = np.sort([height for height, _, _ in joins])
    half = max(len(heights) - 1, 0) // 2
    limit = np.inf
    for low, high in zip(heights[half:], heights[half + 1 :], strict=False):
        if high >= JUMP * low and high > APART * heights[half]:
            limit = high
            break
    members = {client: [client] for client in range(len(squares))}
    for height, one, other in joins:  # A join comes after those that made its parts, and is no lower.
        if height < limit:
            members[one] += members.pop(other)
    found = sorted((sorted(admitted[clients].tolist()) for clients in members.values()), key=lambda g: (-len(g), g))
    alone = len(found) > 1
    return Diagnosis(
        tuple(tuple(group) for group in found if len(group) > 1 or not alone),
        tuple(group[0] for group in found if len(group) == 1 and alone),
        tuple(np.setdiff1d(np.arange(m), admitted).tolist()),
    )


def _joined(distances: Matrix) -> list[tuple[float, int, int]]:
    """The joins of average linkage, found along chains of nearest neighbours: (height, the one that stays, the one joined).

    The mean distance of two groups to a third is never less than the smaller of theirs, so that groups that are each other's
    nearest may be joined at once, whatever else is joined later.
    """
    away, m = distances.copy(), len(distances)
    np.fill_diagonal(away, np.inf)
    sizes, alive, chain, joins = np.ones(m), np.ones(m, dtype=bool), list[int](), []
    for _ in range(m - 1):
        chain = chain or [int(alive.argmax())]
        while True:
            last = chain[-1]
            nearest = int(away[last].argmin())
            if len(chain) > 1 and away[last, chain[-2]] <= away[last, nearest]:
                break
            chain.append(nearest)
        other, one = chain.pop(), chain.pop()
        joins.append((float(away[one, other]), one, other))
        share = sizes[one] / (sizes[one] + sizes[other])
        with np.errstate(invalid="ignore"):
            away[one] = away[:, one] = share * away[one] + (1 - share) * away[other]
        away[other] = away[:, other] = away[one, one] = np.inf
        sizes[one] += sizes[other]
        alive[other] = False
    return joins
