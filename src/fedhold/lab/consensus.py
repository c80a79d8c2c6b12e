"""RSA: consensus between the models of server and clients, held together by an l1 penalty, instead of aggregation."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import positive, unknown, word_among
from fedhold.kernels import one_blas_thread
from fedhold.lab.federation import Adversary, Federated, Round, TrainingSettings, evaluated, probed
from fedhold.lab.knowledge import Attack, Mask
from fedhold.lab.randomness import Purpose, chance
from fedhold.lab.tasks import Shards, Task
from fedhold.spec import Part
from fedhold.storage import Checkpoint, fingerprint

RSA_OPTIONS = ("batch", "evaluate_every")  # the options of federate() that rsa() has too


@one_blas_thread
@np.errstate(over="ignore", invalid="ignore")  # a run that diverges is a result
def rsa(
    task: Task,
    shards: Shards,
    *,
    penalty: float,
    decay: float = 0.0,
    attack: str | Attack | None = None,
    attack_parameters: Mapping[str, Any] | None = None,
    byzantine: Mask | None = None,
    checkpoint: Path | None = None,
    on_round: Callable[[Round], None] | None = None,
    **settings: Any,
) -> Federated:
    """Learn `task` without sending a gradient: a message moves each coordinate by penalty * step, whatever its content.

    min over x_0, ..., x_m of  sum_i (F_i(x_i) + penalty |x_i - x_0|_1) + decay/2 |x_0|^2  by subgradient steps:

        x_i <- x_i - step (G_i(x_i) + penalty sign(x_i - x_0))
        x_0 <- x_0 - step (decay x_0 + penalty sum_i sign(x_0 - z_i)),   z_i = x_i, or what a liar says it is

    penalty   the weight of |x_i - x_0|_1: larger values hold the models closer together, and give liars more influence
    decay     the weight of |x_0|^2 / 2

    settings  rounds, step, seed, batch and evaluate_every of TrainingSettings

    Further arguments are those of federate(). Answers are kept as u_i = x_0 - z_i, which points the way a gradient does, so
    that attacks do here what they do in federate(); an answer that is not finite is left out. `error` in the history is the
    distance of the server's step direction to the one that the truthful clients alone would give.
    Li, Xu, Chen, Giannakis, Ling 2019.

    >>> from fedhold.lab import LinearRegression, balanced, shard, synthesized
    >>> rng = np.random.default_rng(0)
    >>> samples = synthesized(rng, samples=400, d=3).train
    >>> shards, liars = shard(samples, balanced(400, 20, rng)), np.arange(20) < 4
    >>> common = {"attack": "sign_flip", "byzantine": liars, "rounds": 100, "step": 0.1}
    >>> learnt = rsa(LinearRegression(samples), shards, penalty=0.05, **common)
    >>> round(learnt.history[-1].metrics["rmse"], 1)
    1.0
    """
    for name in settings:
        word_among(name, "settings", ("rounds", "step", "seed", *RSA_OPTIONS))
    training = TrainingSettings(**settings)
    step, seed = training.step, training.seed
    penalty, decay = positive(penalty, "penalty"), positive(decay, "decay", zero=True)
    adversary = Adversary.of(attack, byzantine, shards.m, parameters=attack_parameters)
    poisoned = adversary.poisoned(shards)
    shards, probe = poisoned.shards, probed(task, poisoned)
    w, lying = task.initial(chance(seed, Purpose.INITIAL)), adversary.byzantine
    facts = training.facts | {"rule": "rsa", "penalty": penalty, "decay": decay}
    facts |= {"attack": attack, "attack_parameters": attack_parameters, "byzantine": lying}
    start = {"w": w, "offsets": shards.offsets, "targets": shards.targets}
    run = Checkpoint(checkpoint, fingerprint(**facts, **start))
    state: dict[str, NDArray[Any]] = {"w": w, "models": np.tile(w, (shards.m, 1))}
    history: list[Round] = []
    if (saved := run.load(training.rounds)) is not None:
        state, history = saved[0], [Round(**row) for row in saved[1]]

    for t in range(len(history) + 1, training.rounds + 1):
        w, models = state["w"], state["models"]
        answers = w - models
        truth = decay * w + penalty * np.sign(answers[~lying]).sum(axis=0)
        adversary.lie(answers, shards.counts, lying, chance(seed, Purpose.ATTACK, t))
        begun = time.perf_counter()
        admitted = np.isfinite(answers).all(axis=1)
        direction = decay * w + penalty * np.sign(answers[admitted]).sum(axis=0)
        seconds = time.perf_counter() - begun
        drawn = shards if training.batch is None else shards.batch(training.batch, chance(seed, Purpose.BATCH, t))
        for i, model in enumerate(models):
            gradient = task.gradients(model, drawn.client(i))[0]
            model -= step * (gradient + penalty * np.sign(model - w))
        state["w"] = w - step * direction
        measured = evaluated(task, state["w"], probe) if training.evaluates(t) else {}
        error, rejected = float(np.linalg.norm(direction - truth)), float(1 - admitted.mean())
        history.append(Round(t, measured, error, 0.0, rejected, None, None, seconds))
        run.save(state, [vars(row) for row in history])
        if on_round is not None:
            on_round(history[-1])
    return Federated(state["w"], tuple(history), None, lying)


def rsa_parameters(rule: str) -> dict[str, Any] | None:
    """The parameters in a spec such as "rsa(penalty=0.01)"; None where the spec names an aggregation rule.

    >>> rsa_parameters("rsa(penalty=0.01, decay=0.1)")
    {'penalty': 0.01, 'decay': 0.1}
    """
    if rule.partition("(")[0].strip() != "rsa":
        return None
    given = dict(Part.read(rule, "rule").parameters)
    for word in given:
        if word not in ("penalty", "decay"):
            raise TypeError(f"rsa: {unknown('parameter', word, ['penalty', 'decay'])}")
    if "penalty" not in given:
        raise TypeError("rsa needs penalty, the weight of |x_i - x_0|_1. Write rsa(penalty=0.01), say.")
    return given
