"""What clients send in a round: honest answers, from one gradient or several local steps, and lies in their place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.aggregation import aggregate
from fedhold.errors import integer, require, unknown
from fedhold.lab.attacks import ATTACKS, Attack, Knowledge, huber_attack
from fedhold.lab.tasks import Floats, Shards, Task
from fedhold.thresholds import Threshold, follows_distances, threshold_function

__all__ = ["Adversary", "answers", "asked_clients", "client", "remember", "take", "truthful_mean"]


def asked_clients(m: int, participation: float, rng: np.random.Generator) -> NDArray[np.intp]:
    """Who is asked this round, in rising order; at least one."""
    require(0 < participation <= 1, "federate", needs="0 < participation <= 1", remedy="1 asks all.", met=participation)
    return np.sort(rng.permutation(m)[: max(1, round(participation * m))])


def take(shards: Shards, chosen: NDArray[np.intp]) -> Shards:
    """The shards of the chosen clients."""
    if len(chosen) == shards.m:
        return shards
    rows = np.concatenate([np.arange(shards.offsets[i], shards.offsets[i + 1]) for i in chosen])
    offsets = np.concatenate([[0], np.cumsum(shards.counts[chosen])]).astype(np.intp)
    return Shards(shards.inputs[rows], shards.targets[rows], offsets)


def answers(
    task: Task,
    w: Floats,
    shards: Shards,
    local_steps: int,
    step: float,
    batch: int | None,
    rng: np.random.Generator,
    out: Floats | None = None,
) -> Floats:
    """(m, d) what the clients send if none lies: the gradient at w, or the sum of those met on several local steps."""
    if integer(local_steps, "local_steps", at_least=1) == 1:
        return task.gradients(w, shards if batch is None else shards.batch(batch, rng), out=out)
    drawn = [shards if batch is None else shards.batch(batch, rng) for _ in range(local_steps)]
    out = np.empty((shards.m, w.size), w.dtype) if out is None else out
    for i, total in enumerate(out):
        total[:] = 0
        for samples in drawn:
            total += task.gradients(w - step * total, client(samples, i))[0]
    return out


def client(shards: Shards, i: int) -> Shards:
    """Client i alone; views, no copies."""
    rows = slice(int(shards.offsets[i]), int(shards.offsets[i + 1]))
    return Shards(shards.inputs[rows], shards.targets[rows], np.array([0, rows.stop - rows.start], dtype=np.intp))


def remember(state: dict[str, NDArray[Any]], asked: NDArray[np.intp], m: int, out: Floats, momentum: float) -> None:
    """Turn the answers into momenta, in place."""
    memory = state.setdefault("memory", np.zeros((m, out.shape[1]), out.dtype))
    known = state.setdefault("known", np.zeros(m, dtype=bool))
    old = known[asked]
    out[old] = momentum * memory[asked[old]] + (1 - momentum) * out[old]
    memory[asked], known[asked] = out, True


def truthful_mean(honest: Floats, samples: NDArray[np.intp], lying: NDArray[np.bool_]) -> Floats:
    """The mean of the truthful clients' answers weighted by n_i; NaN if there are none of them."""
    shares = np.where(lying, 0, samples)
    with np.errstate(invalid="ignore"):
        mean: Floats = (shares / shares.sum()).astype(honest.dtype) @ honest
    return mean


@dataclass(frozen=True, eq=False)
class Adversary:
    """Who lies and how.

    threshold   the server's T_i, as the adversary knows them; None where the attack does not ask
    sample_cap  what the server does to the n_i
    """

    byzantine: NDArray[np.bool_]
    attack: Attack | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    threshold: Threshold | None = None
    sample_cap: float | None = None

    @classmethod
    def of(
        cls,
        attack: str | Attack | None,
        parameters: Mapping[str, Any] | None,
        byzantine: NDArray[np.bool_] | None,
        m: int,
        threshold: Any,
        sample_cap: float | None,
    ) -> Adversary:
        """From the arguments of federate(); `threshold` is what the rule was told, None where it has none."""
        mask = np.zeros(m, dtype=bool) if byzantine is None else np.asarray(byzantine)
        remedy = "From client numbers: np.isin(np.arange(m), numbers)."
        is_mask = mask.shape == (m,) and mask.dtype == np.bool_
        require(is_mask, "byzantine", needs=f"shape ({m},), bool", remedy=remedy, shape=mask.shape, dtype=mask.dtype)
        if attack is None:
            remedy = "Pass attack='sign_flip', say, or leave byzantine away."
            require(not mask.any(), "byzantine", needs="an attack", remedy=remedy, liars=int(mask.sum()))
            return cls(mask)
        if isinstance(attack, str) and attack not in ATTACKS:
            raise ValueError(unknown("attack", attack, ATTACKS))
        function = ATTACKS[attack] if isinstance(attack, str) else attack
        own = dict(parameters or {})
        if function is not huber_attack:
            return cls(mask, function, own)
        reckoned = own.pop("threshold", "automatic" if threshold is None else threshold)
        return cls(mask, function, own, threshold_function(reckoned), sample_cap)

    def lie(
        self, honest: Floats, samples: NDArray[np.intp], lying: NDArray[np.bool_], rng: np.random.Generator
    ) -> None:
        """Put the lies in the place of what the liars would honestly have sent."""
        if self.attack is None or not lying.any():
            return
        thresholds = None if self.threshold is None else self._thresholds(self.threshold, honest, samples)
        honest[lying] = self.attack(Knowledge(honest, lying, rng, thresholds), **self.parameters)

    def _thresholds(self, threshold: Threshold, honest: Floats, samples: NDArray[np.intp]) -> NDArray[np.float64]:
        """T_i: by the samples alone where they decide, else those the server would find if nobody lied."""
        if self.sample_cap is None and not follows_distances(threshold):
            return threshold(np.zeros(len(samples)), samples.astype(np.float64))
        found = aggregate(honest, "huber", samples=samples, sample_cap=self.sample_cap, threshold=threshold)
        return found.clients.thresholds
