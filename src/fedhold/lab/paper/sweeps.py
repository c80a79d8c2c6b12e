"""What a reader of the paper wants and the paper lacks: its experiments, swept over one parameter at a time.

    sweep-threshold                   Huber's final error against T/spread, for each attack
    sweep-epsilon                     final error against epsilon: the paper's methods and the default rule
    sweep-epsilon-others              the same for all other rules
    sweep-default                     the default rule and the paper's against epsilon, for each attack
    sweep-m, sweep-n, sweep-d         measured error, the bounds of Theorems 1 to 3, and the minimax rate
    sweep-mnist, sweep-fashion-mnist  accuracy against epsilon on the two data sets

The training runs are smaller than the paper's, so that all of them take minutes: synthesized data with its d = 50 and n = 20
samples per client, but m = 200 clients; images with its n = 120, but m = 100 clients and half of the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from fedhold.kernels import Vector
from fedhold.lab import Arena, Experiment, Result, liars
from fedhold.lab.paper import theory
from fedhold.lab.paper.figures import ATTACK_NAMES, AUTOMATIC_T, FOUR_ATTACKS, NAMES, PAPER_T, SPECS
from fedhold.lab.paper.readings import HLMA, KA, MNIST_ROUNDS, MNIST_STEP, SYNTHESIZED_ROUNDS, SYNTHESIZED_STEP, TMA
from fedhold.report import Axis, Chart, Curve, Style, Table, curve, number, plain_styles, rule_styles
from fedhold.spec import DEFAULT
from fedhold.thresholds import KAPPA

EPSILON = 0.2  # where it is not swept, as in figure 1
SAMPLES, IMAGES = 20, 120  # per client, as in the paper
SYNTHESIZED_T, IMAGES_T = "1", "0.2"  # the paper's
# About the RMSE of the first model, d = 50; what leaves a chart is worse than no training.
UNTRAINED = math.sqrt(50 + 1)
IMAGE_ATTACKS = (KA, TMA)  # those that do most harm on MNIST
# A run of the first takes a minute or more, and the second is feasible for no number of liars here.
LEFT_OUT = ("minimum_diameter_averaging", "smea")
DASHED = "6 3"
TOLD = (0.2, 0.4, 0.49)  # fractions of liars at which the sentence under a figure ranks the rules
NOBODY = "no liars"
THE_DEFAULT = f"{DEFAULT}, the default (not in the paper)"
MINIMAX = "minimax rate (no constant)"


@dataclass(frozen=True)
class Effort:
    """How much to run.

    m, rounds              of the runs on synthesized data
    seeds                  of the paper's methods and the default rule; the other rules, and images, have one
    kappas                 T/spread; the spread is the median distance of the clients to the aggregate, in every round
    epsilons               fractions of liars
    image_m, image_rounds  of the runs on images
    image_epsilons         fractions of liars there
    clients, samples, coordinates   the m, n and d of the theory
    draws                  of gradients, for the theory
    """

    m: int = 200
    rounds: int = SYNTHESIZED_ROUNDS
    seeds: int = 2
    kappas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.35, 0.5, KAPPA, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0)
    epsilons: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.45, 0.49)
    image_m: int = 100
    image_rounds: int = MNIST_ROUNDS // 2
    image_epsilons: tuple[float, ...] = (0.0, 0.2, 0.4)
    clients: tuple[int, ...] = (20, 50, 100, 200, 400, 800)
    samples: tuple[int, ...] = (400, 800, 1600, 3200, 6400, 12800)
    coordinates: tuple[int, ...] = (1, 2, 5, 10, 20, 50)
    draws: int = theory.DRAWS


FULL = Effort()
QUICK = Effort(
    m=40,
    rounds=20,
    seeds=1,
    kappas=(0.1, KAPPA, 10.0),
    epsilons=(0.0, 0.2, 0.4),
    image_m=20,
    image_rounds=4,
    clients=(20, 100),
    samples=(400, 1600),
    coordinates=(2, 10),
    draws=theory.QUICK_DRAWS,
)


@dataclass(frozen=True, eq=False)
class Illustration:
    """A figure, with a sentence of what came out.

    name    of its file
    """

    name: str
    chart: Chart
    sentence: str

    @property
    def table(self) -> Table:
        """The mean of every curve: a row for each value of the parameter."""
        rows = zip(_values(self.chart), *(mean.tolist() for mean in _means(self.chart).values()), strict=True)
        return Table(self.name, self.chart.table.header, list(rows))


# Training runs


@dataclass(frozen=True)
class Sweep:
    """One figure of training runs.

    axis    the parameter
    runs    label of a curve -> for each seed -> for each value of the parameter -> runs, of which the worst counts
    styles  of the curves
    say     makes the sentence from its chart, and from the charts of all sweeps by name
    """

    name: str
    title: str
    axis: Axis
    runs: Mapping[str, Sequence[Sequence[Sequence[Experiment]]]]
    styles: Mapping[str, Style]
    say: Callable[[Chart, Mapping[str, Chart]], str]

    def __iter__(self) -> Iterator[Experiment]:
        return (run for rows in self.runs.values() for row in rows for some in row for run in some)


Lines = Mapping[str, tuple[str, Sequence[str | None]]]
"""Label -> the spec of a rule, where f of the clients lie, and the attacks, of which the worst counts."""


def experiments(effort: Effort) -> list[Experiment]:
    """All runs of all sweeps, each once."""
    return list(dict.fromkeys(run for sweep in trained(effort) for run in sweep))


@cache  # an experiment checks itself when it is made
def trained(effort: Effort) -> tuple[Sweep, ...]:
    """The figures that are made of training runs."""
    paper = {PAPER_T: "huber(threshold={T})", AUTOMATIC_T: "huber"}
    methods = {NAMES[label]: spec for label, spec in {**SPECS, **paper}.items()} | {THE_DEFAULT: DEFAULT}
    known = {*(spec.partition("(")[0] for spec in methods.values()), *LEFT_OUT}
    rules = {spec.partition("(")[0]: spec for spec in Arena.registered().rules if not {"|", "+"} & set(spec)}
    others = {DEFAULT: DEFAULT, **{name: spec for name, spec in rules.items() if name not in known}}
    error = "Final error against epsilon, the worst of the paper's four attacks"
    accuracy = "final accuracy against epsilon, the worse of KA and TMA"
    return (
        _thresholds(effort),
        _epsilon("epsilon", f"{error}: the paper's methods and the default rule", methods, effort.seeds, effort),
        _epsilon("epsilon-others", f"{error}: the other rules, and the default", others, 1, effort),
        _default(effort),
        _epsilon("mnist", f"MNIST: {accuracy}", methods, 1, effort, "mnist"),
        _epsilon("fashion-mnist", f"Fashion-MNIST: {accuracy}", methods, 1, effort, "fashion_mnist"),
    )


def _thresholds(effort: Effort) -> Sweep:
    axis, spec = (
        Axis("T / spread", effort.kappas, log=True, marked=KAPPA),
        "huber(threshold=automatic(kappa={value:g}))",
    )
    lines: Lines = {**{ATTACK_NAMES[attack]: (spec, [attack]) for attack in FOUR_ATTACKS}, NOBODY: (spec, [None])}
    title = (
        f"Huber's final error against its threshold, {EPSILON:g} of the clients lie; dashed: the automatic threshold"
    )
    runs = _runs("synthesized", lines, axis, effort.seeds, effort)
    return Sweep("sweep-threshold", title, axis, runs, plain_styles(lines), _say_thresholds)


def _epsilon(name: str, title: str, specs: Mapping[str, str], seeds: int, effort: Effort, images: str = "") -> Sweep:
    """Rules against epsilon, under the worst of several attacks; on synthesized data, or on a data set of images."""
    attacks, epsilons = (IMAGE_ATTACKS, effort.image_epsilons) if images else (FOUR_ATTACKS, effort.epsilons)
    axis = Axis("epsilon", epsilons)
    runs = _runs(
        images or "synthesized", {label: (spec, attacks) for label, spec in specs.items()}, axis, seeds, effort
    )
    return Sweep(f"sweep-{name}", title, axis, runs, rule_styles(specs), _say_images if images else _say_epsilon)


def _default(effort: Effort) -> Sweep:
    axis, lines, styles = Axis("epsilon", effort.epsilons), dict[str, tuple[str, list[str]]](), dict[str, Style]()
    for colour, attack in enumerate(FOUR_ATTACKS):
        for word, spec, dashes in (("default", DEFAULT, ""), ("paper's T", "huber(threshold={T})", DASHED)):
            label = f"{ATTACK_NAMES[attack]}, {word}"
            lines[label], styles[label] = (spec, [attack]), Style(colour, dashes)
    title = (
        "Final error against epsilon under each attack: the default rule (solid), and Huber with the paper's T (dashed)"
    )
    runs = _runs("synthesized", lines, axis, effort.seeds, effort)
    return Sweep("sweep-default", title, axis, runs, styles, _say_default)


def _runs(data: str, lines: Lines, axis: Axis, seeds: int, effort: Effort) -> dict[str, list[list[list[Experiment]]]]:
    """The runs of every line: for each seed, for each value of the axis, under each attack."""
    m, T = (effort.m, SYNTHESIZED_T) if data == "synthesized" else (effort.image_m, IMAGES_T)

    def made(spec: str, attacks: Sequence[str | None], value: float, seed: int) -> list[Experiment]:
        epsilon = value if axis.name == "epsilon" else EPSILON
        rule = spec.format(f=liars(epsilon, m), T=T, value=value)
        return [_run(data, rule, attack, epsilon, seed, effort) for attack in (attacks if epsilon else [None])]

    return {
        label: [[made(*line, value, seed) for value in axis.values] for seed in range(seeds)]
        for label, line in lines.items()
    }


def _run(data: str, rule: str, attack: str | None, epsilon: float, seed: int, effort: Effort) -> Experiment:
    images = data != "synthesized"
    m, rounds = (effort.image_m, effort.image_rounds) if images else (effort.m, effort.rounds)
    # With this step, accuracy swings on Fashion-MNIST, so that the last round alone would say little; on MNIST it does not.
    every = min(2, rounds) if data == "fashion_mnist" else rounds
    if attack == HLMA and not rule.startswith("huber"):
        attack = f"{HLMA}(threshold={SYNTHESIZED_T})"  # as in the figures: all rules meet the lies that fit the paper's
    return Experiment(
        data=f"{data}(samples={(IMAGES if images else SAMPLES) * m})",
        rule=rule,
        attack=attack,
        epsilon=epsilon if attack else 0.0,
        seed=seed,
        m=m,
        rounds=rounds,
        step=MNIST_STEP if images else SYNTHESIZED_STEP,
        options=(("evaluate_every", every),),
    )


def illustrated(find: Callable[[Experiment], Result | None], effort: Effort) -> list[Illustration]:
    """The figures of training runs; one whose runs are not all there is left out."""
    found = {run: result for run in experiments(effort) if (result := find(run)) is not None}
    whole = [sweep for sweep in trained(effort) if all(run in found for run in sweep)]
    charts = {sweep.name: _chart(sweep, found) for sweep in whole}
    return [Illustration(sweep.name, charts[sweep.name], sweep.say(charts[sweep.name], charts)) for sweep in whole]


def _chart(sweep: Sweep, found: Mapping[Experiment, Result]) -> Chart:
    metric = "rmse" if next(iter(sweep)).part("data").name == "synthesized" else "accuracy"
    curves = []
    for label, rows in sweep.runs.items():
        ends = [[_worst([found[run] for run in some], metric) for some in row] for row in rows]
        curves.append(Curve(label, tuple(range(len(rows))), np.array(ends)))
    limits = (1.0, UNTRAINED) if metric == "rmse" else None
    return Chart(sweep.title, metric, tuple(curves), metric == "rmse", limits, axis=sweep.axis, styles=sweep.styles)


def _worst(results: Sequence[Result], metric: str) -> float:
    """The worst final value; NaN where a bound refuses a run, and the worst there is where one diverged."""
    if any(result.infeasible for result in results):
        return math.nan
    worst, diverged = (max, math.inf) if metric == "rmse" else (min, 0.0)
    return worst(diverged if result.end is None else _end(result.series[metric]) for result in results)


def _end(values: Sequence[float | None]) -> float:
    """The mean over the last tenth of the rounds, of those that were measured."""
    tenth = values[-max(1, len(values) // 10) :]
    return float(np.mean([value for value in tenth if value is not None]))


# The theory


def theorems(effort: Effort) -> Iterator[Illustration]:
    """Measured errors, bounds and the minimax rate against m, n and d, one figure after the other."""
    yield _theorems("m", effort.clients, effort.draws, n=800)
    yield _theorems("n", effort.samples, effort.draws, m=100)
    yield _theorems("d", effort.coordinates, effort.draws, n=6400, m=100)


def _theorems(letter: str, values: Sequence[int], draws: int, **held: int) -> Illustration:
    """The figure for every value of the letter, the others held."""
    held = {name: held.get(name, theory.D) for name in "nmd" if name != letter}
    settings = [{letter: value, **held} for value in values]
    numbers, styles = dict[str, list[float]](), dict[str, Style]()
    for theorem in (1, 2, 3):
        rows = [theory.measure(theory.Case(theorem, epsilon=EPSILON, **setting), draws) for setting in settings]
        numbers[f"theorem {theorem}, bound"] = [row.bound for row in rows]
        numbers[f"theorem {theorem}, measured"] = [row.error for row in rows]
        styles[f"theorem {theorem}, bound"] = Style(theorem - 1, DASHED)
        styles[f"theorem {theorem}, measured"] = Style(theorem - 1)
        if theorem == 1:
            numbers["automatic T, measured"] = [row.automatic for row in rows]
            styles["automatic T, measured"] = Style(4)
    numbers[MINIMAX] = [EPSILON / math.sqrt(x["n"]) + math.sqrt(x["d"] / (x["n"] * x["m"])) for x in settings]
    styles[MINIMAX] = Style(7, "1.5 3")
    fixed = ", ".join(f"{name} = {value}" for name, value in held.items())
    chart = Chart(
        f"Error of one aggregate against {letter}: bounds, largest error met, minimax rate (epsilon {EPSILON:g}, {fixed})",
        "error",
        tuple(curve(label, (), [row]) for label, row in numbers.items()),
        log=True,
        axis=Axis(letter, tuple(values), log=True),
        styles=styles,
    )
    return Illustration(f"sweep-{letter}", chart, _say_theorems(letter, chart))


# What came out


def _values(chart: Chart) -> tuple[float, ...]:
    """The values of the parameter that was swept."""
    assert chart.axis is not None
    return chart.axis.values


def _means(chart: Chart) -> dict[str, Vector]:
    return {line.label: line.mean for line in chart.curves}


def _say_thresholds(chart: Chart, _: Mapping[str, Chart]) -> str:
    values, lines = _values(chart), _means(chart)
    here, tma = values.index(KAPPA), lines[ATTACK_NAMES[TMA]]
    lost = {label: float(mean[here] / np.nanmin(mean)) - 1 for label, mean in lines.items()}
    worst = max(lost, key=lambda label: lost[label])
    best = ", ".join(f"{number(values[int(np.nanargmin(mean))])} ({label})" for label, mean in lines.items())
    return (
        f"The automatic T, {KAPPA:g} spreads, ends at most {lost[worst]:.1%} above the best T of the sweep ({worst}). The best "
        f"T/spread is {best}. Under TMA the error is {tma[here]:.3f} at the automatic T, {tma[0]:.3f} at {values[0]:g} "
        f"and {tma[-1]:.3f} at {values[-1]:g} spreads."
    )


def _say_epsilon(chart: Chart, _: Mapping[str, Chart]) -> str:
    parts = [f"at epsilon {epsilon:g} {_ranked(chart, epsilon)}" for epsilon in _values(chart) if epsilon in TOLD]
    return f"Worst case, the best rule first: {'; '.join(parts)}."


def _ranked(chart: Chart, epsilon: float) -> str:
    """'huber 1.21, median 1.55, mean 1.6 ... krum 7.1': the three best rules at one epsilon and the worst; those that ran."""
    k = _values(chart).index(epsilon)
    ends = {label: mean[k] for label, mean in _means(chart).items() if not math.isnan(mean[k])}
    best = sorted(ends, key=lambda label: ends[label])
    met = [f"{_short(label)} {number(ends[label])}" for label in (best[::-1] if chart.metric == "accuracy" else best)]
    return ", ".join(met[:3]) + f" ... {met[-1]}"


def _short(label: str) -> str:
    """The name of a rule in a sentence: 'Krum (krum)' is krum, 'our method (huber, paper's T)' is huber with the paper's T."""
    ours = {NAMES[label]: label.replace(", ", " with the ") for label in NAMES} | {THE_DEFAULT: DEFAULT}
    return ours.get(label, label)


def _say_default(chart: Chart, _: Mapping[str, Chart]) -> str:
    lines, ratios = _means(chart), dict[tuple[str, float], float]()
    for name in ATTACK_NAMES.values():
        both = lines[f"{name}, default"] / lines[f"{name}, paper's T"]
        ratios |= {(name, epsilon): ratio for epsilon, ratio in zip(_values(chart), both, strict=True) if epsilon}
    least, most = min(ratios, key=lambda key: ratios[key]), max(ratios, key=lambda key: ratios[key])
    lower = sum(ratio < 1 for ratio in ratios.values())
    ends = [f"{number(ratios[key])} times the error ({key[0]}, epsilon {key[1]:g})" for key in (least, most)]
    return (
        f"The default rule ends with a lower error than the paper's T in {lower} of {len(ratios)} settings: from {ends[0]} to "
        f"{ends[1]}."
    )


def _say_images(chart: Chart, charts: Mapping[str, Chart]) -> str:
    epsilon, mnist = _values(chart)[-1], charts.get("sweep-mnist", chart)
    free = max(mean[0] for mean in _means(chart).values())
    said = f"At epsilon {epsilon:g}: {_ranked(chart, epsilon)}; the best rule without liars has {number(free)}."
    if mnist is chart:
        return said
    here, there = (np.argsort(np.argsort([mean[-1] for mean in _means(one).values()])) for one in (chart, mnist))
    return f"{said} The order of the rules has a rank correlation of {np.corrcoef(here, there)[0, 1]:.2f} with that on MNIST."


def _say_theorems(letter: str, chart: Chart) -> str:
    values, lines = _values(chart), _means(chart)
    slopes = {label: float(np.polyfit(np.log(values), np.log(mean), 1)[0]) for label, mean in lines.items()}
    looseness = [lines[f"theorem {k}, bound"] / lines[f"theorem {k}, measured"] for k in (1, 2, 3)]
    least, most = min(float(one.min()) for one in looseness), max(float(one.max()) for one in looseness)
    said = ", ".join(
        f"theorem {k} {slopes[f'theorem {k}, measured']:+.2f} (bound {slopes[f'theorem {k}, bound']:+.2f})"
        for k in (1, 2, 3)
    )
    return (
        f"Slopes in {letter} from {values[0]} to {values[-1]}, on log scales: measured at the T of {said}, at the automatic T "
        f"{slopes['automatic T, measured']:+.2f}, minimax rate {slopes[MINIMAX]:+.2f}. The bounds are {least:.2f} to "
        f"{most:.2f} times the largest error met."
    )
