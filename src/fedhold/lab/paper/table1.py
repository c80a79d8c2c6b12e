"""The paper's Table 1, measured: five properties of six aggregation rules, each with a number and a criterion.

Mean estimation, no learning: m = 400 clients, each honest one the mean of n = 10 samples of a centred
exponential law plus 1, in d = 20 dimensions. That is sub-exponential as the paper assumes, and skewed: the median's bias of
1/n, for which the paper denies it the optimal rate where n < m, does not exist for Gaussian samples. The error is the
distance to the truth, as a mean over draws, under the worst of several attacks, for noise skewed either way.

Criteria:

    epsilon-agnostic   given half and twice the true number of liars (20 %), the error stays within 1.1 times the error of
                       the rule given the true number; rules without such a parameter pass by construction
    optimal in epsilon excess ~ epsilon^slope with slope >= 0.75, halfway between 1/2 and 1, the two rates in question
    good near 1/2      from epsilon 0.4 to 0.49, error/epsilon grows no more than 1/sqrt(1 - 2 epsilon) does, which is 3.16
                       times: the rate of eq. (deltaa) is epsilon/sqrt(1 - 2 epsilon)
    linear time        CPU seconds ~ m^slope with slope <= 1.25, from the last doubling of m that was timed: a rule may be
                       linear while overheads weigh, and quadratic beyond
    optimal in d       excess ~ d^slope with slope <= 0.25, halfway between 0 and 1/2, the two rates in question

The excess is sqrt(error^2 - d/N): the optimal rate is epsilon/sqrt(n) + sqrt(d/N), and its second part, which the mean
without liars has too, would hide the first. Slopes are of least-squares lines through logarithms.

Everything was fixed before the first measurement, except for three changes after trials. "good near 1/2" first compared the
error itself with 3.16, not error/epsilon; the raw growth is 1.225 times the number shown, 3.80 and 3.65 for the two rows of
Huber, so that the paper's yes for it would have been a no. The attack `far` came later; it took the slope of median_of_means
from 0.84, a yes, to 0.62, a no. Times were at first those of the clock, which was too noisy.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from fedhold.aggregation import aggregate
from fedhold.kernels import Matrix
from fedhold.lab import ATTACKS, Knowledge, liars

SAMPLES, D = 10, 20
EPSILONS = (0.05, 0.08, 0.125, 0.2)
DIMENSIONS = (5, 20, 80)
LIES: dict[str, tuple[str, dict[str, float]]] = {
    **{name: (name, {}) for name in ("sign_flip", "krum_attack", "trimmed_mean_attack", "huber_attack")},
    **{"alie": ("alie", {}), "min_max": ("min_max", {}), "far": ("ipm", {"scale": 1000.0})},
}
TIMED_D = 200

# Our spec for each rule, with f and T, the distance honest clients are away; and the paper's words, in the order of CRITERIA.
RULES = {
    "krum": ("krum(f={f})", "no no no no no"),
    "median_of_means": ("median_of_means(f={f})", "no no yes yes no"),
    "median": ("median", "yes no yes yes no"),
    "trimmed_mean": ("trimmed_mean(f={f})", "no yes no yes no"),
    "spectral_filter": ("spectral_filter(f={f})", "no no no no yes"),  # HDRS
    "huber, T = sqrt(d/n)": ("huber(threshold={T!r})", "yes yes yes yes no"),
    "huber": ("huber", "yes yes yes yes no"),
}


@dataclass(frozen=True)
class Effort:
    """How much to measure.

    clients  in a federation
    draws    of clients, per attack
    longest  times are measured for growing m until a call takes this many seconds,
    largest  or until m is this large
    """

    clients: int = 400
    draws: int = 3
    longest: float = 0.5
    largest: int = 8192


FULL, QUICK = Effort(), Effort(clients=200, draws=1, longest=0.1, largest=2048)


@dataclass(frozen=True)
class Cell:
    """One property of one rule: the number, yes or no by the criterion, and the paper's word."""

    rule: str
    aspect: str
    number: float
    measured: str
    paper: str

    @property
    def agrees(self) -> bool:
        return self.measured == self.paper

    def __str__(self) -> str:
        differs = "" if self.agrees else f", paper: {self.paper}"
        return f"{self.measured} ({self.number:.2f}){differs}"


def measure(rule: str, aspect: str, effort: Effort = FULL) -> Cell:
    """One cell."""
    criterion, paper = CRITERIA[aspect], RULES[rule][1].split()[list(CRITERIA).index(aspect)]
    number = criterion.measure(rule, effort)
    return Cell(rule, aspect, number, "yes" if criterion.low <= number <= criterion.high else "no", paper)


def worst_error(rule: str, epsilon: float, effort: Effort, *, d: int = D, assumed: float | None = None) -> float:
    """The largest, over attacks and skews, of the mean over draws of |aggregate - truth|.

    epsilon  the fraction of liars
    assumed  the fraction that the rule is given, for rules with such a parameter; by default the true one
    d        the number of coordinates
    """
    m, spread = effort.clients, math.sqrt(d / SAMPLES)
    spec = RULES[rule][0].format(f=liars(epsilon if assumed is None else assumed, m), T=spread)
    byzantine = np.arange(m) < liars(epsilon, m)
    errors = []
    for (lie, parameters), skew in product(LIES.values(), (1, -1)):
        drawn = []
        for draw in range(effort.draws):
            rng = np.random.default_rng([draw, d])  # every rule meets the same clients
            sent = 1 + skew * (rng.gamma(SAMPLES, size=(m, d)) / SAMPLES - 1)
            known = Knowledge(sent, byzantine, rng, np.full(m, spread))
            sent[byzantine] = ATTACKS[lie](known, **parameters)
            drawn.append(float(np.linalg.norm(aggregate(sent, spec, rng=rng).value - 1)))
        errors.append(np.mean(drawn))
    return float(max(errors))


def excess(rule: str, epsilon: float, effort: Effort, *, d: int = D) -> float:
    """The part of the error beyond what the mean without liars has; not below a tenth of that."""
    floor = d / (effort.clients * SAMPLES)
    return math.sqrt(max(worst_error(rule, epsilon, effort, d=d) ** 2 - floor, floor / 100))


def _misled(rule: str, effort: Effort) -> float:
    right = worst_error(rule, 0.2, effort)
    return max(worst_error(rule, 0.2, effort, assumed=assumed) for assumed in (0.1, 0.4)) / right


def _slope_in_epsilon(rule: str, effort: Effort) -> float:
    return _slope(EPSILONS, [excess(rule, epsilon, effort) for epsilon in EPSILONS])


def _growth(rule: str, effort: Effort) -> float:
    return (worst_error(rule, 0.49, effort) / 0.49) / (worst_error(rule, 0.4, effort) / 0.4)


def _slope_in_d(rule: str, effort: Effort) -> float:
    return _slope(DIMENSIONS, [excess(rule, 0.2, effort, d=d) for d in DIMENSIONS])


def _slope_in_time(rule: str, effort: Effort) -> float:
    """m doubles; the last segment counts, where overheads weigh least."""
    sizes, seconds = [64], list[float]()
    while True:
        m = sizes[-1]
        updates = np.random.default_rng(m).standard_normal((m, TIMED_D))
        spec = RULES[rule][0].format(f=liars(0.2, m), T=math.sqrt(TIMED_D))
        seconds.append(min(_seconds(updates, spec) for _ in range(5)))
        if m == effort.largest or (len(sizes) >= 3 and seconds[-1] > effort.longest):
            return _slope(sizes[-2:], seconds[-2:])
        sizes.append(2 * m)


def _seconds(updates: Matrix, spec: str) -> float:
    begun = time.process_time()  # CPU time does not depend on other work on the machine
    aggregate(updates, spec, rng=0)
    return time.process_time() - begun


def _slope(x: Sequence[float], y: Sequence[float]) -> float:
    return float(np.polyfit(np.log(x), np.log(y), 1)[0])


@dataclass(frozen=True)
class Criterion:
    """What makes a yes: a number, in words and as measured, that lies between `low` and `high`."""

    number: str
    measure: Callable[[str, Effort], float]
    low: float = -math.inf
    high: float = math.inf

    def __str__(self) -> str:
        return f">= {self.low:.3g}" if math.isinf(self.high) else f"<= {self.high:.3g}"


GROWTH = math.sqrt((1 - 2 * 0.4) / (1 - 2 * 0.49))
GROWN = "error/epsilon at 0.49 over that at 0.4 (the raw error grows 1.225 times as much)"
CRITERIA = {
    "epsilon-agnostic": Criterion("error told f/2 or 2f, over error told f", _misled, high=1.1),
    "optimal in epsilon": Criterion("slope of the excess in epsilon", _slope_in_epsilon, low=0.75),
    "good near 1/2": Criterion(GROWN, _growth, high=GROWTH),
    "linear time": Criterion("slope of the time in m, last doubling", _slope_in_time, high=1.25),
    "optimal in d": Criterion("slope of the excess in d", _slope_in_d, high=0.25),
}
