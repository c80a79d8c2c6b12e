"""One round of the paper's MNIST experiment, end to end: ours, and the same with torch client by client and ByzFL.

Both compute the gradients of all 500 clients at the same model and shards, put lies in the place of 100 of them, and
aggregate. ByzFL has no Huber; its geometric median, three steps from zero, is the nearest it has. Its attack sends the
flipped mean of the honest where ours flips each liar's own gradient.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np

from fedhold.aggregation import aggregate
from fedhold.bench.peers import byzfl
from fedhold.lab import DataError, Knowledge, Purpose, Scenario, chance, prepare, sign_flip
from fedhold.lab.paper import CLIENTS, MNIST_STEP

__all__ = ["LIARS", "TARGET", "one_round"]

LIARS = CLIENTS // 5
TARGET = 5.0  # times faster
PARTS = ("gradients", "attack", "aggregation")

Round = Callable[[], tuple[Any, dict[str, float]]]


def one_round(*, peers: bool, repeat: int, seed: int, watch: Callable[[str], None]) -> dict[str, Any]:
    """Best seconds of each part, for both; or why there are none."""
    watch("one round: reading MNIST")
    try:
        world = prepare("mnist", "balanced", CLIENTS, seed)
    except DataError as problem:
        return {"failed": str(problem)}
    w = world.task.initial(chance(seed, Purpose.INITIAL))
    rounds = {"fedhold": _ours(world, w)}
    missing = ""
    if peers:
        try:
            rounds["torch and ByzFL"] = _theirs(world, w)
        except ImportError as problem:
            missing = str(problem)
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in rounds}
    first: dict[str, Any] = {}
    for turn in range(repeat):
        for name, play in rounds.items():
            watch(f"one round: {name}, turn {turn + 1}")
            gradient, parts = play()
            first.setdefault(name, gradient)
            taken[name].append(parts)
    best = {name: min(all_parts, key=lambda parts: sum(parts.values())) for name, all_parts in taken.items()}
    found: dict[str, Any] = {
        "clients": CLIENTS,
        "liars": LIARS,
        "best": best,
        "seconds": {name: [sum(parts.values()) for parts in all_parts] for name, all_parts in taken.items()},
        "missing": missing,
    }
    if len(rounds) == 2:
        ours, theirs = (sum(parts.values()) for parts in best.values())
        a, b = first.values()
        found["faster"] = theirs / ours
        found["gradients apart"] = float(np.linalg.norm(a - b) / np.linalg.norm(a))
    return found


def _timed(*steps: Callable[[Any], Any]) -> tuple[Any, dict[str, float]]:
    """What the first step gave for the last client, which is honest; and the seconds of each."""
    value, witness, seconds = None, None, []
    for step in steps:
        begun = time.perf_counter()
        value = step(value)
        seconds.append(time.perf_counter() - begun)
        witness = np.array(value[-1]) if witness is None else witness
    return witness, dict(zip(PARTS, seconds, strict=True))


def _ours(world: Scenario, w: Any) -> Round:
    task, shards = world.task, world.shards
    lying = np.arange(shards.m) < LIARS
    rng = np.random.default_rng(0)
    out = np.empty((shards.m, task.d), np.float32)

    def gradients(_: Any) -> Any:
        return task.gradients(w, shards, out)

    def attack(updates: Any) -> Any:
        updates[lying] = sign_flip(Knowledge(updates, lying, rng))
        return updates

    def step(updates: Any) -> Any:
        return w - MNIST_STEP * aggregate(updates, samples=shards.counts, sample_cap=None).value

    return lambda: _timed(gradients, attack, step)


def _theirs(world: Scenario, w: Any) -> Round:
    torch = importlib.import_module("torch")
    aggregator, flip = byzfl("aggregators").GeometricMedian(), byzfl("attacks").SignFlipping()
    shards, nn = world.shards, torch.nn
    pixels = torch.from_numpy(shards.inputs).float() / 255
    labels = torch.from_numpy(shards.targets)
    bounds = shards.offsets.tolist()
    inputs = [(pixels[a:b], labels[a:b]) for a, b in pairwise(bounds)]
    model = nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
    nn.utils.vector_to_parameters(torch.from_numpy(w), model.parameters())

    def gradients(_: Any) -> Any:
        rows = []
        for x, y in inputs:
            model.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            rows.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
        return rows

    def attack(rows: Any) -> Any:
        honest = torch.stack(rows[LIARS:])
        return torch.cat([flip(honest).expand(LIARS, -1), honest])

    def step(updates: Any) -> Any:
        return torch.from_numpy(w) - MNIST_STEP * aggregator(updates)

    return lambda: _timed(gradients, attack, step)
