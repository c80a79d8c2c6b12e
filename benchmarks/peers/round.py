"""The MNIST round of bench with torch, client by client, and ByzFL.

It computes the gradients of all clients at the same model and shards as ours, puts lies in the place of a fifth of them,
and aggregates. ByzFL has no Huber; its geometric median, three steps from zero, is the nearest rule it has. Its attack
sends the negated mean of the honest, where ours negates each liar's own gradient.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from bench import LIARS, RoundPeer, TimedRound, timed
from fedhold.lab import Scenario
from fedhold.lab.paper import MNIST_STEP
from peers.libraries import byzfl


def _prepare(scenario: Scenario, w: Any) -> Callable[[], TimedRound]:
    torch = importlib.import_module("torch")
    aggregator, flip = byzfl("aggregators").GeometricMedian(), byzfl("attacks").SignFlipping()
    shards, nn = scenario.shards, torch.nn
    pixels = torch.from_numpy(shards.inputs).float() / 255
    labels = torch.from_numpy(shards.targets)
    inputs = [(pixels[begin:end], labels[begin:end]) for begin, end in pairwise(shards.offsets.tolist())]
    model = nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
    nn.utils.vector_to_parameters(torch.from_numpy(w), model.parameters())

    def gradients() -> Any:
        rows = []
        for x, y in inputs:
            model.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            rows.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))
        return rows

    def attack(rows: Any) -> Any:
        honest = torch.stack(rows[LIARS:])
        return torch.cat([flip(honest).expand(LIARS, -1), honest])

    def aggregation(updates: Any) -> Any:
        return torch.from_numpy(w) - MNIST_STEP * aggregator(updates)

    return lambda: timed(gradients, attack, aggregation)


TORCH_AND_BYZFL = RoundPeer("torch and ByzFL", _prepare)
