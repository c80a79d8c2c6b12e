"""The command `fedhold reproduce`: run parts of the paper, judge its claims, print the verdicts, write the report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track
from rich.text import Text

from fedhold.errors import integer, unknown
from fedhold.lab import ANSWER, Done, Panel, Store, Verdict, run_all, run_tasks, write_report
from fedhold.lab.paper import sweeps, table1, theory
from fedhold.lab.paper.claims import Claim, by_reading, by_words, go_on, judged
from fedhold.lab.paper.figures import AUTOMATIC_T, FIGURES, METHODS, NAMES, PAPER_T, Plan, experiments
from fedhold.lab.paper.readings import READINGS, readings_table
from fedhold.lab.paper.sentences import CLAIMS
from fedhold.report import (
    Block,
    Cards,
    Paragraph,
    ProgressLines,
    Source,
    Table,
    can_plot,
    print_blocks,
    print_line,
    print_table,
    table_of,
)

ABOUT: tuple[Block, ...] = (
    Source(
        "P. Zhao, F. Yu, Z. Wan: A Huber Loss Minimization Approach to Byzantine Robust Federated Learning. AAAI 2024,",
        "doi:10.1609/aaai.v38i19.30181",
        "https://doi.org/10.1609/aaai.v38i19.30181",
    ),
    Table(
        "The paper's names, and ours",
        ("paper", "here", "what it is"),
        (
            ("KA", "krum_attack", "attack: as far against the gradient as Krum still follows"),
            ("TMA", "trimmed_mean_attack", "attack: every liar far out on the wrong side of every coordinate"),
            ("HLMA", "huber_attack", "attack: each liar moves against the gradient by no more than its threshold"),
            ("our method", PAPER_T, "the Huber aggregator with the T that the paper gives"),
            ("", AUTOMATIC_T, "the same without a T to choose; not in the paper"),
            ("Krum", "krum", "the client closest to its neighbours; told how many lie"),
            ("GMM", "median_of_means", "geometric median of means; told how many lie"),
            ("CWM", "median", "median of every coordinate"),
            ("CWTM", "trimmed_mean", "trimmed mean of every coordinate; told how many lie"),
        ),
    ),
)
READING: tuple[Block, ...] = (
    Paragraph(
        "A claim is judged by progress: 0 is where a run without liars started, 1 is where the mean of such a run ended, on "
        "the same data. Below 0 the liars made the model worse than it was at the start."
    ),
    Paragraph(
        "A number such as +0.12 +- 0.03 is the mean over the seeds of what speaks for the claim, with the half width of its "
        "95 % t interval. A claim holds if every interval lies above 0. It fails if one lies below 0, or so close around 0 "
        "that there is no difference to speak of (level), or still holds 0 (open) with as many seeds as there may be, or "
        "with so many that those left would not change that if they came out like the best one so far. It depends where it "
        "holds under one reading of what the paper leaves open, and fails under another."
    ),
    Paragraph(
        "The metric behind a method's name, as in (krum 7.071), is its mean over the last tenth of the rounds. The numbers "
        "below a chart are those of single rounds instead."
    ),
)

PARTS = (*FIGURES, "table1", "theory")
SWEEPS = "sweeps"  # no part of the paper, and therefore none of 'all', which takes long enough without it
COLOURS = {"holds": "green", "fails": "red", "depends": "yellow", "undecided": "yellow"}


def parts_named(what: Sequence[str]) -> list[str]:
    """The parts that are named, in the order of the paper, each once; 'all' names all of the paper, but not the sweeps."""
    for word in what:
        if word not in (*PARTS, SWEEPS, "all"):
            raise ValueError(unknown("part of the paper", word, (*PARTS, SWEEPS, "all")))
    if not what:
        raise ValueError(f"nothing to reproduce. Name some of {', '.join(PARTS)}, {SWEEPS}, or all.")
    return [part for part in (*PARTS, SWEEPS) if part in what or ("all" in what and part != SWEEPS)]


def reproduce(
    what: Sequence[str],
    *,
    seeds: int | None = None,
    mnist_seeds: int | None = None,
    jobs: int = 2,
    quick: bool = False,
    readings: bool = False,
    out: Path = Path("reproduction"),
    console: Console | None = None,
) -> Path:
    """Reproduce parts of the paper, and return the path of the report.

    what         some of fig1 to fig5, table1, theory; or all, which is all of these; and sweeps, which the paper lacks
    seeds        how many to begin with for synthesized data, 3 by default and 2 for sweeps; with `quick` 1
    mnist_seeds  how many to begin with for MNIST, 1 by default
    jobs         how many processes to run at once
    quick        few rounds on MNIST too, no more seeds than that, and less effort for table1 and theory: to see that it works,
                 not to conclude
    readings     run the other readings of what the paper leaves open, too; that takes a night
    out          the directory for results/ (one file per run, found again next time), report.html, numbers/ and figures/
    console      where to print; standard output by default

    Where the seeds leave a claim undecided, its open comparisons get more. It can be interrupted at any time: the same call
    goes on from there.
    """
    console = console or Console(highlight=False)
    parts, plan = parts_named(what), Plan.of(seeds, mnist_seeds, quick=quick)
    integer(jobs, "jobs", at_least=1)
    if quick and readings:
        raise ValueError(
            "--quick trains MNIST for a few rounds, which no reading is about. Leave out --quick or --readings."
        )
    figures = [part for part in parts if part in FIGURES]
    claims = [claim for claim in CLAIMS if set(claim.needs) <= set(figures)]
    store = Store(out / "results")
    # One list for all figures: they share the workers, and some of their runs.
    runs = list(dict.fromkeys(run for figure in figures for run in experiments(figure, plan)))
    results = run_all(runs, store, jobs=jobs) if runs else []
    _run_until_decided(claims, plan, store, jobs)
    for reading in READINGS.values() if readings else ():
        print_line(console, f"Reading: {reading.name} ({reading.value})")
        _run_until_decided(claims, replace(plan, reading=reading), store, jobs)
    found = {result.experiment: result for result in results}
    panels = [
        Panel(
            title=subfigure.title,
            metric=subfigure.metric,
            series={NAMES[label]: [found[run] for run in subfigure.curve(label, plan)] for label in METHODS},
            log=subfigure.metric == "rmse",
        )
        for figure in figures
        for subfigure in FIGURES[figure]
    ]
    swept, illustrations = [], list[sweeps.Illustration]()
    if SWEEPS in parts:
        effort = sweeps.QUICK if quick else sweeps.FULL
        effort = effort if seeds is None else replace(effort, seeds=plan.seeds)
        swept = run_all(sweeps.experiments(effort), store, jobs=jobs)
        for one in chain(sweeps.illustrated(store.find, effort), sweeps.theorems(effort)):
            print_line(console, f"{one.name}: {one.sentence}")
            illustrations.append(one)
    tables, verdicts = _measured(parts, jobs, quick, console), list[Verdict]()
    shown = list(tables)
    if claims:
        stored = cache(store.find)
        every = [judged(claim, stored, plan, READINGS.values()) for claim in claims]
        verdicts = [one.verdict for one in every]
        shown += [by_reading(every)] if readings else []
        tables += [by_reading(every), readings_table(), by_words(claims, stored, plan)]
    print_blocks(console, shown)
    _print_verdicts(console, verdicts)
    path = write_report(
        out,
        [*results, *swept],
        title="The paper, reproduced" + (" (quick: few rounds on MNIST, nothing to conclude from)" if quick else ""),
        about=ABOUT,
        verdicts=verdicts,
        reading=READING,
        tables=[*tables, *(one.table for one in illustrations)],
        panels=panels,
        opening={ANSWER: [block for one in illustrations for block in (Cards([one.chart]), Paragraph(one.sentence))]},
    )
    for one in illustrations if can_plot() else ():
        for suffix in ("png", "pdf"):
            one.chart.save(path.parent / "figures" / f"{one.name}.{suffix}")
    print_line(console, f"Report: {path}")
    return path


def _run_until_decided(claims: Sequence[Claim], plan: Plan, store: Store, jobs: int) -> None:
    """Run more seeds for what is undecided under the plan's reading, until nothing is."""
    while more := [run for run in go_on(claims, cache(store.find), plan) if not store.has(run)]:
        run_all(more, store, jobs=jobs)


def _measured(parts: Sequence[str], jobs: int, quick: bool, console: Console) -> list[Table]:
    """The tables of table1 and theory, measured in processes of their own."""
    effort, draws = (table1.QUICK, theory.QUICK_DRAWS) if quick else (table1.FULL, theory.DRAWS)
    cells = [partial(table1.measure, rule, aspect, effort) for rule in table1.RULES for aspect in table1.CRITERIA]
    cases = [partial(theory.measure, case, draws) for case in theory.CASES]
    tasks = [*(cells if "table1" in parts else []), *(cases if "theory" in parts else [])]
    measured: dict[int, Any] = {}
    words, now = "table1, theory", ProgressLines()
    with closing(run_tasks(_call, tasks, jobs=jobs)) as events:
        done = (event for event in events if isinstance(event, Done))
        for event in track(done, words, total=len(tasks), console=console, disable=not (tasks and console.is_terminal)):
            if event.failure is not None:
                raise RuntimeError(f"{tasks[event.task]} failed:\n{event.failure}")
            measured[event.task] = event.result
            if not console.is_terminal:
                now.say(f"{words}: {len(measured)} of {len(tasks)} numbers")
    found = [measured[k] for k in range(len(tasks))]
    split = len(cells) if "table1" in parts else 0
    return [*(_table_1(found[:split]) if split else []), *([_theory(found[split:])] if "theory" in parts else [])]


def _call(task: Callable[[], Any]) -> Any:
    """Measure in a worker process."""
    return task()


def _table_1(cells: Sequence[table1.Cell]) -> list[Table]:
    rows: list[tuple[object, ...]] = []
    for rule in table1.RULES:
        own = [cell for cell in cells if cell.rule == rule]
        rows.append((rule, *map(str, own), f"{sum(cell.agrees for cell in own)} of {len(own)}"))
    title = "Table 1, measured: yes or no (the number); where the paper says otherwise, its word"
    criteria = [(aspect, criterion.number, str(criterion)) for aspect, criterion in table1.CRITERIA.items()]
    return [
        Table(title, ("rule", *table1.CRITERIA, "agrees"), rows),
        Table("Table 1: what makes a yes", ("property", "number", "yes if"), criteria),
    ]


def _theory(rows: Sequence[theory.Looseness]) -> Table:
    ranges = "; ".join(
        f"theorem {number}: {low:.2f} to {high:.2f}" for number, (low, high) in theory.loosest(rows).items()
    )
    cells = [
        (
            *(row.case.theorem, row.case.n, row.case.m, row.case.epsilon),
            *(f"{number:.3g}" for number in (row.threshold, row.bound, row.error, row.ratio, row.automatic)),
        )
        for row in rows
    ]
    header = ("theorem", "n", "m", "epsilon", "T", "bound", "largest error", "bound / error", "error, automatic T")
    return Table(f"Theory: bound over largest error met ({ranges})", header, cells)


def _print_verdicts(console: Console, verdicts: Sequence[Verdict]) -> None:
    table = table_of("verdict", "claim", "where", "numbers")
    table.show_lines = True
    for verdict in verdicts:
        table.add_row(
            Text(verdict.outcome, COLOURS[verdict.outcome]), *map(Text, (verdict.says, verdict.where, verdict.numbers))
        )
    print_table(console, "Claims of the paper", table)
