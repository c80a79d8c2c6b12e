"""One round of the paper's MNIST experiment, end to end: gradients of all clients, lies of some, one aggregate.

Another implementation of the same round can be timed in turns with ours: benchmarks/peers has one of torch and ByzFL.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, final

import numpy as np

from bench.timing import OURS, Watch
from fedhold.aggregation import aggregate
from fedhold.kernels import Floats
from fedhold.lab import DataError, Knowledge, Purpose, Scenario, chance, prepare, sign_flip
from fedhold.lab.paper import CLIENTS, MNIST_STEP

LIARS = CLIENTS // 5
FASTER_TARGET = 5.0  # times as fast as the round of another library


@dataclass(frozen=True)
class TimedRound:
    """One round that has been played.

    witness  the gradient of the last client, who is honest: two implementations of the round should agree on it
    seconds  by part: "gradients", "attack", "aggregation"
    """

    witness: Floats
    seconds: dict[str, float]


@dataclass(frozen=True)
class RoundPeer:
    """Another implementation of the round.

    library  its name in the tables
    prepare  from the data with its shards, and the model's parameters before the round, to a function that plays the round
    """

    library: str
    prepare: Callable[[Scenario, Floats], Callable[[], TimedRound]]


_Agreement = TypedDict("_Agreement", {"gradients apart": NotRequired[float]})


@final
class RoundTimes(_Agreement):
    """What was measured of the round; `implementation` is ours or the peer's.

    best             implementation -> part -> seconds of its fastest round
    seconds          implementation -> seconds of every round
    missing          why the peer could not be timed, or ""
    faster           how many times as long as ours the peer's fastest round takes
    gradients apart  the distance of both witnesses, relative to the length of ours
    """

    clients: int
    liars: int
    best: dict[str, dict[str, float]]
    seconds: dict[str, list[float]]
    missing: str
    faster: NotRequired[float]


@final
class FailedRound(TypedDict):
    """Why no round could be played."""

    failed: str


def measure_round(peer: RoundPeer | None, *, repeat: int, seed: int, watch: Watch) -> RoundTimes | FailedRound:
    """Time `repeat` rounds of our implementation, in turns with those of the peer where there is one."""
    watch("one round: reading MNIST")
    try:
        scenario = prepare("mnist", "balanced", CLIENTS, seed)
    except DataError as problem:
        return {"failed": str(problem)}
    w = scenario.task.initial(chance(seed, Purpose.INITIAL))
    rounds = {OURS: _ours(scenario, w)}
    missing = ""
    if peer is not None:
        try:
            rounds[peer.library] = peer.prepare(scenario, w)
        except ImportError as problem:
            missing = str(problem)
    played: dict[str, list[TimedRound]] = {name: [] for name in rounds}
    for turn in range(repeat):
        for name, play in rounds.items():
            watch(f"one round: {name}, turn {turn + 1}")
            played[name].append(play())
    best = {name: min((one.seconds for one in all_), key=_total) for name, all_ in played.items()}
    found: RoundTimes = {
        "clients": CLIENTS,
        "liars": LIARS,
        "best": best,
        "seconds": {name: [_total(one.seconds) for one in all_] for name, all_ in played.items()},
        "missing": missing,
    }
    if peer is not None and not missing:
        ours, theirs = (played[name][0].witness for name in (OURS, peer.library))
        found["faster"] = _total(best[peer.library]) / _total(best[OURS])
        found["gradients apart"] = float(np.linalg.norm(ours - theirs) / np.linalg.norm(ours))
    return found


def _total(seconds: Mapping[str, float]) -> float:
    return sum(seconds.values())


def timed(gradients: Callable[[], Any], attack: Callable[[Any], Any], aggregation: Callable[[Any], Any]) -> TimedRound:
    """Play a round: `attack` is given the gradients of all clients, and `aggregation` what they send."""
    seconds: dict[str, float] = {}

    def part(name: str, play: Callable[[], Any]) -> Any:
        begun = time.perf_counter()
        value = play()
        seconds[name] = time.perf_counter() - begun
        return value

    honest = part("gradients", gradients)
    witness = np.array(honest[-1])  # a copy: an attack may write into the array of gradients
    sent = part("attack", lambda: attack(honest))
    part("aggregation", lambda: aggregation(sent))
    return TimedRound(witness, seconds)


def _ours(scenario: Scenario, w: Floats) -> Callable[[], TimedRound]:
    task, shards = scenario.task, scenario.shards
    lying = np.arange(shards.m) < LIARS
    rng = np.random.default_rng(0)
    out = np.empty((shards.m, task.d), np.float32)

    def gradients() -> Floats:
        return task.gradients(w, shards, out)

    def attack(updates: Floats) -> Floats:
        updates[lying] = sign_flip(Knowledge(updates, lying, rng))
        return updates

    def aggregation(updates: Floats) -> Floats:
        step: Floats = w - MNIST_STEP * aggregate(updates, "huber", samples=shards.counts, sample_cap=None).value
        return step

    return lambda: timed(gradients, attack, aggregation)
