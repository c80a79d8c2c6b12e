"""Charts and heat maps as PNG files. matplotlib (extra `report`) only puts on paper what was laid out for the page."""

from __future__ import annotations

import importlib.util
import math
import textwrap
from pathlib import Path
from typing import Any

from fedhold.report.charts import Drawing
from fedhold.report.colours import COLOURS, FULL, SCALE
from fedhold.report.heatmap import WeightMap

SIZE, DPI = (6.4, 4.4), 130  # inches, and pixels to an inch
MARKERS = ("o", "s", "^", "D", "v", "P")  # the shapes of the page's markers
ROWS, ROW = 4, 0.18  # of a legend that a figure of that size has room for, and the inches of a further one
NARROW = 32  # letters of names that fit beside each other
LETTERS = 72  # of a title that fit into a line
KEY = 5  # letters: as long as a line must be in the legend for its dashes to be seen beside its marker


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def save_png(figure: Drawing | WeightMap, path: Path) -> None:
    """Write a chart or a heat map of the page as a PNG file. Raises ImportError where matplotlib is missing."""
    if not can_plot():
        raise ImportError("figures as PNG need matplotlib. From a checkout of fedhold: pip install '.[report]'")
    from matplotlib.figure import Figure

    width, height = SIZE
    if isinstance(figure, Drawing):  # a long legend must not flatten the plot
        height += ROW * max(0, math.ceil(len(figure.lines) / _columns(figure)) - ROWS)
    paper = Figure(figsize=(width, height), dpi=DPI, layout="constrained")
    axes = paper.subplots()
    paper.suptitle(textwrap.fill(figure.title, LETTERS), fontsize="medium")
    axes.set(xlabel=figure.x_axis if isinstance(figure, Drawing) else "round", xlim=(0, 1), ylim=(0, 1))
    if isinstance(figure, Drawing):
        _chart(paper, axes, figure)
    else:
        _weight_map(paper, axes, figure)
    paper.savefig(path, metadata={"Software": None})  # the version of matplotlib would change the bytes


def _chart(paper: Any, axes: Any, chart: Drawing) -> None:
    from matplotlib.lines import Line2D

    keys = []
    for line in chart.lines:
        style, colour = line.style, COLOURS[line.style.colour]
        look: dict[str, Any] = {
            "color": colour,
            "linestyle": (0, tuple(map(float, style.dashes.split()))) if style.dashes else "solid",
        }
        inside, edge = ("white", colour) if style.marker else (colour, "white")  # those of variants are hollow
        dots: dict[str, Any] = {
            **{"marker": MARKERS[style.marker], "markersize": 6},
            **{"markerfacecolor": inside, "markeredgecolor": edge},
        }
        axes.plot(line.x, line.mean, linewidth=1.6, **look)
        axes.plot(*line.marks.T, color=colour, linestyle="none", zorder=3, **dots)
        if line.has_band:
            axes.fill_between(line.x, line.low, line.high, color=colour, alpha=0.15, linewidth=0)
        label = f"{line.label} ({line.note})" if line.note else line.label
        keys.append(Line2D([], [], linewidth=1.6, label=label, **look, **dots))
    axes.set_xticks([tick.at for tick in chart.x_ticks], [tick.label for tick in chart.x_ticks])
    axes.set_yticks([tick.at for tick in chart.y_ticks], [tick.label for tick in chart.y_ticks])
    if chart.marked is not None:
        axes.axvline(chart.marked, color="grey", linestyle="dashed", linewidth=1)
    axes.set(xlim=(-0.02, 1.02), ylabel=chart.axis)
    axes.grid(alpha=0.3)
    place: dict[str, Any] = {"loc": "outside lower center", "ncols": _columns(chart), "frameon": False}
    paper.legend(handles=keys, handlelength=KEY, fontsize="small", **place)


def _columns(chart: Drawing) -> int:
    """Of the legend."""
    return 2 if max(len(line.label) for line in chart.lines) <= NARROW else 1


def _weight_map(paper: Any, axes: Any, heat: WeightMap) -> None:
    from matplotlib.colors import ListedColormap

    colours = ListedColormap(SCALE / 255).with_extremes(bad="white")
    whole = (0, 1, 0, 1)
    image = axes.imshow(
        heat.shares, aspect="auto", cmap=colours, vmin=0, vmax=FULL, interpolation="nearest", extent=whole
    )
    axes.axhline(heat.cut, color=COLOURS[1], linewidth=1.5)
    sides = {"liars": (heat.cut + 1) / 2, "honest": heat.cut / 2}
    there = {word: at for word, at in sides.items() if 0 < at < 1}
    axes.set_xticks([tick.at for tick in heat.ticks], [tick.label for tick in heat.ticks])
    axes.set_yticks(list(there.values()), list(there))
    paper.colorbar(image, extend="max", label="weight (1 is an equal share)")
