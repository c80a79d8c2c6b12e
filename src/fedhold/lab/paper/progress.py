"""Progress: what became of a run, between its start and what it would be if nobody lied.

    progress = (value - start) / (reference - start)

value      of a run at its end: the mean over the last tenth of its rounds of rmse, or of accuracy
reference  the same of the mean without liars, on the data of the same seed
start      after the first round of that run

0 is no better than at the start, 1 as good as if nobody lied; below 0 the liars drive the model away.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fedhold.lab import Experiment
from fedhold.lab.paper.claims import Comparison, Results
from fedhold.lab.paper.figures import BASELINES, FIGURES, PAPER_T, Plan, attack_free

__all__ = ["Measured"]

Values = NDArray[np.float64]
SUBFIGURES = {subfigure.name: subfigure for figure in FIGURES.values() for subfigure in figure}


class Measured:
    """What a claim asks of the results of a plan: numbers and comparisons, one value per seed."""

    def __init__(self, results: Results, plan: Plan) -> None:
        self.results, self.plan = results, plan

    def ends(self, name: str, label: str) -> Values:
        """The metric at the end of a subfigure's curve."""
        subfigure = SUBFIGURES[name]
        return np.array([self._end(run, subfigure.metric) for run in subfigure.curve(label, self.plan)])

    def progress(self, name: str, label: str) -> Values:
        """As the head of this module defines it."""
        subfigure = SUBFIGURES[name]
        free = attack_free(subfigure, self.plan)
        reference = np.array([self._end(run, subfigure.metric) for run in free])
        start = np.array([self.results(run).series[subfigure.metric][0] for run in free], dtype=np.float64)
        progress: Values = (self.ends(name, label) - start) / (reference - start)
        return progress

    def lead(self, name: str, label: str, other: str) -> Values:
        """How much more progress `label` makes than `other`."""
        first, second = self.progress(name, label), self.progress(name, other)
        both_lost = np.isinf(first) & (first == second)
        return np.where(both_lost, 0.0, np.subtract(first, second, out=np.zeros_like(first), where=~both_lost))

    def advantage(self, name: str) -> Values:
        """How much more progress Huber with the paper's T makes than the best of the paper's baselines."""
        leads: Values = np.min([self.lead(name, PAPER_T, label) for label in BASELINES], axis=0)
        return leads

    def _end(self, run: Experiment, metric: str) -> float:
        series = self.results(run).series[metric]
        lost = np.inf if metric == "rmse" else 0.0  # a run that left the numbers
        last = [lost if value is None else value for value in series[-max(1, len(series) // 10) :]]
        return float(np.mean(last))

    def above(self, name: str, label: str, bar: float) -> Comparison:
        """progress > bar."""
        return self._compared(name, [label], self.progress(name, label) - bar)

    def below(self, name: str, label: str, bar: float) -> Comparison:
        """progress < bar."""
        return self._compared(name, [label], bar - self.progress(name, label))

    def better(self, name: str, label: str, other: str, by: float = 0.0) -> Comparison:
        """`label` makes more progress than `other`, by more than `by`."""
        return self._compared(name, [label, other], self.lead(name, label, other) - by)

    def close(self, name: str, label: str, other: str, by: float) -> Comparison:
        """`label` does not make more progress than `other` by `by` or more."""
        return self._compared(name, [label, other], by - self.lead(name, label, other), f"not {by} ahead: ")

    def _compared(self, name: str, labels: Sequence[str], values: Values, word: str = "") -> Comparison:
        ends = ", ".join(f"{label} {self.ends(name, label).mean():.3f}" for label in labels)
        return Comparison(f"{word}{name} {SUBFIGURES[name].attack} ({ends})", tuple(values.tolist()))
