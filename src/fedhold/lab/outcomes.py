"""What came out of experiments: what sets them apart and what they share, and the matrix of rules by attacks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np

from fedhold.lab.experiment import Experiment
from fedhold.lab.results import Result
from fedhold.report import Entry, Facet, Matrix, Scale, Table, decimals, fixed

NO_ATTACK = "no attack"
WATCHING = ("keep_weights", "certify")  # options that record more of a run without changing it
MORE_IS_BETTER = ("accuracy", "auc", "f1", "r2", "score")  # metrics of which less is worse; of all others more is worse
FAR = 10.0  # times the best value of a metric: the darkest colour, where less is better
MOST_POINTS = 40  # of a curve behind a cell

Settings = dict[str, str]  # what an experiment's settings are, in words


def settings_of(experiment: Experiment) -> Settings:
    """All settings but rule and seed, in the order in which titles name them; epsilon is "" where there is no attack.

    >>> settings_of(Experiment("synthesized", "huber", None, 0, 0, m=20, options=(("momentum", 0.9),)))["momentum"]
    'momentum 0.9'
    """
    return {
        "data": experiment.data,
        "model": experiment.model or "",
        "partition": experiment.dealt,
        "attack": experiment.attack or NO_ATTACK,
        "epsilon": f"epsilon {experiment.epsilon:g}" if experiment.attack else "",
        **{name: f"{name} {value}" for name, value in experiment.options if name not in WATCHING},
        "clients": f"{experiment.m} clients",
        "step": f"step {experiment.step:g}",
        "rounds": f"{experiment.rounds} rounds",
    }


@dataclass(frozen=True)
class Differences:
    """What sets experiments apart, besides rule and seed.

    apart   the settings that titles name: every other one is the same in all experiments, or follows from one of these
    common  the others, in words
    """

    apart: tuple[str, ...]
    common: tuple[str, ...]

    @classmethod
    def among(cls, experiments: Iterable[Experiment]) -> Differences:
        """Of these experiments.

        >>> runs = [Experiment("synthesized", "huber", "ipm", 0.2, 0, step=step) for step in (0.01, 0.02)]
        >>> found = Differences.among(runs)
        >>> found.apart, found.title(runs[0])
        (('step',), 'step 0.01')
        """
        settings = [settings_of(experiment) for experiment in experiments]
        names = list(dict.fromkeys(name for one in settings for name in one))
        names.sort(
            key=lambda name: name in ("clients", "step", "rounds")
        )  # options first: the rest may follow from them
        apart: list[str] = []
        common: list[str] = []
        for name in names:
            # An attack that nobody makes has no epsilon, which is no difference.
            there = [one for one in settings if name != "epsilon" or one[name]]
            values = list(dict.fromkeys(one.get(name, "") for one in there))
            decisive = next((other for other in apart if _decides(other, name, there)), None)
            if len(values) < 2:
                common += filter(None, values)
            elif decisive is not None:
                common += _by(decisive, name, there)
            else:
                apart.append(name)
        return cls(tuple(apart), tuple(common))

    def title(self, experiment: Experiment) -> str:
        """What sets this experiment apart; its attack where nothing does."""
        settings = settings_of(experiment)
        words = [settings[name] for name in self.apart if settings.get(name)]
        return ", ".join(words) or settings["attack"]


def _decides(other: str, name: str, settings: Sequence[Settings]) -> bool:
    """Whether experiments that agree in the one setting agree in the other."""
    return len({(one.get(other), one.get(name)) for one in settings}) == len({one.get(other) for one in settings})


def _by(decisive: str, name: str, settings: Sequence[Settings]) -> list[str]:
    """'step 0.02 (synthesized)', 'step 0.25 (mnist)': each value with where it applies."""
    where: dict[str, list[str]] = {}
    for one in settings:
        places = where.setdefault(one.get(name, ""), [])
        if (place := one.get(decisive, "")) not in places:
            places.append(place)
    return [f"{value} ({', '.join(places)})" for value, places in where.items() if value]


def rule_labels(experiments: Iterable[Experiment]) -> dict[str, str]:
    """Spec -> label for rules whose f was the true number of liars under every attack, and so differs: 'krum, told f'.

    experiments  without an attack, f is the number of liars that there are elsewhere

    >>> runs = [Experiment("synthesized", f"krum(f={f})", "ipm", f / 500, 0) for f in (50, 100)]
    >>> rule_labels(runs)
    {'krum(f=50)': 'krum, told f', 'krum(f=100)': 'krum, told f'}
    """
    met: dict[str, list[Experiment]] = {}
    for experiment in experiments:
        met.setdefault(re.sub(r"\bf=\d+", "f={f}", experiment.rule), []).append(experiment)
    labels: dict[str, str] = {}
    for pattern, runs in met.items():
        attacked = [run for run in runs if run.attack]
        true = all(run.rule == pattern.replace("{f}", str(run.liars)) for run in attacked)
        specs = {run.rule for run in attacked}
        if true and len(specs) > 1 and specs >= {run.rule for run in runs}:
            labels |= dict.fromkeys((run.rule for run in runs), f"{without_f(pattern)}, told f")
    return labels


def without_f(rule: str) -> str:
    """The name of a rule without the number of liars that it is told.

    >>> without_f("nearest_neighbour_mixing(f={f}) | krum(f={f})")
    'nearest_neighbour_mixing | krum'
    """
    return re.sub(r"\(f={f}\)|f={f}, |, f={f}", "", rule)


# The matrix


def more_is_better(metric: str) -> bool:
    """Whether a larger value of a metric is a better one.

    >>> more_is_better("accuracy"), more_is_better("rmse")
    (True, False)
    """
    return metric.rpartition("_")[2] in MORE_IS_BETTER


def matrices(results: Sequence[Result], labels: Mapping[str, str] | None = None) -> list[Matrix]:
    """Rules x attacks with the metric at the end, filtered by all else that differs: a matrix for each metric.

    labels  what rules are called, by their spec; as `rule_labels` says by default
    """
    labels = rule_labels(run.experiment for run in results) if labels is None else labels
    metric_of = {run.experiment.data: run.metric for run in results if not run.infeasible}
    usual = next(iter(metric_of.values()), "")
    by_metric: dict[str, list[Result]] = {}
    for run in results:
        by_metric.setdefault(metric_of.get(run.experiment.data, usual), []).append(run)
    return [matrix for metric, runs in by_metric.items() if (matrix := _matrix(metric, runs, labels)).entries]


def _matrix(metric: str, results: Sequence[Result], labels: Mapping[str, str]) -> Matrix:
    found: dict[tuple[str, tuple[tuple[str, str], ...]], dict[int, Result]] = {}  # the runs of each cell by seed
    for run in results:
        found.setdefault((run.experiment.rule, tuple(settings_of(run.experiment).items())), {})[run.experiment.seed] = (
            run
        )
    cells = [(rule, dict(where), list(runs.values())) for (rule, where), runs in found.items()]
    rounds = rounds_of(results, metric)
    rows = list(dict.fromkeys(labels.get(rule, rule) for rule, _, _ in cells))
    columns = sorted(dict.fromkeys(where["attack"] for _, where, _ in cells), key=lambda attack: attack != NO_ATTACK)
    apart = [name for name in Differences.among(run.experiment for run in results).apart if name != "attack"]
    choices = {name: list(dict.fromkeys(where.get(name, "") for _, where, _ in cells)) for name in apart}
    if "epsilon" in choices:
        choices["epsilon"] = list(filter(None, choices["epsilon"]))
    epsilons: dict[str, set[str]] = {}  # those that each rule meets
    for rule, where, _ in cells:
        epsilons.setdefault(rule, set()).update({where["epsilon"]} - {""})
    entries = []
    for rule, where, runs in cells:
        # Without an attack, a run stands for every epsilon that its rule meets elsewhere.
        own = {name: {where.get(name, "")} for name in choices}
        if own.get("epsilon") == {""}:
            own["epsilon"] = epsilons[rule] or set(choices["epsilon"])
        places = product(*([k for k, value in enumerate(choices[name]) if value in own[name]] for name in choices))
        row, column = rows.index(labels.get(rule, rule)), columns.index(where["attack"])
        entries += [_entry(row, column, facets, runs, metric, rounds) for facets in places]
    entries = _applicable(entries)
    # A facet's choice has the value alone: "0.2" for "epsilon 0.2".
    facets = [
        Facet(name, [value.removeprefix(f"{name} ") or "as usual" for value in values], {})
        for name, values in choices.items()
    ]
    axes = [(metric, rounds)] * (len(facets[0].choices) if facets else 1)
    plain = int(columns[0] == NO_ATTACK and len(columns) > 1)
    better = "more" if more_is_better(metric) else "less"
    title = f"{metric or 'result'} at the end, by rule and attack; {better} is better"
    return Matrix(title, [(rule, "") for rule in rows], columns, facets, axes, entries, _scale(metric, entries), plain)


def _entry(
    row: int, column: int, facets: tuple[int, ...], runs: Sequence[Result], metric: str, rounds: Sequence[int]
) -> Entry:
    """The mean over the seeds of a cell, or a word where one of them has no number."""
    ends = [run.end for run in runs]
    numbers = [end for end in ends if end is not None and np.isfinite(end)]
    mark = "infeasible" if any(run.infeasible for run in runs) else "diverged" if len(numbers) < len(ends) else ""
    value = (float("nan"),) * 3 if mark else (float(np.mean(numbers)), min(numbers), max(numbers))
    return Entry(row, column, facets, *value, mark=mark, curve=curve_of(runs, metric, rounds))


def curve_of(runs: Sequence[Result], metric: str, rounds: Sequence[int]) -> tuple[float | None, ...]:
    """The mean over seeds in these rounds; None where one of them has no number."""
    series = [run.series.get(metric, []) for run in runs]
    if not series or not all(series):
        return ()
    values = [[line[t - 1] if t <= len(line) else None for line in series] for t in rounds]
    return tuple(None if None in each else float(np.mean(np.array(each, np.float64))) for each in values)


def rounds_of(results: Iterable[Result], metric: str) -> list[int]:
    """Some of the rounds in which the metric was measured, the last of them among these."""
    met = {t for run in results for t, value in enumerate(run.series.get(metric, []), 1) if value is not None}
    every = np.array(sorted(met) or [1])
    picked = np.unique(np.linspace(0, len(every) - 1, min(len(every), MOST_POINTS)).round().astype(int))
    return [int(t) for t in every[picked]]


def _applicable(entries: Sequence[Entry]) -> list[Entry]:
    """Without those of attacks that no rule could be tried under in that place, which say nothing about rules."""
    possible = {(one.column, one.facets) for one in entries if one.mark != "infeasible"}
    shown = {one.row for one in entries if (one.column, one.facets) in possible}
    # A rule that could not be tried anywhere is shown as such.
    return [one for one in entries if (one.column, one.facets) in possible or one.row not in shown]


def _scale(metric: str, entries: Iterable[Entry]) -> Scale:
    values = [entry.value for entry in entries if not entry.mark] or [1.0]
    low, high = min(values), max(values)
    digits = max(decimals(values), 3 if abs(low) < 100 else 0)
    if more_is_better(metric):
        worst, best = (0.0, 1.0) if low >= 0 and high <= 1 else (min(low, high - 1), high)
        return Scale(worst, best, f"{worst:g}", f"{best:g}", digits=digits)
    at_best = f"{fixed(low, digits)}: the best here"
    if low > 0:
        return Scale(FAR * low, low, f"{FAR:g} times the best, or more", at_best, logarithmic=True, digits=digits)
    worst = max(high, low + 1)
    return Scale(worst, low, fixed(worst, digits), at_best, digits=digits)


def worst_cases(matrix: Matrix) -> list[tuple[str, Entry]]:
    """Each rule with its worst cell under an attack, the best rule first."""
    sign = 1 if matrix.scale.best > matrix.scale.worst else -1

    def goodness(entry: Entry) -> float:
        return -np.inf if entry.mark else sign * entry.value

    attacked = [entry for entry in matrix.entries if entry.column >= matrix.plain]
    worst: dict[int, Entry] = {}
    for entry in attacked:
        if entry.row not in worst or goodness(entry) < goodness(worst[entry.row]):
            worst[entry.row] = entry
    ranked = sorted(worst.values(), key=goodness, reverse=True)
    return [(matrix.rows[entry.row][0], entry) for entry in ranked]


def where_of(matrix: Matrix, entry: Entry) -> str:
    """The attack of a cell, and whatever else the matrix is filtered by."""
    words = [f"{facet.name} {facet.choices[k]}" for facet, k in zip(matrix.facets, entry.facets, strict=True)]
    return ", ".join([matrix.columns[entry.column], *words])


def cells_table(matrix: Matrix) -> Table:
    """Every cell of the matrix, for files."""
    metric = matrix.axes[0][0]
    rows = [
        (
            *(matrix.rows[entry.row][0], matrix.columns[entry.column]),
            *(facet.choices[k] for facet, k in zip(matrix.facets, entry.facets, strict=True)),
            *(entry.value, entry.low, entry.high, entry.mark),
        )
        for entry in matrix.entries
    ]
    header = ("rule", "attack", *(facet.name for facet in matrix.facets), metric or "result", "low", "high", "mark")
    return Table(f"matrix {metric}", header, rows)
