"""fedhold run and fedhold report: grids of experiments, and the report of whatever results or audit there are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from fedhold.audit import find_audit, report_audit
from fedhold.lab import MissingResult, Panel, Result, Store, load, run_all, write_report
from fedhold.report import print_table, table_of, visible

__all__ = ["panels", "play", "report"]

SHOWN = 10  # suspects; the report has them all


def play(config: Path, *, jobs: int, out: Path, console: Console) -> Path:
    """Run the grid of a configuration, print where each curve ends, and write the report."""
    experiments = load(config)
    results = run_all(experiments, Store(out / "results"), jobs=jobs, progress=console.is_terminal)
    return _finish(results, out, console)


def report(path: Path, *, out: Path | None, console: Console) -> Path:
    """The report of the results in a directory; or of an audit, where the path is one or holds one."""
    audit = find_audit(path)
    if audit is not None:
        return _report_audit(audit, out, console)
    if path.suffix == ".jsonl":
        raise MissingResult(
            f"{path} does not exist. A strategy writes it, round by round, when told audit={path.name!r}."
        )
    folder = path / "results" if (path / "results").is_dir() else path
    results = Store(folder).all()
    if not results:
        raise MissingResult(f"no results in {folder}. Make some with: fedhold run examples/grid.toml --out {path}")
    return _finish(results, path if out is None else out, console)


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


def _report_audit(audit: Path, out: Path | None, console: Console) -> Path:
    page, suspects = report_audit(audit, out)
    for one in suspects[:SHOWN]:
        why = f" ({visible(one.reasons[0][0], encoding=console.encoding)})" if one.reasons else ""
        said = f"Suspect: node {visible(one.node)}, held down in {one.held} of {one.asked} rounds{why}"
        console.print(said, markup=False, soft_wrap=True)
    if len(suspects) > SHOWN:
        console.print(f"And {len(suspects) - SHOWN} suspects more.")
    console.print(f"Report: {page}", markup=False, soft_wrap=True)
    return page


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
