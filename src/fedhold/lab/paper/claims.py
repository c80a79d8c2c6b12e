"""Claims: sentences that can be true or false, the measure they are tested by, and the verdict over the seeds.

The evidence for a claim is a list of comparisons, each with one number per seed that is positive where the sentence is
right. Numbers of one seed are differences between runs that share data, liars and start, so they are paired. One rule
decides all claims:

    level    one method is compared with another, and the 95 % t interval of the mean over the seeds lies within the margin on
             both sides of 0: whatever its sign, there is no difference that anyone would notice
    for      else, that interval lies above 0
    against  it lies below 0
    open     it holds 0, or there is only one seed

    holds      every comparison is for the claim: each must pass by itself, so that their number needs no correction
    fails      some comparison is against it, or level; of k comparisons that are really ties, k/40 would be against by chance
    undecided  otherwise

A comparison that is open gets another seed, and another, up to the plan's limit; the one that leans most against the claim
comes first, since one is enough. One that is still open then fails the claim, too: what the paper says of one run, so many
runs do not show. So does one that is hopeless: it would not be for the claim even if all seeds that are left came out like the
best one so far. Its interval says how large the difference can be. (An interval that is looked at after every seed covers
less often than 95 % in the long run; that is the price of few seeds.)

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
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from fedhold.kernels import Vector
from fedhold.lab import Experiment, Result, Verdict
from fedhold.lab.paper.figures import BASELINES, PAPER_T, SUBFIGURES, Plan, attack_free
from fedhold.lab.paper.readings import MAIN

Results = Callable[[Experiment], Result | None]
"""The result of an experiment, None where it has not been run; Store.find for example."""
Evidence = Sequence["Comparison"]
Curves = Iterable[tuple[str, str]]
"""(name of a subfigure, label of a method)"""

# Student's t: 97.5 % quantiles for 1, 2, 3, ... degrees of freedom; beyond the last, the last is a little wide.
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
SHOWN = 6  # comparisons named in a verdict
FEWEST = 3  # seeds, before a comparison that is open is given up


@dataclass(frozen=True)
class Words:
    """What the paper's words mean in numbers of progress.

    well        progress above it is "well", "desirable". Below it more than a tenth of what there is to learn is lost, which on
                MNIST is 0.08 of accuracy: anyone sees that in a figure
    relatively  progress above it is "relatively well", "robust": twice that loss
    failed      progress below it is "fails", "highly susceptible": more is lost than learnt
    slight      a gap below it is "slightly", "nearly the same", above it "significantly": half of what separates well from
                perfect, and about the width of a line or two in the paper's figures
    margin      a difference between methods within it is none: a hundredth of what there is to learn, which on MNIST is 0.008
                of accuracy
    """

    well: float = 0.9
    relatively: float = 0.8
    failed: float = 0.5
    slight: float = 0.05
    margin: float = 0.01


WORDS = Words()
# Every word moved to half of what it concedes, and to twice: "well" from a loss of 0.1 to one of 0.05, and of 0.2. Twice the
# loss of "fails" would be all there is; it is moved to three quarters instead.
OTHER_WORDS = {
    "well": (0.95, 0.8),
    "relatively": (0.9, 0.6),
    "failed": (0.25, 0.75),
    "slight": (0.025, 0.1),
    "margin": (0.005, 0.02),
}


@dataclass(frozen=True)
class Comparison:
    """One number per seed, positive where the claim is right.

    what    what was compared, with the numbers behind it
    values  one for each seed that was run
    curves  what the values were computed from
    exact   the number is not measured but follows from a definition: its sign decides, whatever the seeds
    margin  a difference within it is none; 0 where a number is compared with a bar, and its sign is all there is
    most    how many seeds there may be; None: there is no limit
    """

    what: str
    values: tuple[float, ...]
    curves: frozenset[tuple[str, str]] = frozenset()
    exact: bool = False
    margin: float = 0.0
    most: int | None = None

    @property
    def side(self) -> str:
        """for, against, level or open."""
        low, high = interval(self.values, exact=self.exact)
        if -self.margin < low and high < self.margin:
            return "level"
        return "for" if low > 0 else "against" if high < 0 else "open"

    @property
    def hopeless(self) -> bool:
        """Whether seeds will not show the claim: with all that there may be, it would not be for it even if those that are left
        came out like the best one so far. Fewer than three seeds never say so, unless there may be no more: the interval of
        two is three times as wide as that of three, and tells a reader nothing.

        That gives up little: of normal values with a mean of 0.5, 1 and 2 standard deviations, 26.9, 60.2 and 97.8 % come out
        for the claim with up to 6 seeds, and 26.8, 60.0 and 97.8 % where the hopeless are given up, after 3.8, 4.1 and 3.6
        seeds instead of 5.4, 4.8 and 3.6 (20,000 draws of each).
        """
        if self.most is None or len(self.values) < max(min(self.most, FEWEST), 2):
            return False
        left = max(self.most - len(self.values), 0)
        return replace(self, values=(*self.values, *[max(self.values)] * left)).side != "for"

    def __str__(self) -> str:
        if not self.values:
            return f"{self.what}: not run"
        low, high = interval(self.values, exact=self.exact)
        middle = sum(self.values) / len(self.values)
        if self.exact or not math.isfinite(middle):
            return f"{self.what}: {middle:+.3g}"
        seeds = f" ({len(self.values)} seeds)"
        spread = f"+- {(high - low) / 2:.2g}{seeds}" if math.isfinite(low) else "(one seed)"
        return f"{self.what}: {middle:+.3g} {spread}"


@dataclass(frozen=True)
class Claim:
    """A sentence that can be true or false.

    says     the sentence
    where    its source
    reading  what we take it to mean in numbers; {well} and the like stand for those of Words
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
    """The 95 % t interval of the mean; without bounds where fewer than two numbers are known.

    >>> low, high = interval([1.0, 2.0, 3.0])
    >>> round(low, 2), round(high, 2)
    (-0.48, 4.48)
    """
    if any(math.isnan(value) for value in values):
        raise ValueError(f"a comparison needs one number per seed, got {list(values)}. Look at the runs behind it.")
    if exact:
        return min(values), max(values)
    if len(values) < 2:
        return -math.inf, math.inf
    if not all(map(math.isfinite, values)):  # a run diverged: then the seeds decide only if they all agree
        return (0.0, 0.0) if min(values) < 0 < max(values) else (min(values), max(values))
    middle = statistics.fmean(values)
    quantile = T_QUANTILES[min(len(values) - 1, len(T_QUANTILES)) - 1]
    half = quantile * statistics.stdev(values) / math.sqrt(len(values))
    return middle - half, middle + half


def outcome(evidence: Evidence) -> str:
    """holds, fails or undecided, by the rule at the head of this module."""
    if not evidence:
        raise ValueError("a claim without evidence can neither hold nor fail. Give it at least one comparison.")
    if any(one.side in ("against", "level") for one in evidence):
        return "fails"
    still_open = [one for one in evidence if one.side == "open"]
    if not still_open:
        return "holds"
    return "fails" if any(one.hopeless for one in still_open) else "undecided"


def judge(claim: Claim, measurements: Measurements) -> Verdict:
    """Test a claim on the results of a plan."""
    evidence = claim.test(measurements)
    numbers = f"{claim.reading.format(**vars(measurements.words))}. {shown(evidence)}"
    return Verdict(claim.says, claim.where, outcome(evidence), numbers, claim.quoted)


def shown(evidence: Evidence, most: int = SHOWN) -> str:
    """How many comparisons are on which side, and those that decide: against, level, open, else the narrowest for it.

    Of the open ones, those that more seeds will not turn come first.
    """
    sides = {side: [c for c in evidence if c.side == side] for side in ("against", "level", "open", "for")}
    sides["open"].sort(key=lambda c: not c.hopeless)
    if len(evidence) <= most:
        named = [c for kind in sides.values() for c in kind]
    else:
        narrow = sorted(sides["for"], key=lambda c: interval(c.values, exact=c.exact)[0])
        named = (sides["against"] or sides["level"] or sides["open"] or narrow[:1])[:most]
    counts = ", ".join(f"{len(kind)} {side}" for side, kind in sides.items() if kind)
    head = f"{len(evidence)} comparisons: {counts}. " if len(evidence) > 1 else ""
    rest = "" if len(named) == len(evidence) else " ..."
    return head + "; ".join(map(str, named)) + rest


class Measurements:
    """Numbers and comparisons from the results of a plan, one value per seed; NaN for seeds that have not been run.

    results  from an experiment to its result, or None
    plan     the reading, and how many seeds there may be
    words    what the paper's words mean in numbers

    In its methods, `name` is that of a subfigure, such as fig1a, and `label` that of a method, such as krum.
    """

    def __init__(self, results: Results, plan: Plan, words: Words = WORDS) -> None:
        self.results, self.plan, self.widest, self.words = results, plan, plan.widest, words
        self.ends, self.progress = cache(self._ends), cache(self._progress)  # many comparisons share a curve

    def _ends(self, name: str, label: str) -> Vector:
        """The metric at the end of a subfigure's curve."""
        subfigure = SUBFIGURES[name]
        return np.array([self._end(run, subfigure.metric) for run in subfigure.curve(label, self.widest)])

    def _progress(self, name: str, label: str) -> Vector:
        """Progress at the end of a subfigure's curve, as the head of this module defines it."""
        subfigure = SUBFIGURES[name]
        free = attack_free(subfigure, self.widest)
        reference = np.array([self._end(run, subfigure.metric) for run in free])
        start = np.array([self._values(run, subfigure.metric)[0] for run in free])
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
        values = self._values(run, metric)
        return float(np.mean(values[-max(1, len(values) // 10) :]))

    def _values(self, run: Experiment, metric: str) -> Vector:
        """The metric in the rounds that the reading judges; NaN where the run is not there."""
        result = self.results(run)
        if result is None:
            return np.array([np.nan])
        lost = np.inf if metric == "rmse" else 0.0  # a run that diverged
        judged = result.series[metric][: self.plan.reading.end(run)]
        return np.array([lost if value is None else value for value in judged], dtype=np.float64)

    def difference(self, what: str, values: Vector, curves: Curves) -> Comparison:
        """How much more progress one makes than another, one value per seed; it can be level."""
        return replace(self.sign(what, values, curves), margin=self.words.margin)

    def sign(self, what: str, values: Vector, curves: Curves) -> Comparison:
        """On which side of a bar something is, one value per seed, of the seeds whose runs are all there."""
        there = tuple(values[~np.isnan(values)].tolist())
        return Comparison(what, there, frozenset(curves), most=len(values))

    def mean_end(self, name: str, label: str) -> str:
        """The metric at the end, mean over the seeds that were run."""
        ends = self.ends(name, label)
        known = ends[~np.isnan(ends)]
        return f"{known.mean():.3f}" if known.size else "not run"

    def above(self, name: str, label: str, bar: float) -> Comparison:
        """progress > bar."""
        return self.sign(self._ends_of(name, label), self.progress(name, label) - bar, [(name, label)])

    def below(self, name: str, label: str, bar: float) -> Comparison:
        """progress < bar."""
        return self.sign(self._ends_of(name, label), bar - self.progress(name, label), [(name, label)])

    def better(self, name: str, label: str, other: str) -> Comparison:
        """`label` makes more progress than `other`."""
        curves = [(name, label), (name, other)]
        return self.difference(self._ends_of(name, label, other), self.lead(name, label, other), curves)

    def ahead(self, name: str, label: str, other: str, by: float) -> Comparison:
        """`label` makes more progress than `other`, by more than `by`."""
        curves = [(name, label), (name, other)]
        return self.sign(f"{by} ahead: {self._ends_of(name, label, other)}", self.lead(name, label, other) - by, curves)

    def close(self, name: str, label: str, other: str, by: float) -> Comparison:
        """`label` does not make more progress than `other` by `by` or more."""
        curves = [(name, label), (name, other)]
        return self.sign(
            f"not {by} ahead: {self._ends_of(name, label, other)}", by - self.lead(name, label, other), curves
        )

    def _ends_of(self, name: str, *labels: str) -> str:
        ends = ", ".join(f"{label} {self.mean_end(name, label)}" for label in labels)
        return f"{name} {SUBFIGURES[name].attack} ({ends})"


# Which runs a claim needs


def first_runs(claim: Claim, plan: Plan) -> list[Experiment]:
    """The runs that a claim is first judged on: those of its curves, and the runs without liars, with the plan's seeds."""
    one_seed = replace(plan, most=1, most_mnist=1)  # what is asked for does not depend on the seeds
    evidence = claim.test(Measurements(lambda _: None, one_seed))
    return _runs((curve, plan) for one in evidence for curve in one.curves)


def next_runs(claim: Claim, measurements: Measurements, main: Measurements) -> list[Experiment]:
    """The runs that give another seed to what leaves the claim undecided; none where it is decided.

    One comparison against a claim is enough. So the open one that leans most against it gets its seeds first, alone, and the
    others only if the claim may still hold: then it needs them all.

    main  the same under the main reading: it tells what leans where there is no run yet
    """
    evidence = claim.test(measurements)
    if outcome(evidence) != "undecided":
        return []
    leans = {
        one: statistics.fmean(one.values or known.values or (math.inf,))
        for one, known in zip(evidence, claim.test(main), strict=True)
        if one.side == "open" and not one.hopeless
    }
    least = min(leans, key=lambda one: leans[one])
    chosen = [least] if leans[least] < least.margin else leans
    return _runs(
        (curve, measurements.plan.with_seeds(max(len(one.values) + 1, 2))) for one in chosen for curve in one.curves
    )


def hangs_on(claim: Claim, plan: Plan) -> bool:
    """Whether the plan's reading changes anything that the claim is tested on."""
    plan = replace(plan, seeds=(0,), mnist_seeds=(0,))
    runs, main = first_runs(claim, plan), first_runs(claim, replace(plan, reading=MAIN))
    return set(runs) != set(main) or any(plan.reading.end(run) != run.rounds for run in runs)


def _runs(curves: Iterable[tuple[tuple[str, str], Plan]]) -> list[Experiment]:
    found = [
        run
        for (name, label), plan in curves
        for run in (*SUBFIGURES[name].curve(label, plan), *attack_free(SUBFIGURES[name], plan))
    ]
    return list(dict.fromkeys(found))
