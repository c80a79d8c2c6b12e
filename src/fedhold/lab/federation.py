"""The round loop of Algorithm 1: broadcast, answer, lie, aggregate, step; resumable after every round."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.aggregation import Aggregation, aggregate
from fedhold.errors import integer, positive, require
from fedhold.lab.attacks import Attack
from fedhold.lab.clients import Adversary, answers, asked_clients, remember, take, truthful_mean
from fedhold.lab.tasks import Floats, Shards, Task
from fedhold.spec import parse
from fedhold.storage import Checkpoint, fingerprint

__all__ = ["Federated", "Round", "chance", "federate", "project"]

INITIAL, PARTICIPATION, BATCH, ATTACK, RULE = range(5)  # what a generator is for


@dataclass(frozen=True)
class Round:
    """One row of a history.

    round        1 after the first step
    metrics      task.evaluate(w) after the step; empty in rounds that `evaluate_every` leaves out
    error        |aggregate - mean of the truthful clients' answers, weighted by n_i|
    clipped      fraction of the clients that took part; so is `rejected`
    liar_weight  the Byzantine clients' share of the aggregate; None for rules without weights
    radius       how far `certify` liars can have moved the aggregate; None where not asked for or not to be proven
    seconds      of the aggregation
    """

    round: int
    metrics: dict[str, float]
    error: float
    clipped: float
    rejected: float
    liar_weight: float | None
    radius: float | None
    seconds: float


@dataclass(frozen=True, eq=False)
class Federated:
    """What came out.

    w          (d,) the model
    weights    (rounds, m) each client's weight in units of an equal share, NaN where it was not asked; None for rules
               without weights
    byzantine  (m,) who lied
    """

    w: Floats
    history: tuple[Round, ...]
    weights: NDArray[np.float32] | None
    byzantine: NDArray[np.bool_]


@np.errstate(over="ignore", invalid="ignore")  # a run that diverges is a result
def federate(
    task: Task,
    shards: Shards,
    *,
    rule: str | Callable[..., Any] = "huber",
    parameters: Mapping[str, Any] | None = None,
    attack: str | Attack | None = None,
    attack_parameters: Mapping[str, Any] | None = None,
    byzantine: NDArray[np.bool_] | None = None,
    rounds: int,
    step: float,
    seed: int = 0,
    radius: float = float("inf"),
    centre: Floats | None = None,
    batch: int | None = None,
    momentum: float = 0.0,
    local_steps: int = 1,
    participation: float = 1.0,
    sample_cap: float | None = None,
    certify: int | None = None,
    evaluate_every: int = 1,
    checkpoint: Path | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Federated:
    """Learn `task` from the clients' shards while some of them lie.  Paper, Algorithm 1.

    w <- Proj(w - step * g),  g the aggregate of the clients' answers,  Proj onto the ball of `radius` around `centre` (w_0).

    rule, parameters   as for aggregate(); f is taken as given, also where not everyone is asked
    attack             a key of ATTACKS, or such a function, for the clients marked in `byzantine`; `attack_parameters` are its
                       own and, for huber_attack, `threshold`: the T the liars reckon with, the rule's own unless given (the
                       automatic one where the rule has none)
    batch              samples a client draws for each gradient; all of its samples unless given
    momentum           a client sends M_i <- momentum * M_i + (1 - momentum) * G_i, the first time G_i itself
    local_steps        k > 1: a client takes k steps of size `step` from w to w_i and sends (w - w_i) / step, the sum of the k
                       gradients it met. With rule="mean" the server then arrives at the mean of the w_i, as FedAvg does; RFA
                       and RAGA are rule="geometric_median" here.
    participation      the fraction of the clients, drawn anew every round, that is asked
    sample_cap         as for aggregate(), but the n_i are trusted unless it is given: the paper's figures do
    certify            f: put the certificate's radius(f) into the history; costs an m x m matrix per round
    checkpoint         a file, written after every round and read at the start: a run that was killed ends with the same bits

    >>> from fedhold.lab.datasets import synthesized
    >>> from fedhold.lab.partition import balanced
    >>> from fedhold.lab.tasks import LinearRegression, shard
    >>> rng = np.random.default_rng(0)
    >>> samples = synthesized(rng, samples=400, d=3).train
    >>> shards, liars = shard(samples, balanced(400, 20, rng)), np.arange(20) < 4
    >>> learnt = federate(LinearRegression(samples), shards, attack="sign_flip", byzantine=liars, rounds=50, step=0.2)
    >>> round(learnt.history[-1].metrics["rmse"], 1)
    1.0

    Chance comes from default_rng([seed, purpose, round]). A server that can admit nobody, or whose step would
    overflow, keeps its model.
    """
    rounds, step = integer(rounds, "rounds"), positive(step, "step")
    radius = positive(radius, "radius", infinite=True)
    evaluate_every = integer(evaluate_every, "evaluate_every", at_least=1)
    require(0 <= momentum < 1, "federate", needs="0 <= momentum < 1", remedy="Usual is 0.9.", momentum=momentum)
    parameters = dict(parameters or {})
    final = parse(rule, parameters)[-1]
    liars = Adversary.of(attack, attack_parameters, byzantine, shards.m, final.parameters.get("threshold"), sample_cap)
    w = task.initial(chance(seed, INITIAL, 0))
    centre = w if centre is None else centre
    numbers = (step, seed, radius, batch, momentum, local_steps, participation, sample_cap, certify, evaluate_every)
    run = Checkpoint(
        checkpoint,
        fingerprint(
            **{"rule": rule, "parameters": parameters, "numbers": numbers, "w": w, "centre": centre},
            **{"attack": liars.attack, "attack_parameters": attack_parameters, "byzantine": liars.byzantine},
            **{"offsets": shards.offsets, "targets": shards.targets},
        ),
    )
    state: dict[str, NDArray[Any]] = {"w": w, "weights": np.empty((0, shards.m), np.float32)}
    history: list[Round] = []
    if (saved := run.load(rounds)) is not None:
        state, history = saved[0], [Round(**row) for row in saved[1]]

    out: Floats | None = None
    for t in range(len(history) + 1, rounds + 1):
        asked = asked_clients(shards.m, participation, chance(seed, PARTICIPATION, t))
        present, lying = take(shards, asked), liars.byzantine[asked]
        out = answers(task, state["w"], present, local_steps, step, batch, chance(seed, BATCH, t), out)
        if momentum:
            remember(state, asked, shards.m, out, momentum)
        truth = truthful_mean(out, present.counts, lying)
        result, seconds = None, 0.0
        if _sound(out, truth, lying):
            liars.lie(out, present.counts, lying, chance(seed, ATTACK, t))
            begun = time.perf_counter()
            result = aggregate(
                out,
                rule,
                samples=present.counts,
                rng=chance(seed, RULE, t),
                start=state.get("last"),
                sample_cap=sample_cap,
                **parameters,
            )
            seconds = time.perf_counter() - begun
            if final.declared.from_last:  # other rules would save next to nothing by starting there
                state["last"] = result.value
            moved = project(state["w"] - step * result.value, centre, radius)
            state["w"] = moved if np.isfinite(moved).all() else state["w"]
        measured = task.evaluate(state["w"]) if t % evaluate_every == 0 or t == rounds else {}
        history.append(_row(t, measured, result, truth, lying, certify, seconds))
        _note_weights(state, result, asked, shards.m)
        run.save(state, [vars(row) for row in history])
        if on_round is not None:
            on_round(history[-1])
    weights = None if np.isnan(state["weights"]).all() else state["weights"]
    return Federated(state["w"], tuple(history), weights, liars.byzantine)


def chance(seed: int, purpose: int, t: int) -> np.random.Generator:
    """The generator for one purpose in one round: nothing of it need be kept between rounds."""
    return np.random.default_rng([integer(seed, "seed"), purpose, t])


def project(w: Floats, centre: Floats, radius: float) -> Floats:
    """The point of the ball of `radius` around `centre` that is nearest to w."""
    if np.isinf(radius):
        return w
    away = w - centre
    distance = float(np.linalg.norm(away))
    return w if distance <= radius else centre + away * (radius / distance)


def _sound(honest: Floats, truth: Floats, lying: NDArray[np.bool_]) -> bool:
    """Whether the server can admit a truthful client: once the model has left the numbers, there is none."""
    return bool(np.isfinite(truth).all() or lying.all() or np.isfinite(honest[~lying]).all(axis=1).any())


def _row(
    t: int,
    metrics: dict[str, float],
    result: Aggregation | None,
    truth: Floats,
    lying: NDArray[np.bool_],
    certify: int | None,
    seconds: float,
) -> Round:
    if result is None:
        return Round(t, metrics, float("nan"), 0.0, 1.0, None, None, seconds)
    clients = result.clients
    proof = None if certify is None else result.certificate
    return Round(
        round=t,
        metrics=metrics,
        error=float(np.linalg.norm(result.value - truth)),
        clipped=len(clients.with_status("clipped")) / len(clients),
        rejected=len(clients.with_status("rejected")) / len(clients),
        liar_weight=None if result.weights is None else float(result.weights[lying].sum()),
        radius=None if proof is None or certify is None else float(proof.radius(certify)),
        seconds=seconds,
    )


def _note_weights(state: dict[str, NDArray[Any]], result: Aggregation | None, asked: NDArray[np.intp], m: int) -> None:
    """One row more of weights in units of an equal share; NaN for whoever was not asked."""
    row = np.full((1, m), np.nan, np.float32)
    if result is not None and result.weights is not None:
        row[0, asked] = result.weights * len(asked)
    state["weights"] = np.concatenate([state["weights"], row])
