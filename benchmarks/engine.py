"""The engine against another one, in turns: seconds of the wall and of the CPU per call, and how many functions a call takes.

    python benchmarks/engine.py OTHER                      OTHER is the `src` folder of another checkout
    python benchmarks/engine.py OTHER --hide mine other    with numba hidden from this one, the other one or both

Both libraries run in processes of their own, which take turns: one call each, again and again. The best of these counts, as a
multiple of `X.mean(0)` of the same numbers, which each process times in the same turn.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

RULES = ("mean", "huber", "spectral_huber", "krum", "median", "trimmed_mean")


def normal(m: int, d: int, offset: float = 0.0) -> np.ndarray:
    return (offset + np.random.default_rng(0).standard_normal((m, d), np.float32)).astype(np.float32, copy=False)


def resnet(make: Callable[[np.ndarray], Any], m: int = 10) -> list[dict[str, Any]]:
    """State dicts of ResNet-18: 122 arrays, 20 of them counters."""
    rng, plan = np.random.default_rng(0), list[tuple[str, tuple[int, ...]]]()

    def conv(name: str, out: int, inside: int, k: int) -> None:
        plan.append((f"{name}.weight", (out, inside, k, k)))
        plan.extend((f"{name}.bn.{part}", (out,)) for part in ("weight", "bias", "mean", "var"))
        plan.append((f"{name}.bn.n", ()))

    conv("stem", 64, 3, 7)
    inside = 64
    for k, out in enumerate((64, 128, 256, 512)):
        for block in range(2):
            conv(f"{k}.{block}.a", out, inside, 3)
            conv(f"{k}.{block}.b", out, out, 3)
            if inside != out:
                conv(f"{k}.{block}.down", out, inside, 1)
            inside = out
    plan += [("fc.weight", (1000, 512)), ("fc.bias", (1000,))]
    return [
        {
            name: make(np.array(100 + i) if name.endswith(".n") else rng.standard_normal(shape, np.float32))
            for name, shape in plan
        }
        for i in range(m)
    ]


def as_torch(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


def many_small(make: Callable[[np.ndarray], Any]) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    return [{f"layer{k}": make(rng.standard_normal(64, np.float32)) for k in range(160)} for _ in range(100)]


CASES: dict[str, Callable[[], Any]] = {
    "500 x 25,450": lambda: normal(500, 25_450),
    "100 x 1M": lambda: normal(100, 1_000_000),
    "20 x 4M": lambda: normal(20, 4_000_000),
    "50 x 7,850": lambda: normal(50, 7_850),
    "10 x 1,000": lambda: normal(10, 1_000),
    "10 x 100k": lambda: normal(10, 100_000),
    "ResNet-18, ten torch dicts": lambda: resnet(as_torch),
    "ResNet-18, ten NumPy dicts": lambda: resnet(np.asarray),
    "list of 100 x 200k": lambda: list(normal(100, 200_000)),
    "offset 1,000 spreads, 100 x 1M": lambda: normal(100, 1_000_000, 1000.0),
    "Fortran 100 x 200k": lambda: np.asfortranarray(normal(100, 200_000)),
    "float16 list 10 x 2M": lambda: list(normal(10, 2_000_000).astype(np.float16)),
    "100 torch dicts of 160 arrays": lambda: many_small(as_torch),
    "100 NumPy dicts of 160 arrays": lambda: many_small(np.asarray),
}


def numbers(updates: Any) -> np.ndarray:
    """The floating numbers of the updates as one matrix, for the time of its mean."""
    if isinstance(updates, np.ndarray):
        return np.ascontiguousarray(updates)
    if isinstance(updates[0], dict):
        return np.stack(
            [np.concatenate([np.asarray(a).ravel() for a in u.values() if np.asarray(a).ndim]) for u in updates]
        )
    return np.stack(updates).astype(np.float32)


def worker() -> None:
    """Reads a line {case, rule}; times one call; writes a line of [wall, CPU, wall of the mean]."""
    import fedhold

    case, updates, plain = "", None, None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["case"] != case:
            case, updates, plain = asked["case"], None, None
            updates = CASES[case]()
            plain = numbers(updates)
        assert updates is not None
        assert plain is not None
        known = {"f": len(updates) // 5} if asked["rule"] in ("krum", "trimmed_mean") else {}
        began = time.perf_counter()
        plain.mean(0)
        mean = time.perf_counter() - began
        cpu, wall = time.process_time(), time.perf_counter()
        fedhold.aggregate(updates, asked["rule"], **known)
        print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu, mean]), flush=True)


def start(src: Path, *, numba: bool) -> subprocess.Popen[str]:
    hide = "" if numba else "import sys; sys.modules['numba'] = None; "
    run = f"runpy.run_path({__file__!r}, run_name='__main__')"
    code = f"{hide}import runpy, sys; sys.argv = ['engine.py', '--worker', '.']; {run}"
    env = {**os.environ, "PYTHONPATH": str(src)}
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env
    )


def ask(process: subprocess.Popen[str], case: str, rule: str) -> list[float]:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"case": case, "rule": rule}) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--hide", nargs="+", choices=("mine", "other"), default=(), help="who sees no numba")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--cases", default="", help="only cases that contain this")
    parser.add_argument("--rules", default=",".join(RULES))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        worker()
        return
    mine = start(Path(__file__).parents[1] / "src", numba="mine" not in given.hide)
    other = start(given.other, numba="other" not in given.hide)
    ratios, cpus = [], []
    rules = given.rules.split(",")
    print("multiples of X.mean(0), mine / other, wall (CPU)")
    for case in CASES:
        if given.cases not in case:
            continue
        cells = []
        for rule in rules:
            turns = [[ask(one, case, rule) for one in (mine, other)] for _ in range(given.turns + 1)][1:]
            best = np.min(np.array(turns), axis=0)
            unit = best[:, 2].min()
            ratios.append(best[0, 0] / best[1, 0])
            cpus.append(best[0, 1] / max(best[1, 1], 1e-6))
            cells.append(
                f"{best[0, 0] / unit:.1f}/{best[1, 0] / unit:.1f} ({best[0, 1] / unit:.1f}/{best[1, 1] / unit:.1f})"
            )
        print(f"{case:32} " + "  ".join(f"{rule}: {cell}" for rule, cell in zip(rules, cells, strict=True)), flush=True)
    wall, cpu = (np.exp(np.mean(np.log(values))) for values in (ratios, cpus))
    print(f"geometric mean of wall {wall:.2f}, CPU {cpu:.2f}; most {max(ratios):.2f}")


if __name__ == "__main__":
    main()
