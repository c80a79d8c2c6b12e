"""The report's figures as PNG files, drawn by matplotlib (extra `report`)."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.report.curves import COLOURS, Chart, frame, style
from fedhold.report.heatmap import FULL, SCALE, arranged

__all__ = ["can_plot", "plot", "plot_weights"]

SIZE, DPI = (6.4, 4.4), 130


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def plot(chart: Chart, path: Path, order: Mapping[str, int]) -> None:
    """The same chart as in the page: colours, dashes, bands and limits."""
    figure, axes = _figure(chart.title)
    view = frame(chart)
    for line in chart.curves:
        colour, dashes = style(order[line.label])
        rounds = 1 + np.flatnonzero(~np.isnan(line.mean))
        low, mean, high = (
            np.where(np.isinf(part), edge, part)[rounds - 1]
            for part, edge in ((line.low, np.nan), (line.mean, np.nan), (line.high, view.top * 2))
        )
        pattern = (0, tuple(map(float, dashes.split()))) if dashes else "solid"
        gone = f" ({view.leaving[line.label]})" if line.label in view.leaving else ""
        axes.plot(rounds, mean, color=COLOURS[colour], linestyle=pattern, linewidth=1.6, label=line.label + gone)
        if len(line.seeds) > 1:
            axes.fill_between(rounds, low, high, color=COLOURS[colour], alpha=0.15, linewidth=0)
    if chart.log:
        axes.set_yscale("log")
    axes.set(ylabel=chart.metric, ylim=(view.bottom, view.top))
    axes.grid(alpha=0.3)
    columns = 2 if max(len(line.label) for line in chart.curves) < 32 else 1
    figure.legend(loc="outside lower center", ncols=columns, frameon=False, fontsize="small")
    _save(figure, path)


def plot_weights(title: str, weights: NDArray[np.floating], byzantine: NDArray[np.bool_], path: Path) -> None:
    """The heat map of the page: liars above the line."""
    figure, axes = _figure(title)
    from matplotlib.colors import ListedColormap

    shares, liars = arranged(weights, byzantine)
    colours = ListedColormap(SCALE / 255).with_extremes(bad="white")
    extent = (0.5, len(weights) + 0.5, len(shares), 0)
    image = axes.imshow(shares, aspect="auto", cmap=colours, vmin=0, vmax=FULL, interpolation="nearest", extent=extent)
    axes.axhline(liars, color=COLOURS[1], linewidth=1.5)
    middles = {"liars": liars / 2, "honest": (liars + len(shares)) / 2}
    there = [word for word, rows in (("liars", liars), ("honest", len(shares) - liars)) if rows]
    axes.set_yticks([middles[word] for word in there], there)
    figure.colorbar(image, extend="max", label="weight (1 is an equal share)")
    _save(figure, path)


def _figure(title: str) -> tuple[Any, Any]:
    if not can_plot():
        raise ImportError("figures as PNG need matplotlib. From a checkout of fedhold: pip install '.[report]'")
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    axes = figure.subplots()
    axes.set_title(title, wrap=True, fontsize="medium")
    axes.set_xlabel("round")
    return figure, axes


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, metadata={"Software": None})  # its version would change the bytes
