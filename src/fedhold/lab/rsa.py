"""RSA: server and clients keep models of their own, held together by an l1 penalty."""

from __future__ import annotations

import ast
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import integer, positive, unknown
from fedhold.lab.attacks import Attack
from fedhold.lab.clients import Adversary, client
from fedhold.lab.federation import ATTACK, BATCH, INITIAL, Federated, Round, chance
from fedhold.lab.tasks import Shards, Task
from fedhold.storage import Checkpoint, fingerprint

__all__ = ["RSA_LOOP", "rsa", "rsa_parameters"]

RSA_LOOP = ("batch", "evaluate_every")  # what it has in common with the options of federate()


@np.errstate(over="ignore", invalid="ignore")  # a run that diverges is a result
def rsa(
    task: Task,
    shards: Shards,
    *,
    penalty: float,
    decay: float = 0.0,
    attack: str | Attack | None = None,
    attack_parameters: Mapping[str, Any] | None = None,
    byzantine: NDArray[np.bool_] | None = None,
    rounds: int,
    step: float,
    seed: int = 0,
    batch: int | None = None,
    evaluate_every: int = 1,
    checkpoint: Path | None = None,
    on_round: Callable[[Round], None] | None = None,
) -> Federated:
    """Learn `task` without sending a gradient: each message moves a coordinate by penalty * step, whatever it says.

    min over x_0, ..., x_m of  sum_i (F_i(x_i) + penalty |x_i - x_0|_1) + decay/2 |x_0|^2  by subgradient steps:

        x_i <- x_i - step (G_i(x_i) + penalty sign(x_i - x_0))
        x_0 <- x_0 - step (decay x_0 + penalty sum_i sign(x_0 - z_i)),   z_i = x_i, or what a liar says it is

    Answers are kept as u_i = x_0 - z_i, which points the way a gradient does, so that the attacks of `fedhold.lab` do here
    what they do elsewhere; one that is not finite is left out. `error` in the history is the distance of the server's step
    direction to the one the truthful alone would give. Further arguments as for federate().
    Li, Xu, Chen, Giannakis, Ling 2019.
    """
    rounds, step, penalty = integer(rounds, "rounds"), positive(step, "step"), positive(penalty, "penalty")
    evaluate_every = integer(evaluate_every, "evaluate_every", at_least=1)
    decay = positive(decay, "decay", zero=True)
    liars = Adversary.of(attack, attack_parameters, byzantine, shards.m, None, None)
    w, lying = task.initial(chance(seed, INITIAL, 0)), liars.byzantine
    run = Checkpoint(
        checkpoint,
        fingerprint(
            **{"rule": "rsa", "numbers": (penalty, decay, step, seed, batch, evaluate_every), "w": w},
            **{"attack": liars.attack, "attack_parameters": attack_parameters, "byzantine": lying},
            **{"offsets": shards.offsets, "targets": shards.targets},
        ),
    )
    state: dict[str, NDArray[Any]] = {"w": w, "models": np.tile(w, (shards.m, 1))}
    history: list[Round] = []
    if (saved := run.load(rounds)) is not None:
        state, history = saved[0], [Round(**row) for row in saved[1]]

    for t in range(len(history) + 1, rounds + 1):
        w, models = state["w"], state["models"]
        answers = w - models
        truth = decay * w + penalty * np.sign(answers[~lying]).sum(axis=0)
        liars.lie(answers, shards.counts, lying, chance(seed, ATTACK, t))
        begun = time.perf_counter()
        admitted = np.isfinite(answers).all(axis=1)
        direction = decay * w + penalty * np.sign(answers[admitted]).sum(axis=0)
        seconds = time.perf_counter() - begun
        drawn = shards if batch is None else shards.batch(batch, chance(seed, BATCH, t))
        for i, model in enumerate(models):
            gradient = task.gradients(model, client(drawn, i))[0]
            model -= step * (gradient + penalty * np.sign(model - w))
        state["w"] = w - step * direction
        measured = task.evaluate(state["w"]) if t % evaluate_every == 0 or t == rounds else {}
        error, rejected = float(np.linalg.norm(direction - truth)), float(1 - admitted.mean())
        history.append(Round(t, measured, error, 0.0, rejected, None, None, seconds))
        run.save(state, [vars(row) for row in history])
        if on_round is not None:
            on_round(history[-1])
    return Federated(state["w"], tuple(history), None, lying)


def rsa_parameters(rule: str) -> dict[str, Any] | None:
    """The parameters in a text such as "rsa(penalty=0.01)"; None where it names something else.

    >>> rsa_parameters("rsa(penalty=0.01, decay=0.1)")
    {'penalty': 0.01, 'decay': 0.1}
    """
    if not rule.strip().startswith("rsa"):
        return None
    try:
        call = ast.parse(rule.strip(), mode="eval").body
    except SyntaxError:
        return None
    words = call.keywords if isinstance(call, ast.Call) and not call.args else []
    name = call.func if isinstance(call, ast.Call) else call
    if not isinstance(name, ast.Name) or name.id != "rsa":
        return None
    given = {str(word.arg): ast.literal_eval(word.value) for word in words}
    for word in given:
        if word not in ("penalty", "decay"):
            raise TypeError(f"rsa: {unknown('parameter', word, ['penalty', 'decay'])}")
    if "penalty" not in given:
        raise TypeError("rsa needs penalty, the weight of |x_i - x_0|_1. Write rsa(penalty=0.01), say.")
    return given
