"""Charts of one metric against rounds, or against the values of a parameter.

Curve   numbers over seeds and rounds
Axis    the values of a parameter, where the numbers of curves are no rounds
Chart   curves, which part of the plane shows them, and how they are drawn
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import Vector
from fedhold.report.colours import COLOURS, Style, plain_styles
from fedhold.report.figures import CARD, SOFT, Figure, label
from fedhold.report.tables import Table, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Paper
    from matplotlib.lines import Line2D

MARKS = 5  # on every curve
MARKERS = ("o", "s", "^", "D", "v", "P")  # matplotlib's names; variants of a rule differ in them
RUNAWAY, RUNAWAY_LOG = 10.0, 1e6  # a curve that peaks so many times above the median curve may leave the chart
LARGEST = 1e300  # what is larger counts as infinite: differences must not overflow
DEEPEST = 1e-12  # of the top: what is smaller leaves a chart with a log scale
OUTSIDE = 1e3  # times the height of the chart: a value further outside is drawn there
BAND_POINTS = 150  # of the edge of a band, which has no line
TABLE_ROWS = 12  # of the table behind a chart
# A log scale that spans less has the ticks of a linear one; one that spans more than DECADES has only powers of ten.
HALF_DECADE, DECADES = 5.0, 300.0
PLOT, LEGEND_ROW = 3.0, 0.22  # inches: the height of the plot with its axis, and of a row of the legend
NARROW = 26  # letters of labels that fit beside each other


@dataclass(frozen=True, eq=False)
class Curve:
    """One line of a chart: (seeds, rounds) numbers, NaN where nothing was measured, inf where a run diverged."""

    label: str
    seeds: tuple[int, ...]
    values: NDArray[np.float64]

    def _over_seeds(self, reduce: Callable[..., Vector]) -> Vector:
        out = np.full(self.values.shape[1], np.nan)
        measured = ~np.isnan(self.values).all(axis=0)
        with np.errstate(over="ignore"):
            out[measured] = reduce(self.values[:, measured], axis=0)
        return out

    @cached_property
    def mean(self) -> Vector:
        return self._over_seeds(np.nanmean)

    @cached_property
    def low(self) -> Vector:
        return self._over_seeds(np.nanmin)

    @cached_property
    def high(self) -> Vector:
        return self._over_seeds(np.nanmax)

    @cached_property
    def rounds(self) -> NDArray[np.intp]:
        """The rounds in which something was measured, counted from 1."""
        return 1 + np.flatnonzero(~np.isnan(self.mean))


@dataclass(frozen=True)
class Axis:
    """A parameter that curves are drawn against: the k-th number of every curve belongs to the k-th value.

    name     of the parameter
    values   in rising order
    log      whether the axis is logarithmic; all values are then above 0
    marked   a value that has a line of its own, between the first and the last
    """

    name: str
    values: tuple[float, ...]
    log: bool = False
    marked: float | None = None


@dataclass(frozen=True, eq=False)
class Chart(Figure):
    """Curves of one metric against rounds, or against a parameter.

    log      whether the metric's axis is logarithmic
    limits   the least and the largest value the metric can have, or None to fit the axis to the curves
    gaps     whether a round without a number interrupts a line; else the line goes on to the next number
    axis     the parameter; None for rounds
    styles   of the curves by their labels; a colour for each where none are given
    """

    title: str
    metric: str
    curves: tuple[Curve, ...]
    log: bool = False
    limits: tuple[float, float] | None = None
    gaps: bool = False
    axis: Axis | None = None
    styles: Mapping[str, Style] = field(default_factory=dict)

    @property
    def has_numbers(self) -> bool:
        """Whether any curve has a point to draw."""
        return any(np.isfinite(line.mean).any() for line in self.curves)

    @property
    def summary(self) -> str:
        return f"{self.metric} against {'rounds' if self.axis is None else self.axis.name}"

    @property
    def note(self) -> str:
        seeds = sorted({len(line.seeds) for line in self.curves})
        if seeds[-1] < 2:
            return "One seed." * seeds[-1]  # a deployed run has none
        return f"Means over {' or '.join(map(str, seeds))} seeds; the bands go from the least to the largest."

    @property
    def table(self) -> Table:
        """The mean of every curve, at some of the rounds where there are many."""
        measured = np.unique(np.concatenate([line.rounds for line in self.curves])) - 1
        picked = measured[np.unique(np.linspace(0, measured.size - 1, min(measured.size, TABLE_ROWS)).astype(np.intp))]
        columns = [[float(line.mean[k]) if k < line.mean.size else np.nan for k in picked] for line in self.curves]
        at = 1 + picked if self.axis is None else [f"{value:g}" for value in self._places[picked]]
        rows = zip(map(str, at), *columns, strict=True)
        first = "round" if self.axis is None else self.axis.name
        return Table(self.title, tuple(map(label, (first, *(line.label for line in self.curves)))), list(rows))

    @property
    def _places(self) -> Vector:
        """Where every round lies on the horizontal axis."""
        count = max(line.mean.size for line in self.curves)
        return np.arange(1.0, count + 1) if self.axis is None else np.array(self.axis.values, np.float64)

    @property
    def notes(self) -> dict[str, str]:
        """What the legend says of curves that end early or leave the chart."""
        bottom, top = self.range
        last = max(line.rounds.max(initial=0) for line in self.curves)
        notes = {}
        for line in self.curves:
            if not line.rounds.size:
                notes[line.label] = "no numbers"
            elif (end := int(line.rounds[-1])) < last:
                at = f"after round {end}" if self.axis is None else f"at {number(self.axis.values[end - 1])}"
                notes[line.label] = f"ends {at}"
            elif (line.high > top).any() or (line.mean < bottom).any():
                notes[line.label] = "leaves the chart"
        return notes

    @cached_property
    def range(self) -> tuple[float, float]:
        """The least and the largest value shown: those of all curves, unless one runs away and would flatten the others."""
        bottom, top = self.limits or self._extent()
        if self.log:
            room = (top / bottom) ** 0.04 if top > bottom else 2.0
            return bottom / room, top * room
        room = 0.04 * (top - bottom) or 0.5 * abs(top) or 0.5
        return 0.0 if 0 <= bottom < top / 2 else bottom - room, top + room

    def _extent(self) -> tuple[float, float]:
        lows, highs = (
            [part[(np.abs(part) < LARGEST) & ((part > 0) | (not self.log))] for part in parts]
            for parts in ([line.low for line in self.curves], [line.high for line in self.curves])
        )
        peaks = [float(part.max()) for part in highs if part.size]
        if not peaks or not any(part.size for part in lows):
            return (0.1, 1.0) if self.log else (0.0, 1.0)
        limit = (RUNAWAY_LOG if self.log else RUNAWAY) * float(np.median(peaks))
        kept = [peak for peak in peaks if peak <= limit]
        top = max(peaks) if len(kept) == len(peaks) or limit <= 0 else 1.25 * max(kept)
        bottom = min(min(float(part.min()) for part in lows if part.size), top)
        return max(bottom, top * DEEPEST) if self.log else bottom, top

    # How it is drawn

    @property
    def _words(self) -> list[str]:
        """The legend."""
        return [
            label(line.label) + (f" ({note})" if (note := self.notes.get(line.label)) else "") for line in self.curves
        ]

    @property
    def _columns(self) -> int:
        """Of the legend."""
        return 2 if max(map(len, self._words)) <= NARROW else 1

    @property
    def height(self) -> float:
        return PLOT + LEGEND_ROW * -(-len(self.curves) // self._columns)

    def draw(self, paper: Paper) -> None:
        axes = paper.subplots()
        self._draw_axes(axes)
        styles = self.styles or plain_styles(line.label for line in self.curves)
        keys = [
            self._draw_curve(axes, line, styles[line.label], (k + 0.5) / len(self.curves))
            for k, line in enumerate(self.curves)
        ]
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": self._columns, "fontsize": 10}
        legend = paper.legend(keys, [""] * len(keys), **place)
        for text, words in zip(legend.get_texts(), self._words, strict=True):
            text.set_text(words)  # a legend that is given a label with a leading underscore leaves it out

    def _draw_axes(self, axes: Axes) -> None:
        from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, ScalarFormatter

        x = self._places
        x_name, x_log = ("round", False) if self.axis is None else (self.axis.name, self.axis.log)
        axes.set(
            xscale="log" if x_log else "linear",
            yscale="log" if self.log else "linear",
            xlabel=label(x_name) + " (log scale)" * x_log,
            ylabel=label(self.metric) + " (log scale)" * self.log,
            ylim=self.range,
        )
        if self.axis is None:
            axes.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10], integer=True))
        elif self.axis.marked is not None:
            axes.axvline(self.axis.marked, color=SOFT, linestyle="dashed", linewidth=1)
        for axis, (low, high), log in ((axes.xaxis, (x[0], x[-1]), x_log), (axes.yaxis, self.range, self.log)):
            if log:
                axis.set_minor_formatter(NullFormatter())
                axis.set_major_formatter(ScalarFormatter())
                axis.set_major_locator(MaxNLocator(5))
            if log and high / low > HALF_DECADE:
                axis.set_major_locator(LogLocator(subs=(1.0,) if high / low > DECADES else (1.0, 2.0, 5.0)))
                axis.set_major_formatter(FuncFormatter(lambda value, _: number(value)))  # matplotlib's own are formulas
        axes.margins(x=0.02)
        axes.grid(visible=True)
        axes.set_axisbelow(True)

    def _draw_curve(self, axes: Axes, line: Curve, style: Style, offset: float) -> Line2D:
        """Draw one curve; return what stands for it in the legend.

        offset  of its markers, from 0 to 1
        """
        from matplotlib.lines import Line2D

        met = np.arange(line.mean.size) if self.gaps else line.rounds - 1
        x, colour = self._places[met], COLOURS[style.colour]
        mean, low, high = (self._near(values[met]) for values in (line.mean, line.low, line.high))
        mean[~np.isfinite(line.mean[met])] = np.nan
        if len(line.seeds) > 1 and met.size:
            starts = stretches(met.size, BAND_POINTS)
            edges = np.minimum.reduceat(low, starts), np.maximum.reduceat(high, starts)
            axes.fill_between(x[starts], *edges, color=colour, alpha=0.16, linewidth=0)
        dashes = (0, tuple(map(float, style.dashes.split()))) if style.dashes else "solid"
        look: dict[str, Any] = {"color": colour, "linewidth": 1.7, "linestyle": dashes}
        inside, edge = (CARD, colour) if style.marker else (colour, CARD)  # those of variants are hollow
        mark: dict[str, Any] = {"marker": MARKERS[style.marker], "markerfacecolor": inside, "markeredgecolor": edge}
        axes.plot(x, mean, **look)
        there = np.pad(np.isfinite(mean), 1)
        alone = there[1:-1] & ~there[:-2] & ~there[2:]
        axes.plot(x[alone], mean[alone], ".", color=colour)
        axes.plot(*_marks(axes, x, mean, offset), color=colour, linestyle="none", zorder=3, markersize=5.5, **mark)
        return Line2D([], [], markersize=5.5, **look, **mark)

    def _near(self, values: Vector) -> Vector:
        """The values, those far outside the range a little nearer: a drawing has no room for 1e300."""
        bottom, top = self.range
        far = OUTSIDE * (top - bottom)
        return np.clip(values, *((bottom / OUTSIDE, top * OUTSIDE) if self.log else (bottom - far, top + far)))


def curve(label: str, seeds: Sequence[int], values: Sequence[Sequence[float | None]]) -> Curve:
    """A curve from one row of numbers per seed.

    None in every row means that nothing was measured in this round. None in some rows only means that those runs diverged
    (or, of a radius, proved nothing), and becomes infinity: a mean over the other runs would flatter the method.
    """
    rows = np.array(values, np.float64).reshape(len(values), -1)  # None becomes NaN
    measured = ~np.isnan(rows).all(axis=0)
    return Curve(label, tuple(seeds), np.where(np.isnan(rows) & measured, np.inf, rows))


def stretches(count: int, most: int) -> NDArray[np.intp]:
    """The first of each stretch where 0 .. count - 1 are divided into at most `most` of about the same length."""
    return np.unique(np.linspace(0, count, min(count, most), endpoint=False).astype(np.intp))


def _marks(axes: Axes, x: Vector, mean: Vector, offset: float) -> tuple[Vector, Vector]:
    """Where the markers of a curve go: on the line, at other places than those of the other curves, so that a curve that is
    covered by another is seen by its markers."""
    if x.size < 2:
        return x, mean
    across, up = axes.xaxis.get_transform(), axes.yaxis.get_transform()
    along = across.transform(x)
    at = along[0] + (along[-1] - along[0]) * (np.arange(MARKS) + offset) / MARKS
    return across.inverted().transform(at), up.inverted().transform(np.interp(at, along, up.transform(mean)))
