"""holdfast run and holdfast report: grids of experiments, and the report of whatever results a directory holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from holdfast.config import load
from holdfast.experiment import MissingResult, Result, Store, run_all
from holdfast.report import Panel, write_report
from holdfast.show import print_table, table_of

__all__ = ["panels", "play", "report"]


def play(config: Path, *, jobs: int, out: Path, console: Console) -> Path:
    """Run the grid of a configuration, print where each curve ends, and write the report."""
    experiments = load(config)
    results = run_all(experiments, Store(out / "results"), jobs=jobs, progress=console.is_terminal)
    return _finish(results, out, console)


def report(directory: Path, *, console: Console) -> Path:
    """The report of the results in a directory."""
    folder = directory / "results" if (directory / "results").is_dir() else directory
    results = Store(folder).all()
    if not results:
        raise MissingResult(
            f"no results in {folder}. Make some with: holdfast run examples/grid.toml --out {directory}"
        )
    return _finish(results, directory, console)


def panels(results: Sequence[Result]) -> list[Panel]:
    """One chart for each world (data, partition, attack, epsilon, ...), one curve for each rule in it."""
    charts: dict[str, dict[str, list[Result]]] = {}
    for result in results:
        of = result.experiment
        liars = f", {of.attack}, epsilon {of.epsilon:g}" if of.attack else ", no attack"
        more = "".join(f", {name} {value}" for name, value in of.options if name not in ("keep_weights", "certify"))
        title = f"{of.data}, {of.partition}, m = {of.m}, step {of.step:g}, {of.rounds} rounds{liars}{more}"
        charts.setdefault(title, {}).setdefault(of.rule, []).append(result)
    return [
        Panel(title, "accuracy" if "accuracy" in next(iter(curves.values()))[0].series else "rmse", curves)
        for title, curves in charts.items()
    ]


def _finish(results: Sequence[Result], out: Path, console: Console) -> Path:
    charts = panels(results)
    for chart in charts:
        table = table_of("rule", "seeds", f"{chart.metric} at the end", numbers=("seeds", f"{chart.metric} at the end"))
        for rule, runs in chart.series.items():
            ends = [float("nan") if (end := run.series[chart.metric][-1]) is None else end for run in runs]
            spread = f" ({min(ends):.4g} to {max(ends):.4g})" if len(ends) > 1 else ""
            table.add_row(rule, str(len(ends)), f"{sum(ends) / len(ends):.4g}{spread}")
        print_table(console, chart.title, table)
    path = write_report(out, results, title="Results", panels=charts)
    console.print(f"Report: {path}")
    return path
