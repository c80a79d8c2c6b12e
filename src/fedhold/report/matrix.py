"""A table of rules by attacks that readers sort and filter, with the numbers of some rounds behind every cell.

The page's script draws it from what the block holds as JSON. Colours are those of the heat maps, which differ in brightness
for every eye, and every cell has its number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np

from fedhold.report.colours import SCALE_COLOURS, rule_style
from fedhold.report.pages import Block

DIGITS, CURVE_DIGITS = 9, 3  # significant digits in the page: of numbers, and of curves


@dataclass(frozen=True)
class Facet:
    """What the matrix can be filtered by: one of the choices, or one of the groups of them.

    name     what the choices are, such as "setting"
    choices  in the order of their numbers
    groups   label -> the numbers of some choices; "all" is always there
    """

    name: str
    choices: Sequence[str]
    groups: Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class Entry:
    """One number of the matrix; several that share row and column stand in one cell, which shows the worst or their mean.

    row, column  numbers of its row and column
    facets       for each facet the number of its choice
    value        the number; where it is not finite it counts as worse than any other
    low, high    the interval over seeds
    mark         a word in place of the number, such as "refused" or "diverged"
    end          the metric behind the number, for the reader
    curve        the metric at some rounds, None where it was not finite
    """

    row: int
    column: int
    facets: tuple[int, ...]
    value: float
    low: float
    high: float
    mark: str = ""
    end: float | None = None
    curve: tuple[float | None, ...] = ()


@dataclass(frozen=True)
class Scale:
    """How the numbers of a matrix are written and coloured.

    worst, best      the numbers of the darkest and the brightest colour; those beyond have the same
    worst_is, best_is  what the legend says of them
    logarithmic      whether the colours follow the logarithm of the number
    digits           after the point
    """

    worst: float = 0.0
    best: float = 1.0
    worst_is: str = "0: nothing learnt"
    best_is: str = "1: as averaging without an attack, or better"
    logarithmic: bool = False
    digits: int = 2


@dataclass(frozen=True)
class Matrix(Block):
    """Rows x columns, with facets to filter by.

    title    of the figure
    rows     rules, each with a note that may be empty, such as "told f"
    columns  names
    facets   the filters; of the first, `axes` says for each choice the metric of its curves and their rounds. Without facets
             there is one axis; a facet with a single choice is not shown
    entries  the numbers
    scale    that of shares from 0 to 1 by default
    plain    how many of the first columns have no attack, and do not count for the worst case of a rule
    """

    template: ClassVar[str] = "matrix.html"
    title: str
    rows: Sequence[tuple[str, str]]
    columns: Sequence[str]
    facets: Sequence[Facet]
    axes: Sequence[tuple[str, Sequence[int]]]
    entries: Sequence[Entry]
    scale: Scale = Scale()
    plain: int = 1

    @property
    def data(self) -> dict[str, Any]:
        """All of it in plain values, for the script."""
        return {
            "rows": self.rows,
            "styles": [(style.colour, style.dashes) for style in (rule_style(name) for name, _ in self.rows)],
            "columns": self.columns,
            "facets": [
                {"name": facet.name, "choices": facet.choices, "groups": list(facet.groups.items())}
                for facet in self.facets
            ],
            "axes": [(metric, list(rounds)) for metric, rounds in self.axes],
            "entries": [
                (
                    *(entry.row, entry.column, entry.facets, *map(_short, (entry.value, entry.low, entry.high))),
                    *(entry.mark, _short(entry.end), [_short(value, CURVE_DIGITS) for value in entry.curve]),
                )
                for entry in self.entries
            ],
            "colours": SCALE_COLOURS,
            "scale": asdict(self.scale),
            "plain": self.plain,
        }


def _short(value: float | None, digits: int = DIGITS) -> float | None:
    """A number with few digits; None for what JSON has no number for."""
    return None if value is None or not np.isfinite(value) else float(f"{value:.{digits}g}")
