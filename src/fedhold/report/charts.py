"""Charts of one metric against rounds, or against the values of a parameter, drawn once for the page and for files.

    Chart     curves: numbers over seeds and rounds
    Axis      the values of a parameter, where the numbers of curves are no rounds
    Frame     the part of the plane to show, and which curves leave it
    Drawing   everything laid out: ticks, lines and bands in units of the plot, legend

`draw` makes a Drawing of a Chart. A page writes it as SVG (the macro Drawing in templates/blocks.html), and `save_png` as PNG.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import Vector
from fedhold.report.colours import Style
from fedhold.report.formats import decimals, fixed, number
from fedhold.report.pages import Block

MARKS = 5  # on every curve
MARK = 35  # half the width of a mark, in fine units
RUNAWAY, RUNAWAY_LOG = 10.0, 1e6  # a curve that peaks so many times above the median curve may leave the chart
LARGEST = 1e300  # what is larger counts as infinite: differences must not overflow
DEEPEST = 1e-12  # of the top: what is smaller leaves a chart with a log scale
FINE = 10  # paths are in whole numbers, this many to a unit of the SVG: half the bytes of decimal fractions
CLOSE = 0.06  # of an axis: values that are closer have no room for both their labels
THINNING = 0.2 * FINE  # a point this near to the line between its neighbours is left out


# What is to be shown


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

    def share(self, values: Sequence[float]) -> Vector:
        """How far along the axis each value lies: 0 for the first, 1 for the last; a single value is in the middle."""
        ends, given = np.array([self.values[0], self.values[-1]], np.float64), np.array(values, np.float64)
        if ends[0] == ends[1]:
            return np.full(given.shape, 0.5)
        first, last = np.log(ends) if self.log else ends
        along: Vector = ((np.log(given) if self.log else given) - first) / (last - first)
        return along

    def ticks(self) -> tuple[Tick, ...]:
        """The values themselves, as far as there is room for them."""
        ticks = list[Tick]()
        for value, at in zip(self.values, self.share(self.values).tolist(), strict=True):
            if not ticks or at - ticks[-1].at >= CLOSE:
                ticks.append(Tick(at, number(value)))
        return tuple(ticks)


@dataclass(frozen=True, eq=False)
class Chart:
    """Curves of one metric against rounds, or against a parameter.

    log      whether the metric's axis is logarithmic
    limits   the least and the largest value the metric can have, or None to fit the axis to the curves
    gaps     whether a round without a number interrupts a line; else the line goes on to the next number
    axis     the parameter; None for rounds
    """

    title: str
    metric: str
    curves: tuple[Curve, ...]
    log: bool = False
    limits: tuple[float, float] | None = None
    gaps: bool = False
    axis: Axis | None = None

    @property
    def has_numbers(self) -> bool:
        """Whether any curve has a point to draw."""
        return any(np.isfinite(line.mean).any() for line in self.curves)


def curve(label: str, seeds: Sequence[int], values: Sequence[Sequence[float | None]]) -> Curve:
    """A curve from one row of numbers per seed.

    None in every row means that nothing was measured in this round. None in some rows only means that those runs diverged
    (or, of a radius, proved nothing), and becomes infinity: a mean over the other runs would flatter the method.
    """
    rows = np.array(values, np.float64).reshape(len(values), -1)  # None becomes NaN
    measured = ~np.isnan(rows).all(axis=0)
    return Curve(label, tuple(seeds), np.where(np.isnan(rows) & measured, np.inf, rows))


# Which part of the plane


@dataclass(frozen=True)
class Frame:
    """The part of the plane that a chart shows. `notes` tells the legend which curves leave it or end early."""

    bottom: float
    top: float
    log: bool
    notes: Mapping[str, str]

    def share(self, values: Vector) -> Vector:
        """How far up the frame each value lies: 0 at the bottom, 1 at the top; values outside become at least -1, at most 2."""
        bottom, top = (math.log10(self.bottom), math.log10(self.top)) if self.log else (self.bottom, self.top)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = ((np.log10(values) if self.log else values) - bottom) / (top - bottom)
        share[(values <= 0) & self.log] = -1  # zero has no logarithm: it is drawn below the frame, not as a gap
        clipped: Vector = np.clip(share, -1, 2)
        return clipped

    def ticks(self) -> list[float]:
        """Round numbers inside the frame."""
        if self.log:
            first, last = math.floor(math.log10(self.bottom)), math.ceil(math.log10(self.top))
            every = max(1, math.ceil((last - first) / 6))
            marks = [10.0**k for k in range(first, last + 1, every)]
            if sum(self.bottom <= mark <= self.top for mark in marks) < 3:
                marks = [digit * 10.0**k for k in range(first, last + 1) for digit in (1, 2, 5)]
            inside = [mark for mark in marks if self.bottom <= mark <= self.top]
            if len(inside) > 1:
                return inside
        return round_numbers(self.bottom, self.top, 5)


def frame(chart: Chart) -> Frame:
    """The frame that shows every curve, unless one runs away and would flatten the others; a note then says so."""
    bottom, top = chart.limits or _extent(chart)
    if chart.log:
        room = (top / bottom) ** 0.04 if top > bottom else 2.0
        bottom, top = bottom / room, top * room
    else:
        room = 0.04 * (top - bottom) or 0.5 * abs(top) or 0.5
        bottom, top = 0.0 if 0 <= bottom < top / 2 else bottom - room, top + room
    return Frame(bottom, top, chart.log, _notes(chart, bottom, top))


def round_numbers(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten in [low, high], about so many."""
    raw = (high - low) / about
    if raw < 1 / LARGEST:
        return [low]
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(digit * scale for digit in (1, 2, 5, 10) if digit * scale >= raw * 0.999)
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]


def _extent(chart: Chart) -> tuple[float, float]:
    """The least and the largest number to show."""
    lows = [_showable(line.low, chart.log) for line in chart.curves]
    highs = [_showable(line.high, chart.log) for line in chart.curves]
    peaks = [float(part.max()) for part in highs if part.size]
    if not peaks or not any(part.size for part in lows):
        return (0.1, 1.0) if chart.log else (0.0, 1.0)
    limit = (RUNAWAY_LOG if chart.log else RUNAWAY) * float(np.median(peaks))
    kept = [peak for peak in peaks if peak <= limit]
    top = max(peaks) if len(kept) == len(peaks) or limit <= 0 else 1.25 * max(kept)
    bottom = min(min(float(part.min()) for part in lows if part.size), top)
    return max(bottom, top * DEEPEST) if chart.log else bottom, top


def _showable(values: Vector, log: bool) -> Vector:
    return values[(np.abs(values) < LARGEST) & ((values > 0) | (not log))]


def _notes(chart: Chart, bottom: float, top: float) -> dict[str, str]:
    last = max(line.rounds.max(initial=0) for line in chart.curves)
    notes = {}
    for line in chart.curves:
        if not line.rounds.size:
            notes[line.label] = "no numbers"
        elif line.rounds[-1] < last:
            end = int(line.rounds[-1])
            notes[line.label] = (
                f"ends after round {end}" if chart.axis is None else f"ends at {number(chart.axis.values[end - 1])}"
            )
        elif (line.high > top).any() or (line.mean < bottom).any():
            notes[line.label] = "leaves the chart"
    return notes


# What is drawn, in units of the plot: 0 is its left or its bottom, 1 its right or its top


@dataclass(frozen=True)
class Area:
    """Where the plot lies in a drawing, in units of the SVG: about the width of a phone, so that text keeps its size there."""

    width: int = 420
    height: int = 262
    left: int = 54
    right: int = 14
    top: int = 26
    bottom: int = 38

    @property
    def inner_width(self) -> int:
        return self.width - self.left - self.right

    @property
    def inner_height(self) -> int:
        return self.height - self.top - self.bottom

    @property
    def base(self) -> int:
        """The height of the horizontal axis, from the top."""
        return self.height - self.bottom

    def x(self, share: float) -> str:
        return _short(self.left + self.inner_width * share)

    def y(self, share: float, lower: float = 0.0) -> str:
        """The height of a share of the plot, from the top of the drawing; `lower` by so many units."""
        return _short(self.base - self.inner_height * share + lower)


@dataclass(frozen=True)
class Tick:
    """A mark on an axis."""

    at: float
    label: str


@dataclass(frozen=True, eq=False)
class Line:
    """A curve as it is drawn.

    note             what the legend adds to the label
    style            its colour, dashes and markers
    x                where its rounds are
    mean, low, high  heights at these rounds; a mean of NaN interrupts the line
    marks            (n, 2) where its markers are: at other places than those of the other lines, so that a line that is
                     covered by another is seen by its markers
    has_band         whether the area from low to high is drawn
    values           the numbers of all rounds of the drawing, as the legend writes them
    """

    area: ClassVar[Area] = Area()
    label: str
    note: str
    style: Style
    x: Vector
    mean: Vector
    low: Vector
    high: Vector
    marks: NDArray[np.float64]
    has_band: bool
    values: tuple[str, ...]

    @property
    def path(self) -> str:
        """The line as the data of an SVG path."""
        x, y = self._fine(self.mean)
        pieces = []
        for run in _runs(np.isfinite(y)):
            keep = run[_thin(x[run], y[run], THINNING)]
            lone = f"m{-2 * FINE} 0h{4 * FINE}" if keep.size == 1 else ""  # a point without neighbours is a short dash
            pieces.append("M" + _points(x[keep], y[keep]) + lone)
        return "".join(pieces)

    @property
    def band(self) -> str:
        """The area from low to high as the data of an SVG path."""
        if not self.has_band:
            return ""
        (x, upper), (_, lower) = self._fine(self.high), self._fine(self.low)
        pieces = []
        for run in _runs(np.isfinite(upper) & np.isfinite(lower)):
            there = run[_thin(x[run], upper[run], 3 * THINNING)]  # an edge without a line may be coarser
            back = run[_thin(x[run], lower[run], 3 * THINNING)][::-1]
            points = np.concatenate([x[there], x[back]]), np.concatenate([upper[there], lower[back]])
            pieces.append(f"M{_points(*points)}Z")
        return "".join(pieces)

    @property
    def shape(self) -> str:
        """One marker as the data of an SVG path, from its middle."""
        return SHAPES[self.style.marker]

    @property
    def dots(self) -> str:
        """All markers as the data of an SVG path."""
        x, y = (
            self.marks[:, 0] * (self.area.inner_width * FINE),
            (1 - self.marks[:, 1]) * (self.area.inner_height * FINE),
        )
        return "".join(f"M{a:.0f} {b:.0f}{self.shape}" for a, b in zip(x.tolist(), y.tolist(), strict=True))

    def _fine(self, heights: Vector) -> tuple[Vector, Vector]:
        """The points in fine units of the SVG, from the top left of the plot."""
        return self.x * (self.area.inner_width * FINE), (1 - heights) * (self.area.inner_height * FINE)


@dataclass(frozen=True, eq=False)
class Drawing(Block):
    """A chart, laid out.

    rounds   those for which the legend has numbers; the values of the parameter where a chart has one
    spread   what the legend says about seeds
    x_name   what the rounds are: "round", or the name of the parameter
    x_axis   the same, as the axis is labelled
    places   where the rounds are, for a chart of a parameter; those of rounds follow from their numbers
    marked   where a line of its own marks a value of the parameter
    """

    area: ClassVar[Area] = Line.area
    fine: ClassVar[int] = FINE
    title: str
    metric: str
    axis: str
    x_ticks: tuple[Tick, ...]
    y_ticks: tuple[Tick, ...]
    rounds: tuple[float, ...]
    lines: tuple[Line, ...]
    spread: str
    x_name: str = "round"
    x_axis: str = "round"
    places: tuple[float, ...] = ()
    marked: float | None = None


# Paths from the middle of a marker, in fine units: circle, square, triangle, diamond, triangle on its head, cross.
SHAPES = tuple(
    path.format(r=MARK, d=2 * MARK, n=-MARK, h=MARK // 2, k=-MARK // 2)
    for path in (
        "m{n} 0a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0 -{d} 0z",
        "m{n} {n}h{d}v{d}h-{d}z",
        "m0 {n}l{r} {d}h-{d}z",
        "m0 {n}l{r} {r}l{n} {r}l{n} {n}z",
        "m0 {r}l{r} -{d}h-{d}z",
        "m{k} {n}h{r}v{h}h{h}v{r}h{k}v{h}h{n}v{k}h{k}v{n}h{h}z",
    )
)


def draw(chart: Chart, styles: Mapping[str, Style]) -> Drawing:
    """Lay out a chart; `styles` has the style of every label."""
    view = frame(chart)
    rounds = np.unique(np.concatenate([line.rounds for line in chart.curves])).tolist()
    last, axis = rounds[-1] if rounds else 1, chart.axis
    across = _across(np.arange(1, last + 1), last) if axis is None else axis.share(axis.values)
    ends = [float(line.mean[line.rounds[-1] - 1]) for line in chart.curves if line.rounds.size]
    places, count = decimals(ends), len(chart.curves)
    return Drawing(
        title=chart.title,
        metric=chart.metric,
        axis=chart.metric + (" (log scale)" if chart.log else ""),
        x_ticks=_x_ticks(last) if axis is None else axis.ticks(),
        y_ticks=_y_ticks(view),
        rounds=tuple(rounds) if axis is None else tuple(_whole(axis.values[k - 1]) for k in rounds),
        lines=tuple(
            _line(line, view, styles[line.label], rounds, across, (k + 0.5) / count, places, gaps=chart.gaps)
            for k, line in enumerate(chart.curves)
        ),
        spread=_spread(sorted({len(line.seeds) for line in chart.curves})),
        x_name="round" if axis is None else axis.name,
        x_axis="round" if axis is None else axis.name + (" (log scale)" if axis.log else ""),
        places=() if axis is None else tuple(across[[k - 1 for k in rounds]].round(4).tolist()),
        marked=None if axis is None or axis.marked is None else float(axis.share([axis.marked])[0]),
    )


def _whole(value: float) -> float:
    """10.0 as 10: how a page writes it."""
    return int(value) if float(value).is_integer() else value


def labelled_rounds(last: int) -> list[int]:
    """Which of the rounds 1 to `last` an axis labels: the first, and round numbers that are not too near to it."""
    if last == 1:
        return [1]
    return [1, *(int(k) for k in round_numbers(2, last, 5) if k == int(k) and (k - 1) * 12 >= last)]


def _line(
    line: Curve,
    view: Frame,
    style: Style,
    rounds: Sequence[int],
    across: Vector,
    offset: float,
    places: int,
    *,
    gaps: bool,
) -> Line:
    """The line of a curve.

    across   where the rounds from 1 on are
    offset   of its markers, from 0 to 1
    places   the digits in the legend
    """
    met, last = np.arange(1, line.mean.size + 1) if gaps else line.rounds, rounds[-1] if rounds else 1
    met = met[met <= last]
    pick, x = met - 1, across[met - 1]
    mean = np.where(np.isfinite(line.mean[pick]), view.share(line.mean[pick]), np.nan)
    return Line(
        label=line.label,
        note=view.notes.get(line.label, ""),
        style=style,
        x=x,
        mean=mean,
        low=view.share(line.low[pick]),
        high=view.share(line.high[pick]),
        marks=_marks(x, mean, offset),
        has_band=len(line.seeds) > 1,
        values=tuple(fixed(line.mean[k - 1], places) if k <= line.mean.size else "-" for k in rounds),
    )


def _marks(x: Vector, mean: Vector, offset: float) -> NDArray[np.float64]:
    """(n, 2) points on the line inside the frame, where its MARKS markers go; a single point has one on it."""
    if x.size < 2:
        points = np.stack([x, mean], axis=1)
    else:
        at = (np.arange(MARKS) + offset) / MARKS
        points = np.stack([at, np.interp(at, x, mean, left=np.nan, right=np.nan)], axis=1)
    inside: NDArray[np.float64] = points[(points[:, 1] >= 0) & (points[:, 1] <= 1)]
    return inside


def _x_ticks(last: int) -> tuple[Tick, ...]:
    rounds = labelled_rounds(last)
    return tuple(Tick(at, str(k)) for k, at in zip(rounds, _across(np.array(rounds), last).tolist(), strict=True))


def _y_ticks(view: Frame) -> tuple[Tick, ...]:
    ticks = view.ticks()
    step = ticks[1] - ticks[0] if len(ticks) > 1 else ticks[0] or 1.0
    # Enough digits that no two neighbours read the same.
    digits = max(3, 1 + math.ceil(math.log10(max(map(abs, ticks)) / abs(step) or 1.0)))
    heights = view.share(np.array(ticks, np.float64)).tolist()
    labels = [number(tick, digits) for tick in ticks]
    if not view.log and not any("e" in label for label in labels):
        places = max(len(label.partition(".")[2]) for label in labels)
        labels = [f"{tick:.{places}f}" for tick in ticks]
    return tuple(Tick(height, label) for height, label in zip(heights, labels, strict=True))


def _spread(seeds: Sequence[int]) -> str:
    """What is said of curves over so many seeds; nothing of a deployed run, which has none."""
    if seeds[-1] < 2:
        return ", one seed" if seeds[-1] else ""
    return f", mean of {' or '.join(map(str, seeds))} seeds (band: min to max)"


def _across(rounds: NDArray[np.integer], last: int) -> Vector:
    """0 for the first round, 1 for the last; a single round is in the middle."""
    return (rounds - 1) / (last - 1) if last > 1 else np.full(rounds.shape, 0.5)


def _runs(present: NDArray[np.bool_]) -> Iterable[NDArray[np.intp]]:
    """The stretches of neighbours that are all present, as indices."""
    where = np.flatnonzero(present)
    return (run for run in np.split(where, 1 + np.flatnonzero(np.diff(where) > 1)) if run.size)


def _thin(x: Vector, y: Vector, tolerance: float) -> NDArray[np.intp]:
    """Indices of the points that matter: Ramer-Douglas-Peucker, with vertical distances since x only grows."""
    keep, todo = {0, len(x) - 1}, [(0, len(x) - 1)]
    while todo:
        a, b = todo.pop()
        if b - a < 2:
            continue
        chord = y[a] + (y[b] - y[a]) * (x[a + 1 : b] - x[a]) / (x[b] - x[a])
        off = np.abs(y[a + 1 : b] - chord)
        worst = a + 1 + int(off.argmax())
        if off.max() > tolerance:
            keep.add(worst)
            todo += [(a, worst), (worst, b)]
    return np.array(sorted(keep), np.intp)


def _points(x: Vector, y: Vector) -> str:
    """The first point, then the way from each point to the next."""
    first, *steps = np.diff(np.round(np.stack([x, y], axis=1)).astype(int), axis=0, prepend=0).tolist()
    return f"{first[0]} {first[1]}" + (
        "l" + " ".join(f"{a}{b}" if b < 0 else f"{a} {b}" for a, b in steps) if steps else ""
    )


def _short(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
