"""fedhold init, run, reproduce and report: grids of experiments, the paper's, and the report of their results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console
from rich.markup import escape

from fedhold.cli.audits import write_audit_report
from fedhold.cli.errors import usage_errors
from fedhold.cli.parameters import Argument, Option
from fedhold.report import decimals, fixed, print_line, print_table, table_of, visible

if TYPE_CHECKING:
    from fedhold.lab import Panel, Result
    from fedhold.report import Matrix


def init(
    config: Annotated[Path, Argument("The file to write.")] = Path("grid.toml"),
) -> None:
    """Write a configuration for `fedhold run` to start from."""
    from fedhold.lab import write_start

    with usage_errors():
        write_start(config)
    print_line(Console(highlight=False), f"{config} is written. Run it with: fedhold run {config}")


def run(
    config: Annotated[Path, Argument("A TOML file; `fedhold init` writes one to start from.")],
    jobs: Annotated[int, Option("Processes to run at once.")] = 2,
    out: Annotated[Path, Option("Where results and report go; found again next time.")] = Path("runs"),
) -> None:
    """Every combination of data, partition, attack, rule and seed that a file lists; then the report."""
    from fedhold.lab import DataError, MissingResult, Store, load, run_all

    console = Console(highlight=False)
    with usage_errors(DataError, MissingResult):
        experiments = load(config)
        results = run_all(experiments, Store(out / "results"), jobs=jobs)
        _write_report(results, out, console)


def reproduce(
    what: Annotated[
        list[str],
        Argument(
            "fig1 ... fig5, table1, theory, or all of these; sweeps: curves against T, epsilon, m, n, d that the paper lacks."
        ),
    ],
    seeds: Annotated[int | None, Option("Seeds for synthesized data to begin with; 3 unless given.")] = None,
    mnist_seeds: Annotated[int | None, Option("Seeds for MNIST to begin with; 1 unless given.")] = None,
    jobs: Annotated[int, Option("Processes to run at once.")] = 2,
    quick: Annotated[bool, Option("One seed, few rounds: to see that it works.", "--quick")] = False,
    readings: Annotated[
        bool, Option("Also the other readings of what the paper leaves open: a night.", "--readings")
    ] = False,
    out: Annotated[Path, Option("Where results and report go; found again next time.")] = Path("reproduction"),
) -> None:
    """The paper's figures, its Table 1, its theory, a verdict on each of its claims, and sweeps that it lacks."""
    from fedhold.lab import DataError, MissingResult
    from fedhold.lab.paper import reproduce as reproduce_paper

    with usage_errors(DataError, MissingResult):
        reproduce_paper(what, seeds=seeds, mnist_seeds=mnist_seeds, jobs=jobs, quick=quick, readings=readings, out=out)


def report(
    path: Annotated[
        Path,
        Argument("Where results are: the --out of run, reproduce or demo; or the audit of a deployed run."),
    ],
    out: Annotated[
        Path | None,
        Option("Where the report goes; beside what it reports on unless given."),
    ] = None,
    json: Annotated[bool, Option("Of an audit: print page and suspects as JSON.", "--json")] = False,
) -> None:
    """The HTML report of stored results, or of an audit.jsonl."""
    from fedhold.audit import find_audit

    console = Console(highlight=False)
    with usage_errors():
        audit = find_audit(path)
        if audit is not None:
            write_audit_report(audit, out, console, as_json=json)
        elif path.suffix == ".jsonl":
            raise ValueError(
                f"{path} does not exist. A strategy writes it, round by round, when told audit={path.name!r}."
            )
        elif json:
            raise ValueError(
                f"{path} is no audit, and --json is for audits. Results are stored as JSON already, in {path}."
            )
        else:
            _report_results(path, out, console)


def _report_results(path: Path, out: Path | None, console: Console) -> None:
    from fedhold.lab import Store

    folder = path / "results" if (path / "results").is_dir() else path
    results = Store(folder).all()
    if not results:
        raise ValueError(f"no results in {folder}. Make some with: fedhold init, fedhold run grid.toml --out {path}")
    _write_report(results, path if out is None else out, console)


def _write_report(results: Sequence[Result], out: Path, console: Console) -> None:
    """Print the worst case of each rule and where each curve ends, and write the page."""
    from fedhold.lab import Differences, matrices, panels_of, write_report

    common = Differences.among(one.experiment for one in results).common
    if common:
        print_line(console, f"All runs: {', '.join(common)}.")
        console.print()
    for matrix in matrices(results):
        _print_worst_cases(matrix, console)
    for panel in panels_of(results):
        _print_ends(panel, console)
    refused = {(one.infeasible, one.experiment.rule) for one in results if one.infeasible}
    reasons = table_of("infeasible", "reason")
    for reason, rule in sorted(refused):
        reasons.add_row(escape(visible(rule)), escape(visible(reason)))
    print_table(console, "Not run", reasons)
    path = write_report(out, results, title="Results")
    print_line(console, f"Report: {path}")


def _print_worst_cases(matrix: Matrix, console: Console) -> None:
    """The answer in short: how bad it gets for each rule, and where."""
    from fedhold.lab import where_of, worst_cases

    metric = matrix.axes[0][0] or "result"
    table = table_of("rule", metric, "where", numbers=(metric,))
    for rule, entry in worst_cases(matrix):
        value = entry.mark or fixed(entry.value, matrix.scale.digits)
        table.add_row(escape(visible(rule)), value, escape(visible(where_of(matrix, entry))))
    print_table(console, f"The worst {metric} of each rule at the end", table)


def _print_ends(panel: Panel, console: Console) -> None:
    """Where each curve of a panel ends."""
    at_the_end = f"{panel.metric} at the end"
    table = table_of("rule", "seeds", at_the_end, numbers=("seeds", at_the_end))
    found = {rule: [math.nan if one.end is None else one.end for one in runs] for rule, runs in panel.series.items()}
    places = decimals(end for ends in found.values() for end in ends)
    for rule, ends in found.items():
        spread = f" ({fixed(min(ends), places)} to {fixed(max(ends), places)})" if len(ends) > 1 else ""
        mean = sum(ends) / len(ends)
        shown = "diverged" if math.isnan(mean) else f"{fixed(mean, places)}{spread}"
        table.add_row(escape(visible(rule)), str(len(ends)), shown)
    print_table(console, visible(panel.title), table)
