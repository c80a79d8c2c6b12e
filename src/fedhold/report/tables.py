"""Tables of numbers and words: in a page, and as CSV files."""

from __future__ import annotations

import csv
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedhold.report.formats import column, csv_cell
from fedhold.report.pages import Block

SHORT = 24  # letters of a text that stays in one line


@dataclass(frozen=True)
class Table(Block):
    """One table. A page shows it without its title, which names the CSV file.

    header   one word or more for each column; a header of empty texts is not shown
    rows     cells that are text, numbers, bools or None
    long     the columns whose texts are broken into lines
    """

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    long: Collection[str] = ()

    @property
    def texts(self) -> list[tuple[str, ...]]:
        """The rows as a page shows them."""
        columns = [column([row[k] for row in self.rows]) for k in range(len(self.header))]
        return list(zip(*columns, strict=True))

    @property
    def classes(self) -> list[str]:
        """The CSS class of each column: numbers are flush right, long texts are broken into lines, short ones never."""
        return [self._class_of(k, name) for k, name in enumerate(self.header)]

    def _class_of(self, k: int, name: str) -> str:
        if _numbers([row[k] for row in self.rows]):
            return "number"
        if name in self.long:
            return "long"
        return "short" if max((len(row[k]) for row in self.texts), default=0) <= SHORT else ""


def write_tables(folder: Path, tables: Sequence[Table]) -> None:
    """Write a CSV file for each table into `folder`, which is made where it is missing."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, table in zip(file_paths(folder, [table.title for table in tables], ".csv"), tables, strict=True):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(table.header)
            writer.writerows([[csv_cell(value) for value in row] for row in table.rows])


def file_paths(folder: Path, titles: Iterable[str], suffix: str) -> list[Path]:
    """A file in `folder` for each title, the same in every report; a title that occurred before gets a number."""
    names: list[str] = []
    for title in titles:
        name = re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-.")[:100] or "untitled"
        again = sum(re.fullmatch(rf"{re.escape(name)}(-again-\d+)?", other) is not None for other in names)
        names.append(f"{name}-again-{again}" if again else name)
    return [folder / f"{name}{suffix}" for name in names]


def _numbers(column: Sequence[object]) -> bool:
    return any(value is not None for value in column) and all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in column
    )
