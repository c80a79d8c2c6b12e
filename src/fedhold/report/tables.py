"""Tables of a report, and the CSV files that hold their numbers."""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Table", "file_paths", "write_tables"]


@dataclass(frozen=True)
class Table:
    """One table: a cell is text, a number, a bool or None."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[object]]


def write_tables(folder: Path, tables: Sequence[Table]) -> None:
    """A CSV file for each table."""
    folder.mkdir(parents=True, exist_ok=True)
    for path, table in zip(file_paths(folder, [table.title for table in tables], ".csv"), tables, strict=True):
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(table.header)
            writer.writerows([[_digits(value) for value in row] for row in table.rows])


def file_paths(folder: Path, titles: Iterable[str], suffix: str) -> list[Path]:
    """A file for each title, the same in every report; a title met before gets a number."""
    names: list[str] = []
    for title in titles:
        name = re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-.")[:100] or "untitled"
        again = sum(re.fullmatch(rf"{re.escape(name)}(-again-\d+)?", other) is not None for other in names)
        names.append(f"{name}-again-{again}" if again else name)
    return [folder / f"{name}{suffix}" for name in names]


def _digits(value: object) -> object:
    """Eight digits are more than any seed repeats; an empty cell was not measured."""
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.8g}"
    return value
