"""Claims: sentences that can be true or false, the measure they are tested by, and the verdict over the seeds.

The evidence for a claim is a list of comparisons, each with one number per seed that is positive where the sentence is
right. Numbers of one seed are differences between runs that share data, liars and start, so they are paired. One rule
decides all claims:

    for      the 95 % t interval of the comparison's mean over the seeds lies above 0
    against  it lies below 0
    open     it holds 0, or there is only one seed

    holds      every comparison is for the claim: each must pass by itself, so that their number needs no correction
    fails      some comparison is against it; of k comparisons that are really ties, k/40 would be by chance
    undecided  otherwise

Most comparisons are of progress, which says where a run ended between its start and a run without liars:

    progress = (value - start) / (reference - start)

    value      of a run at its end: the mean over the last tenth of its rounds of rmse, or of accuracy
    reference  the same of the mean without liars, on the data of the same seed
    start      the value after the first round of that run

0 is no better than at the start, 1 as good as if no client lied; below 0 the liars make the model worse than at the start.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fedhold.kernels import Vector
from fedhold.lab import Experiment, Result, Verdict
from fedhold.lab.paper.figures import BASELINES, FIGURES, PAPER_T, Plan, attack_free

Results = Callable[[Experiment], Result]
"""The result of an experiment; Store.get for example, which raises an error where it is missing."""
Evidence = Sequence["Comparison"]

SUBFIGURES = {subfigure.name: subfigure for figure in FIGURES.values() for subfigure in figure}

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
    needs    the figures whose results it is tested on
    test     from the measurements to the evidence
    quoted   whether the sentence is the paper's own, and not ours
    """

    says: str
    where: str
    reading: str
    needs: tuple[str, ...]
    test: Callable[[Measurements], Evidence]
    quoted: bool = True


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
    if not all(map(math.isfinite, values)):  # a run diverged: then the seeds decide only if they all agree
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


def judge(claim: Claim, measurements: Measurements) -> Verdict:
    """Test a claim on the results of a plan."""
    evidence = claim.test(measurements)
    numbers = f"{claim.reading}. {_numbers(evidence)}"
    return Verdict(claim.says, claim.where, outcome(evidence), numbers, claim.quoted)


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


class Measurements:
    """Numbers and comparisons from the results of a plan, one value per seed.

    results  from an experiment to its result
    plan     the seeds and rounds that were run

    In its methods, `name` is that of a subfigure, such as fig1a, and `label` that of a method, such as krum.
    """

    def __init__(self, results: Results, plan: Plan) -> None:
        self.results, self.plan = results, plan

    def ends(self, name: str, label: str) -> Vector:
        """The metric at the end of a subfigure's curve."""
        subfigure = SUBFIGURES[name]
        return np.array([self._end(run, subfigure.metric) for run in subfigure.curve(label, self.plan)])

    def progress(self, name: str, label: str) -> Vector:
        """Progress at the end of a subfigure's curve, as the head of this module defines it."""
        subfigure = SUBFIGURES[name]
        free = attack_free(subfigure, self.plan)
        reference = np.array([self._end(run, subfigure.metric) for run in free])
        start = np.array([self.results(run).series[subfigure.metric][0] for run in free], dtype=np.float64)
        progress: Vector = (self.ends(name, label) - start) / (reference - start)
        return progress

    def lead(self, name: str, label: str, other: str) -> Vector:
        """How much more progress `label` makes than `other`."""
        first, second = self.progress(name, label), self.progress(name, other)
        both_lost = np.isinf(first) & (first == second)
        return np.where(both_lost, 0.0, np.subtract(first, second, out=np.zeros_like(first), where=~both_lost))

    def advantage(self, name: str) -> Vector:
        """How much more progress Huber with the paper's T makes than the best of the paper's baselines."""
        leads: Vector = np.min([self.lead(name, PAPER_T, label) for label in BASELINES], axis=0)
        return leads

    def _end(self, run: Experiment, metric: str) -> float:
        series = self.results(run).series[metric]
        lost = np.inf if metric == "rmse" else 0.0  # a run that diverged
        last = [lost if value is None else value for value in series[-max(1, len(series) // 10) :]]
        return float(np.mean(last))

    def above(self, name: str, label: str, bar: float) -> Comparison:
        """progress > bar."""
        return self._compared(name, [label], self.progress(name, label) - bar)

    def below(self, name: str, label: str, bar: float) -> Comparison:
        """progress < bar."""
        return self._compared(name, [label], bar - self.progress(name, label))

    def better(self, name: str, label: str, other: str, by: float = 0.0) -> Comparison:
        """`label` makes more progress than `other`, by more than `by`."""
        return self._compared(name, [label, other], self.lead(name, label, other) - by)

    def close(self, name: str, label: str, other: str, by: float) -> Comparison:
        """`label` does not make more progress than `other` by `by` or more."""
        return self._compared(name, [label, other], by - self.lead(name, label, other), f"not {by} ahead: ")

    def _compared(self, name: str, labels: Sequence[str], values: Vector, word: str = "") -> Comparison:
        ends = ", ".join(f"{label} {self.ends(name, label).mean():.3f}" for label in labels)
        return Comparison(f"{word}{name} {SUBFIGURES[name].attack} ({ends})", tuple(values.tolist()))
