"""Charts as inline SVG: the mean over seeds in its band, and a legend that can show the numbers of any round.

Colours are CSS variables of the page (report.html), so that one drawing serves light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from html import escape

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import Vector
from fedhold.report.curves import Chart, Frame, frame, number, round_numbers, style

__all__ = ["draw", "x_axis"]

WIDTH, HEIGHT = 420, 262  # near the width of a phone, so that text there is about as large as it says here
LEFT, RIGHT, TOP, BOTTOM = 54, 14, 26, 38
INNER_WIDTH, INNER_HEIGHT = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
FINE = 10  # paths are in whole numbers, this many to a unit of the drawing: half the bytes of decimal fractions
THINNING = 0.2 * FINE  # a point this near to the line between its neighbours is left out


def draw(chart: Chart, order: Mapping[str, int]) -> str:
    """The chart as one <figure>; `order` gives every label in the report its number, hence its colour."""
    view = frame(chart)
    means = [line.mean for line in chart.curves]
    rounds = np.unique(np.concatenate([1 + np.flatnonzero(~np.isnan(mean)) for mean in means]))
    last = int(rounds[-1]) if rounds.size else 1
    bands, lines, legend = [], [], []
    for line in chart.curves:
        colour, dashes = style(order[line.label])
        dashed = f' stroke-dasharray="{dashes}"' if dashes else ""
        when = 1 + np.flatnonzero(~np.isnan(line.mean))
        pick = when - 1
        x = _across(when, last) * INNER_WIDTH * FINE
        band = _band(x, _down(view, line.high[pick]), _down(view, line.low[pick])) if len(line.seeds) > 1 else ""
        bands.append(f'<path class="band c{colour}" d="{band}"/>')
        y = np.where(np.isfinite(line.mean[pick]), _down(view, line.mean[pick]), np.nan)
        lines.append(f'<path class="line c{colour}"{dashed} d="{_line(x, y)}"/>')
        swatch = f'<svg width="24" height="10"><path class="line c{colour}"{dashed} d="M1 5H23"/></svg>'
        gone = f'<small class="gone">{escape(words)}</small>' if (words := view.leaving.get(line.label)) else ""
        shown = [number(line.mean[r - 1]) if r <= line.mean.size else "-" for r in rounds.tolist()]
        legend.append(
            f'<li data-values="{" ".join(shown)}">{swatch}<span class="value">{shown[-1] if shown else "-"}</span>'
            f'<span class="label">{escape(line.label)}{gone}</span></li>'
        )
    seeds = sorted({len(line.seeds) for line in chart.curves})
    spread = f", mean of {' or '.join(map(str, seeds))} seeds (band: min to max)"
    band_note = {0: "", 1: ", one seed"}.get(seeds[-1], spread)  # none: a run in the world outside
    label = escape(f"{chart.title}: {chart.metric} against rounds")
    return (
        f'<figure class="chart" data-rounds="{" ".join(map(str, rounds.tolist()))}"><figcaption>{escape(chart.title)}'
        f'</figcaption><svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">'
        f"{_y_axis(chart, view)}{x_axis(last)}"
        f'<svg x="{LEFT}" y="{TOP}" width="{INNER_WIDTH}" height="{INNER_HEIGHT}"'
        f' viewBox="0 0 {INNER_WIDTH * FINE} {INNER_HEIGHT * FINE}">{"".join(bands)}{"".join(lines)}'
        f'<path class="cursor" d="M0 0V{INNER_HEIGHT * FINE}" visibility="hidden"/></svg></svg>'
        f'<p class="note">Round <span class="round">{last}</span>{band_note}</p>'
        f'<ul class="legend">{"".join(legend)}</ul></figure>'
    )


def x_axis(last: int) -> str:
    """Rounds 1 to `last` below the plot."""
    marks = [1, *(int(v) for v in round_numbers(2, last, 5) if v == int(v))] if last > 1 else [1]
    if len(marks) > 1 and (marks[1] - 1) * 12 < last:  # the first round number would touch the 1
        del marks[1]
    base = TOP + INNER_HEIGHT
    at = list(zip(LEFT + INNER_WIDTH * _across(np.array(marks), last), marks, strict=True))
    return (
        f'<path class="axis" d="M{LEFT} {base}h{INNER_WIDTH}{"".join(f"M{_short(x)} {base}v4" for x, _ in at)}"/>'
        + "".join(f'<text x="{_short(x)}" y="{base + 15}" text-anchor="middle">{mark}</text>' for x, mark in at)
        + f'<text x="{LEFT + INNER_WIDTH / 2:g}" y="{HEIGHT - 4}" text-anchor="middle">round</text>'
    )


def _y_axis(chart: Chart, view: Frame) -> str:
    ticks = view.ticks()
    heights = TOP + _down(view, np.array(ticks, np.float64)) / FINE
    grid = "".join(f"M{LEFT} {_short(y)}h{INNER_WIDTH}" for y in heights)
    step = ticks[1] - ticks[0] if len(ticks) > 1 else ticks[0] or 1.0
    digits = max(
        3, 1 + math.ceil(math.log10(max(map(abs, ticks)) / abs(step) or 1.0))
    )  # neighbours must not read the same
    labels = "".join(
        f'<text x="{LEFT - 5}" y="{_short(y + 4)}" text-anchor="end">{number(tick, digits)}</text>'
        for tick, y in zip(ticks, heights, strict=True)
    )
    name = escape(chart.metric + (" (log scale)" if chart.log else ""))
    return f'<path class="grid" d="{grid}"/>{labels}<text class="name" x="4" y="11">{name}</text>'


def _across(rounds: NDArray[np.integer], last: int) -> Vector:
    """0 for the first round, 1 for the last; a single round is in the middle."""
    return (rounds - 1) / (last - 1) if last > 1 else np.full(rounds.shape, 0.5)


def _down(view: Frame, values: Vector) -> Vector:
    """Distances from the top of the plot, fine."""
    return INNER_HEIGHT * FINE * (1 - view.share(values))


def _line(x: Vector, y: Vector) -> str:
    """A path through the points, broken where y is NaN."""
    pieces = []
    for run in _runs(np.isfinite(y)):
        keep = run[_thin(x[run], y[run], THINNING)]
        lone = f"m{-2 * FINE} 0h{4 * FINE}" if keep.size == 1 else ""  # a point without neighbours is a short dash
        pieces.append("M" + _points(x[keep], y[keep]) + lone)
    return "".join(pieces)


def _band(x: Vector, upper: Vector, lower: Vector) -> str:
    pieces = []
    for run in _runs(np.isfinite(upper) & np.isfinite(lower)):
        there = run[_thin(x[run], upper[run], 3 * THINNING)]  # an edge without a line needs less care
        back = run[_thin(x[run], lower[run], 3 * THINNING)][::-1]
        points = np.concatenate([x[there], x[back]]), np.concatenate([upper[there], lower[back]])
        pieces.append(f"M{_points(*points)}Z")
    return "".join(pieces)


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
