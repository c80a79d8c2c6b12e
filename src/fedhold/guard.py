"""A guard: a few samples of the server's own decide how far from the strict rule a round may go.

    updates -> the rule; Huber; nearly the mean -> the losses of each on the samples -> a looser one, if it proves better

Honest clients that differ look like liars: no function of their updates alone can tell a minority with classes of its own
from an attack. Thirty to a hundred labelled samples can, and what they may choose from is bounded: whatever is taken is the
rule's own value, or lies within the median distance of the Huber centre with equal votes, which fewer than half of the clients
cannot move far.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedhold.errors import one_line
from fedhold.geometry import Geometry, HuberCentre, Solved, normalised, sampled_centre
from fedhold.kernels import Vector, middle
from fedhold.result import Aggregation, Guarded
from fedhold.rules import declares, huber
from fedhold.thresholds import KAPPA, automatic

__all__ = ["Guard", "guarded", "loosened"]

Guard = Callable[[Any], ArrayLike]
"""A function of a value: its loss on each of the server's samples, in the same order each time."""

NEAR_MEAN = 3.0  # median distances: the threshold of the loosest candidate
ERRORS = 2.0  # standard errors of the paired difference by which a looser candidate must be better
STEPS = 50  # of a solve: wide thresholds that follow the distances may go in circles, and the bound needs no solution


@declares(begins=lambda updates, samples: sampled_centre(updates, np.ones_like(samples)), spreads=True, certifies=True)
def loosened(geometry: Geometry, *, kappa: float) -> Solved:
    """The Huber aggregate with this kappa, kept within s of the Huber centre with equal votes, s the median distance to that.

    v = c + (x - c) min(1, s / |x - c|). Fewer than half of the clients move c and s by a bounded amount, whatever they send and
    whatever samples they claim; so v is bounded, however large kappa is.

    kappa  the threshold of x in units of the median distance
    """
    votes = geometry.counted(np.ones(geometry.m))
    centre = huber(votes)
    assert centre.thresholds is not None
    distances = votes.distances(centre.weights) if centre.measured is None else centre.measured.distances
    loose = huber(geometry, threshold=automatic(kappa), max_iterations=STEPS)
    apart, limit = votes.separation(loose.weights, centre.weights), middle(distances)
    part = 1.0 if apart <= limit else limit / apart
    about = HuberCentre(votes, centre.weights, distances, centre.thresholds, centre.kappa)
    weights = normalised((1 - part) * centre.weights + part * loose.weights)
    return replace(loose, weights=weights, measured=None, huber=about)


def guarded(aggregate: Callable[..., Aggregation], updates: Any, guard: Guard, **call: Any) -> Aggregation:
    """The result of the rule, or of a looser candidate whose loss on the server's samples is lower beyond doubt.

    aggregate  makes a result of the updates and a rule
    updates    as for aggregate()
    guard      a value -> its losses
    call       the other arguments of aggregate()

    Candidates are, the strictest first, the rule; Huber; and Huber with kappa 3, nearly the mean: the last two kept within s.
    Each is compared with the one that is taken so far: it must be better by two standard errors of the paired difference. A
    guard that fails for any of them has said nothing, and the rule's own value stays.
    """
    looser = {name: value for name, value in call.items() if name not in ("rule", "rng", "start", "root", "scale")}
    results = {"rule": aggregate(updates, **call)}
    for name, kappa in (("huber", KAPPA), ("near_mean", NEAR_MEAN)):
        results[name] = aggregate(updates, loosened, kappa=kappa, **looser)
    strictest = results["rule"]
    losses = dict[str, Vector]()
    for name, result in results.items():
        try:  # A guard may write into what it gets.
            losses[name] = _checked(guard(deepcopy(result.value)), losses.get("rule"))
        except Exception as problem:
            note = one_line(f"the guard failed for {name}: {type(problem).__name__}: {problem}")
            return replace(strictest, guard=Guarded("rule", {}, 0.0, 0.0, note))
    taken = "rule"
    for name in ("huber", "near_mean"):
        gain, error = _paired(losses[taken], losses[name])
        if gain > ERRORS * error:
            taken = name
    gain, error = _paired(losses["rule"], losses[taken])
    means = {name: float(values.mean()) for name, values in losses.items()}
    told: dict[str, Any] = {"rule": strictest.rule, "f": strictest.f, "scale": strictest.scale}
    return replace(results[taken], **told, guard=Guarded(taken, means, gain, error))


def _checked(given: ArrayLike, like: Vector | None) -> Vector:
    """The losses of one candidate; an error unless they are as many finite numbers as the first one's."""
    losses = np.asarray(given, np.float64)
    if losses.ndim != 1 or len(losses) < 2 or (like is not None and losses.shape != like.shape):
        wanted = "one loss for each of at least 2 samples" if like is None else f"shape {like.shape}, as before"
        raise ValueError(f"it must return {wanted}; it returned shape {losses.shape}.")
    if not np.isfinite(losses).all():
        raise ValueError("it returned losses that are not finite.")
    return losses


def _paired(stricter: Vector, looser: Vector) -> tuple[float, float]:
    """By how much the mean loss of the looser candidate is lower, and the standard error of that difference."""
    with np.errstate(over="ignore", invalid="ignore"):
        gains = stricter - looser
        return float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains)))
