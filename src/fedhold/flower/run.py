"""The rounds of a Flower run, one after the other: the calls of Flower's own `start`, from any round on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fedhold.flower.api import ArrayRecord, ConfigRecord, FedAvg, Grid, MetricRecord, Result, exchange, flower_log
from fedhold.flower.model import Model
from fedhold.flower.state import State

__all__ = ["EvaluateFn", "Plan", "run"]

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


@dataclass(frozen=True)
class Plan:
    """The arguments of `start`."""

    grid: Grid
    num_rounds: int
    timeout: float
    train_config: ConfigRecord | None
    evaluate_config: ConfigRecord | None
    evaluate_fn: EvaluateFn | None
    close: Callable[[State], None] = field(repr=False)
    """Called when a round is over, and once before the first."""


def run(strategy: FedAvg, state: State, plan: Plan) -> Result:
    """The rounds after `state`, which changes with them, up to the last of the plan."""
    flower_log.info("Starting %s: rounds %d to %d", type(strategy).__name__, state.round + 1, plan.num_rounds)
    strategy.summary()
    train_config = ConfigRecord() if plan.train_config is None else plan.train_config
    evaluate_config = ConfigRecord() if plan.evaluate_config is None else plan.evaluate_config
    if state.round == 0:
        _evaluate_here(state, 0, plan)
        plan.close(state)
    for t in range(state.round + 1, plan.num_rounds + 1):
        flower_log.info("")
        flower_log.info("[ROUND %d/%d]", t, plan.num_rounds)
        arrays = state.model.record()
        letters = list(strategy.configure_train(t, arrays, train_config, plan.grid))
        moved, trained = strategy.aggregate_train(t, exchange(plan.grid, letters, plan.timeout))
        state.round = t
        if moved is not None:
            arrays, state.model = moved, Model.of(moved)
        _note(state, "train", trained)
        try:
            letters = list(strategy.configure_evaluate(t, arrays, evaluate_config, plan.grid))
        except TimeoutError:  # the training was sound, and is not lost
            plan.close(state)
            raise
        _note(state, "evaluate", strategy.aggregate_evaluate(t, exchange(plan.grid, letters, plan.timeout)))
        _evaluate_here(state, t, plan)
        plan.close(state)
    result = state.result()
    flower_log.info("")
    for line in str(result).splitlines():
        flower_log.info("\t%s", line)
    return result


def _evaluate_here(state: State, t: int, plan: Plan) -> None:
    if plan.evaluate_fn is not None:
        _note(state, "server", plan.evaluate_fn(t, state.model.record()))


def _note(state: State, phase: str, metrics: MetricRecord | None) -> None:
    if metrics is not None:
        flower_log.info("\t└──> %s: %s", phase, metrics)
        state.history[phase][state.round] = dict(metrics)
