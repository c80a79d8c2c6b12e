"""Scenarios: the data of an experiment, dealt out to its clients, with the task to learn from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np

from fedhold.errors import integer
from fedhold.lab import datasets
from fedhold.lab.partition import PARTITIONS, Indices, Labels
from fedhold.lab.randomness import Purpose, chance
from fedhold.lab.tasks import LinearRegression, Mlp, Shards, Task, shard

Cut = Callable[[Labels | int, int, np.random.Generator], list[Indices]]
Maker = TypeVar("Maker", bound=Callable[..., "Scenario"])


@dataclass(frozen=True, eq=False)
class Scenario:
    """A task, and the samples that every client holds."""

    task: Task
    shards: Shards


def costs(rounds: float) -> Callable[[Maker], Maker]:
    """Declare, as a decorator, how long a round on this data takes, in rounds on `synthesized`."""

    def mark(make: Maker) -> Maker:
        make.round_cost = rounds  # type: ignore[attr-defined]
        return make

    return mark


def cost_of(data: str) -> float:
    """What the maker of this data declares by `costs`; 1 if it declares nothing."""
    return getattr(DATA[data], "round_cost", 1.0)


def synthesized(seed: int, cut: Cut, m: int, *, samples: int = 10_000, d: int = 50) -> Scenario:
    """Linear regression with standard normal noise, the paper's section 7.1.

    seed       of the samples and of the partition
    cut        deals the samples out: a function of PARTITIONS with its parameters
    m          the number of clients
    samples    the number of samples of all clients together
    d          the number of coordinates to learn

    >>> synthesized(0, PARTITIONS["balanced"], 4, samples=20, d=3).shards.counts
    array([5, 5, 5, 5])
    """
    return _regression(seed, cut, m, variance=0.0, samples=samples, d=d)


def heterogeneous(
    seed: int, cut: Cut, m: int, *, variance: float = 0.2, samples: int = 10_000, d: int = 50
) -> Scenario:
    """The same, with a true model of its own for every client, the paper's section 7.4.

    variance   of each coordinate of a client's model around the common one; the other parameters are those of synthesized

    >>> heterogeneous(0, PARTITIONS["balanced"], 4, samples=20, d=3).task.d
    3
    """
    return _regression(seed, cut, m, variance=variance, samples=samples, d=d)


def _regression(seed: int, cut: Cut, m: int, *, variance: float, samples: int, d: int) -> Scenario:
    parts = cut(integer(samples, "samples", at_least=1), m, chance(seed, Purpose.PARTITION))
    rng = chance(seed, Purpose.DATA)
    train = datasets.synthesized(rng, samples=samples, d=d, parts=parts, variance=variance).train
    return Scenario(LinearRegression(train), shard(train, parts))


@costs(15)
def mnist(seed: int, cut: Cut, m: int, *, samples: int = 60_000, hidden: int = 32) -> Scenario:
    """Handwritten digits and a network with one hidden layer, the paper's section 7.2.

    seed       of the partition
    cut        deals the images out: a function of PARTITIONS with its parameters
    m          the number of clients
    samples    use only the first so many of the 60,000 training images
    hidden     the number of hidden units
    """
    return _classification(datasets.mnist, seed, cut, m, samples=samples, hidden=hidden)


@costs(15)
def fashion_mnist(seed: int, cut: Cut, m: int, *, samples: int = 60_000, hidden: int = 32) -> Scenario:
    """Images of clothes in place of digits; the parameters are those of mnist."""
    return _classification(datasets.fashion_mnist, seed, cut, m, samples=samples, hidden=hidden)


def _classification(
    load: Callable[[], datasets.Images], seed: int, cut: Cut, m: int, *, samples: int, hidden: int
) -> Scenario:
    images, count = _images(load), integer(samples, "samples", at_least=1)
    train = datasets.Samples(images.train.inputs[:count], images.train.targets[:count])
    parts = cut(train.targets, m, chance(seed, Purpose.PARTITION))
    return Scenario(Mlp(images.test, hidden=hidden), shard(train, parts))


@lru_cache(maxsize=1)
def _images(load: Callable[[], datasets.Images]) -> datasets.Images:
    """The images with pixels as bytes, which take a quarter of the memory of float32 and no more time to learn from."""

    def in_bytes(samples: datasets.Samples) -> datasets.Samples:
        return replace(samples, inputs=np.rint(255 * samples.inputs).astype(np.uint8))

    images = load()
    return replace(images, train=in_bytes(images.train), test=in_bytes(images.test))


DATA: dict[str, Callable[..., Scenario]] = {
    make.__name__: make for make in (synthesized, heterogeneous, mnist, fashion_mnist)
}


def prepare(
    data: str,
    partition: str,
    m: int,
    seed: int,
    data_options: Mapping[str, Any] | None = None,
    partition_options: Mapping[str, Any] | None = None,
) -> Scenario:
    """The task and the shards of a scenario. The last one made is kept, since the runs of a grid often share it.

    data, partition    keys of DATA and PARTITIONS
    m, seed            the number of clients, and the seed of samples and partition
    data_options       keyword arguments of the function in DATA
    partition_options  keyword arguments of the function in PARTITIONS

    >>> prepare("synthesized", "random_cuts", 4, 0, {"samples": 20}).shards.m
    4
    """
    return _prepare(
        data, partition, m, seed, tuple((data_options or {}).items()), tuple((partition_options or {}).items())
    )


@lru_cache(maxsize=1)
def _prepare(
    data: str, partition: str, m: int, seed: int, data_options: tuple[Any, ...], partition_options: tuple[Any, ...]
) -> Scenario:
    def cut(labels: Labels | int, clients: int, rng: np.random.Generator) -> list[Indices]:
        return PARTITIONS[partition](labels, clients, rng, **dict(partition_options))

    return DATA[data](seed, cut, m, **dict(data_options))
