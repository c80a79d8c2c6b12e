"""The report of experiments: one HTML file that needs nothing else, its figures as PNG and PDF and its numbers as CSV."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhold.certificate import MEANING
from fedhold.errors import require, unknown
from fedhold.lab.outcomes import Differences, cells_table, matrices, rule_labels
from fedhold.report import (
    LOW,
    Block,
    Cards,
    Chart,
    Curve,
    Figure,
    Folded,
    Heading,
    HeatMap,
    Matrix,
    Paragraph,
    Section,
    Style,
    Table,
    can_plot,
    curve,
    detection,
    file_paths,
    page,
    rule_styles,
    weighs,
    weight_map,
    write_tables,
)
from fedhold.storage import write_whole

if TYPE_CHECKING:
    from fedhold.lab.experiment import Experiment
    from fedhold.lab.results import Result, Verdict

OUTCOME = (
    "A number is the metric after the last round, as a mean over seeds. The worst case of a rule is the worst over all attacks "
    "shown; runs that diverged, and those that a bound refuses (infeasible), count as worse than any number."
)
FILTERS = "Filters say which settings are shown: 'all' shows the worst or the mean of them."
DETECTION = (
    "Each row of a picture is a client and each column a round; the liars are on top. The colour is the client's weight in the "
    "aggregate; 1 is an equal share, and a cell is blank where the client did not take part. A client is held down when its "
    f"weight per sample, and its weight, are below {LOW:g} of the medians of the round. Precision is the share of liars among "
    "the clients held down, recall the share of clients held down among the liars; there is no line where that would be 0/0."
)
UNWEIGHED = "Left out, because the rule gives every client the same weight per sample, or no weight of its own: {}."
RADIUS = f"{MEANING} There is no line where nothing could be proven."
# The parts of the page to which a caller can add blocks.
ANSWER, NAMED, PROVEN = "What came out", "Who is named", "What is proven"
INFEASIBLE = "These were not run, because a bound of their rule or attack does not hold; the others are complete."
RUN_HEADER = (
    *("data", "partition", "attack", "epsilon", "rule", "m", "rounds", "step", "options"),
    *("seeds", "metric", "end", "seconds"),
)
# Of the two curves in every chart of detection, which are often both 1.
DETECTED = {"precision": Style(0), "recall": Style(1, "6 3", 1)}


@dataclass(frozen=True)
class Panel:
    """One chart: a metric against rounds.

    title    of the chart
    metric   a key of every result's series
    series   for each label the results it is the mean of, one per seed; the chart shows the band from the least to the largest
    log      whether the metric's axis is logarithmic
    """

    title: str
    metric: str
    series: dict[str, list[Result]]
    log: bool = False


@dataclass(frozen=True)
class Claims(Block):
    """The claims of a paper, and what came of them."""

    template: ClassVar[str] = "claims.html"
    verdicts: Sequence[Verdict]


def write_report(
    directory: Path,
    results: Sequence[Result],
    *,
    title: str,
    about: Sequence[Block] = (),
    verdicts: Sequence[Verdict] = (),
    reading: Sequence[Block] = (),
    tables: Sequence[Table] = (),
    panels: Sequence[Panel] | None = None,
    opening: Mapping[str, Sequence[Block]] | None = None,
    figures: bool = True,
) -> Path:
    """Write report.html, numbers/*.csv, and figures/*.png and *.pdf into `directory`; return the path of the page.

    results    all of them are listed; without verdicts they make the matrix of rules by attacks that the page begins with.
               Those that kept their weights add a heat map and detection rates, those with a certificate its radius per round
    title      of the page
    about      what the page begins with
    verdicts   on the claims of a paper
    reading    what a reader of the verdicts must know, shown above them
    tables     shown as they are
    panels     the charts of metrics, as `panels_of(results)` makes them by default; their results need not be among `results`
    opening    the blocks that a section begins with: title -> blocks, for the sections ANSWER, NAMED and PROVEN
    figures    whether the figures in the page are written as files, too

    Figures need matplotlib. Where it is missing, the page has their tables instead, and no files are written for them.
    """
    panels, begin = panels_of(results) if panels is None else panels, opening or {}
    shown = [(label, run) for panel in panels for label, line in panel.series.items() for run in line]
    everything = list({run.experiment: run for run in [*results, *(run for _, run in shown)]}.values())
    labels = _labels(shown)
    apart = Differences.among(run.experiment for run in everything)

    specs: dict[str, str] = {}
    rules = [run.experiment.rule for run in everything]
    for label, rule in (
        *((label, run.experiment.rule) for label, run in shown),
        *((labels.get(r, r), r) for r in rules),
    ):
        specs.setdefault(label, rule)
    styles = rule_styles(specs)
    curves = [replace(chart, styles=styles) for panel in panels if (chart := _chart(panel)).has_numbers]
    radii = [replace(chart, styles=styles) for chart in _radii(everything, labels, apart)]
    groups = [
        (_describe(group[0].experiment, labels, apart), group)
        for group in over_seeds(run for run in everything if run.weights is not None)
    ]
    weighing = [(what, group) for what, group in groups if any(_weighs(run) for run in group)]
    unweighed = [what for what, group in groups if not any(_weighs(run) for run in group)]
    maps = [weight_map(_weights_name(*one), _weights(one[1][0]), _liars(one[1][0])) for one in weighing]
    detected = [_detection(what, group) for what, group in weighing]
    lying = [any(run.byzantine for run in group) for _, group in weighing]
    detections = [chart for chart, lies in zip(detected, lying, strict=True) if chart.has_numbers and lies]
    drawn: list[Figure] = [*curves, *maps, *detections, *radii]
    answer = [] if verdicts else matrices(results, {**rule_labels(run.experiment for run in results), **labels})

    sections = [
        Section("About", about),
        Section("Claims", [*reading, Claims(verdicts)] if verdicts else []),
        Section(ANSWER, [*begin.get(ANSWER, ()), *_answer(answer)]),
        Section("Tables", [block for table in tables for block in (Heading(table.title), table)]),
        Section("Curves", [Cards(curves)] if curves else []),
        Section(NAMED, [*begin.get(NAMED, ()), *_held_down(maps, detections, unweighed)]),
        Section(PROVEN, [*begin.get(PROVEN, ()), *_certificate(radii, _unproven(everything, labels, apart))]),
        Section("Infeasible", _infeasible(everything, labels, apart)),
        Section("Runs", _runs(everything, figures)),
    ]
    path = Path(directory) / "report.html"
    write_whole(path, page(title, _summary(everything, verdicts, apart), sections).encode())
    numbers = [
        Table(
            "claims",
            ("says", "outcome", "numbers", "where"),
            [(v.says, v.outcome, v.numbers, v.where) for v in verdicts],
        ),
        Table("runs", RUN_HEADER, _run_rows(everything)),
        *tables,
        *map(cells_table, answer),
        *(_numbers(chart) for chart in (*curves, *detected, *radii) if chart.has_numbers),
        *(_weights_table(*one) for one in weighing),
    ]
    write_tables(path.parent / "numbers", [table for table in numbers if table.rows])
    if figures and can_plot():
        for suffix in (".png", ".pdf"):
            for figure, file in zip(
                drawn, file_paths(path.parent / "figures", [one.title for one in drawn], suffix), strict=True
            ):
                figure.save(file)
    return path


# The page


def _summary(results: Sequence[Result], verdicts: Sequence[Verdict], apart: Differences) -> str:
    """'12 runs. All of them: balanced, 100 clients. Of 3 claims 2 hold, 0 fail, 1 undecided.'"""
    runs = len(results)
    summary = f"{runs} run{'s' * (runs != 1)}."
    if results and apart.common:
        summary += f" All of them: {', '.join(apart.common)}."
    if verdicts:
        counts = Counter(verdict.outcome for verdict in verdicts)
        depend = f"{counts['depends']} depend, " * ("depends" in counts)
        outcomes = f"{counts['holds']} hold, {counts['fails']} fail, {depend}{counts['undecided']} undecided"
        summary += f" Of {counts.total()} claims {outcomes}."
    return summary


def _answer(answer: Sequence[Matrix]) -> list[Block]:
    filtered = any(matrix.facets for matrix in answer)
    return [Paragraph(f"{OUTCOME} {FILTERS}" if filtered else OUTCOME), *answer] if answer else []


def _held_down(maps: Sequence[HeatMap], detections: Sequence[Chart], unweighed: Sequence[str]) -> list[Block]:
    out = "; ".join(unweighed)
    blocks: list[Block] = [Paragraph(DETECTION), Cards(maps), Cards(detections)] if maps else []
    return [*blocks, *([Paragraph(UNWEIGHED.format(out))] if out else [])]


def _certificate(radii: Sequence[Chart], unproven: Sequence[str]) -> list[Block]:
    if not radii and not unproven:
        return []
    missing = [Paragraph(f"Asked for, but proven in no round: {title}.") for title in unproven]
    return [Paragraph(RADIUS), *missing, *([Cards(radii)] if radii else [])]


def _infeasible(results: Sequence[Result], labels: Mapping[str, str], apart: Differences) -> list[Block]:
    """The experiments that a bound refuses, each with the reason."""
    groups = over_seeds(run for run in results if run.infeasible)
    rows = [(_describe(group[0].experiment, labels, apart), group[0].infeasible) for group in groups]
    table = Table("infeasible", ("experiment", "reason"), rows, long=("reason",))
    return [Paragraph(INFEASIBLE), table] if rows else []


def _runs(results: Sequence[Result], figures: bool) -> list[Block]:
    """Seeds, environment, every run, and where the files are."""
    if not results:
        return []
    rows = _run_rows(results)
    files = "; the figures in figures/*.png and *.pdf" * (figures and can_plot())
    return [
        Heading("Seeds"),
        Table("seeds", ("data", "runs", "seeds", "seconds"), _seed_rows(results)),
        Heading("Environment"),
        _environments(results),
        Heading("Every run"),
        Folded(f"{len(rows)} experiments, each over its seeds", [Table("runs", RUN_HEADER, rows)]),
        Heading("Files"),
        Paragraph(f"Beside this page: the numbers in numbers/*.csv{files}."),
    ]


# The charts, and their numbers


def _labels(shown: Iterable[tuple[str, Result]]) -> dict[str, str]:
    """What the panels call a rule, where they agree."""
    names: dict[str, set[str]] = {}
    for label, run in shown:
        names.setdefault(run.experiment.rule, set()).add(label)
    return {rule: found.pop() for rule, found in names.items() if len(found) == 1}


def panels_of(results: Sequence[Result]) -> list[Panel]:
    """A panel for each setting, titled by what sets it apart from the others, with a curve for each rule that was run in it.

    results  those that a bound refuses have no curve
    """
    ran = [run for run in results if not run.infeasible]
    apart, labels = Differences.among(run.experiment for run in results), rule_labels(run.experiment for run in results)
    panels: dict[tuple[str, str], dict[str, dict[int, Result]]] = {}  # the runs of each rule by seed
    for run in ran:
        rules = panels.setdefault((apart.title(run.experiment), run.metric), {})
        rules.setdefault(run.experiment.rule, {})[run.experiment.seed] = run
    made = []
    for (title, metric), rules in panels.items():
        met = Counter(labels.get(rule, rule) for rule in rules)
        names = {rule: rule if met[labels.get(rule, rule)] > 1 else labels.get(rule, rule) for rule in rules}
        series = {names[rule]: list(runs.values()) for rule, runs in rules.items()}
        made.append(Panel(title, metric, series, log=metric == "rmse"))
    return made


def _chart(panel: Panel) -> Chart:
    if not panel.series:
        raise ValueError(f"panel {panel.title!r} has no curves. Give it at least one label with results.")
    curves = []
    for label, line in panel.series.items():
        where = f"curve {label!r} of panel {panel.title!r}"
        if not line:
            raise ValueError(f"{where} has no results. Run its experiments first, or leave it out.")
        for run in line:
            if panel.metric not in run.series:
                raise ValueError(f"{where}: {unknown('metric', panel.metric, run.series)}")
        rows, seeds = [run.series[panel.metric] for run in line], [run.experiment.seed for run in line]
        lengths = sorted({len(row) for row in rows})
        remedy = "Give the others a label of their own."
        require(len(lengths) == 1, where, needs="as many rounds for every seed", remedy=remedy, rounds=lengths)
        require(len(set(seeds)) == len(seeds), where, needs="every seed once", remedy=remedy, seeds=seeds)
        curves.append(curve(label, seeds, rows))
    return Chart(panel.title, panel.metric, tuple(curves), panel.log)


def _radii(results: Iterable[Result], labels: Mapping[str, str], apart: Differences) -> list[Chart]:
    """Radius per round: a chart for each setting, a curve for each rule in it."""
    found: dict[tuple[str, object], dict[str, list[Result]]] = {}
    for run in results:
        if any(radius is not None for radius in run.series.get("radius", [])):
            e = run.experiment
            title = f"Radius for f = {dict(e.options)['certify']}: {apart.title(e)}"
            found.setdefault((title, e.options), {}).setdefault(labels.get(e.rule, e.rule), []).append(run)
    return [replace(_chart(Panel(title, "radius", rules)), gaps=True) for (title, _), rules in found.items()]


def _unproven(results: Iterable[Result], labels: Mapping[str, str], apart: Differences) -> list[str]:
    """Experiments that asked for a certificate and got none in any round of any seed."""
    return [
        _describe(group[0].experiment, labels, apart)
        for group in over_seeds(results)
        if dict(group[0].experiment.options).get("certify") is not None
        and all(radius is None for run in group for radius in run.series.get("radius", []))
    ]


def _numbers(chart: Chart) -> Table:
    """Every curve of a chart, over the seeds and for each of them."""
    seeds = sorted({seed for line in chart.curves for seed in line.seeds})
    rows: list[list[object]] = []
    for line in chart.curves:
        runs_of = dict(zip(line.seeds, line.values, strict=True))
        nothing = np.full(line.mean.shape, np.nan)
        columns = [line.mean, line.low, line.high, *(runs_of.get(seed, nothing) for seed in seeds)]
        rows += [[line.label, k, *numbers] for k, numbers in enumerate(np.stack(columns, axis=1).tolist(), start=1)]
    return Table(chart.title, ["label", "round", "mean", "low", "high", *(f"seed {seed}" for seed in seeds)], rows)


def _weights(run: Result) -> NDArray[np.floating]:
    assert run.weights is not None
    return run.weights


def _liars(run: Result) -> NDArray[np.bool_]:
    return np.isin(np.arange(run.experiment.m), run.byzantine)


def _samples(run: Result) -> NDArray[np.floating] | None:
    return None if run.samples is None else np.array(run.samples, np.float64)


def _weighs(run: Result) -> bool:
    """Whether the rule tells clients apart."""
    return weighs(_weights(run), _samples(run))


def _detection(what: str, group: Sequence[Result]) -> Chart:
    """Precision and recall per round, over the seeds."""
    pairs = zip(*(detection(_weights(run), _liars(run), _samples(run)) for run in group), strict=True)
    seeds = tuple(run.experiment.seed for run in group)
    curves = tuple(Curve(word, seeds, np.vstack(rows)) for word, rows in zip(DETECTED, pairs, strict=True))
    title = f"Detection: {what}"
    return Chart(title, "precision, recall", curves, limits=(0.0, 1.0), gaps=True, styles=DETECTED)


def _weights_name(what: str, group: Sequence[Result]) -> str:
    return f"Weights: {what}, seed {group[0].experiment.seed}"


def _weights_table(what: str, group: Sequence[Result]) -> Table:
    """The weights of the first seed: a row for each client."""
    shares = _weights(group[0]).T.astype(np.float64).tolist()
    rows = [[k, int(lies), *row] for k, (lies, row) in enumerate(zip(_liars(group[0]), shares, strict=True))]
    header = ["client", "liar", *(f"round {k}" for k in range(1, group[0].experiment.rounds + 1))]
    return Table(_weights_name(what, group), header, rows)


# The results: which belong together, and what came out of each


def over_seeds(results: Iterable[Result]) -> list[list[Result]]:
    """Runs that differ in their seed only, together."""
    groups: dict[tuple[object, ...], list[Result]] = {}
    for run in results:
        alike = tuple(value for name, value in vars(run.experiment).items() if name != "seed")
        groups.setdefault(alike, []).append(run)
    return list(groups.values())


def _describe(experiment: Experiment, labels: Mapping[str, str], apart: Differences) -> str:
    """'sign_flip, epsilon 0.2, huber': what sets an experiment apart, besides its seed."""
    return f"{apart.title(experiment)}, {labels.get(experiment.rule, experiment.rule)}"


def _run_rows(results: Iterable[Result]) -> list[tuple[object, ...]]:
    """One row of RUN_HEADER for each group over seeds; `end` is the mean of the last value, `seconds` their sum."""
    rows: list[tuple[object, ...]] = []
    for group in over_seeds(results):
        e, metric = group[0].experiment, group[0].metric
        ends = [[v for v in run.series.get(metric, []) if v is not None][-1:] for run in group]
        end = "infeasible" if group[0].infeasible else float(np.mean(ends)) if all(ends) else None
        options = ", ".join(f"{key}={value}" for key, value in e.options)
        data = f"{e.data}, {e.model}" if e.model else e.data
        what = (data, e.dealt, e.attack or "none", e.epsilon, e.rule, e.m, e.rounds, e.step, options)
        rows.append((*what, _seeds(group), metric, end, _seconds(group)))
    return rows


def _seed_rows(results: Sequence[Result]) -> list[tuple[object, ...]]:
    """data, runs, seeds, seconds."""
    groups: dict[str, list[Result]] = {}
    for run in results:
        groups.setdefault(run.experiment.data, []).append(run)
    return [(data, len(group), _seeds(group), _seconds(group)) for data, group in groups.items()]


def _environments(results: Iterable[Result]) -> Table:
    """A column for each environment that runs were made in, the most used first."""
    places = Counter(tuple(sorted(run.environment.items())) for run in results).most_common()
    keys = sorted({key for place, _ in places for key, _ in place})
    rows = [(key, *(dict(place).get(key, "") for place, _ in places)) for key in keys]
    header = ("", *(f"{count} {'run' if count == 1 else 'runs'}" for _, count in places))
    return Table("environments", header, rows)


def _seeds(results: Iterable[Result]) -> str:
    return " ".join(map(str, sorted({run.experiment.seed for run in results})))


def _seconds(results: Iterable[Result]) -> float:
    return round(sum(run.seconds for run in results), 1)
