"""Rules timed side by side: on the same array, in turns, the best of several calls, as a multiple of `X.mean(axis=0)`."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from bench.machine import available_memory, readable
from bench.reference import PULLS, gram, off_by, solve
from fedhold.aggregation import aggregate
from fedhold.kernels import Floats
from fedhold.result import Aggregation

OURS = "fedhold"
YARDSTICK = "X.mean(0)"  # all times are given as multiples of this call's
SHIFT = 2.0  # of a liar, in every column, in standard deviations of the honest clients
PAUSE = 0.02  # seconds before a call, in which the threads of other libraries stop waiting for work
USABLE = 0.6  # the share of the available memory that a call may take

Array = NDArray[np.float32]
Call = Callable[[], Any]
Watch = Callable[[str], None]  # is called with what runs now

Status = Literal["measured", "once", "failed", "too large", "not installed"]


class Row(TypedDict):
    """What was measured of one rule of one library.

    status    "once": one call took longer than all may; "too large": the memory would not have sufficed
    reason    why the status is not "measured"
    seconds   of every call
    best      the least of them
    multiple  the best, as a multiple of the yardstick's best
    off       for rules that iterate: the distance to the reference, in typical distances of a client
    """

    rule: str
    library: str
    status: Status
    reason: str
    seconds: list[float]
    best: NotRequired[float]
    multiple: NotRequired[float]
    off: NotRequired[float]


class Shape(TypedDict):
    """All rows for m clients of d numbers, f of whom lie; the row of the yardstick is first."""

    m: int
    d: int
    f: int
    rows: list[Row]


@dataclass(frozen=True)
class Contender:
    """One rule of one library.

    rule     the name of the rule in fedhold
    library  whose implementation it is
    make     (X, f) -> a function that prepares one call and returns it; only that call is timed, and gives the aggregate
    memory   (m, f) -> what a call takes beside X, as a multiple of the size of X
    stops    when a rule that iterates stops; '' for others
    differs  what it computes instead, where that is not our rule; '' where it is
    """

    rule: str
    library: str
    make: Callable[[Array, int], Callable[[], Call]]
    memory: Callable[[int, int], float]
    stops: str = ""
    differs: str = ""


def liars(m: int) -> int:
    """f: a fifth of the clients."""
    return m // 5


def clients(m: int, d: int, seed: int) -> Array:
    """m float32 rows, standard normal around an offset that they share; the first fifth of them are shifted by SHIFT."""
    rng = np.random.default_rng([seed, m, d])
    X = np.empty((m, d), np.float32)
    offset = rng.standard_normal(d, np.float32)
    for i, row in enumerate(X):
        rng.standard_normal(out=row, dtype=np.float32)
        row += offset
        if i < liars(m):
            row += np.float32(SHIFT)
    return X


def _certificate(X: Array, f: int) -> Aggregation:
    result = aggregate(X, "huber")
    assert result.certificate is not None
    result.certificate.radius(f)
    return result


def _centered_clipping(X: Array) -> Aggregation:
    """Start at zero with a given radius, as ByzFL does."""
    d = X.shape[1]
    return aggregate(X, "centered_clipping", start=np.zeros(d, np.float32), radius=math.sqrt(d), iterations=5)


OWN: dict[str, Callable[[Array, int], Aggregation]] = {
    "mean": lambda X, _: aggregate(X, "mean"),
    "spectral_huber": lambda X, _: aggregate(X, "spectral_huber"),
    "huber": lambda X, _: aggregate(X, "huber"),
    "certificate": _certificate,
    "geometric_median": lambda X, _: aggregate(X, "geometric_median"),
    "median": lambda X, _: aggregate(X, "median"),
    "trimmed_mean": lambda X, f: aggregate(X, "trimmed_mean", f=f),
    "mean_around_median": lambda X, f: aggregate(X, "mean_around_median", f=f),
    "krum": lambda X, f: aggregate(X, "krum", f=f),
    "multi_krum": lambda X, f: aggregate(X, "multi_krum", f=f),
    "bulyan": lambda X, f: aggregate(X, "bulyan", f=f),
    "nearest_neighbour_mixing": lambda X, f: aggregate(X, f"nearest_neighbour_mixing(f={f}) | trimmed_mean(f={f})"),
    "bucketing": lambda X, f: aggregate(X, f"bucketing(size=2) | trimmed_mean(f={bucketed(len(X), f)})", rng=0),
    "clipping": lambda X, _: aggregate(X, f"clipping(radius={math.sqrt(X.shape[1])}) | mean"),
    "centered_clipping": lambda X, _: _centered_clipping(X),
}
OWN_STOPS = "stationary to 1e-6, verified"  # huber and geometric_median, by default


def bucketed(m: int, f: int) -> int:
    """How many liars to withstand among buckets of two: f, or as many as half of the buckets allow."""
    return min(f, (-(-m // 2) - 1) // 2)


def measure_shape(
    m: int,
    d: int,
    rules: Sequence[str],
    peers: Sequence[Contender],
    *,
    repeat: int,
    budget: float,
    seed: int,
    watch: Watch,
) -> Shape:
    """Make m clients of d numbers from the seed, and measure as `measure` does."""
    watch("making the clients")
    X = clients(m, d, seed)
    rows = measure(X, rules, peers, repeat=repeat, budget=budget, watch=watch)
    return {"m": m, "d": d, "f": liars(m), "rows": rows}


def measure(
    X: Array,
    rules: Sequence[str],
    peers: Sequence[Contender],
    *,
    repeat: int,
    budget: float,
    watch: Watch,
    reference: bool = True,
) -> list[Row]:
    """One row for the yardstick, then one per rule and library. Each is called once before any is called again.

    rules      keys of OWN
    peers      of other libraries; those whose rule is among `rules` are measured
    repeat     how often each is called
    budget     seconds; whatever has used them up is not called again
    reference  whether the error of the rules that iterate is measured as well
    """
    runners = [_Runner(contender, X) for contender in _contenders(rules, peers)]
    for turn in range(repeat):
        for runner in runners:
            watch(f"{runner.contender.rule}, {runner.contender.library}, turn {turn + 1}")
            runner.run(budget)
    if reference:
        _compare_with_reference(X, runners, watch)
    yardstick = min(runners[0].seconds)
    return [runner.row(yardstick) for runner in runners]


def _contenders(rules: Sequence[str], peers: Sequence[Contender]) -> Iterator[Contender]:
    """The yardstick, then each rule of ours followed by the same rule of other libraries."""
    yield _without_preparation(YARDSTICK, "NumPy", lambda X, _: X.mean(axis=0))
    for rule in rules:
        yield _without_preparation(rule, OURS, partial(_own, rule))
        yield from (peer for peer in peers if peer.rule == rule)


def _own(rule: str, X: Array, f: int) -> Any:
    return OWN[rule](X, f).value


def _without_preparation(rule: str, library: str, function: Callable[[Array, int], Any]) -> Contender:
    return Contender(rule, library, lambda X, f: lambda: lambda: function(X, f), lambda *_: 0.0)


@dataclass(eq=False)
class _Runner:
    """One contender on one array, and the outcome of its calls so far."""

    contender: Contender
    X: Array
    prepare: Callable[[], Call] | None = None
    seconds: list[float] = field(default_factory=list)
    status: Status = "measured"
    reason: str = ""
    value: Floats | None = None  # of the last call, for rules that have a reference
    off: float | None = None

    def run(self, budget: float) -> None:
        """Call it once more, unless it has failed or used its time."""
        if self.status != "measured" or sum(self.seconds) > budget:
            return
        memory = available_memory()
        needed = self.contender.memory(len(self.X), liars(len(self.X))) * self.X.nbytes
        if memory is not None and needed > USABLE * memory:
            self.status = "too large"
            self.reason = f"needs about {readable(needed)}, and {readable(USABLE * memory)} may be used"
            return
        try:
            self._time_one_call()
        except ModuleNotFoundError as problem:
            self.status, self.reason = "not installed", str(problem)
        except Exception as problem:  # an error of another library must not end the benchmark
            self.status, self.reason = "failed", f"{type(problem).__name__}: {problem}"
        else:
            if len(self.seconds) == 1 and self.seconds[0] > budget:
                self.status, self.reason = "once", f"one call took {self.seconds[0]:.1f} s"

    def _time_one_call(self) -> None:
        self.prepare = self.prepare or self.contender.make(self.X, liars(len(self.X)))
        call = self.prepare()
        gc.collect()
        gc.freeze()  # Flower's Bulyan collects garbage for every client: it must not search all that is loaded here
        time.sleep(PAUSE)
        try:
            begun = time.perf_counter()
            value = call()
            self.seconds.append(time.perf_counter() - begun)
        finally:
            gc.unfreeze()
        if self.contender.rule in PULLS:
            self.value = np.asarray(value)

    def row(self, yardstick: float) -> Row:
        """What goes into the results; `yardstick` is the best time of the yardstick in seconds."""
        row: Row = {
            "rule": self.contender.rule,
            "library": self.contender.library,
            "status": self.status,
            "reason": self.reason,
            "seconds": self.seconds,
        }
        if self.seconds:
            row |= {"best": min(self.seconds), "multiple": min(self.seconds) / yardstick}
        if self.off is not None:
            row["off"] = self.off
        return row


def _compare_with_reference(X: Array, runners: Sequence[_Runner], watch: Watch) -> None:
    """Set `off` of every runner whose rule has a reference."""
    solved = [runner for runner in runners if runner.value is not None]
    if not solved:
        return
    watch("the reference in float64")
    products = gram(X)
    for rule in PULLS:
        of_rule = [runner for runner in solved if runner.contender.rule == rule]
        if of_rule:
            values = [runner.value for runner in of_rule if runner.value is not None]
            for runner, off in zip(of_rule, off_by(X, solve(products, rule), values), strict=True):
                runner.off = off


# Growth: how the cost of a rule depends on the number of clients and on the number of columns.

GROWTH_RULES = ("huber", "median", "trimmed_mean")
SLOPE_TARGET = 1.1  # the largest slope that is as good as linear
CLIENTS, WITH_COLUMNS = (50, 158, 500, 1581, 5000), 10_000  # 200 MB at most
COLUMNS, WITH_CLIENTS = (10_000, 100_000, 1_000_000, 10_000_000), 20  # 800 MB at most


class Growth(TypedDict):
    """The cost of one rule over several sizes.

    axis     "clients" or "columns": what grows
    sizes    how many of them
    fixed    how many there are of the other
    seconds  the best for each size
    slope    the exponent p of seconds ~ size^p
    """

    rule: str
    axis: str
    sizes: list[int]
    fixed: int
    seconds: list[float]
    slope: float


def measure_growth(
    *,
    repeat: int,
    budget: float,
    seed: int,
    watch: Watch,
    over_clients: Sequence[int] = CLIENTS,
    over_columns: Sequence[int] = COLUMNS,
) -> list[Growth]:
    """One row per axis for the yardstick and for each of GROWTH_RULES; `repeat`, `budget` as in `measure`."""
    rows: list[Growth] = []
    for axis, sizes, fixed in (("clients", over_clients, WITH_COLUMNS), ("columns", over_columns, WITH_CLIENTS)):
        best: dict[str, list[float]] = {rule: [] for rule in (YARDSTICK, *GROWTH_RULES)}
        for size in sizes:
            watch(f"{size:,} {axis}")
            X = clients(*((size, fixed) if axis == "clients" else (fixed, size)), seed)
            for row in measure(
                X, GROWTH_RULES, (), repeat=repeat, budget=budget, watch=lambda _: None, reference=False
            ):
                best[row["rule"]].append(row["best"])
        rows += [
            {
                "rule": rule,
                "axis": axis,
                "sizes": list(sizes),
                "fixed": fixed,
                "seconds": seconds,
                "slope": slope(sizes, seconds),
            }
            for rule, seconds in best.items()
        ]
    return rows


def last_slope(row: Growth) -> float:
    """The exponent of the last step alone, from the second largest size to the largest."""
    return slope(row["sizes"][-2:], row["seconds"][-2:])


def slope(sizes: Sequence[int], seconds: Sequence[float]) -> float:
    """The exponent p of seconds ~ size^p, by least squares.

    >>> slope([10, 100, 1000], [0.2, 2.0, 20.0])
    1.0
    """
    fitted = np.polyfit([math.log(size) for size in sizes], [math.log(second) for second in seconds], 1)
    return round(float(fitted[0]), 3)
