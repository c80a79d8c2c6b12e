"""What people send, timed: model weights with an offset, lists and dicts, narrow types, little data; and the first call.

Rules and the mean take turns, and the fastest of each counts. The mean is what a user would write: `X.mean(0)` for a matrix,
and a sum of the clients' arrays, layer by layer, for dicts. A call on the data comes before the first turn.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypedDict

import numpy as np

from bench.timing import Array, Watch
from fedhold.aggregation import aggregate

RULES = ("mean", "huber", "median", "krum")
PASSES = ("mean", "huber", "median")  # those that show what reading costs
MEAN = "the mean"
LONGEST = 3.0  # seconds for the turns of one case, beyond the first few


class InputTimes(TypedDict):
    """What was measured of one kind of input.

    group      what these inputs have in common
    name       what was sent
    seconds    of the mean of the same numbers, at best
    multiples  for each rule, its best time as a multiple of it
    """

    group: str
    name: str
    seconds: float
    multiples: dict[str, float]


class FirstCall(TypedDict):
    """The seconds that the first call of a process takes, for 100 x 50,000 numbers."""

    rule: str
    dtype: str
    seconds: float


COUNTER = "num_batches_tracked"  # how torch names the integer that a layer of batch normalisation counts in


@dataclass(frozen=True)
class Case:
    """One kind of input: its name, the updates, how a user would take their mean, and the rules to time."""

    name: str
    updates: Any
    mean: Callable[[], object]
    rules: Sequence[str] = RULES


def offsets() -> Iterator[Case]:
    """Model weights instead of differences: their spread is a hundredth or a thousandth of their size."""
    for m, d in ((500, 25_450), (100, 200_000), (10, 2_000_000)):
        for offset in (1, 100, 1000):
            X = _matrix(m, d, offset)
            yield Case(f"{m} x {d:,}, spread/offset {1 / offset:g}", X, partial(X.mean, 0), PASSES)


def lists() -> Iterator[Case]:
    """Lists of rows, and of dicts of layers."""
    for m, d in ((10, 2_000_000), (100, 200_000), (500, 25_450)):
        X = _matrix(m, d)
        yield Case(f"{m} x {d:,}, one matrix", X, partial(X.mean, 0))
        yield Case(f"{m} x {d:,}, list of rows", [row.copy() for row in X], partial(X.mean, 0))
    dicts = _dicts(10, _layers())
    yield Case("10 dicts with the layers of ResNet-18, NumPy", dicts, partial(_mean_of, dicts))
    if _has_torch():
        import torch

        tensors = [{name: torch.from_numpy(layer) for name, layer in update.items()} for update in dicts]
        yield Case("10 dicts with the layers of ResNet-18, torch", tensors, partial(_mean_of, tensors))


def layouts() -> Iterator[Case]:
    """Arrays whose numbers are not contiguous in the order in which they are read."""
    rows = _matrix(10, 2_359_296).reshape(10, 512, 512, 3, 3)  # a convolution of ResNet-18
    turned, apart = [np.asfortranarray(row) for row in rows], np.empty((10, 1024, 512, 3, 3), np.float32)
    apart[:, ::2] = rows
    for name, updates in (
        ("contiguous", [row.copy() for row in rows]),
        ("Fortran order", turned),
        ("one in Fortran order", [turned[0], *(row.copy() for row in rows[1:])]),
        ("half of them in Fortran order", [*turned[:5], *(row.copy() for row in rows[5:])]),
        ("every second row of larger arrays", list(apart[:, ::2])),
    ):
        yield Case(f"10 x 2.4 M, {name}", updates, partial(rows.mean, 0), PASSES)
    matrix = rows.reshape(10, -1)
    yield Case("10 x 2.4 M, one matrix in Fortran order", np.asfortranarray(matrix), partial(matrix.mean, 0), PASSES)
    if _has_torch():
        import torch

        last = [torch.from_numpy(row).to(memory_format=torch.channels_last) for row in rows]
        yield Case("10 x 2.4 M, torch channels_last", last, partial(rows.mean, 0), PASSES)


def narrow_types() -> Iterator[Case]:
    """float16 and bfloat16, against the mean of the same numbers in float32."""
    X = _matrix(20, 1_000_000)
    mean = partial(X.mean, 0)
    yield Case("20 x 1 M, float32", X, mean, PASSES)
    yield Case("20 x 1 M, float16", X.astype(np.float16), mean, PASSES)
    yield Case("20 x 1 M, list of float16", [row.astype(np.float16) for row in X], mean, PASSES)
    if _has_torch():
        import torch

        brain = [torch.from_numpy(row).to(torch.bfloat16) for row in X]
        yield Case("20 x 1 M, list of torch bfloat16", brain, mean, PASSES)


def little_data() -> Iterator[Case]:
    """Less than a million numbers, where every call of NumPy counts."""
    for m, d in ((3, 10), (50, 7_850), (10, 100_000)):
        X = _matrix(m, d)
        yield Case(f"{m} x {d:,}", X, partial(X.mean, 0), RULES if m > 5 else PASSES)


Group = Callable[[], Iterator[Case]]
GROUPS: dict[str, Group] = {
    "model weights": offsets,
    "lists and dicts": lists,
    "layouts": layouts,
    "narrow types": narrow_types,
    "little data": little_data,
}


def measure_inputs(
    *, repeat: int, budget: float, watch: Watch, groups: Mapping[str, Group] = GROUPS
) -> list[InputTimes]:
    """One row per case of the groups; each rule is called at least `repeat` times, and for up to `budget` seconds."""
    rows: list[InputTimes] = []
    for group, cases in groups.items():
        for case in cases():
            watch(f"{group}: {case.name}")
            best = _timed(_calls(case), repeat, min(budget, LONGEST))
            multiples = {rule: best[rule] / best[MEAN] for rule in case.rules}
            rows.append({"group": group, "name": case.name, "seconds": best[MEAN], "multiples": multiples})
    return rows


def _calls(case: Case) -> dict[str, Callable[[], object]]:
    f = {"krum": {"f": (len(case.updates) - 3) // 4}}
    own = {rule: partial(aggregate, case.updates, rule, **f.get(rule, {})) for rule in case.rules}
    return {MEAN: case.mean, **own}


def _timed(calls: Mapping[str, Callable[[], object]], repeat: int, seconds: float) -> dict[str, float]:
    """The fastest of several runs of each call, in seconds; the calls take turns."""
    best = dict.fromkeys(calls, np.inf)
    for call in calls.values():
        call()
    begun, turns = time.perf_counter(), 0
    while turns < repeat or time.perf_counter() - begun < seconds:
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - started)
        turns += 1
    return best


def _matrix(m: int, d: int, offset: float = 1.0) -> Array:
    """Standard normal numbers around a common offset, whose numbers are as large as `offset`."""
    rng = np.random.default_rng([m, d])
    X = rng.standard_normal((m, d), np.float32)
    X += np.float32(offset) * rng.standard_normal(d, np.float32)
    return X


def _layers() -> dict[str, tuple[int, ...]]:
    """The shapes of ResNet-18: 11.7 million numbers in 102 arrays, and 20 counters."""
    layers: dict[str, tuple[int, ...]] = {"conv": (64, 3, 7, 7), "fc.weight": (1000, 512), "fc.bias": (1000,)}
    norms, before = {"norm": 64}, 64
    for stage, width in enumerate((64, 128, 256, 512)):
        for block in range(2):
            name = f"layer{stage}.{block}"
            layers |= {f"{name}.conv1": (width, before, 3, 3), f"{name}.conv2": (width, width, 3, 3)}
            norms |= {f"{name}.norm1": width, f"{name}.norm2": width}
            if before != width:
                layers[f"{name}.down"], norms[f"{name}.down_norm"] = (width, before, 1, 1), width
            before = width
    parts = ("weight", "bias", "running_mean", "running_var")
    layers |= {f"{name}.{part}": (width,) for name, width in norms.items() for part in parts}
    return layers | {f"{name}.{COUNTER}": () for name in norms}


def _dicts(m: int, shapes: Mapping[str, tuple[int, ...]]) -> list[dict[str, Array]]:
    """m dicts of arrays of these shapes; counters are integers, as in the state dicts of torch."""
    sizes = [int(np.prod(shape)) for shape in shapes.values()]
    cuts = np.cumsum(sizes)[:-1]
    rows = (np.split(row, cuts) for row in _matrix(m, sum(sizes)))
    dicts = [{name: part.reshape(shapes[name]).copy() for name, part in zip(shapes, row, strict=True)} for row in rows]
    return [one | {name: np.array(100) for name in shapes if name.endswith(COUNTER)} for one in dicts]


def _mean_of(updates: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The mean of dicts of arrays, of NumPy or torch."""
    return {key: sum(update[key] for update in updates) / len(updates) for key in updates[0]}


def _has_torch() -> bool:
    return importlib.util.find_spec("torch") is not None


# The first call of a process.

FIRST_CALL = """
import sys, time
import numpy, fedhold
X = numpy.random.default_rng(0).standard_normal((100, 50_000), numpy.float32).astype(sys.argv[2])
begun = time.perf_counter()
fedhold.aggregate(X, sys.argv[1])
print(time.perf_counter() - begun)
"""


def measure_first_calls(
    *, watch: Watch, rules: Sequence[str] = ("huber", "spectral_huber", "median"), dtypes: Sequence[str] = ("float32",)
) -> list[FirstCall]:
    """The first call of new processes."""
    rows: list[FirstCall] = []
    for rule, dtype in ((rule, dtype) for rule in rules for dtype in dtypes):
        watch(f"the first call: {rule}, {dtype}")
        rows.append({"rule": rule, "dtype": dtype, "seconds": _first_call(rule, dtype)})
    return rows


def _first_call(*words: str) -> float:
    run = subprocess.run(
        [sys.executable, "-c", FIRST_CALL, *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return float(run.stdout)
