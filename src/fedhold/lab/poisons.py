"""Poisoned data: attacks that change what liars learn from. They then answer honestly, from samples that lie.

A poison is a function of all clients' shards and of who lies. It returns new shards, in which the samples of the truthful are
as they were, and may say how its success is to be measured.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import integer, positive, require
from fedhold.lab.datasets import Samples
from fedhold.lab.knowledge import Mask
from fedhold.lab.tasks import Shards

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True, eq=False)
class Poisoned:
    """Shards with poisoned samples.

    shards  of all clients
    probe   test samples -> samples with the targets that the liars want; the model's accuracy on them is the attack's success.
            None for an attack whose success shows in the accuracy itself
    """

    shards: Shards
    probe: Callable[[Samples], Samples] | None = None


def poisons_data(attack: Function) -> Function:
    """Declare, as a decorator, that an attack is a poison: a function (shards, byzantine) -> Poisoned.

    >>> @poisons_data
    ... def harmless(shards, byzantine):
    ...     return Poisoned(shards)
    >>> is_poison(harmless)
    True
    """
    attack.poisons_data = True  # type: ignore[attr-defined]
    return attack


def is_poison(attack: Callable[..., Any]) -> bool:
    """Whether an attack declares that it poisons data, and leaves the updates alone."""
    return getattr(attack, "poisons_data", False)


@poisons_data
def label_flip(shards: Shards, byzantine: Mask) -> Poisoned:
    """Liars learn from wrong targets: the class y becomes C - 1 - y, with C classes; a real target v becomes -v.

    shards     of all clients
    byzantine  (m,) true for the liars

    Fang et al. 2020, section 6; Tolpegin et al. 2020.

    >>> shards = Shards(np.zeros((4, 1)), np.array([0, 1, 2, 2]), np.array([0, 2, 4]))
    >>> label_flip(shards, np.array([True, False])).shards.targets
    array([2, 1, 2, 2])
    """
    mine, targets = _owned_by(shards, byzantine), shards.targets.copy()
    targets[mine] = _classes(shards) - 1 - targets[mine] if _has_classes(shards) else -targets[mine]
    return Poisoned(Shards(shards.inputs, targets, shards.offsets))


@poisons_data
def backdoor(shards: Shards, byzantine: Mask, *, target: int = 0, columns: int = 4, share: float = 0.5) -> Poisoned:
    """Liars teach the model to answer `target` where an input bears a trigger, and to be right elsewhere.

    In a share of each liar's samples the last `columns` inputs are set to the largest number that any input has, and the class
    to `target`. The success is the fraction of the test samples of other classes that the model takes for `target` once they
    bear the trigger; `federate` puts it into the history as the metric "backdoor".

    shards     of all clients
    byzantine  (m,) true for the liars
    target     the class that the trigger stands for
    columns    how many inputs the trigger covers; of an image, pixels at the end of its last row
    share      of each liar's samples that bear it

    Needs classes, target < C, columns <= p and share <= 1.  BadNets: Gu, Dolan-Gavitt, Garg 2017; in federations: Bagdasaryan
    et al. 2020, whose liars also make their updates longer.

    >>> shards = Shards(np.arange(12.0).reshape(4, 3), np.array([0, 1, 2, 2]), np.array([0, 2, 4]))
    >>> poisoned = backdoor(shards, np.array([False, True]), columns=1)
    >>> poisoned.shards.inputs[2:], poisoned.shards.targets
    (array([[ 6.,  7., 11.],
           [ 9., 10., 11.]]), array([0, 1, 0, 2]))
    """
    remedy = "Use data with classes, such as mnist."
    require(_has_classes(shards), "backdoor", needs="classes", remedy=remedy, targets=shards.targets.dtype)
    C, p = _classes(shards), shards.inputs.shape[1]
    integer(target, "backdoor's target"), integer(columns, "backdoor's columns", at_least=1)
    part = positive(share, "backdoor's share")
    fits = target < C and columns <= p and part <= 1
    met = {"target": target, "C": C, "columns": columns, "p": p, "share": part}
    require(fits, "backdoor", needs="target < C, columns <= p and share <= 1", remedy="Lower it.", **met)
    bright = shards.inputs.max()
    place = np.arange(len(shards.targets)) - np.repeat(shards.offsets[:-1], shards.counts)
    mine = _owned_by(shards, byzantine) & (place < np.repeat(np.ceil(part * shards.counts), shards.counts))
    inputs, targets = shards.inputs.copy(), shards.targets.copy()
    inputs[mine, p - columns :], targets[mine] = bright, target

    def probe(samples: Samples) -> Samples:
        others = samples.targets != target
        marked = samples.inputs[others].copy()
        marked[:, p - columns :] = bright
        return Samples(marked, np.full(len(marked), target, samples.targets.dtype))

    return Poisoned(Shards(inputs, targets, shards.offsets), probe)


def _owned_by(shards: Shards, clients: Mask) -> NDArray[np.bool_]:
    """True for the samples of these clients."""
    return np.repeat(clients, shards.counts)


def _has_classes(shards: Shards) -> bool:
    return shards.targets.dtype.kind in "iu"


def _classes(shards: Shards) -> int:
    return int(shards.targets.max()) + 1
