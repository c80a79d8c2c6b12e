"""Claims: a sentence, where it stands, how it was read, and a verdict over the seeds.

The evidence for a claim is a list of comparisons, each with one number per seed that is positive where the sentence is
right. Numbers of one seed are differences between runs that share data, liars and start, so they are paired. One rule
decides all claims:

    for      the 95 % t interval of the comparison's mean over the seeds lies above 0
    against  it lies below 0
    open     it holds 0, or there is only one seed

    holds      every comparison is for the claim: each must pass by itself, so that their number needs no correction
    fails      some comparison is against it; of k comparisons that are really ties, k/40 would be by chance
    undecided  otherwise
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedhold.lab import Experiment, Result

__all__ = ["Claim", "Comparison", "Evidence", "Results", "Verdict", "interval", "judge", "outcome"]

Results = Callable[[Experiment], Result]  # Store.get, say: a missing result is an error
Evidence = Sequence["Comparison"]

# Student's t: 97.5 % quantiles for 1, 2, 3, ... degrees of freedom; beyond the last, the last is a little wide.
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
SHOWN = 6  # comparisons named in a verdict


@dataclass(frozen=True)
class Comparison:
    """One number per seed, positive where the claim is right.

    what   what was compared, with the numbers behind it
    exact  the number is not measured but follows from a definition: its sign decides, whatever the seeds
    """

    what: str
    values: tuple[float, ...]
    exact: bool = False

    @property
    def side(self) -> str:
        """for, against or open."""
        low, high = interval(self.values, exact=self.exact)
        return "for" if low > 0 else "against" if high < 0 else "open"

    def __str__(self) -> str:
        low, high = interval(self.values, exact=self.exact)
        middle = sum(self.values) / len(self.values)
        if self.exact or not math.isfinite(middle):
            return f"{self.what}: {middle:+.3g}"
        spread = f"+- {(high - low) / 2:.3g}" if math.isfinite(low) else "(one seed)"
        return f"{self.what}: {middle:+.3g} {spread}"


@dataclass(frozen=True)
class Claim:
    """A sentence that can be true or false.

    says     the sentence
    where    its source
    reading  what we take it to mean in numbers
    needs    the figures whose results it rests on
    """

    says: str
    where: str
    reading: str
    needs: tuple[str, ...]
    test: Callable[[Results], Evidence]


@dataclass(frozen=True)
class Verdict:
    """What came of a claim: holds, fails or undecided, and the numbers."""

    says: str
    where: str
    outcome: str
    numbers: str


def interval(values: Sequence[float], *, exact: bool = False) -> tuple[float, float]:
    """The 95 % t interval of the mean.

    >>> low, high = interval([1.0, 2.0, 3.0])
    >>> round(low, 2), round(high, 2)
    (-0.48, 4.48)
    """
    if not values or any(math.isnan(value) for value in values):
        raise ValueError(f"a comparison needs one number per seed, got {list(values)}. Look at the runs behind it.")
    if exact:
        return min(values), max(values)
    if len(values) == 1:
        return -math.inf, math.inf
    if not all(map(math.isfinite, values)):  # a run left the numbers: only seeds that all agree decide anything
        return (0.0, 0.0) if min(values) < 0 < max(values) else (min(values), max(values))
    middle = statistics.fmean(values)
    quantile = T_QUANTILES[min(len(values) - 1, len(T_QUANTILES)) - 1]
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return middle - half, middle + half


def outcome(evidence: Evidence) -> str:
    """holds, fails or undecided, by the rule at the head of this module."""
    sides = {comparison.side for comparison in evidence}
    if not sides:
        raise ValueError("a claim without evidence can neither hold nor fail. Give it at least one comparison.")
    if "against" in sides:
        return "fails"
    return "undecided" if "open" in sides else "holds"


def judge(claim: Claim, results: Results) -> Verdict:
    """Test a claim on the results."""
    evidence = claim.test(results)
    return Verdict(claim.says, claim.where, outcome(evidence), f"{claim.reading}. {_numbers(evidence)}")


def _numbers(evidence: Evidence) -> str:
    """How many comparisons are on which side, and those that decide: against, then open, else the narrowest for it."""
    sides = {side: [c for c in evidence if c.side == side] for side in ("against", "open", "for")}
    if len(evidence) <= SHOWN:
        shown = [c for kind in sides.values() for c in kind]
    else:
        narrow = sorted(sides["for"], key=lambda c: interval(c.values, exact=c.exact)[0])
        shown = (sides["against"] or sides["open"] or narrow[:1])[:SHOWN]
    counts = ", ".join(f"{len(kind)} {side}" for side, kind in sides.items() if kind)
    head = f"{len(evidence)} comparisons: {counts}. " if len(evidence) > 1 else ""
    rest = "" if len(shown) == len(evidence) else " ..."
    return head + "; ".join(map(str, shown)) + rest
