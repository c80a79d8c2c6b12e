"""How a benchmark is told on the screen; `cell` and `shown_rules` serve the document as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import Console
from rich.markup import escape

from fedhold.bench.measure import OURS, YARDSTICK
from fedhold.bench.peers import LIBRARIES
from fedhold.bench.round import TARGET as FASTER
from fedhold.bench.scaling import TARGET as SLOPE
from fedhold.report import print_table, table_of

__all__ = ["best_of", "cell", "libraries_of", "print_machine", "print_results", "remarks", "rules_of", "title"]

TITLES = {"certificate": "huber + certificate", "nearest_neighbour_mixing": "nearest_neighbour_mixing, trimmed_mean"}
SHORT = {"certificate": "huber, certified", "nearest_neighbour_mixing": "mixing, trimmed"}  # for 80 columns
WORDS = {"failed": "failed", "too large": "memory", "not installed": "-"}

Row = Mapping[str, Any]


def title(rule: str) -> str:
    """A rule as readers know it."""
    return TITLES.get(rule, rule)


def rules_of(shape: Row) -> list[str]:
    """Rules in the order they were measured, without the yardstick."""
    return list(dict.fromkeys(row["rule"] for row in shape["rows"] if row["rule"] != YARDSTICK))


def libraries_of(shape: Row) -> list[str]:
    """Who is in the table: ours, then the others that are installed."""
    there = {row["library"] for row in shape["rows"] if row["status"] != "not installed"}
    return [name for name in (OURS, *LIBRARIES) if name in there]


def cell(row: Row | None) -> str:
    """A multiple of the mean, with a mark where it is of one call only; or why there is none."""
    if row is None:
        return "-"
    if "multiple" not in row or row["status"] == "failed":
        return WORDS[row["status"]]
    times = row["multiple"]
    text = f"{times:,.0f}" if times >= 100 else f"{times:.3g}" if times >= 10 else f"{times:.1f}"
    return text + (" (once)" if row["status"] == "once" else "")


def best_of(shape: Row, rule: str) -> str:
    """The library that was fastest."""
    rows = [row for row in shape["rows"] if row["rule"] == rule and "multiple" in row and row["status"] != "failed"]
    return min(rows, key=lambda row: row["multiple"])["library"] if rows else ""


def remarks(shape: Row) -> list[str]:
    """What cells cannot say: errors, what would not fit, what was run once."""
    return [
        f"{row['library']}, {title(row['rule'])}: {row['status']}: {row['reason']}"
        for row in shape["rows"]
        if row["reason"] and row["status"] != "not installed"
    ]


def print_machine(console: Console, environment: Row) -> None:
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    threads = ", ".join(f"{name} {value}" for name, value in environment["threads"].items())
    console.print(
        f"{environment['processor']}, {environment['cores']} cores, {environment['memory available']} available; "
        f"Python {environment['python']}; {versions}\nThreads: {threads}\n",
        markup=False,
    )


def print_results(console: Console, results: Row) -> None:
    """Every table of a run."""
    for shape in results["shapes"]:
        _print_shape(console, shape)
    if results.get("scaling"):
        _print_scaling(console, results["scaling"])
    if results.get("round"):
        _print_round(console, results["round"])


def _print_shape(console: Console, shape: Row) -> None:
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


def _print_scaling(console: Console, rows: list[Row]) -> None:
    table = table_of("rule", "over", "from", "to", "slope", "target", numbers=("from", "to", "slope", "target"))
    for row in rows:
        target = "" if row["rule"] == YARDSTICK else f"<= {SLOPE}"
        missed = target and row["slope"] > SLOPE
        shown = f"[red]{row['slope']:.2f}[/red]" if missed else f"{row['slope']:.2f}"
        table.add_row(row["rule"], row["axis"], f"{row['sizes'][0]:,}", f"{row['sizes'][-1]:,}", shown, target)
    print_table(console, "Growth: seconds ~ size^slope", table)
    console.print()


def _print_round(console: Console, found: Row) -> None:
    if "failed" in found:
        console.print(escape(f"One round: not measured: {found['failed']}"))
        return
    parts = list(next(iter(found["best"].values())))
    table = table_of("", *parts, "ms in all", numbers=(*parts, "ms in all"))
    for name, seconds in found["best"].items():
        table.add_row(name, *(f"{1000 * seconds[part]:.1f}" for part in parts), f"{1000 * sum(seconds.values()):.1f}")
    print_table(console, f"One round on MNIST, {found['clients']} clients, {found['liars']} lie; ms", table)
    if "faster" in found:
        console.print(f"fedhold is {found['faster']:.1f} times faster (target: at least {FASTER:g}).")
    if found["missing"]:
        console.print(escape(f"torch and ByzFL: not installed: {found['missing']}"))
