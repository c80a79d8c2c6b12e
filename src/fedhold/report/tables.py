"""Tables of numbers and words, in a page and as CSV files, and how their cells are written.

Numbers have few digits for readers, and many for files. A text that a client chose passes `visible` or `quoted`.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedhold.errors import visible
from fedhold.report.pages import Block

SHORT = 24  # letters of a text that stays in one line
READ_DIGITS = 3  # enough to compare two results at a glance
STORED_DIGITS = 8  # more than any two seeds have in common


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
        texts, classes = self.texts, []
        for k, name in enumerate(self.header):
            known = [row[k] for row in self.rows if row[k] is not None]
            if known and all(isinstance(value, int | float) and not isinstance(value, bool) for value in known):
                classes.append("number")
            elif name in self.long:
                classes.append("long")
            else:
                classes.append("short" if max((len(row[k]) for row in texts), default=0) <= SHORT else "")
        return classes


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


# Cells


def number(value: float, digits: int = READ_DIGITS) -> str:
    """A number for a reader, with `digits` significant digits; below 100000 all digits before the point are written.

    >>> [number(v) for v in (0.12345, 12345.6, 1.5e12, 2e-7, math.inf, math.nan)]
    ['0.123', '12346', '1.5e12', '2e-7', '∞', '-']
    """
    if math.isnan(value):
        return "-"
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if 10**digits <= abs(value) < 1e5:
        return f"{value:.0f}"
    return re.sub(r"e\+?(-?)0*", r"e\1", f"{value:.{digits}g}")


def decimals(values: Iterable[float]) -> int:
    """How many digits after the point the numbers of a column have: as many as `number` gives any of them, within reason.

    >>> decimals([0.25, 1 / 3, 12.0]), decimals([5.0, 7.0])
    (3, 0)
    """
    written = {value: number(value) for value in values if math.isfinite(value)}
    places = {value: len(text.partition(".")[2]) for value, text in written.items() if "e" not in text}
    if not places:
        return 0
    largest = places[max(places, key=abs)]
    return min(max(places.values()), max(READ_DIGITS, largest + READ_DIGITS - 1))


def fixed(value: float, places: int) -> str:
    """A number of a column whose numbers all have so many digits after the point; `number` where that would not show it.

    >>> [fixed(v, 2) for v in (0.123, 7.0, 1.5e12, 2e-7, math.nan)]
    ['0.12', '7.00', '1.5e12', '2e-7', '-']
    """
    shown = math.isfinite(value) and abs(value) < 1e5 and (value == 0 or abs(value) >= 0.5 * 10**-places)
    return f"{value:.{places}f}" if shown else number(value)


def column(values: Sequence[object]) -> list[str]:
    """A table's column for a reader: floats with equally many digits after the point, yes or no for bools, nothing for None.

    >>> column([1 / 3, 2.0, 1234, True, None, "huber"])
    ['0.333', '2.000', '1234', 'yes', '', 'huber']
    """
    places = decimals(value for value in values if isinstance(value, float))
    return [_cell(value, places) for value in values]


def _cell(value: object, places: int) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return fixed(value, places) if isinstance(value, float) else str(value)


def csv_cell(value: object) -> object:
    """A cell of a CSV file: floats have eight digits, and NaN (not measured) is an empty cell.

    >>> [csv_cell(v) for v in (1 / 3, math.nan, 7, "huber")]
    ['0.33333333', '', 7, 'huber']
    """
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.{STORED_DIGITS}g}"
    return value


def quoted(text: object) -> str:
    """The visible text for a cell of a CSV file: an apostrophe precedes what a spreadsheet would take for a formula.

    >>> quoted("=1+1"), quoted("numbers that are not finite")
    ("'=1+1", 'numbers that are not finite')
    """
    shown = visible(text)
    return f"'{shown}" if shown.lstrip()[:1] in ("=", "+", "-", "@") and shown.strip() else shown
