"""Heat maps of clients x rounds: weights as colours, and a mark where something else became of a client.

The rows stand in two groups, of which the first is the one to look at: the liars of an experiment, the suspects of an audit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import visible
from fedhold.report.charts import stretches
from fedhold.report.colours import FULL, LEVELS, SCALE_COLOURS
from fedhold.report.figures import CARD, INK, Figure, label
from fedhold.report.tables import Table
from fedhold.report.weights import ratio

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Paper

MOST_ROWS, MOST_COLUMNS = 200, 200  # of a map; neighbours of a larger one are drawn together, and nobody sees more
NAMED_ROWS = 25  # that a map has room to name
TABLE_ROWS, TABLE_COLUMNS = 60, 10  # of the table behind a map
MOST_GAPS = 60  # columns with lines between them
HEAD, BAR, ROW, HIGH = 1.4, 0.1, 0.18, 2.8  # inches: all but the rows, the scale, a named row, all rows without names

Shares = NDArray[np.float64]


@dataclass(frozen=True)
class Mark:
    """What stands in a cell in place of a weight: the words that say what became of the client, and a colour."""

    words: str
    colour: str


@dataclass(frozen=True, eq=False)
class HeatMap(Figure):
    """Clients x rounds.

    title    of the figure
    who      what the rows are, in a few words
    shares   (rows, columns) weights in units of an equal share, NaN where there is none
    codes    (rows, columns) 0 for a weight, or k for the k-th mark; a cell with neither weight nor mark stays blank
    marks    what the codes mean
    rows     the name of every row
    rounds   the number of every column
    groups   the two groups: a word, and the number of its rows
    flagged  the columns in which no new model was made
    """

    title: str
    who: str
    shares: Shares
    codes: NDArray[np.int8]
    marks: tuple[Mark, ...]
    rows: tuple[str, ...]
    rounds: tuple[int, ...]
    groups: tuple[tuple[str, int], tuple[str, int]]
    flagged: NDArray[np.bool_]

    def condensed(self, most_rows: int, most_columns: int) -> HeatMap:
        """Neighbours as one, so that about so many rows and columns are left: their mean weight, or the mark that most of them
        have. The groups stay apart."""
        first, second = (count for _, count in self.groups)
        kept = max(min(first, most_rows // 3), most_rows * first // max(1, first + second))  # a few must not get lost
        ours, theirs = stretches(first, kept), stretches(second, most_rows - kept)
        down, across = np.concatenate([ours, first + theirs]), stretches(len(self.rounds), most_columns)
        if (len(down), len(across)) == self.shares.shape:
            return self

        def total(cells: NDArray[Any]) -> NDArray[Any]:
            return np.add.reduceat(np.add.reduceat(cells, down, axis=0), across, axis=1)

        weighed = (self.codes == 0) & ~np.isnan(self.shares)
        kinds = [weighed, *(self.codes == k for k in range(1, len(self.marks) + 1))]
        counts = np.stack([total(kind.astype(np.intp)) for kind in kinds])
        codes = counts.argmax(axis=0).astype(np.int8)
        means = ratio(total(np.where(weighed, self.shares, 0.0)), counts[0])
        return replace(
            self,
            shares=np.where(codes == 0, means, np.nan),
            codes=codes,
            rows=tuple(
                self.rows[start] if end - start == 1 else f"{self.rows[start]} to {self.rows[end - 1]}"
                for start, end in pairwise([*down.tolist(), len(self.rows)])
            ),
            rounds=tuple(self.rounds[k] for k in across),
            groups=((self.groups[0][0], len(ours)), (self.groups[1][0], len(theirs))),
            flagged=np.logical_or.reduceat(self.flagged, across),
        )

    @property
    def summary(self) -> str:
        return f"{self.who}, weights by round"

    @property
    def note(self) -> str:
        cells, drawn = ("{} x {}".format(*one.shares.shape) for one in (self, self.condensed(MOST_ROWS, MOST_COLUMNS)))
        return f"{self.who}." + f" Neighbours are drawn together: {cells} cells as {drawn}." * (cells != drawn)

    @property
    def table(self) -> Table:
        """The weights, and the words of the marks; of a large map the means of neighbours."""
        shown = self.condensed(TABLE_ROWS, TABLE_COLUMNS)
        ends = [*stretches(len(self.rounds), TABLE_COLUMNS)[1:].tolist(), len(self.rounds)]
        spans = zip(shown.rounds, (self.rounds[end - 1] for end in ends), strict=True)
        header = [str(first) if first == last else f"{first}-{last}" for first, last in spans]
        words = [word for word, count in shown.groups for _ in range(count)]

        def cell(share: float, code: int) -> str:
            return self.marks[code - 1].words if code else "" if np.isnan(share) else f"{share:.2f}"

        rows = [
            (visible(name), word, *map(cell, *row))
            for name, word, *row in zip(shown.rows, words, shown.shares.tolist(), shown.codes.tolist(), strict=True)
        ]
        return Table(self.title, ("", "", *header), rows)

    # How it is drawn

    @property
    def height(self) -> float:
        return HEAD + (ROW * len(self.rows) if self._named else HIGH)

    @property
    def _named(self) -> bool:
        return len(self.rows) <= NAMED_ROWS

    def draw(self, paper: Paper) -> None:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import ListedColormap, Normalize

        shown = self.condensed(MOST_ROWS, MOST_COLUMNS)
        axes, bar = paper.subplots(2, 1, height_ratios=(self.height - HEAD, BAR))
        levels = np.round(np.clip(shown.shares / FULL, 0, 1) * (LEVELS - 1))
        cells = np.ma.masked_invalid(np.where(shown.codes > 0, LEVELS - 1 + shown.codes, levels))
        colours = [*SCALE_COLOURS, *(mark.colour for mark in self.marks)]
        shades = {"cmap": ListedColormap(colours), "vmin": -0.5, "vmax": len(colours) - 0.5}
        axes.imshow(cells, aspect="auto", interpolation="none", **shades)
        axes.spines[:].set_visible(False)
        shown._draw_rows(axes)
        shown._draw_rounds(axes)
        shown._draw_key(paper)
        bar.set_visible(bool((shown.codes == 0).any()))
        if bar.get_visible():
            scale = ScalarMappable(Normalize(0, FULL), ListedColormap(SCALE_COLOURS))
            place: dict[str, Any] = {"cax": bar, "orientation": "horizontal", "extend": "max"}
            paper.colorbar(scale, label="weight (1 is an equal share)", ticks=[0, 1, FULL], **place)

    def _draw_rows(self, axes: Axes) -> None:
        """A name beside each row, or a word beside each group; a bar beside the first group."""
        (_, count), (_, others) = self.groups
        if self._named:
            axes.set_yticks(np.arange(0.5, len(self.rows)), minor=True)
            axes.set_yticks(range(len(self.rows)), [label(name) for name in self.rows], fontsize=9)
        else:
            middles = zip(self.groups, ((count - 1) / 2, count + (others - 1) / 2), strict=True)
            there = [(at, word) for (word, size), at in middles if size]
            axes.set_yticks([at for at, _ in there], [word for _, word in there])
        axes.tick_params(length=0)
        axes.axhline(count - 0.5, color=INK, linewidth=1.2)
        side = axes.get_yaxis_transform()
        axes.plot([0, 0], [-0.5, count - 0.5], color=INK, linewidth=4, transform=side, clip_on=False)

    def _draw_rounds(self, axes: Axes) -> None:
        """The numbers of the columns, and a mark above those without a new model."""
        from matplotlib.ticker import MaxNLocator

        axes.set_xlabel("round")
        wanted = MaxNLocator(8, steps=[1, 2, 5, 10], integer=True).tick_values(self.rounds[0], self.rounds[-1])
        places = [k for k in np.unique(np.searchsorted(self.rounds, wanted)).tolist() if k < len(self.rounds)]
        axes.set_xticks(places, [str(self.rounds[k]) for k in places])
        if self._named and len(self.rounds) <= MOST_GAPS:
            axes.set_xticks(np.arange(0.5, len(self.rounds)), minor=True)
            axes.grid(visible=True, which="minor", color=CARD)
            axes.tick_params(which="minor", length=0)
        if self.flagged.any():
            flagged, above = np.flatnonzero(self.flagged), axes.get_xaxis_transform()
            axes.plot(flagged, np.full(flagged.shape, 1.02), "v", color=INK, ms=4, transform=above, clip_on=False)

    def _draw_key(self, paper: Paper) -> None:
        """What the colours mean that are no weights."""
        from matplotlib.lines import Line2D
        from matplotlib.patches import Patch

        keys: list[Line2D | Patch] = [Patch(color=INK, label=self.groups[0][0])] if self.groups[0][1] else []
        if self.flagged.any():
            keys.append(Line2D([], [], color=INK, marker="v", linestyle="none", label="no new model"))
        keys += [
            Patch(color=mark.colour, label=mark.words)
            for k, mark in enumerate(self.marks, start=1)
            if (self.codes == k).any()
        ]
        if keys:
            paper.legend(handles=keys, loc="outside lower center", ncols=3, fontsize=10, handlelength=1.5)


def weight_map(title: str, weights: NDArray[np.floating], byzantine: NDArray[np.bool_]) -> HeatMap:
    """The heat map of an experiment, the liars on top.

    weights     (rounds, m) in units of an equal share, NaN for clients that did not take part
    byzantine   (m,) whether a client lies
    """
    order, liars, rounds = np.argsort(~byzantine, kind="stable"), int(byzantine.sum()), len(weights)
    return HeatMap(
        title,
        f"{byzantine.size} clients, {liars} of them liars",
        weights[:, order].T.astype(np.float64),
        np.zeros((byzantine.size, rounds), np.int8),
        (),
        tuple(f"client {k}" for k in order),
        tuple(range(1, rounds + 1)),
        (("liars", liars), ("honest", byzantine.size - liars)),
        np.zeros(rounds, np.bool_),
    )
