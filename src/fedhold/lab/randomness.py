"""Where every random number of a run comes from: one generator per purpose and round, made from the run's seed."""

from __future__ import annotations

from enum import IntEnum

import numpy as np

from fedhold.errors import integer


class Purpose(IntEnum):
    """What a generator draws. The numbers enter the seeds of stored results, so that none may change."""

    INITIAL = 0  # the model that learning starts from
    PARTICIPATION = 1  # the clients that are asked in a round
    BATCH = 2  # the samples of a client's gradient
    ATTACK = 3  # what liars send
    RULE = 4  # what the aggregation rule draws
    ROOT = 5  # the samples that the server holds itself, and those of its own gradient
    GUARD = 6  # the samples that it guards the rule with
    BYZANTINE = 100  # the clients that lie
    DATA = 101  # synthesized samples
    PARTITION = 102  # the clients that samples go to


def chance(seed: int, purpose: int, t: int = 0) -> np.random.Generator:
    """The generator for one purpose in round t: default_rng([seed, purpose, t]).

    Each round has its own, so that a run can be resumed without the state of any generator.

    >>> bool(chance(7, Purpose.BATCH, 3).random() == chance(7, Purpose.BATCH, 3).random())
    True
    """
    return np.random.default_rng([integer(seed, "seed"), purpose, t])
