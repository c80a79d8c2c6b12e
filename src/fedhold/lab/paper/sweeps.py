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

from fedhold.lab import Arena, Experiment, Result, liars
from fedhold.lab.paper import theory
from fedhold.lab.paper.figures import ATTACK_NAMES, AUTOMATIC_T, FOUR_ATTACKS, NAMES, PAPER_T, baseline_rules
from fedhold.lab.paper.readings import HLMA, KA, MNIST_ROUNDS, MNIST_STEP, SYNTHESIZED_ROUNDS, SYNTHESIZED_STEP, TMA
from fedhold.report import Axis, Chart, Curve, Style, Table, curve, number, plain_styles, rule_styles
from fedhold.spec import DEFAULT
from fedhold.thresholds import KAPPA

EPSILON = 0.2  # where it is not swept, as in figure 1
SAMPLES, IMAGES = 20, 120  # per client, as in the paper
T, IMAGES_T = "1", "0.2"  # the paper's
UNTRAINED = math.sqrt(
    50 + 1
)  # about the RMSE of the first model, d = 50; what leaves a chart is worse than no training
IMAGE_ATTACKS = (KA, TMA)  # those that do most harm on MNIST
# A run of the first takes a minute or more, and the second is feasible for no number of liars here.
LEFT_OUT = ("minimum_diameter_averaging", "smea")
DASHED = "6 3"
TOLD = (0.2, 0.4, 0.49)  # fractions of liars at which the sentence under a figure ranks the rules
NOBODY = "no liars"
MINIMAX = "minimax rate (no constant)"


@dataclass(frozen=True)
class Effort:
    """How much to run.

    m, rounds              of the runs on synthesized data
    seeds                  of the paper's methods and the default rule; the other rules, and images, have the first alone
    kappas                 T/spread; the spread is the median distance of the clients to the aggregate, in every round
    epsilons               fractions of liars
    image_m, image_rounds  of the runs on images
    image_epsilons         fractions of liars there
    clients, samples, coordinates   the m, n and d of the theory
    draws                  of gradients, for the theory
    """

    m: int = 200
    rounds: int = SYNTHESIZED_ROUNDS
    seeds: tuple[int, ...] = (0, 1)
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
    seeds=(0,),
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
        axis, columns = self.chart.axis, [line.mean.tolist() for line in self.chart.curves]
        assert axis is not None
        rows = list(zip(axis.values, *columns, strict=True))
        return Table(self.name, (axis.name, *(line.label for line in self.chart.curves)), rows)


# Training runs


@dataclass(frozen=True)
class Line:
    """One curve: for every seed the runs at every value of the parameter. Of the runs at one value the worst counts."""

    label: str
    runs: Mapping[int, tuple[tuple[Experiment, ...], ...]]


@dataclass(frozen=True)
class Sweep:
    """One figure of training runs; `say` makes its sentence from the charts of all sweeps, by name."""

    name: str
    title: str
    metric: str
    axis: Axis
    lines: tuple[Line, ...]
    styles: Mapping[str, Style]
    say: Callable[[Mapping[str, Chart]], str]


def experiments(effort: Effort) -> list[Experiment]:
    """All runs of all sweeps, each once."""
    return list(dict.fromkeys(run for sweep in trained(effort) for run in _runs(sweep)))


def _runs(sweep: Sweep) -> Iterator[Experiment]:
    return (run for line in sweep.lines for row in line.runs.values() for some in row for run in some)


@cache  # an experiment checks itself when it is made
def trained(effort: Effort) -> tuple[Sweep, ...]:
    """The figures that are made of training runs."""
    return (
        _thresholds(effort),
        _epsilon("sweep-epsilon", "the paper's methods and the default rule", _methods, effort.seeds, effort),
        _epsilon("sweep-epsilon-others", "the other rules, and the default", _others, effort.seeds[:1], effort),
        _default(effort),
        _images("mnist", "MNIST", effort),
        _images("fashion_mnist", "Fashion-MNIST", effort),
    )


def _thresholds(effort: Effort) -> Sweep:
    def line(label: str, attack: str | None) -> Line:
        def at(kappa: float, seed: int) -> tuple[Experiment, ...]:
            return (_synthesized(f"huber(threshold=automatic(kappa={kappa:g}))", attack, EPSILON, seed, effort),)

        return _line(label, effort.seeds, effort.kappas, at)

    lines = (*(line(ATTACK_NAMES[attack], attack) for attack in FOUR_ATTACKS), line(NOBODY, None))
    return Sweep(
        "sweep-threshold",
        f"Huber's final error against its threshold, {EPSILON:g} of the clients lie; dashed: the automatic threshold",
        "rmse",
        Axis("T / spread", effort.kappas, log=True, marked=KAPPA),
        lines,
        plain_styles(line.label for line in lines),
        _say_thresholds,
    )


def _epsilon(
    name: str, whose: str, rules: Callable[[int, int, str], dict[str, str]], seeds: Sequence[int], effort: Effort
) -> Sweep:
    def line(label: str) -> Line:
        def at(epsilon: float, seed: int) -> tuple[Experiment, ...]:
            rule = rules(liars(epsilon, effort.m), effort.m, T)[label]
            attacks = FOUR_ATTACKS if epsilon else (None,)
            return tuple(_synthesized(rule, attack, epsilon, seed, effort) for attack in attacks)

        return _line(label, seeds, effort.epsilons, at)

    specs = rules(0, effort.m, T)
    title = f"Final error against epsilon, the worst of the paper's four attacks: {whose}"
    axis = Axis("epsilon", effort.epsilons)
    return Sweep(name, title, "rmse", axis, tuple(map(line, specs)), rule_styles(specs), _say_epsilon(name))


def _default(effort: Effort) -> Sweep:
    rules = {"default": DEFAULT, "paper's T": f"huber(threshold={T})"}

    def line(attack: str, word: str) -> Line:
        def at(epsilon: float, seed: int) -> tuple[Experiment, ...]:
            return (_synthesized(rules[word], attack if epsilon else None, epsilon, seed, effort),)

        return _line(f"{ATTACK_NAMES[attack]}, {word}", effort.seeds, effort.epsilons, at)

    pairs = [(attack, word) for attack in FOUR_ATTACKS for word in rules]
    styles = {
        f"{ATTACK_NAMES[attack]}, {word}": Style(FOUR_ATTACKS.index(attack), DASHED if word != "default" else "")
        for attack, word in pairs
    }
    return Sweep(
        "sweep-default",
        "Final error against epsilon under each attack: the default rule (solid), and Huber with the paper's T (dashed)",
        "rmse",
        Axis("epsilon", effort.epsilons),
        tuple(line(*pair) for pair in pairs),
        styles,
        _say_default,
    )


def _images(data: str, title: str, effort: Effort) -> Sweep:
    def line(label: str) -> Line:
        def at(epsilon: float, seed: int) -> tuple[Experiment, ...]:
            rule = _methods(liars(epsilon, effort.image_m), effort.image_m, IMAGES_T)[label]
            attacks = IMAGE_ATTACKS if epsilon else (None,)
            return tuple(_image_run(data, rule, attack, epsilon, seed, effort) for attack in attacks)

        return _line(label, effort.seeds[:1], effort.image_epsilons, at)

    specs = _methods(0, effort.image_m, IMAGES_T)
    return Sweep(
        f"sweep-{data.replace('_', '-')}",
        f"{title}: final accuracy against epsilon, the worse of KA and TMA",
        "accuracy",
        Axis("epsilon", effort.image_epsilons),
        tuple(map(line, specs)),
        rule_styles(specs),
        _say_images(f"sweep-{data.replace('_', '-')}"),
    )


def _line(
    label: str, seeds: Sequence[int], values: Sequence[float], at: Callable[[float, int], tuple[Experiment, ...]]
) -> Line:
    return Line(label, {seed: tuple(at(value, seed) for value in values) for seed in seeds})


def _methods(q: int, m: int, threshold: str) -> dict[str, str]:
    """Label -> spec of the paper's methods, told that q of m clients lie, and of the default rule."""
    ours = {PAPER_T: f"huber(threshold={threshold})", AUTOMATIC_T: "huber"}
    named = {NAMES[label]: spec for label, spec in {**baseline_rules(q, m), **ours}.items()}
    return {**named, _default_label(): DEFAULT}


def _others(q: int, m: int, threshold: str) -> dict[str, str]:
    """Label -> spec of the default rule and all rules of the registry that `_methods` has not, told that q clients lie."""
    known = {spec.partition("(")[0] for spec in _methods(q, m, threshold).values()} | set(LEFT_OUT)
    specs = [spec for spec in Arena.registered().rules if "|" not in spec and spec.partition("(")[0] not in known]
    return {DEFAULT: DEFAULT, **{spec.partition("(")[0]: spec.replace("{f}", str(q)) for spec in specs}}


def _default_label() -> str:
    return f"{DEFAULT}, the default (not in the paper)"


def _synthesized(rule: str, attack: str | None, epsilon: float, seed: int, effort: Effort) -> Experiment:
    options: list[tuple[str, str | int]] = [("samples", SAMPLES * effort.m), ("evaluate_every", effort.rounds)]
    if attack == HLMA and not rule.startswith("huber"):
        options.append(("attack_threshold", T))  # as in the figures: all rules meet the lies that fit the paper's
    return Experiment(
        data="synthesized",
        rule=rule,
        attack=attack,
        epsilon=epsilon if attack else 0.0,
        seed=seed,
        m=effort.m,
        rounds=effort.rounds,
        step=SYNTHESIZED_STEP,
        options=tuple(options),
    )


def _image_run(data: str, rule: str, attack: str | None, epsilon: float, seed: int, effort: Effort) -> Experiment:
    # With this step, accuracy swings on Fashion-MNIST, so that the last round alone would say little; on MNIST it does not.
    every = effort.image_rounds if data == "mnist" else 2
    return Experiment(
        data=data,
        rule=rule,
        attack=attack,
        epsilon=epsilon,
        seed=seed,
        m=effort.image_m,
        rounds=effort.image_rounds,
        step=MNIST_STEP,
        options=(("samples", IMAGES * effort.image_m), ("evaluate_every", min(every, effort.image_rounds))),
    )


def illustrated(find: Callable[[Experiment], Result | None], effort: Effort) -> list[Illustration]:
    """The figures of training runs; one whose runs are not all there is left out."""
    found = {run: result for run in experiments(effort) if (result := find(run)) is not None}
    whole = [sweep for sweep in trained(effort) if all(run in found for run in _runs(sweep))]
    charts = {sweep.name: _chart(sweep, found) for sweep in whole}
    return [Illustration(sweep.name, charts[sweep.name], sweep.say(charts)) for sweep in whole]


def _chart(sweep: Sweep, found: Mapping[Experiment, Result]) -> Chart:
    curves = []
    for line in sweep.lines:
        rows = [[_worst([found[run] for run in some], sweep.metric) for some in row] for row in line.runs.values()]
        curves.append(Curve(line.label, tuple(line.runs), np.array(rows)))
    if sweep.metric != "rmse":
        return Chart(sweep.title, sweep.metric, tuple(curves), axis=sweep.axis, styles=sweep.styles)
    limits = (1.0, UNTRAINED)
    return Chart(
        sweep.title, sweep.metric, tuple(curves), log=True, limits=limits, axis=sweep.axis, styles=sweep.styles
    )


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
    for letter, values, at in (
        ("m", effort.clients, lambda m: (800, m, theory.D)),
        ("n", effort.samples, lambda n: (n, 100, theory.D)),
        ("d", effort.coordinates, lambda d: (6400, 100, d)),
    ):
        yield _theorems(letter, values, [at(value) for value in values], effort.draws)


def _theorems(letter: str, values: Sequence[int], settings: Sequence[tuple[int, int, int]], draws: int) -> Illustration:
    """The figure for (n, m, d) at every value of the letter."""
    numbers, styles = dict[str, list[float]](), dict[str, Style]()
    for theorem in (1, 2, 3):
        rows = [theory.measure(theory.Case(theorem, n, m, EPSILON, d), draws) for n, m, d in settings]
        numbers |= {f"theorem {theorem}, bound": [row.bound for row in rows]}
        numbers |= {f"theorem {theorem}, measured": [row.error for row in rows]}
        styles |= {f"theorem {theorem}, bound": Style(theorem - 1, DASHED)}
        styles |= {f"theorem {theorem}, measured": Style(theorem - 1)}
        if theorem == 1:
            numbers |= {"automatic T, measured": [row.automatic for row in rows]}
            styles |= {"automatic T, measured": Style(4)}
    numbers |= {MINIMAX: [EPSILON / math.sqrt(n) + math.sqrt(d / (n * m)) for n, m, d in settings]}
    styles |= {MINIMAX: Style(7, "1.5 3")}
    held = ", ".join(f"{name} = {fixed}" for name, fixed in zip("nmd", settings[0], strict=True) if name != letter)
    chart = Chart(
        f"Error of one aggregate against {letter}: bounds, largest error met, minimax rate (epsilon {EPSILON:g}, {held})",
        "error",
        tuple(curve(label, (), [row]) for label, row in numbers.items()),
        log=True,
        axis=Axis(letter, tuple(values), log=True),
        styles=styles,
    )
    return Illustration(f"sweep-{letter}", chart, _say_theorems(letter, chart))


# What came out


def _say_thresholds(charts: Mapping[str, Chart]) -> str:
    chart = charts["sweep-threshold"]
    values, lines = _values(chart), {line.label: line.mean for line in chart.curves}
    here, tma = values.index(KAPPA), lines[ATTACK_NAMES[TMA]]
    lost = {label: float(mean[here] / np.nanmin(mean)) - 1 for label, mean in lines.items()}
    worst = max(lost, key=lambda label: lost[label])
    best = ", ".join(f"{number(values[int(np.nanargmin(mean))])} ({label})" for label, mean in lines.items())
    return (
        f"The automatic T, {KAPPA:g} spreads, ends at most {lost[worst]:.1%} above the best T of the sweep ({worst}). The best "
        f"T/spread is {best}. Under TMA the error is {tma[here]:.3f} at the automatic T, {tma[0]:.3f} at {values[0]:g} "
        f"and {tma[-1]:.3f} at {values[-1]:g} spreads."
    )


def _say_epsilon(name: str) -> Callable[[Mapping[str, Chart]], str]:
    def say(charts: Mapping[str, Chart]) -> str:
        chart = charts[name]
        told = [epsilon for epsilon in _values(chart) if epsilon in TOLD]
        parts = [f"at epsilon {epsilon:g} {_ranked(chart, epsilon)}" for epsilon in told]
        return f"Worst case, the best rule first: {'; '.join(parts)}."

    return say


def _ranked(chart: Chart, epsilon: float) -> str:
    """'huber 1.21, median 1.55, mean 1.6 ... krum 7.1': the three best rules at one epsilon and the worst; those that ran."""
    ends = {label: value for label, value in _at(chart, epsilon).items() if not math.isnan(value)}
    met = [f"{_short(label)} {number(ends[label])}" for label in sorted(ends, key=lambda label: ends[label])]
    if chart.metric == "accuracy":
        met.reverse()
    return ", ".join(met[:3]) + f" ... {met[-1]}"


def _values(chart: Chart) -> tuple[float, ...]:
    """The values of the parameter that was swept."""
    assert chart.axis is not None
    return chart.axis.values


def _at(chart: Chart, epsilon: float) -> dict[str, float]:
    k = _values(chart).index(epsilon)
    return {line.label: float(line.mean[k]) for line in chart.curves}


def _short(label: str) -> str:
    """The name of a rule in a sentence: 'Krum (krum)' is krum, 'our method (huber, paper's T)' is huber with the paper's T."""
    ours = {name: label for label, name in NAMES.items()} | {_default_label(): DEFAULT}
    return (
        ours.get(label, label)
        .replace("huber, paper's T", "huber with the paper's T")
        .replace("huber, automatic T", "huber with the automatic T")
    )


def _say_default(charts: Mapping[str, Chart]) -> str:
    chart = charts["sweep-default"]
    lines = {line.label: line.mean for line in chart.curves}
    ratios = {
        (ATTACK_NAMES[attack], epsilon): float(lines[f"{ATTACK_NAMES[attack]}, default"][k])
        / float(lines[f"{ATTACK_NAMES[attack]}, paper's T"][k])
        for attack in FOUR_ATTACKS
        for k, epsilon in enumerate(_values(chart))
        if epsilon
    }
    least, most = min(ratios, key=lambda key: ratios[key]), max(ratios, key=lambda key: ratios[key])
    lower = sum(ratio < 1 for ratio in ratios.values())
    ends = [f"{number(ratios[key])} times the error ({key[0]}, epsilon {key[1]:g})" for key in (least, most)]
    return (
        f"The default rule ends with a lower error than the paper's T in {lower} of {len(ratios)} settings: from {ends[0]} to "
        f"{ends[1]}."
    )


def _say_images(name: str) -> Callable[[Mapping[str, Chart]], str]:
    def say(charts: Mapping[str, Chart]) -> str:
        chart = charts[name]
        epsilon = _values(chart)[-1]
        free = max(_at(chart, 0.0).values())
        said = f"At epsilon {epsilon:g}: {_ranked(chart, epsilon)}; the best rule without liars has {number(free)}."
        if name == "sweep-mnist" or "sweep-mnist" not in charts:
            return said
        here, there = (list(_at(one, epsilon).values()) for one in (chart, charts["sweep-mnist"]))
        alike = np.corrcoef(np.argsort(np.argsort(here)), np.argsort(np.argsort(there)))[0, 1]
        return f"{said} The order of the rules has a rank correlation of {alike:.2f} with that on MNIST."

    return say


def _say_theorems(letter: str, chart: Chart) -> str:
    values, lines = _values(chart), {line.label: line.mean for line in chart.curves}
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
