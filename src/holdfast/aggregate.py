"""aggregate(): what m clients sent -> one aggregate, and an account of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast import columns, rules
from holdfast.admission import Admission, admit
from holdfast.aggregation import Aggregation, Clients, Proof
from holdfast.arrays import Vector, each, numbers
from holdfast.columns import Columnwise
from holdfast.geometry import Geometry, Matrix, Weights
from holdfast.magnitudes import DOUBLE_ROOM
from holdfast.solver import Solved
from holdfast.spec import Stage, parse
from holdfast.stored import forgiving, opened
from holdfast.survey import Survey

__all__ = ["aggregate"]

FAR = 2.0**DOUBLE_ROOM  # as far as we can measure; the way from there is as good as from farther


def aggregate(
    updates: Any,
    rule: str | Callable[..., Any] = "huber",
    *,
    samples: ArrayLike | None = None,
    rng: np.random.Generator | int | None = None,
    start: Any = None,
    sample_cap: float | None = 3.0,
    like: Any = None,
    **parameters: Any,
) -> Aggregation:
    """Aggregate what m clients sent, safely, and say what was done to each of them.

    updates     an (m, d) array; a list of m arrays of one shape; a list of m lists or dicts of arrays (NumPy, torch, JAX);
                a directory of .npy or .safetensors files, one per client, or a list of their paths;
                an (m, d) Dask array, which is aggregated where its blocks lie
    rule        a name, a spec such as "nearest_neighbour_mixing(f=10) | trimmed_mean(f=10)", or a function
                geometry -> weights; `holdfast.RULES` lists the names
    samples     the n_i that clients claim; those beyond sample_cap times the median are capped (None trusts them)
    rng         for rules that draw: a generator or a seed; without it they draw the same every time
    start       where to begin, shaped as one update: the last aggregate, say; for the rules that begin somewhere
    like        an update of the right structure, such as the model you sent; else the structure most clients share is right
    parameters  of the rule: f=..., threshold=..., ...

    A client whose update has another structure, another kind of dtype or any number that is not finite is rejected with a
    reason; the rest go on. Nothing you pass is modified.

    >>> import numpy as np
    >>> updates = np.array([[1.0, 2.0], [1.1, 2.1], [0.9, 1.9], [1.0, 2.1], [1e9, -1e9]])
    >>> result = aggregate(updates)
    >>> result.value.round(1)
    array([1., 2.])
    >>> result.clients[4].status
    'clipped'
    """
    *mixings, final = parse(rule, parameters)
    call: dict[str, Any] = {"rng": _generator(rng), "start": None}
    survey = Survey([stage.function for stage in (*mixings, final)], lambda points: _run(final, points, call))
    admission = forgiving(opened(updates), lambda given: admit(given, samples, sample_cap, like, survey))
    if start is not None and not final.takes("start"):
        raise TypeError(f"{final.name} begins nowhere and takes no start. Leave it out.")

    if start is not None:
        base = admission.updates.base
        call["start"] = each(admission.vector(start, "start"), lambda part: np.clip(np.ldexp(part, base), -FAR, FAR))
    geometry = survey.geometry(admission, call["start"])
    points, mixture = geometry, None
    for stage in mixings:
        matrix = _run(stage, points, call)
        mixture = matrix if mixture is None else matrix @ mixture
        points = geometry.mixed(mixture, _mixed_samples(mixture, admission.samples))
    try:
        outcome = _run(_for_admitted(final, admission), points, call)
    except ValueError as problem:
        rejected = len(admission.reasons) - len(admission.admitted)
        if not rejected:
            raise
        raise ValueError(f"{problem} Note that {rejected} of {len(admission.reasons)} clients were rejected.") from None
    if isinstance(outcome, Columnwise):
        account = _of_columns(outcome, points, geometry, mixture, survey.row(admission))
    else:
        solved = outcome if isinstance(outcome, Solved) else Solved(_checked(outcome, points.m, final.name))
        account = _of_weights(
            solved, points, geometry, mixture, call["start"] if final.name == "centered_clipping" else None
        )
    clients = _clients(account, admission, geometry)
    return Aggregation(
        value=admission.shaped(account.value),
        weights=None if account.weights is None else clients.weights,
        clients=clients,
        converged=account.solved.converged,
        iterations=account.solved.iterations,
        rule=" | ".join(map(str, [*mixings, final])),
        proof=Proof(geometry, account.value, account.distances, account.solved)
        if final.function is rules.huber and mixture is None
        else None,
    )


def _run(stage: Stage, geometry: Geometry, call: dict[str, Any]) -> Any:
    return stage.function(geometry, **stage.parameters, **{name: call[name] for name in call if stage.takes(name)})


def _for_admitted(stage: Stage, admission: Admission) -> Stage:
    """The stage with the thresholds of the admitted clients, where it was given one for every client."""
    given = stage.parameters.get("threshold")
    if not isinstance(given, list | tuple | np.ndarray) or len(given) != len(admission.reasons):
        return stage
    return replace(stage, parameters={**stage.parameters, "threshold": [given[i] for i in admission.admitted]})


def _generator(rng: np.random.Generator | int | None) -> np.random.Generator:
    if isinstance(rng, np.random.Generator):
        return rng
    if rng is not None and (isinstance(rng, bool) or not isinstance(rng, int | np.integer) or rng < 0):
        raise TypeError(f"rng must be a numpy.random.Generator, a seed of at least 0, or None, got {rng!r}.")
    return np.random.default_rng(0 if rng is None else rng)


def _mixed_samples(mixture: Matrix, samples: Weights) -> Weights:
    """A mixed row counts as the mean of the clients in it."""
    members = mixture != 0
    return members @ samples / members.sum(axis=1)


@dataclass(frozen=True)
class _Account:
    """What came out, for the admitted clients: the value, their part in it, and how far they are from it."""

    value: Vector
    distances: Vector
    takes_part: NDArray[np.bool_]
    weights: Weights | None
    thresholds: Vector | None
    solved: Solved


def _of_columns(
    rule: Columnwise, points: Geometry, geometry: Geometry, mixture: Matrix | None, seen: tuple[Vector, Vector] | None
) -> _Account:
    value, products = (columns.apply(points.updates, rule), None) if seen is None else seen
    part = np.ones(points.m, dtype=bool) if rule.clients is None else np.isin(np.arange(points.m), rule.clients)
    takes_part = part if mixture is None else (mixture[part] != 0).any(axis=0)
    return _Account(value, geometry.distances_to(value, products), takes_part, None, None, Solved(np.empty(0)))


def _of_weights(
    solved: Solved, points: Geometry, geometry: Geometry, mixture: Matrix | None, origin: Vector | None
) -> _Account:
    measured = solved.measured or points.measure(solved.weights, origin=origin)
    if mixture is None:
        weights = None if origin is not None else solved.weights
        return _Account(measured.centre, measured.distances, solved.weights > 0, weights, solved.thresholds, solved)
    weights = solved.weights @ mixture
    thresholds = None
    if solved.thresholds is not None and (mixture.max(axis=1) == 1).all():  # clients were chosen, not mixed
        thresholds = np.where(mixture.any(axis=0), solved.thresholds @ mixture, np.nan)
    return _Account(measured.centre, geometry.distances_to(measured.centre), weights > 0, weights, thresholds, solved)


def _checked(weights: Any, m: int, rule: str) -> Weights:
    """Weights that a user's own rule gave."""
    checked = numbers(weights)
    if checked.shape != (m,) or not (checked >= 0).all() or not np.isclose(checked.sum(), 1, atol=1e-6):
        raise ValueError(
            f"{rule} must return {m} weights of at least 0 that sum to 1, one per admitted client, got {weights!r}."
        )
    return checked


def _spread(column: Vector | None, admission: Admission, everyone: Vector) -> Vector:
    """What is known of the admitted, put in its place among everyone."""
    if column is not None:
        everyone[admission.admitted] = column
    return everyone


def _clients(account: _Account, admission: Admission, geometry: Geometry) -> Clients:
    m, admitted = len(admission.reasons), admission.admitted
    thresholds = account.thresholds
    if thresholds is not None:
        thresholds = np.where(np.isinf(thresholds), np.inf, geometry.real(thresholds))
    distances = _spread(geometry.real(account.distances), admission, np.full(m, np.nan))
    limits = _spread(thresholds, admission, np.full(m, np.nan))
    statuses = np.full(m, "rejected")
    statuses[admitted] = np.where(account.takes_part, "kept", "dropped")
    weights = np.full(len(admitted), np.nan) if account.weights is None else account.weights
    statuses[distances / (1 + 1e-9) > limits] = "clipped"
    return Clients(
        indices=np.arange(m),
        statuses=statuses,
        reasons=admission.reasons,
        distances=distances,
        thresholds=limits,
        weights=_spread(weights, admission, np.zeros(m)),
        samples=_spread(admission.samples, admission, admission.claimed.copy()),
    )
