"""What aggregation costs on what people send, in multiples of the mean of the same data in the same run.

    python benchmarks/inputs.py                         # every row
    python benchmarks/inputs.py offsets lists           # some of the groups
    PYTHONPATH=/elsewhere/src python benchmarks/inputs.py    # another version, for a comparison

Rules and the mean take turns, and the fastest of each counts, so that other work on the machine disturbs a ratio little. The
mean is what a user would write: `X.mean(0)` for a matrix, and a sum of the clients' arrays, layer by layer, for lists and
dicts. The first call is not timed: it compiles.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from fedhold import aggregate

RULES = ("huber", "mean", "median", "krum")
MEAN = "the mean"
SECONDS, ROUNDS = 4.0, 200  # for each row: at least three turns, then until one of these is reached

Case = tuple[str, Any, Callable[[], object], tuple[str, ...]]
"""Name, updates, how a user would take their mean, rules."""


def matrix(m: int, d: int, offset: float = 0.0, dtype: type = np.float32) -> np.ndarray:
    """Standard normal numbers around a common offset, whose numbers are as large as `offset`."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((m, d), dtype=np.float32)
    X += np.float32(offset) * rng.standard_normal(d, dtype=np.float32)
    return X.astype(dtype, copy=False)


def mean_of(updates: list[dict[str, Any]]) -> dict[str, Any]:
    """The mean of dicts of arrays, of NumPy or torch."""
    return {key: sum(update[key] for update in updates) / len(updates) for key in updates[0]}


def offsets() -> Iterator[Case]:
    """Model weights instead of differences: their spread is a hundredth or a thousandth of their size."""
    for m, d in ((500, 25_450), (100, 200_000), (10, 2_000_000)):
        for offset in (1, 100, 1000):
            X = matrix(m, d, offset)
            yield f"{m} x {d:,}, spread/offset {1 / offset:g}", X, lambda X=X: X.mean(0), ("huber", "mean", "median")


def lists() -> Iterator[Case]:
    """Lists of rows, and of dicts of layers."""
    for m, d in ((10, 2_000_000), (100, 200_000), (500, 25_450)):
        X = matrix(m, d)
        yield f"{m} x {d:,}, one matrix", X, lambda X=X: X.mean(0), RULES
        yield f"{m} x {d:,}, list of rows", list(X), lambda X=X: X.mean(0), RULES
    layers = [(f"layer {k}", slice(200_000 * k, 200_000 * (k + 1))) for k in range(10)]
    dicts = [{name: row[part].reshape(400, 500) for name, part in layers} for row in matrix(10, 2_000_000)]
    yield "10 dicts of 10 layers, 2 M numbers", dicts, lambda: mean_of(dicts), RULES


def layouts() -> Iterator[Case]:
    """Arrays whose numbers are not contiguous in the order in which they are read."""
    import torch

    rows = matrix(10, 2_359_296).reshape(10, 512, 512, 3, 3)
    yield "10 x 2.4 M, contiguous", [{"w": row} for row in rows], lambda: rows.mean(0), ("huber", "median")
    turned = [{"w": np.asfortranarray(row)} for row in rows]
    yield "10 x 2.4 M, Fortran order", turned, lambda: rows.mean(0), ("huber", "median")
    one = [{"w": np.asfortranarray(row) if i == 3 else row} for i, row in enumerate(rows)]
    yield "10 x 2.4 M, one in Fortran order", one, lambda: rows.mean(0), ("huber", "median")
    last = [{"w": torch.tensor(row.reshape(512, 512, 3, 3)).to(memory_format=torch.channels_last)} for row in rows]
    yield "10 x 2.4 M, torch channels_last", last, lambda: rows.mean(0), ("huber", "median")


def narrow() -> Iterator[Case]:
    """float16 and bfloat16, against the mean of the same numbers in float32."""
    import torch

    X = matrix(20, 1_000_000)
    yield "20 x 1 M, float32", X, lambda: X.mean(0), ("huber", "median")
    yield "20 x 1 M, float16", X.astype(np.float16), lambda: X.mean(0), ("huber", "median")
    half = [torch.tensor(row).to(torch.float16) for row in X]
    yield "20 x 1 M, list of torch float16", half, lambda: X.mean(0), ("huber", "median")
    brain = [torch.tensor(row).to(torch.bfloat16) for row in X]
    yield "20 x 1 M, list of torch bfloat16", brain, lambda: X.mean(0), ("huber", "median")


def small() -> Iterator[Case]:
    """Less than a million numbers, where every call of NumPy counts."""
    for m, d in ((3, 10), (50, 7_850), (10, 100_000)):
        X = matrix(m, d)
        yield f"{m} x {d:,}", X, lambda X=X: X.mean(0), RULES if m > 5 else ("huber", "mean", "median")


GROUPS = {group.__name__: group for group in (offsets, lists, layouts, narrow, small)}


def timed(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """The fastest of several runs of each call, in seconds; the calls take turns."""
    best = dict.fromkeys(calls, np.inf)
    for call in calls.values():
        call()
    begun, turns = time.perf_counter(), 0
    while turns < 3 or (turns < ROUNDS and time.perf_counter() - begun < SECONDS):
        for name, call in calls.items():
            started = time.perf_counter()
            call()
            best[name] = min(best[name], time.perf_counter() - started)
        turns += 1
    return best


def main(groups: list[str]) -> None:
    """Print the rows of these groups."""
    for group in groups or GROUPS:
        for name, updates, mean, rules in GROUPS[group]():
            f = {"krum": {"f": (len(updates) - 3) // 4}}
            calls = {rule: partial(aggregate, updates, rule, **f.get(rule, {})) for rule in rules}
            best = timed({MEAN: mean, **calls})
            told = "  ".join(f"{rule} {best[rule] / best[MEAN]:.1f} ({best[rule] * 1e3:.3g} ms)" for rule in rules)
            print(f"{name:42} mean {best[MEAN] * 1e3:7.3g} ms   {told}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
