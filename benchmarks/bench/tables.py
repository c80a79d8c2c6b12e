"""The results of a benchmark as tables in the terminal, and what a table in a document shares with them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape

from bench.inputs import FirstCall, InputTimes
from bench.machine import Machine, busy
from bench.plan import Results
from bench.round import FASTER_TARGET, FailedRound, RoundTimes
from bench.timing import OURS, SLOPE_TARGET, YARDSTICK, Growth, Row, Shape, last_slope
from fedhold.report import print_table, table_of

TITLES = {
    "certificate": "huber + certificate",
    "nearest_neighbour_mixing": "nearest_neighbour_mixing, trimmed_mean",
    "bucketing": "bucketing, trimmed_mean",
    "clipping": "clipping, mean",
}
SHORT = {"certificate": "huber, certified", "nearest_neighbour_mixing": "mixing, trimmed"}  # for 80 columns
NO_MULTIPLE = {"failed": "failed", "too large": "memory", "not installed": "-"}


def title(rule: str) -> str:
    """A rule of the benchmark as its readers know it."""
    return TITLES.get(rule, rule)


def rules_of(shape: Shape) -> list[str]:
    """The rules in the order in which they were measured, without the yardstick."""
    return list(dict.fromkeys(row["rule"] for row in shape["rows"] if row["rule"] != YARDSTICK))


def libraries_of(shape: Shape) -> list[str]:
    """The libraries that are installed: ours first, then the others by name."""
    there = {row["library"] for row in shape["rows"] if row["rule"] != YARDSTICK and row["status"] != "not installed"}
    return sorted(there, key=lambda name: (name != OURS, name.casefold()))


def has_multiple(row: Row) -> bool:
    """Whether the row's time may be shown: a call that failed at its second turn has one, too, but it counts for nothing."""
    return "multiple" in row and row["status"] != "failed"


def cell(row: Row | None) -> str:
    """The multiple of the mean, marked where it comes from a single call; or why there is none."""
    if row is None:
        return "-"
    if not has_multiple(row):
        return NO_MULTIPLE[row["status"]]
    return multiple(row["multiple"]) + (" (once)" if row["status"] == "once" else "")


def multiple(times: float) -> str:
    """A multiple of the mean.

    >>> multiple(7.34), multiple(123.4)
    ('7.3', '123')
    """
    return f"{times:,.0f}" if times >= 100 else f"{times:.3g}" if times >= 10 else f"{times:.1f}"


def input_cells(rows: Sequence[InputTimes]) -> tuple[list[str], list[list[str]]]:
    """The head of a table of what people send, and its lines."""
    rules = list(dict.fromkeys(rule for row in rows for rule in row["multiples"]))
    head = ["sent", "ms of the mean", *rules]
    lines = [
        [row["name"], f"{1000 * row['seconds']:.3g}"]
        + [multiple(row["multiples"][rule]) if rule in row["multiples"] else "-" for rule in rules]
        for row in rows
    ]
    return head, lines


def first_call_cells(rows: Sequence[FirstCall]) -> tuple[list[str], list[list[str]]]:
    """The head of a table of first calls, and its lines."""
    lines = [[f"{row['rule']}, {row['dtype']}", f"{row['seconds']:.2f}"] for row in rows]
    return ["the first call", "seconds"], lines


def best_of(shape: Shape, rule: str) -> str:
    """The library that was fastest for a rule; '' where none could be measured."""
    rows = [row for row in shape["rows"] if row["rule"] == rule and has_multiple(row)]
    return min(rows, key=lambda row: row["multiple"])["library"] if rows else ""


def remarks(shape: Shape) -> list[str]:
    """What a cell has no room for: errors, memory that was needed, seconds of a single call."""
    return [
        f"{row['library']}, {title(row['rule'])}: {row['status']}: {row['reason']}"
        for row in shape["rows"]
        if row["reason"] and row["status"] != "not installed"
    ]


def print_results(console: Console, results: Results) -> None:
    """Print the machine, every table, and warnings."""
    _print_machine(console, results["environment"])
    if results.get("inputs"):
        _print_inputs(console, results)
    for shape in results["shapes"]:
        _print_shape(console, shape)
    if results.get("scaling"):
        _print_growth(console, results["scaling"])
    if results.get("round"):
        _print_round(console, results["round"])
    if warning := busy(results["settings"]["load before"]):
        console.print(f"[yellow]{warning}[/yellow]")
    for name, reason in results["left out"].items():
        console.print(f"{name} was left out: {reason}", markup=False)


def _print_machine(console: Console, machine: Machine) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    threads = ", ".join(f"{name} {value}" for name, value in machine["threads"].items())
    console.print(
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory available']} available; "
        f"Python {machine['python']}; {versions}\nThreads: {threads}\n",
        markup=False,
    )


def _print_inputs(console: Console, results: Results) -> None:
    """What people send, group by group, in multiples of the mean of the same numbers; and first calls."""
    tables = {
        f"{group}; in units of the mean": input_cells([row for row in results["inputs"] if row["group"] == group])
        for group in dict.fromkeys(row["group"] for row in results["inputs"])
    }
    tables["The first call of a process, 100 x 50,000 numbers"] = first_call_cells(results.get("first calls", []))
    for heading, (head, lines) in tables.items():
        table = table_of(*head, numbers=tuple(head[1:]))
        for line in lines:
            table.add_row(*line)
        print_table(console, heading, table)
        console.print()


def _print_shape(console: Console, shape: Shape) -> None:
    libraries = libraries_of(shape)
    found = {(row["rule"], row["library"]): row for row in shape["rows"]}
    heads = [name.replace("geom-", "geom-\n").replace(" ", "\n") for name in libraries]
    table = table_of("rule", *heads, numbers=tuple(heads))
    table.columns[0].no_wrap, table.collapse_padding = True, True  # to fit into 80 columns
    for rule in rules_of(shape):
        fastest = best_of(shape, rule)
        cells = [cell(found.get((rule, library))).replace(" (once)", "*") for library in libraries]
        bold = [
            f"[bold]{text}[/bold]" if name == fastest else text for name, text in zip(libraries, cells, strict=True)
        ]
        table.add_row(SHORT.get(rule, rule), *bold)
    mean = 1000 * found[YARDSTICK, "NumPy"]["best"]
    heading = f"{shape['m']} clients x {shape['d']:,} numbers, {shape['f']} lie; in units of {YARDSTICK}, {mean:.1f} ms"
    print_table(console, heading, table)
    for row in shape["rows"]:
        if "off" in row:
            console.print(f"{row['library']}, {row['rule']}: {row['off']:.1e} typical distances off the reference")
    for remark in remarks(shape):
        console.print(escape(remark))
    console.print()


def _print_growth(console: Console, rows: list[Growth]) -> None:
    numbers = ("from", "to", "slope", "last step", "target")
    table = table_of("rule", "over", *numbers, numbers=numbers)
    for row in rows:
        target = "" if row["rule"] == YARDSTICK else f"<= {SLOPE_TARGET}"
        slopes = [
            f"[red]{found:.2f}[/red]" if target and found > SLOPE_TARGET else f"{found:.2f}"
            for found in (row["slope"], last_slope(row))
        ]
        table.add_row(row["rule"], row["axis"], f"{row['sizes'][0]:,}", f"{row['sizes'][-1]:,}", *slopes, target)
    print_table(console, "Growth: seconds ~ size^slope", table)
    console.print()


def _print_round(console: Console, found: RoundTimes | FailedRound) -> None:
    if "failed" in found:
        console.print(escape(f"One round: not measured: {found['failed']}"))
        return
    parts = list(found["best"][OURS])
    table = table_of("", *parts, "ms in all", numbers=(*parts, "ms in all"))
    for name, seconds in found["best"].items():
        table.add_row(name, *(f"{1000 * seconds[part]:.1f}" for part in parts), f"{1000 * sum(seconds.values()):.1f}")
    print_table(console, f"One round on MNIST, {found['clients']} clients, {found['liars']} lie; ms", table)
    if "faster" in found:
        console.print(f"fedhold is {found['faster']:.1f} times faster (target: at least {FASTER_TARGET:g}).")
    if found["missing"]:
        console.print(escape(f"The other libraries' round: not installed: {found['missing']}"))
