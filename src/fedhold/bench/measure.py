"""Timing rules side by side: the same arrays, turn by turn, the best of several, as multiples of `X.mean(0)`."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold import aggregate
from fedhold.aggregation import Aggregation
from fedhold.bench.machine import available_memory, readable
from fedhold.bench.peers import Peer
from fedhold.bench.reference import PULLS, gram, off_by, solve
from fedhold.kernels import ENOUGH, worth_compiling

__all__ = ["OURS", "OWN", "YARDSTICK", "clients", "liars", "measure", "measure_shape"]

OURS, YARDSTICK = "fedhold", "X.mean(0)"
SHIFT = 2.0  # of a liar, in every column, in standard deviations of the honest
PAUSE = 0.02  # seconds before a call, for other libraries' threads to stop spinning
USABLE = 0.6  # of the memory that is available: what a peer may take

Array = NDArray[np.float32]
Watch = Callable[[str], None]


def liars(m: int) -> int:
    """f: a fifth of the clients."""
    return m // 5


def clients(m: int, d: int, seed: int) -> Array:
    """m float32 rows: standard normal around an offset they share; the first fifth of them shifted."""
    rng = np.random.default_rng([seed, m, d])
    X = np.empty((m, d), np.float32)
    offset = rng.standard_normal(d, np.float32)
    for i, row in enumerate(X):
        rng.standard_normal(out=row, dtype=np.float32)
        row += offset
        if i < liars(m):
            row += np.float32(SHIFT)
    return X


def _centered_clipping(X: Array, f: int) -> Aggregation:  # noqa: ARG001
    """As ByzFL does it: from zero, by a radius that is given."""
    d = X.shape[1]
    return aggregate(X, "centered_clipping", start=np.zeros(d, np.float32), radius=math.sqrt(d), iterations=5)


def _certificate(X: Array, f: int) -> Aggregation:
    result = aggregate(X)
    assert result.certificate is not None
    result.certificate.radius(f)
    return result


OWN: dict[str, Callable[[Array, int], Aggregation]] = {
    "mean": lambda X, f: aggregate(X, "mean"),  # noqa: ARG005
    "huber": lambda X, f: aggregate(X, "huber"),  # noqa: ARG005
    "certificate": _certificate,
    "geometric_median": lambda X, f: aggregate(X, "geometric_median"),  # noqa: ARG005
    "median": lambda X, f: aggregate(X, "median"),  # noqa: ARG005
    "trimmed_mean": lambda X, f: aggregate(X, "trimmed_mean", f=f),
    "krum": lambda X, f: aggregate(X, "krum", f=f),
    "multi_krum": lambda X, f: aggregate(X, "multi_krum", f=f),
    "bulyan": lambda X, f: aggregate(X, "bulyan", f=f),
    "nearest_neighbour_mixing": lambda X, f: aggregate(X, f"nearest_neighbour_mixing(f={f}) | trimmed_mean(f={f})"),
    "centered_clipping": _centered_clipping,
}


@dataclass(eq=False)
class _Runner:
    """One rule of one library, with what became of it so far."""

    rule: str
    library: str
    make: Callable[[], Callable[[], Callable[[], Any]]]
    bytes_needed: float = 0.0
    prepare: Callable[[], Callable[[], Any]] | None = None
    seconds: list[float] = field(default_factory=list)
    value: Any = None
    status: str = ""
    reason: str = ""

    def run(self, budget: float) -> None:
        """Once more, unless it failed or has used its time."""
        if self.status or sum(self.seconds) > budget:
            return
        memory = available_memory()
        if memory is not None and self.bytes_needed > USABLE * memory:
            self.status = "too large"
            self.reason = f"needs about {readable(self.bytes_needed)}, and {readable(USABLE * memory)} may be used"
            return
        try:
            self._run()
        except ModuleNotFoundError as problem:
            self.status, self.reason = "not installed", str(problem)
        except Exception as problem:  # whatever a peer does must not end the benchmark
            self.status, self.reason = "failed", f"{type(problem).__name__}: {problem}"
        else:
            if len(self.seconds) == 1 and self.seconds[0] > budget:
                self.status, self.reason = "once", f"one call took {self.seconds[0]:.1f} s"

    def _run(self) -> None:
        self.prepare = self.prepare or self.make()
        call = self.prepare()
        gc.collect()
        gc.freeze()  # Flower's Bulyan collects garbage for every client: it need not search all that is loaded here
        time.sleep(PAUSE)
        try:
            begun = time.perf_counter()
            value = call()
            self.seconds.append(time.perf_counter() - begun)
        finally:
            gc.unfreeze()
        if self.rule in PULLS:  # compared with the reference, once all is timed
            value = getattr(value, "value", value)
            self.value = np.asarray(value.numpy() if hasattr(value, "numpy") else value)

    def row(self) -> dict[str, Any]:
        """What goes into the JSON."""
        return {
            "rule": self.rule,
            "library": self.library,
            "status": self.status or "measured",
            "reason": self.reason,
            "seconds": self.seconds,
        }


def measure(
    X: Array,
    rules: Sequence[str],
    peers: Sequence[Peer],
    *,
    repeat: int,
    budget: float,
    watch: Watch,
    reference: bool = True,
) -> list[dict[str, Any]]:
    """One row per rule and library, the yardstick first. Everything has its turn before anything has its next."""
    runners = list(_runners(X, rules, peers))
    if worth_compiling(X.size):
        for rule in rules:
            watch(f"{rule}, once for the compiler")
            OWN[rule](np.ascontiguousarray(X[:, : ENOUGH // len(X) + 1]), liars(len(X)))
    for turn in range(repeat):
        for runner in runners:
            watch(f"{runner.rule}, {runner.library}, turn {turn + 1}")
            runner.run(budget)
    yardstick = min(runners[0].seconds)
    off = _errors(X, runners, watch) if reference else {}
    rows = []
    for runner in runners:
        row = runner.row()
        if runner.seconds:
            row |= {"best": min(runner.seconds), "multiple": min(runner.seconds) / yardstick}
        rows.append(row | ({"off": off[id(runner)]} if id(runner) in off else {}))
    return rows


def measure_shape(
    m: int, d: int, rules: Sequence[str], peers: Sequence[Peer], *, repeat: int, budget: float, seed: int, watch: Watch
) -> dict[str, Any]:
    """All rows of one shape."""
    watch("making the clients")
    X = clients(m, d, seed)
    rows = measure(X, rules, peers, repeat=repeat, budget=budget, watch=watch)
    return {"m": m, "d": d, "f": liars(m), "rows": rows}


def _runners(X: Array, rules: Sequence[str], peers: Sequence[Peer]) -> Iterator[_Runner]:
    m, f = len(X), liars(len(X))
    yield _Runner(YARDSTICK, "NumPy", lambda: lambda: lambda: X.mean(axis=0))
    for rule in rules:
        yield _Runner(rule, OURS, lambda own=OWN[rule]: lambda: lambda: own(X, f))  # type: ignore[misc]
        for peer in peers:
            if peer.rule == rule:
                make: Any = lambda peer=peer: peer.make(X, f)  # noqa: E731
                yield _Runner(rule, peer.library, make, peer.memory(m, f) * X.nbytes)


def _errors(X: Array, runners: Sequence[_Runner], watch: Watch) -> dict[int, float]:
    """How far the iterative rules stopped from the reference, by runner."""
    solved = {rule: [one for one in runners if one.rule == rule and one.value is not None] for rule in PULLS}
    if not any(solved.values()):
        return {}
    watch("the reference in float64")
    products = gram(X)
    errors: dict[int, float] = {}
    for rule, ones in solved.items():
        if ones:
            off = off_by(X, solve(products, rule), [one.value for one in ones])
            errors |= dict(zip(map(id, ones), off, strict=True))
    return errors
