"""The command `fedhold reproduce`: run parts of the paper, judge its claims, print the verdicts, write the report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table as Printed

from fedhold.errors import integer, unknown
from fedhold.lab import (
    ANSWER,
    Experiment,
    News,
    Panel,
    Result,
    Store,
    Verdict,
    run_all,
    run_tasks,
    tell,
    write_report,
)
from fedhold.lab.paper import sweeps, table1, theory
from fedhold.lab.paper.claims import Claim, Judged, by_reading, by_words, go_on, judged
from fedhold.lab.paper.figures import AUTOMATIC_T, FIGURES, METHODS, NAMES, PAPER_T, Plan, experiments
from fedhold.lab.paper.readings import CHOICES, READINGS
from fedhold.lab.paper.sentences import CLAIMS
from fedhold.report import Block, Cards, Paragraph, ProgressLines, Source, Table, can_plot, print_line

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
SLOWEST = "spectral_filter"  # the rule of Table 1 that takes longest to measure, and is therefore begun first


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
    effort = sweeps.QUICK if quick else sweeps.FULL
    effort = effort if seeds is None else replace(effort, seeds=plan.seeds)
    swept = run_all(sweeps.experiments(effort), store, jobs=jobs) if SWEEPS in parts else []
    illustrations = _illustrations(store, effort, console) if SWEEPS in parts else []
    measured, every = _measured(parts, jobs, quick, console), _judged(claims, store, plan)
    on_readings = [by_reading(every)] if every else []
    on_words = [readings_table(), by_words(claims, cache(store.find), plan)] if every else []
    verdicts = [one.verdict for one in every]
    for table in [*measured, *(on_readings if readings else [])]:
        console.print(_printed(table))
    if verdicts:
        console.print(claims_table(verdicts))
    path = write_report(
        out,
        [*results, *swept],
        title="The paper, reproduced" + (" (quick: few rounds on MNIST, nothing to conclude from)" if quick else ""),
        about=ABOUT,
        verdicts=verdicts,
        reading=READING,
        tables=[*measured, *on_readings, *on_words, *(one.table for one in illustrations)],
        panels=_panels(figures, plan, found),
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


def _illustrations(store: Store, effort: sweeps.Effort, console: Console) -> list[sweeps.Illustration]:
    """The figures of the sweeps, each with its sentence printed as soon as it is made."""
    made = []
    for one in chain(sweeps.illustrated(store.find, effort), sweeps.theorems(effort)):
        print_line(console, f"{one.name}: {one.sentence}")
        made.append(one)
    return made


def _judged(claims: Sequence[Claim], store: Store, plan: Plan) -> list[Judged]:
    """The claims under the main reading, and under all others whose runs are in the store."""
    results = cache(store.find)
    return [judged(claim, results, plan, READINGS.values()) for claim in claims]


def readings_table() -> Table:
    """What the paper leaves open: the sentence, the value of the main reading, and the others."""
    rows = []
    for choice in CHOICES:
        others = "; ".join(f"{reading.name}: {reading.value}" for reading in choice.others)
        stated = " (the paper is exact: the other value only shows what hangs on it)" if choice.stated else ""
        rows.append((choice.name, f"{choice.quote} ({choice.where})", choice.main, others + stated))
    return Table("What the paper leaves open", ("choice", "the sentence", "main reading", "other readings"), rows)


def _panels(figures: Sequence[str], plan: Plan, found: dict[Experiment, Result]) -> list[Panel]:
    return [
        Panel(
            title=subfigure.title,
            metric=subfigure.metric,
            series={NAMES[label]: [found[run] for run in subfigure.curve(label, plan)] for label in METHODS},
            log=subfigure.metric == "rmse",
        )
        for figure in figures
        for subfigure in FIGURES[figure]
    ]


@dataclass(frozen=True)
class _Measurement:
    """A task for a worker process: a row of Table 1, or the theory where `rule` is None."""

    rule: str | None
    quick: bool

    @property
    def size(self) -> int:
        """How many numbers it gives."""
        return len(set(theory.CASES)) if self.rule is None else len(table1.CRITERIA)


def _measured(parts: Sequence[str], jobs: int, quick: bool, console: Console) -> list[Table]:
    """The tables of table1 and theory, measured in processes of their own."""
    rules = sorted(table1.SPECS, key=lambda rule: rule != SLOWEST) if "table1" in parts else []
    tasks = [_Measurement(rule, quick) for rule in rules]
    tasks += [_Measurement(None, quick)] if "theory" in parts else []
    measured = _measure_all(tasks, jobs, console) if tasks else []
    cells = [item for item in measured if isinstance(item, table1.Cell)]
    rows = [item for item in measured if isinstance(item, theory.Looseness)]
    return [*(_table_1(cells) if cells else []), *([_theory(rows)] if rows else [])]


def _measure_all(tasks: Sequence[_Measurement], jobs: int, console: Console) -> list[table1.Cell | theory.Looseness]:
    columns = (TextColumn("table1, theory: {task.completed} of {task.total} numbers"), BarColumn(None))
    sizes = [task.size for task in tasks]
    measured, now = [], ProgressLines()
    with (
        Progress(
            *columns, TimeElapsedColumn(), console=console, disable=not console.is_terminal, expand=True
        ) as progress,
        closing(run_tasks(_work, tasks, jobs=jobs)) as events,
    ):
        bar, done = progress.add_task("", total=sum(sizes)), [0] * len(tasks)
        for event in events:
            if isinstance(event, News):
                done[event.task] = round(event.fraction * sizes[event.task])
            elif event.failure is not None:
                raise RuntimeError(f"{tasks[event.task]} failed:\n{event.failure}")
            else:
                done[event.task] = sizes[event.task]
                measured += event.result
            progress.update(bar, completed=sum(done))
            if not console.is_terminal:
                now.say(f"table1, theory: {sum(done)} of {sum(sizes)} numbers")
    return measured


def _work(task: _Measurement) -> list[table1.Cell | theory.Looseness]:
    """Measure in a worker process; tells after every number."""
    if task.rule is None:
        numbers: Iterator[table1.Cell | theory.Looseness] = theory.measure(quick=task.quick)
    else:
        numbers = table1.measure(table1.QUICK if task.quick else table1.FULL, [task.rule])
    measured = []
    for number in numbers:
        measured.append(number)
        tell(len(measured) / task.size)
    return measured


def _table_1(cells: Sequence[table1.Cell]) -> list[Table]:
    rows: list[tuple[object, ...]] = []
    for rule in table1.SPECS:
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
        f"theorem {number}: {low:.2f} to {high:.2f}" for number, (low, high) in theory.loosest(list(rows)).items()
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


def claims_table(verdicts: Sequence[Verdict]) -> Printed:
    """The verdicts for a terminal."""
    table = Printed(title="Claims of the paper", box=box.SIMPLE_HEAD, pad_edge=False, show_lines=True)
    for column in ("verdict", "claim", "where", "numbers"):
        table.add_column(column, overflow="fold")
    for verdict in verdicts:
        colour = COLOURS[verdict.outcome]
        cells = (escape(part) for part in (verdict.says, verdict.where, verdict.numbers))
        table.add_row(f"[{colour}]{verdict.outcome}[/{colour}]", *cells)
    return table


def _printed(table: Table) -> Printed:
    printed = Printed(title=escape(table.title), box=box.SIMPLE_HEAD, pad_edge=False)
    for column in table.header:
        printed.add_column(escape(column), overflow="fold")
    for row in table.rows:
        printed.add_row(*(escape(str(part)) for part in row))
    return printed
