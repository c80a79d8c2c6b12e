"""Claims: sentences that can be true or false, the measure they are tested by, and the verdict over seeds and readings.

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

Over the readings of what the paper leaves open, a claim

    holds      under the main reading and every other fair one that was run
    fails      under all of them
    depends    it holds under some, and fails under others
    undecided  under the main reading, for want of seeds

A reading counts for a claim if it changes any of the runs that the claim is tested on. Readings against the paper's letter are
shown beside the others, and count for nothing.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import product

import numpy as np

from fedhold.kernels import Vector
from fedhold.lab import Experiment, Result, Verdict
from fedhold.lab.paper.figures import BASELINES, PAPER_T, SUBFIGURES, Plan, attack_free
from fedhold.lab.paper.readings import FAIR, MAIN, Reading
from fedhold.report import Table

Results = Callable[[Experiment], Result | None]
"""The result of an experiment, None where it has not been run; Store.find for example."""
Curve = tuple[str, str]
"""(name of a subfigure, label of a method)"""
Evidence = Sequence["Comparison"]

# Student's t: 97.5 % quantiles for 1, 2, 3, ... degrees of freedom; beyond the last, the last is a little wide.
T_QUANTILES = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
)
SHOWN, SHOWN_OF_READING = 6, 2  # comparisons named in a verdict, and for each reading that disagrees with the main one
FEWEST = 3  # seeds, before a comparison that is open is given up

# What the paper's words mean in numbers of progress:
#     well        progress above it is "well", "desirable". Below it more than a tenth of what there is to learn is lost, which
#                 on MNIST is 0.08 of accuracy: anyone sees that in a figure
#     relatively  progress above it is "relatively well", "robust": twice that loss
#     failed      progress below it is "fails", "highly susceptible": more is lost than learnt
#     slight      a gap below it is "slightly", "nearly the same", above it "significantly": half of what separates well from
#                 perfect, and about the width of a line or two in the paper's figures
#     margin      a difference between methods within it is none: a hundredth of what there is to learn, which on MNIST is 0.008
#                 of accuracy
WORDS = {"well": 0.9, "relatively": 0.8, "failed": 0.5, "slight": 0.05, "margin": 0.01}
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
    curves: frozenset[Curve] = frozenset()
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
    reading  what we take it to mean in numbers; {well} and the like stand for those of WORDS
    test     from the measurements to the evidence
    quoted   whether the sentence is the paper's own, and not ours
    figure   the figure that a claim about no curve belongs to
    """

    says: str
    where: str
    reading: str
    test: Callable[[Measurements], Evidence]
    quoted: bool = True
    figure: str = ""

    @property
    def needs(self) -> set[str]:
        """The figures whose results it is tested on."""
        return {name[:4] for name, _ in _curves(self, Plan())} or {self.figure}


def interval(values: Sequence[float], *, exact: bool = False) -> tuple[float, float]:
    """The 95 % t interval of the mean; without bounds where fewer than two numbers are known.

    >>> low, high = interval([1.0, 2.0, 3.0])
    >>> round(low, 2), round(high, 2)
    (-0.48, 4.48)
    """
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
    if any(one.side in ("against", "level") for one in evidence):
        return "fails"
    still_open = [one for one in evidence if one.side == "open"]
    if not still_open:
        return "holds"
    return "fails" if any(one.hopeless for one in still_open) else "undecided"


def judge(claim: Claim, measurements: Measurements) -> Verdict:
    """Test a claim on the results of a plan."""
    evidence = claim.test(measurements)
    numbers = f"{claim.reading.format(**measurements.words)}. {shown(evidence)}"
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

    def __init__(self, results: Results, plan: Plan, words: Mapping[str, float] = WORDS) -> None:
        self.results, self.plan, self.widest, self.words = results, plan, plan.widest, words
        self.ends, self.progress = cache(self._ends), cache(self._progress)  # many comparisons share a curve

    def _ends(self, name: str, label: str) -> Vector:
        """The metric at the end of a subfigure's curve."""
        return self._last(SUBFIGURES[name].curve(label, self.widest), SUBFIGURES[name].metric)

    def _progress(self, name: str, label: str) -> Vector:
        """Progress at the end of a subfigure's curve, as the head of this module defines it."""
        metric, free = SUBFIGURES[name].metric, attack_free(SUBFIGURES[name], self.widest)
        start = np.array([self._values(run, metric)[0] for run in free])
        progress: Vector = (self.ends(name, label) - start) / (self._last(free, metric) - start)
        return progress

    def _last(self, runs: Iterable[Experiment], metric: str) -> Vector:
        """The mean over the last tenth of the rounds."""
        every = [self._values(run, metric) for run in runs]
        return np.array([np.mean(values[-max(1, len(values) // 10) :]) for values in every])

    def _values(self, run: Experiment, metric: str) -> Vector:
        """The metric in the rounds that the reading judges; NaN where the run is not there."""
        result = self.results(run)
        if result is None:
            return np.array([np.nan])
        lost = np.inf if metric == "rmse" else 0.0  # a run that diverged
        judged = result.series[metric][: self.plan.reading.end(run)]
        return np.array([lost if value is None else value for value in judged], dtype=np.float64)

    def lead(self, name: str, label: str, other: str) -> Vector:
        """How much more progress `label` makes than `other`."""
        first, second = self.progress(name, label), self.progress(name, other)
        both_lost = np.isinf(first) & (first == second)
        return np.where(both_lost, 0.0, np.subtract(first, second, out=np.zeros_like(first), where=~both_lost))

    def advantage(self, name: str) -> Vector:
        """How much more progress Huber with the paper's T makes than the best of the paper's baselines."""
        leads: Vector = np.min([self.lead(name, PAPER_T, label) for label in BASELINES], axis=0)
        return leads

    def told(self, name: str, *labels: str) -> str:
        """'krum 7.071, median 1.034': the metric at the end, for each method."""
        return ", ".join(f"{label} {mean_of(self.ends(name, label))}" for label in labels)

    def comparison(self, what: str, values: Vector, curves: Iterable[Curve], *, bar: bool = False) -> Comparison:
        """One value per seed, of the seeds whose runs are all there.

        bar  whether they say on which side of a bar something is; else they are differences, which can be level
        """
        there = tuple(values[~np.isnan(values)].tolist())
        margin = 0.0 if bar else self.words["margin"]
        return Comparison(what, there, frozenset(curves), margin=margin, most=len(values))

    def compare(
        self, names: Iterable[str], label: str, others: Sequence[str] = (), *, above: str = "", below: str = ""
    ) -> Evidence:
        """In each subfigure the progress of a method, or its lead over each of the others where there are any.

        above, below  a word: the number is above, or below, what it means. Without a word, the lead is above 0
        """
        found = []
        for name, other in product(names, others or ("",)):
            labels = (label, other) if other else (label,)
            value = self.lead(name, label, other) if other else self.progress(name, label)
            what = f"{name} {SUBFIGURES[name].attack} ({self.told(name, *labels)})"
            if word := above or below:
                value = value - self.words[word] if above else self.words[word] - value
                what = f"{'not ' * bool(below)}{self.words[word]} ahead: {what}" if other else what
            found.append(self.comparison(what, value, [(name, one) for one in labels], bar=bool(word)))
        return found


def mean_of(values: Vector) -> str:
    """The mean over the seeds that were run, for a reader."""
    known = values[~np.isnan(values)]
    return f"{known.mean():.3f}" if known.size else "not run"


# Which runs a claim needs


def _curves(claim: Claim, plan: Plan) -> list[Curve]:
    """What a claim is about."""
    one_seed = replace(plan, most=1, most_mnist=1)  # what is asked for does not depend on the seeds
    return [curve for one in claim.test(Measurements(lambda _: None, one_seed)) for curve in one.curves]


def first_runs(claim: Claim, plan: Plan) -> list[Experiment]:
    """The runs that a claim is first judged on: those of its curves, and the runs without liars, with the plan's seeds."""
    return _runs(_curves(claim, plan), plan)


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
    runs = [_runs(one.curves, measurements.plan.with_seeds(max(len(one.values) + 1, 2))) for one in chosen]
    return list(dict.fromkeys(run for some in runs for run in some))


def hangs_on(claim: Claim, plan: Plan) -> bool:
    """Whether the plan's reading changes anything that the claim is tested on."""
    plan = replace(plan, seeds=1, mnist_seeds=1)
    runs, main = first_runs(claim, plan), first_runs(claim, replace(plan, reading=MAIN))
    return set(runs) != set(main) or any(plan.reading.end(run) != run.rounds for run in runs)


def go_on(claims: Sequence[Claim], results: Results, plan: Plan) -> list[Experiment]:
    """The runs of the first seeds, or of another one, for what is still undecided under the plan's reading.

    There are none for a claim that does not hang on the reading, and none for one that fails by what is there already: most
    comparisons are those of the main reading.
    """
    of, main = Measurements(results, plan), Measurements(results, replace(plan, reading=MAIN))
    asked = [claim for claim in claims if plan.reading == MAIN or hangs_on(claim, plan)]
    return list(dict.fromkeys(run for claim in asked for run in next_runs(claim, of, main)))


def _runs(curves: Iterable[Curve], plan: Plan) -> list[Experiment]:
    parts = [(SUBFIGURES[name], label) for name, label in curves]
    return list(
        dict.fromkeys(run for part, label in parts for run in (*part.curve(label, plan), *attack_free(part, plan)))
    )


# Over the readings


@dataclass(frozen=True)
class Judged:
    """A claim under every reading.

    claim   the claim
    main    the verdict under the main reading
    others  the outcome under each of the other readings: holds, fails, undecided, "" where it changes nothing that the claim
            is tested on, "not run" where its runs are not there
    why     the comparisons behind an outcome that differs from the main one, by reading
    """

    claim: Claim
    main: Verdict
    others: dict[str, str]
    why: dict[str, str]

    @property
    def outcome(self) -> str:
        """holds, fails, depends or undecided, by the rule at the head of this module."""
        fair = {self.others[name] for name in FAIR if name in self.others} & {"holds", "fails"}
        return self.main.outcome if fair <= {self.main.outcome} or self.main.outcome == "undecided" else "depends"

    @property
    def verdict(self) -> Verdict:
        """The verdict over the readings, with the numbers of those that disagree."""
        if not self.why:
            return self.main
        under = " ".join(f"Under '{name}' it {self.others[name]}: {why}" for name, why in self.why.items())
        head = f"Under the main reading it {self.main.outcome}. " if self.outcome == "depends" else ""
        return replace(self.main, outcome=self.outcome, numbers=f"{head}{self.main.numbers} {under}")


def judged(claim: Claim, results: Results, plan: Plan, readings: Iterable[Reading] = ()) -> Judged:
    """Judge a claim under the main reading and these."""
    main = judge(claim, Measurements(results, plan))
    others, why = dict[str, str](), dict[str, str]()
    for reading in readings:
        under = replace(plan, reading=reading)
        if not hangs_on(claim, under):
            others[reading.name] = ""
            continue
        evidence = claim.test(Measurements(results, under))
        found = outcome(evidence)
        there = found != "undecided" or all(one.values for one in evidence)
        others[reading.name] = found if there else "not run"
        if {found, main.outcome} == {"holds", "fails"}:
            why[reading.name] = shown(evidence, SHOWN_OF_READING)
    return Judged(claim, main, others, why)


def by_reading(verdicts: Sequence[Judged]) -> Table:
    """Claims by readings."""
    names = list(verdicts[0].others)
    rows = [(one.claim.says, one.outcome, one.main.outcome, *one.others.values()) for one in verdicts]
    return Table("Claims by reading (empty: it changes nothing there)", ("claim", "together", "main", *names), rows)


def by_words(claims: Sequence[Claim], results: Results, plan: Plan) -> Table:
    """The verdicts under the main reading if one of the paper's words meant half as much, or twice."""
    moved = [(word, value) for word, values in OTHER_WORDS.items() for value in values]
    rows = []
    for claim in claims:
        usual = judge(claim, Measurements(results, plan)).outcome
        others = [judge(claim, Measurements(results, plan, {**WORDS, w: v})).outcome for w, v in moved]
        rows.append((claim.says, usual, *("" if other == usual else other for other in others)))
    header = ("claim", "as read", *(f"{word} {value:g}" for word, value in moved))
    return Table("Claims by what words mean (empty: the verdict stays)", header, rows)
