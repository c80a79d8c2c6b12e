"""What results say of themselves: which belong together, where they were made, and what came out of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedhold.report import Chart, Curve, detection

if TYPE_CHECKING:
    from fedhold.lab.experiment import Experiment
    from fedhold.lab.results import Result

__all__ = ["RUN_HEADER", "Watched", "describe", "environments", "over_seeds", "run_rows", "seed_rows", "watched"]

RUN_HEADER = (
    *("data", "partition", "attack", "epsilon", "rule", "m", "rounds", "step", "options"),
    *("seeds", "metric", "end", "seconds"),
)
NOT_SCIENCE = ("keep_weights", "certify")  # options that watch a run without changing it


@dataclass(frozen=True, eq=False)
class Watched:
    """Runs that differ in their seed only and kept their weights."""

    title: str
    seeds: tuple[int, ...]
    weights: list[NDArray[np.floating]]
    byzantine: list[NDArray[np.bool_]]

    def chart(self) -> Chart:
        """Precision and recall per round, over the seeds."""
        pairs = [detection(w, liars) for w, liars in zip(self.weights, self.byzantine, strict=True)]
        words = zip(("precision", "recall"), zip(*pairs, strict=True), strict=True)
        curves = tuple(Curve(word, self.seeds, np.vstack(rows)) for word, rows in words)
        return Chart(f"Detection: {self.title}", "precision, recall", curves, limits=(0.0, 1.0))


def over_seeds(runs: Iterable[Result]) -> dict[Experiment, list[Result]]:
    """Runs that differ in their seed only, under the experiment with seed 0."""
    groups: dict[Experiment, list[Result]] = {}
    for run in runs:
        groups.setdefault(replace(run.experiment, seed=0), []).append(run)
    return groups


def watched(runs: Iterable[Result], labels: Mapping[str, str]) -> list[Watched]:
    """The groups of runs that kept their weights."""
    return [
        Watched(
            describe(experiment, labels.get(experiment.rule, experiment.rule)),
            tuple(run.experiment.seed for run in group),
            [run.weights for run in group if run.weights is not None],
            [np.isin(np.arange(run.weights.shape[1]), run.byzantine) for run in group if run.weights is not None],
        )
        for experiment, group in over_seeds(run for run in runs if run.weights is not None).items()
    ]


def describe(experiment: Experiment, rule: str | None = None) -> str:
    """'synthesized, sign_flip, epsilon 0.2, huber': what sets an experiment apart, besides its seed."""
    words = [experiment.data]
    if experiment.partition != "balanced":
        words.append(experiment.partition)
    words += [experiment.attack, f"epsilon {experiment.epsilon:g}"] if experiment.attack else ["no attack"]
    if rule is not None:
        words.append(rule)
    usual = {field.name: field.default for field in fields(experiment)}
    odd = [(name, getattr(experiment, name)) for name in ("m", "rounds", "step")]
    words += [f"{name} {value:g}" for name, value in odd if value != usual[name]]
    words += [f"{name} {value}" for name, value in experiment.options if name not in NOT_SCIENCE]
    return ", ".join(words)


def run_rows(runs: Iterable[Result]) -> list[tuple[object, ...]]:
    """One row of RUN_HEADER for each group over seeds; `end` is the mean of the last value, `seconds` their sum."""
    rows: list[tuple[object, ...]] = []
    for e, group in over_seeds(runs).items():
        metric = "accuracy" if "accuracy" in group[0].series else "rmse"
        ends = [[v for v in run.series.get(metric, []) if v is not None][-1:] for run in group]
        end = float(np.mean(ends)) if all(ends) else None
        options = ", ".join(f"{key}={value}" for key, value in e.options)
        what = (e.data, e.partition, e.attack or "none", e.epsilon, e.rule, e.m, e.rounds, e.step, options)
        rows.append((*what, _seeds(group), metric, end, _seconds(group)))
    return rows


def seed_rows(runs: Sequence[Result]) -> list[tuple[object, ...]]:
    """data, runs, seeds, seconds."""
    groups: dict[str, list[Result]] = {}
    for run in runs:
        groups.setdefault(run.experiment.data, []).append(run)
    return [(data, len(group), _seeds(group), _seconds(group)) for data, group in groups.items()]


def environments(runs: Iterable[Result]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Header and rows of a table: a column for each environment that runs were made in, the most used first."""
    places = Counter(tuple(sorted(run.environment.items())) for run in runs).most_common()
    keys = sorted({key for place, _ in places for key, _ in place})
    rows = [(key, *(dict(place).get(key, "") for place, _ in places)) for key in keys]
    return ("", *(f"{count} {'run' if count == 1 else 'runs'}" for _, count in places)), rows


def _seeds(runs: Iterable[Result]) -> str:
    return " ".join(map(str, sorted({run.experiment.seed for run in runs})))


def _seconds(runs: Iterable[Result]) -> float:
    return round(sum(run.seconds for run in runs), 1)
