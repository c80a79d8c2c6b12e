"""The world of an experiment from its words: data, who holds what, and where each option belongs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from fedhold.errors import integer, unknown
from fedhold.lab import datasets
from fedhold.lab.attacks import ATTACKS, huber_attack
from fedhold.lab.federation import chance
from fedhold.lab.partition import PARTITIONS
from fedhold.lab.tasks import LinearRegression, Mlp, Shards, Task, shard
from fedhold.spec import parse

__all__ = [
    "DATA",
    "LOOP",
    "Options",
    "World",
    "check",
    "cost",
    "fashion_mnist",
    "heterogeneous",
    "mnist",
    "prepare",
    "split",
    "synthesized",
]

DATA_CHANCE, PARTITION_CHANCE = 101, 102  # purposes of generators; those below 100 are the round loop's

# Options that federate() takes.
LOOP = ("batch", "certify", "evaluate_every", "local_steps", "momentum", "participation", "radius", "sample_cap")


@dataclass(frozen=True, eq=False)
class World:
    """A task, and who holds which samples."""

    task: Task
    shards: Shards


@dataclass(frozen=True)
class Options:
    """The options of an experiment, sorted by whom they are for."""

    loop: dict[str, Any]
    data: dict[str, Any]
    attack: dict[str, Any]
    partition: dict[str, Any]
    keep_weights: bool


def _regression(
    seed: int, cut: Callable[..., Any], m: int, *, variance: float, samples: int = 10_000, d: int = 50
) -> World:
    parts = cut(integer(samples, "samples", at_least=1), m, chance(seed, PARTITION_CHANCE, 0))
    data = datasets.synthesized(chance(seed, DATA_CHANCE, 0), samples=samples, d=d, parts=parts, variance=variance)
    return World(LinearRegression(data.train), shard(data.train, parts))


def synthesized(seed: int, cut: Callable[..., Any], m: int, *, samples: int = 10_000, d: int = 50) -> World:
    """Linear regression with standard normal noise, the paper's section 7.1."""
    return _regression(seed, cut, m, variance=0.0, samples=samples, d=d)


def heterogeneous(
    seed: int, cut: Callable[..., Any], m: int, *, variance: float = 0.2, samples: int = 10_000, d: int = 50
) -> World:
    """The same, every client with its own truth, the paper's section 7.4."""
    return _regression(seed, cut, m, variance=variance, samples=samples, d=d)


@lru_cache(maxsize=1)
def _images(load: Callable[[], datasets.Images]) -> datasets.Images:
    """In bytes, as tasks read them fastest."""
    images = load()
    return replace(images, train=_in_bytes(images.train), test=_in_bytes(images.test))


def _in_bytes(samples: datasets.Samples) -> datasets.Samples:
    return replace(samples, inputs=np.rint(255 * samples.inputs).astype(np.uint8))


def _classification(
    load: Callable[[], datasets.Images],
    seed: int,
    cut: Callable[..., Any],
    m: int,
    *,
    samples: int = 60_000,
    hidden: int = 32,
) -> World:
    images = _images(load)
    count = integer(samples, "samples", at_least=1)
    train = datasets.Samples(images.train.inputs[:count], images.train.targets[:count])
    return World(
        Mlp(images.test, hidden=hidden), shard(train, cut(train.targets, m, chance(seed, PARTITION_CHANCE, 0)))
    )


def mnist(seed: int, cut: Callable[..., Any], m: int, *, samples: int = 60_000, hidden: int = 32) -> World:
    """Handwritten digits, a network with one hidden layer, the paper's section 7.2; `samples`: only the first so many."""
    return _classification(datasets.mnist, seed, cut, m, samples=samples, hidden=hidden)


def fashion_mnist(seed: int, cut: Callable[..., Any], m: int, *, samples: int = 60_000, hidden: int = 32) -> World:
    """Clothes in place of digits."""
    return _classification(datasets.fashion_mnist, seed, cut, m, samples=samples, hidden=hidden)


DATA: dict[str, Callable[..., World]] = {
    make.__name__: make for make in (synthesized, heterogeneous, mnist, fashion_mnist)
}


def check(data: str, partition: str, attack: str | None, options: Iterable[str], loop: Iterable[str]) -> None:
    """ValueError for a word nobody knows, with the nearest one known."""
    places = {"data": list(DATA), "partition": list(PARTITIONS), "attack": list(ATTACKS)}
    for (what, words), word in zip(places.items(), (data, partition, attack), strict=True):
        if word is not None and word not in words:
            raise ValueError(unknown(what, word, words))
    known = {*loop, "keep_weights", *_keywords(DATA[data])}
    known |= {f"partition_{name}" for name in _keywords(PARTITIONS[partition])}
    if attack is not None:
        known |= {f"attack_{name}" for name in _keywords(ATTACKS[attack])}
        known |= {"attack_threshold"} if ATTACKS[attack] is huber_attack else set()
    for name in options:
        if name not in known:
            raise ValueError(unknown("option", name, known))


def split(options: Mapping[str, Any]) -> Options:
    """Each option to whom it is for. A text for `attack_threshold` is read as in a rule's spec."""
    attack = {name.removeprefix("attack_"): value for name, value in options.items() if name.startswith("attack_")}
    if isinstance(attack.get("threshold"), str):
        attack["threshold"] = parse(f"huber(threshold={attack['threshold']})", {})[-1].parameters["threshold"]
    partition = {name.removeprefix("partition_"): v for name, v in options.items() if name.startswith("partition_")}
    taken = {*LOOP, "keep_weights"}
    rest = {n: v for n, v in options.items() if n not in taken and not n.startswith(("attack_", "partition_"))}
    loop = {name: options[name] for name in LOOP if name in options}
    return Options(loop, rest, attack, partition, bool(options.get("keep_weights", False)))


@lru_cache(maxsize=1)  # runs of one grid share it: only rule and attack differ
def _world(data: str, partition: str, m: int, seed: int, own: tuple[Any, ...], cutting: tuple[Any, ...]) -> World:
    def cut(labels: Any, clients: int, rng: Any) -> Any:
        return PARTITIONS[partition](labels, clients, rng, **dict(cutting))

    return DATA[data](seed, cut, m, **dict(own))


def prepare(data: str, partition: str, m: int, seed: int, options: Options) -> World:
    """The task and the shards; the last ones made are kept."""
    return _world(data, partition, m, seed, tuple(options.data.items()), tuple(options.partition.items()))


def cost(data: str, rounds: int, options: Options) -> float:
    """About how long a run takes, in rounds of the synthesized data."""
    images = 1 if DATA[data] in (synthesized, heterogeneous) else 15
    return rounds * images * options.loop.get("local_steps", 1) * options.loop.get("participation", 1.0)


def _keywords(function: Callable[..., Any]) -> set[str]:
    return {name for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}
