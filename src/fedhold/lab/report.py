"""The report: one HTML file that needs nothing else, its figures as PNG and its numbers as CSV."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedhold.errors import require, unknown
from fedhold.lab import runs
from fedhold.report import (
    COLOURS,
    Chart,
    Table,
    can_plot,
    curve,
    draw,
    draw_weights,
    file_paths,
    pages,
    plot,
    plot_weights,
    write_tables,
)
from fedhold.storage import write_whole

if TYPE_CHECKING:
    from fedhold.lab.experiment import Experiment
    from fedhold.lab.results import Result, Verdict

__all__ = ["Panel", "write_report"]

DETECTION = (
    "Each row of a picture is a client, each column a round; the liars are on top. The colour is the client's weight in the "
    "aggregate, 1 being an equal share; blank where it did not take part. A client is flagged when its weight is below half "
    "the median weight of the round. Precision is the share of liars among the flagged, recall the share of flagged among "
    "the liars; there is no line where that would be 0/0."
)
RADIUS = (
    "How far the liars can at most have moved the aggregate of a round, proven from what the server received. There is no "
    "line where nothing could be proven."
)
INSTALL = "that needs matplotlib: pip install 'fedhold[report]'"


@dataclass(frozen=True)
class Panel:
    """One chart: a metric against rounds, for each label the mean over its results (one per seed), in its band."""

    title: str
    metric: str
    series: dict[str, list[Result]]
    log: bool = False


def write_report(
    directory: Path,
    results: Sequence[Result],
    *,
    title: str,
    verdicts: Sequence[Verdict] = (),
    tables: Sequence[Table] = (),
    panels: Sequence[Panel] = (),
    png: bool | None = None,
) -> Path:
    """Write report.html, numbers/*.csv and figures/*.png into `directory`; return the path of the page.

    Results that kept their weights add a heat map and detection rates, those with a certificate its radius per round.
    The page and the numbers need no extra. `png`: True needs matplotlib, False draws none, None draws where matplotlib is
    installed, and the page says so where it is not.
    """
    drawn = can_plot() if png is None else png
    if drawn and not can_plot():
        raise ImportError(f"png=True: {INSTALL}; or pass png=None.")
    shown = [(label, run) for panel in panels for label, line in panel.series.items() for run in line]
    everything = list({run.experiment: run for run in [*results, *(run for _, run in shown)]}.values())
    labels = _labels(shown)

    curves = [_chart(panel) for panel in panels]
    watched = runs.watched(everything, labels)
    found = [group.chart() for group in watched]
    radii = _radii(everything, labels)
    charts = [*curves, *found, *radii]
    order = {label: k for k, label in enumerate(dict.fromkeys(line.label for chart in charts for line in chart.curves))}
    if found:
        order["recall"] += len(COLOURS)  # dashed: both curves are often 1, one on the other

    sections = [
        pages.Section("Claims", pages.claims(verdicts)),
        pages.Section("Tables", "".join(pages.heading(t.title) + pages.table(t.header, t.rows) for t in tables)),
        pages.Section("Curves", pages.cards(draw(chart, order) for chart in curves)),
        pages.Section("Who was held down", _held_down(watched, found, order)),
        pages.Section("Certificate", _certificate(radii, _unproven(everything, labels), order)),
        pages.Section("Runs", _runs(everything, drawn)),
    ]
    summary = f"{len(everything)} run{'s' * (len(everything) != 1)}." + (
        f" {pages.tally(verdicts)}." if verdicts else ""
    )
    path = Path(directory) / "report.html"
    write_whole(path, pages.page(title, summary, sections).encode())
    said = [(verdict.says, verdict.outcome, verdict.numbers, verdict.where) for verdict in verdicts]
    claims = Table("claims", ("says", "outcome", "numbers", "where"), said)
    every = Table("runs", runs.RUN_HEADER, runs.run_rows(everything))
    numbers = [claims, every, *tables, *map(_numbers, charts), *map(_weights, watched)]
    write_tables(path.parent / "numbers", [table for table in numbers if table.rows])
    if drawn:
        _write_figures(path.parent / "figures", charts, watched, order)
    return path


def _labels(shown: Iterable[tuple[str, Result]]) -> dict[str, str]:
    """What the panels call a rule, where they agree."""
    names: dict[str, set[str]] = {}
    for label, run in shown:
        names.setdefault(run.experiment.rule, set()).add(label)
    return {rule: found.pop() for rule, found in names.items() if len(found) == 1}


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


def _radii(results: Iterable[Result], labels: Mapping[str, str]) -> list[Chart]:
    """Radius per round: a chart for each setting, a curve for each rule in it."""
    settings: dict[Experiment, dict[str, list[Result]]] = {}
    for run in results:
        if any(radius is not None for radius in run.series.get("radius", [])):
            rules = settings.setdefault(replace(run.experiment, seed=0, rule="mean"), {})
            rules.setdefault(labels.get(run.experiment.rule, run.experiment.rule), []).append(run)
    return [
        _chart(Panel(f"Radius for f = {dict(same.options)['certify']}: {runs.describe(same)}", "radius", rules))
        for same, rules in settings.items()
    ]


def _unproven(results: Iterable[Result], labels: Mapping[str, str]) -> Iterable[str]:
    """Experiments that asked for a certificate and got none in any round of any seed."""
    for experiment, group in runs.over_seeds(results).items():
        asked = dict(experiment.options).get("certify") is not None
        if asked and all(radius is None for run in group for radius in run.series.get("radius", [])):
            yield runs.describe(experiment, labels.get(experiment.rule, experiment.rule))


def _held_down(watched: Sequence[runs.Watched], found: Sequence[Chart], order: Mapping[str, int]) -> str:
    figures = []
    for group, chart in zip(watched, found, strict=True):
        drawing = draw_weights(_name(group), group.weights[0], group.byzantine[0])
        figures.append(pages.pair(pages.heat_card(_name(group), drawing), draw(chart, order)))
    return pages.paragraph(DETECTION) + pages.cards(figures) if figures else ""


def _certificate(radii: Sequence[Chart], unproven: Iterable[str], order: Mapping[str, int]) -> str:
    missing = "".join(pages.paragraph(f"Asked for, but proven in no round: {title}.") for title in unproven)
    figures = pages.cards(draw(chart, order) for chart in radii)
    return pages.paragraph(RADIUS) + missing + figures if radii or missing else ""


def _runs(results: Sequence[Result], drawn: bool) -> str:
    """Seeds, environment, every run, and where the files are."""
    if not results:
        return ""
    rows = runs.run_rows(results)
    figures = "the figures in figures/*.png" if drawn else "figures as PNG were not drawn"
    reason = "" if drawn or can_plot() else f" ({INSTALL})"
    return (
        pages.heading("Seeds")
        + pages.table(("data", "runs", "seeds", "seconds"), runs.seed_rows(results))
        + pages.heading("Environment")
        + pages.table(*runs.environments(results))
        + pages.heading("Every run")
        + pages.folded(f"{len(rows)} experiments, each over its seeds", pages.table(runs.RUN_HEADER, rows))
        + pages.heading("Files")
        + pages.paragraph(f"Beside this page: the numbers in numbers/*.csv; {figures}{reason}.")
    )


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


def _weights(group: runs.Watched) -> Table:
    """The numbers of a heat map: a row for each client."""
    shares = group.weights[0].T.astype(np.float64).tolist()
    rows = [[k, int(lies), *row] for k, (lies, row) in enumerate(zip(group.byzantine[0], shares, strict=True))]
    return Table(_name(group), ["client", "liar", *(f"round {k}" for k in range(1, len(group.weights[0]) + 1))], rows)


def _name(group: runs.Watched) -> str:
    return f"Weights: {group.title}, seed {group.seeds[0]}"


def _write_figures(
    folder: Path, charts: Sequence[Chart], watched: Sequence[runs.Watched], order: Mapping[str, int]
) -> None:
    folder.mkdir(exist_ok=True)
    paths = file_paths(folder, [*(chart.title for chart in charts), *map(_name, watched)], ".png")
    for chart, path in zip(charts, paths, strict=False):
        plot(chart, path, order)
    for group, path in zip(watched, paths[len(charts) :], strict=True):
        plot_weights(_name(group), group.weights[0], group.byzantine[0], path)
