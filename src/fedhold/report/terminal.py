"""Lines and tables in the terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from fedhold.errors import visible
from fedhold.report.pages import Block, Paragraph
from fedhold.report.tables import Table

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table as Printed

LONGEST = 4000  # characters of a line; a path may have that many


def table_of(*columns: str, numbers: tuple[str, ...] = ()) -> Printed:
    """An empty table with these columns; those named in `numbers` are flush right."""
    from rich import box  # rich is loaded when something is printed
    from rich.table import Table as Printed
    from rich.text import Text

    table = Printed(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(Text(column), justify="right" if column in numbers else "left", overflow="fold")
    return table


def print_line(console: Console, text: object) -> None:
    """Print one line, which may name files: neither rich nor the terminal takes any of its characters for a command."""
    line = visible(text, LONGEST, encoding=console.encoding)
    console.print(line, markup=False, highlight=False, emoji=False, soft_wrap=True)


class ProgressLines:
    """Says how far a long command has come where nobody looks at a terminal: a line on standard error now and then.

    every  seconds between two lines, and before the first one
    """

    def __init__(self, every: float = 30.0) -> None:
        self._every, self._last = every, time.monotonic()

    def say(self, text: str) -> None:
        """Print the text, unless the last line was printed less than `every` seconds ago."""
        if time.monotonic() - self._last >= self._every:
            self._last = time.monotonic()
            print(text, file=sys.stderr, flush=True)


def print_table(console: Console, title: str, table: Printed) -> None:
    """Print a table below its title; nothing where the table has no rows."""
    from rich.markup import escape

    if table.row_count:
        console.print(f"[bold]{escape(title)}[/bold]")
        console.print(table)


def print_blocks(console: Console, blocks: Iterable[Block]) -> None:
    """Print the paragraphs and tables of a page, each table below its title."""
    from rich.text import Text

    for block in blocks:
        if isinstance(block, Paragraph):
            console.print(Text(f"{block.text}\n"))
        elif isinstance(block, Table):
            numbers = tuple(name for name, kind in zip(block.header, block.classes, strict=True) if kind == "number")
            printed = table_of(*block.header, numbers=numbers)
            for row in block.texts:
                printed.add_row(*map(Text, row))
            print_table(console, block.title, printed)
