"""aggregate(): what m clients sent -> one aggregate, and a row about every client.

spec -> stages; updates -> gather (forms and claims) -> plan (what to read) -> admit (one pass: who takes part, why not)
     -> geometry or columns -> rule -> weights or row -> account (value, one row per client, proof)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedhold.certificate import Proof
from fedhold.errors import InfeasibleError, positive
from fedhold.geometry import Geometry, Measurement, Rescaled, Solved, normalised
from fedhold.groups import Groups, Patterns, check_scale, in_groups
from fedhold.guard import Guard, guarded
from fedhold.kernels import Matrix, Vector, Weights, numbers, one_blas_thread
from fedhold.plan import plan_for
from fedhold.result import CLIPPED, DROPPED, KEPT, REJECTED, STATUSES, Aggregation, Clients
from fedhold.spec import DEFAULT, Stage, parse
from fedhold.updates import (
    Admission,
    Columnwise,
    DamagedFileError,
    admit,
    gather,
    opened,
    without_damaged,
)

__all__ = ["aggregate"]

TIE = 1e-9  # A distance this close to its threshold, relatively, counts as at the threshold.


@one_blas_thread  # Passes have threads of their own.
def aggregate(
    updates: Any,
    rule: str | Callable[..., Any] | tuple[Stage, ...] = DEFAULT,
    *,
    samples: ArrayLike | None = None,
    rng: np.random.Generator | int | None = None,
    start: Any = None,
    root: Any = None,
    scale: float | None = None,
    steps: ArrayLike | None = None,
    sample_cap: float | None = 3.0,
    like: Any = None,
    groups: Groups | None = None,
    exclude: Patterns | None = None,
    guard: Guard | None = None,
    **parameters: Any,
) -> Aggregation:
    """Aggregate what m clients sent, robustly, and say what was done to each of them.

    updates     an (m, d) array; a list of m arrays of one shape; a list of m lists or dicts of arrays (NumPy, torch, JAX);
                a directory of .npy or .safetensors files, one per client, or a list of their paths;
                an (m, d) Dask array, which is aggregated where its blocks lie
    rule        a name, a spec such as "nearest_neighbour_mixing(f=10) | trimmed_mean(f=10)", or a function
                geometry -> weights; `fedhold.RULES` lists the names. By default "spectral_huber", which is told nothing
    samples     the n_i that clients claim; by default every client counts as one sample
    rng         a generator or a seed, for rules that draw: the same seed draws the same. By default they draw from the
                operating system, because liars who know what will be drawn can hide from it
    start       where to begin, shaped as one update, such as the last aggregate; for the rules that have a start
    root        the server's own update, shaped as one update; for the rules that compare clients with it (fl_trust, monna)
    scale       `result.scale` of the round before, for the rules that can remember one (huber, spectral_huber): their
                threshold then falls slowly where most clients' updates shrink and those of a few do not
    sample_cap  a client's n_i is capped at this multiple of the median; None trusts all claims
    steps       the numbers of local steps s_i that clients claim, where updates are changes of a model. Each update is
                multiplied by s / s_i, at least 1/3 and at most 3, with their median s: a client that made more steps than the
                others is then not far from them for that
    like        an update of the right structure, such as the model you sent; by default the structure that most clients share
    groups      which arrays have distances of their own, such as {"lora_A": "*.lora_A.*", "lora_B": "*.lora_B.*"}, or a
                function from a path to a name; "adapters" knows the usual names. The rule runs in each group, and a client's
                status is its worst one. By default all arrays have one distance together
    exclude     patterns of the arrays that stay as they are in `like`, such as the heads of a personalised model
    guard       a function of a value: its loss on each of 30 to 100 labelled samples of the server's own. Where clients send
                changes, it adds them to the model. The rule's value gives way to one that follows honest minorities, if the
                losses say so beyond doubt; `result.guard` says which was taken. The updates are read three times
    parameters  those of the rule: f=..., threshold=..., ...

    Integer and bool arrays next to floating ones (counters, masks) have no distances: each of their numbers becomes the median
    of what the admitted clients sent, weighted by the weights that the rule found (equal ones for rules of columns).

    A client whose update has another structure, another kind of dtype or any number that is not finite is rejected with a
    reason; the others are aggregated. Nothing you pass is modified.

    f counts the liars among all clients in `updates`. Those rejected are some of them: the rule has to withstand f less their
    number, at least 0, and `result.f` says how many. What f needs is judged by the call alone, with m = len(updates), so
    nothing that clients send makes an error of a valid call, unless nobody is left.

    >>> import numpy as np
    >>> updates = np.array([[1.0, 2.0], [1.1, 2.1], [0.9, 1.9], [1.0, 2.1], [1e9, -1e9]])
    >>> result = aggregate(updates)
    >>> result.value.round(1)
    array([1., 2.])
    >>> result.clients[4].status
    'clipped'
    """
    stages = parse(rule, parameters)
    if guard is not None:
        call = {"samples": samples, "steps": steps, "sample_cap": sample_cap, "like": like}
        call |= {"groups": groups, "exclude": exclude, "rng": rng, "start": start, "root": root, "scale": scale}
        return guarded(aggregate, opened(updates), guard, rule=stages, **call)
    if scale is not None:
        check_scale(stages[-1], "scale", groups, exclude)
    if groups is not None or exclude is not None:
        generator = _generator(rng, draws=any(stage.takes("rng") for stage in stages))
        call = {"rule": stages, "samples": samples, "rng": generator, "steps": steps, "sample_cap": sample_cap}
        return in_groups(aggregate, updates, groups, exclude, like=like, start=start, root=root, **call)
    final = stages[-1]
    if start is not None and not final.takes("start"):
        raise TypeError(f"{final.name} begins nowhere and takes no start. Leave it out.")
    if root is not None and not final.takes("root"):
        raise TypeError(f"{final.name} compares clients with no root. Leave it out.")
    scale = None if scale is None else positive(scale, "scale", zero=True)
    generator = _generator(rng, draws=any(stage.takes("rng") for stage in stages))
    before = {} if generator is None else generator.bit_generator.state
    given, points = opened(updates), {"start": start, "root": root}
    while True:
        if generator is not None:  # An attempt that ended at a damaged file leaves no trace in what is drawn.
            generator.bit_generator.state = before
        try:
            sent = gather(given, samples, sample_cap, like, steps)
            plan = plan_for(stages, sent)
            admission = admit(sent, plan.wanted, around_zero=plan.around_zero)
            read = {name: admission.place(point, name) for name, point in points.items() if point is not None}
            return _aggregated(stages, admission, _Call(generator, scale, **read))
        except DamagedFileError as problem:  # It costs its client the round, and nobody else.
            given = without_damaged(given, problem)


def _aggregated(stages: Sequence[Stage], admission: Admission, call: _Call) -> Aggregation:
    """What the stages make of the admitted clients."""
    updates, places = admission.updates, [place for place in (call.start, call.root) if place is not None]
    geometry = Geometry(updates.reaching(*places) if places else updates, admission.samples, admission.look)
    if admission.factors is not None:
        geometry = geometry.mixed(np.diag(admission.factors), admission.samples)
    try:
        account = _account(stages, geometry, admission, call)
    except ValueError as problem:
        if not admission.rejected or isinstance(problem, DamagedFileError):
            raise
        kind = InfeasibleError if isinstance(problem, InfeasibleError) else ValueError
        raise kind(
            f"{problem} Note that {admission.rejected} of {len(admission.reasons)} clients were rejected."
        ) from None
    votes = account.weights
    if admission.factors is not None and votes is not None:  # of the updates as they were sent
        account = replace(account, weights=votes * admission.factors)
    clients = _clients(account, admission, geometry)
    # The value shares the memory of its row and becomes the caller's, who may change it.
    kept = account.value.copy() if account.certifies else account.value
    value = admission.shaped(account.value, votes)
    received = partial(admission.received, value)
    return Aggregation(
        value=value,
        weights=None if account.weights is None else clients.weights,
        clients=clients,
        converged=account.solved.converged,
        iterations=account.solved.iterations,
        rule=" | ".join(map(str, stages)),
        f=account.f,
        proof=Proof(geometry, kept, account.distances, account.solved, received) if account.certifies else None,
        scale=None if account.solved.scale is None else float(geometry.real(account.solved.scale)),
    )


@dataclass(frozen=True)
class _Call:
    """The arguments of aggregate() that a stage receives if its function has parameters of these names."""

    rng: np.random.Generator | None
    scale: float | None = None
    start: Vector | None = None
    root: Vector | None = None


def _generator(rng: np.random.Generator | int | None, *, draws: bool) -> np.random.Generator | None:
    """The generator that the caller gave or means; None where nobody draws."""
    if isinstance(rng, np.random.Generator):
        return rng
    if rng is not None and (isinstance(rng, bool) or not isinstance(rng, int | np.integer) or rng < 0):
        raise TypeError(f"rng must be a numpy.random.Generator, a seed of at least 0, or None, got {rng!r}.")
    return np.random.default_rng(rng) if draws else None


def _run(stage: Stage, geometry: Geometry, call: _Call) -> Any:
    """What a stage makes of the clients; of a column rule, what it is to do with every block of columns."""
    if stage.declared.view == "columns":
        return Columnwise(partial(stage.function, **stage.parameters))
    given = {name: value for name, value in vars(call).items() if stage.takes(name)}
    return stage.function(geometry, **stage.parameters, **given)


# From the geometry of the admitted clients to their account.


@dataclass(frozen=True)
class _Account:
    """The outcome for the admitted clients.

    value       the aggregate
    distances   the distance of every client to it
    takes_part  whether the rule used the client
    weights     the clients' shares in the value; None for column rules, and where a start has a share
    thresholds  T_i of every client; None for rules without thresholds
    solved      how well the problem was solved
    f           how many liars the rule withstood among them; None where it was not told
    certifies   whether the result comes with a proof
    """

    value: Vector
    distances: Vector
    takes_part: NDArray[np.bool_]
    weights: Weights | None
    thresholds: Vector | None
    solved: Solved
    f: int | None
    certifies: bool


def _account(stages: Sequence[Stage], geometry: Geometry, admission: Admission, call: _Call) -> _Account:
    *mixings, final = stages
    points, mixture, f = geometry, None, None
    for given in mixings:
        stage = given.among(points.m, admission.rejected)
        f = f if stage.f is None else stage.f
        matrix = _run(stage, points, call)
        mixture = matrix if mixture is None else matrix @ mixture
        points = geometry.mixed(mixture, _mixed_samples(mixture, admission.samples))
    stage = _for_admitted(final, admission) if admission.rejected else final
    stage = stage.among(points.m, admission.rejected)
    f = f if stage.f is None else stage.f
    outcome = _run(stage, points, call)
    if isinstance(outcome, Columnwise):
        return _of_columns(outcome, points, geometry, mixture, f)
    if isinstance(outcome, Rescaled):
        scaling = np.diag(outcome.factors)
        mixture = scaling if mixture is None else scaling @ mixture
        points, outcome = geometry.mixed(mixture, points.samples), outcome.weights
    solved = outcome if isinstance(outcome, Solved) else Solved(_checked(outcome, points.m, final.name))
    return _of_weights(solved, points, geometry, mixture, f, certifies=final.declared.certifies)


def _for_admitted(stage: Stage, admission: Admission) -> Stage:
    """The stage with the thresholds of the admitted clients, where the caller gave one for every client."""
    given = stage.parameters.get("threshold")
    if not isinstance(given, list | tuple | np.ndarray) or len(given) != len(admission.reasons):
        return stage
    return stage.given(threshold=[given[i] for i in admission.admitted])


def _mixed_samples(mixture: Matrix, samples: Weights) -> Weights:
    """The samples of mixed rows: each row counts as the mean of the clients in it."""
    members = mixture != 0
    sizes = members.sum(axis=1)
    # A row of nobody, such as an update that was shortened to nothing, counts as the mean of all clients.
    return np.divide(members @ samples, sizes, out=np.full(len(mixture), samples.mean()), where=sizes > 0)


def _of_columns(
    rule: Columnwise, points: Geometry, geometry: Geometry, mixture: Matrix | None, f: int | None
) -> _Account:
    value, distances = points.column_row(rule)
    part = np.ones(points.m, dtype=bool) if rule.clients is None else np.isin(np.arange(points.m), rule.clients)
    return _Account(
        value=value,
        distances=distances if mixture is None else geometry.distances_to(value),
        takes_part=part if mixture is None else (mixture[part] != 0).any(axis=0),
        weights=None,
        thresholds=None,
        solved=Solved(np.empty(0)),
        f=f,
        certifies=False,
    )


def _of_weights(
    solved: Solved, points: Geometry, geometry: Geometry, mixture: Matrix | None, f: int | None, *, certifies: bool
) -> _Account:
    if mixture is None:
        measured = solved.measured or points.measure(solved.weights, origin=solved.origin)
        weights = None if solved.origin is not None else solved.weights
        takes_part, thresholds = solved.weights > 0, solved.thresholds
        return _Account(
            measured.centre, measured.distances, takes_part, weights, thresholds, solved, f, certifies=certifies
        )
    weights = solved.weights @ mixture
    thresholds = None
    if solved.thresholds is not None and (mixture.max(axis=1) == 1).all():  # Clients were chosen, not mixed.
        thresholds = np.where(mixture.any(axis=0), solved.thresholds @ mixture, np.nan)
    known, found = solved.measured or points.measured(solved.weights), None
    if known is None and solved.origin is None and (np.count_nonzero(mixture, axis=1) <= 1).all():
        # Each row is a client's own, shortened or not: one pass over the clients finds the centre and the distances to it.
        found = geometry.measure_sum(weights)
    if found is None:
        centre = (known or points.measure(solved.weights, origin=solved.origin)).centre
        found = Measurement(centre, geometry.distances_to(centre))
    return _Account(found.centre, found.distances, weights > 0, weights, thresholds, solved, f, certifies=False)


def _checked(weights: Any, m: int, rule: str) -> Weights:
    """The weights that a user's own rule returned; an error unless they are weights."""
    checked = numbers(weights)
    if checked.shape != (m,) or not (checked >= 0).all() or not abs(float(checked.sum()) - 1) <= 1e-5:
        raise ValueError(
            f"{rule} must return {m} weights of at least 0 that sum to 1, one per admitted client, got {weights!r}. To "
            "return the aggregate itself, column by column, put @fedhold.rules.by_columns above a function of a block."
        )
    return checked


def _clients(account: _Account, admission: Admission, geometry: Geometry) -> Clients:
    """One row per client, including the rejected ones."""
    m, admitted = len(admission.reasons), admission.admitted

    def for_everyone(known: NDArray[Any] | None, otherwise: Vector | float) -> NDArray[Any]:
        if known is None:
            known = np.full(len(admitted), np.nan)
        if len(admitted) == m:
            return known.copy()
        column = np.empty(m, known.dtype)
        column[:] = otherwise
        column[admitted] = known
        return column

    distances, thresholds = geometry.real(account.distances), account.thresholds
    statuses = np.where(account.takes_part, KEPT, DROPPED)
    if thresholds is not None:
        thresholds = np.where(np.isinf(thresholds), np.inf, geometry.real(thresholds))
        statuses[account.takes_part & (distances / (1 + TIE) > thresholds)] = CLIPPED
    return Clients(
        indices=np.arange(m),
        statuses=STATUSES[for_everyone(statuses, REJECTED)],
        reasons=admission.reasons,
        distances=for_everyone(distances, np.nan),
        thresholds=for_everyone(thresholds, np.nan),
        weights=for_everyone(account.weights, 0.0),
        shares=for_everyone(None if account.weights is None else _shares(account.weights, admission.samples), 0.0),
        samples=for_everyone(admission.samples, admission.claimed),
    )


def _shares(weights: Weights, samples: Weights) -> Vector:
    """Each weight divided by the client's part of all samples; at most the largest float, for claims that are trusted."""
    with np.errstate(over="ignore", divide="ignore"):
        shares = np.divide(weights, normalised(samples), out=np.zeros(len(weights)), where=weights != 0)
    return np.minimum(shares, np.finfo(np.float64).max)
