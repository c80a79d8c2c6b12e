"""Curves of a report: numbers over seeds and rounds, the part of the plane to show, colours, and how a number is written."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import Vector

__all__ = ["COLOURS", "DASHES", "Chart", "Curve", "Frame", "curve", "frame", "number", "round_numbers", "style"]

# Wong 2011 ("Points of view: Color blindness"), without the yellow that white paper swallows; the last is the ink.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#222222")
DASHES = ("", "6 3", "1.5 3", "8 3 1.5 3")  # one more round of colours each; the first is a solid line
RUNAWAY, RUNAWAY_LOG = 10.0, 1e6  # a curve that peaks so many times above the median curve may leave the chart
LARGEST = 1e300  # what is larger counts as infinite: differences must not overflow
DEEPEST = 1e-12  # of the top: what is smaller leaves a chart with a log scale


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


@dataclass(frozen=True, eq=False)
class Chart:
    """Curves of one metric against rounds; `limits` where the metric has natural ones."""

    title: str
    metric: str
    curves: tuple[Curve, ...]
    log: bool = False
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Frame:
    """The part of the plane a chart shows; and the curves that leave it, with a word for the legend."""

    bottom: float
    top: float
    log: bool
    leaving: Mapping[str, str]

    def share(self, values: Vector) -> Vector:
        """How far up the frame a value lies: 0 at the bottom, 1 at the top; what lies outside stays outside, but near."""
        bottom, top = (math.log10(self.bottom), math.log10(self.top)) if self.log else (self.bottom, self.top)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = ((np.log10(values) if self.log else values) - bottom) / (top - bottom)
        share[(values <= 0) & self.log] = -1  # zero has no logarithm: below the frame, not a gap
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


def curve(label: str, seeds: Sequence[int], values: Sequence[Sequence[float | None]]) -> Curve:
    """A curve from one row of numbers per seed.

    None in every row: nothing was measured in this round. None in some rows only: those runs diverged (or, of a radius,
    proved nothing), which is infinity here. A mean over the others would flatter the method.
    """
    rows = np.array(values, np.float64).reshape(len(values), -1)  # None becomes NaN
    measured = ~np.isnan(rows).all(axis=0)
    return Curve(label, tuple(seeds), np.where(np.isnan(rows) & measured, np.inf, rows))


def style(index: int) -> tuple[int, str]:
    """The colour number and the dashes of the index-th method."""
    return index % len(COLOURS), DASHES[index // len(COLOURS) % len(DASHES)]


def number(value: float, digits: int = 3) -> str:
    """So many digits, all of them before the point where 100000 is not reached; '-' for what was not measured.

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


def frame(chart: Chart) -> Frame:
    """What to show: every curve, unless one runs away and would flatten the others; the legend then says so."""
    bottom, top = chart.limits or _extent(chart)
    if chart.log:
        room = (top / bottom) ** 0.04 if top > bottom else 2.0
        bottom, top = bottom / room, top * room
    else:
        room = 0.04 * (top - bottom) or 0.5 * abs(top) or 0.5
        bottom, top = 0.0 if 0 <= bottom < top / 2 else bottom - room, top + room
    return Frame(bottom, top, chart.log, _leaving(chart, bottom, top))


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


def _leaving(chart: Chart, bottom: float, top: float) -> dict[str, str]:
    measured = {line.label: 1 + np.flatnonzero(~np.isnan(line.mean)) for line in chart.curves}
    last = max(rounds.max(initial=0) for rounds in measured.values())
    words = {}
    for line in chart.curves:
        if not measured[line.label].size:
            words[line.label] = "no numbers"
        elif measured[line.label][-1] < last:
            words[line.label] = f"ends after round {measured[line.label][-1]}"
        elif (line.high > top).any() or (line.mean < bottom).any():
            words[line.label] = "leaves the chart"
    return words


def round_numbers(low: float, high: float, about: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten in [low, high], about so many."""
    raw = (high - low) / about
    if raw < 1 / LARGEST:
        return [low]
    scale = 10.0 ** math.floor(math.log10(raw))
    step = next(digit * scale for digit in (1, 2, 5, 10) if digit * scale >= raw * 0.999)
    return [k * step for k in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)]
