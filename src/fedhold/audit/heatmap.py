"""The heat map of an audit: nodes x rounds, weights as colours, and a mark in every cell that has no weight.

The weights are a picture of one pixel per cell. The marks are paths above it, so that a light and a dark page each have
their own colours for them.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhold.audit.records import RoundRecord
from fedhold.audit.suspects import Seen, Standing, judge_round, short_names, shown_name
from fedhold.report import FULL, MOST_COLUMNS, MOST_ROWS, Block, Tick, column_ticks, data_uri, group_means, groups

TALL, HIGHEST = 600, 20  # pixels: of the whole map, of one row
READABLE = 12  # pixels: a row this high has its node's name beside it
LABEL = 16  # characters of a node's name beside its row
FEW = 60  # columns that have lines between them
LETTERS = string.ascii_uppercase + string.ascii_lowercase[:15]  # each stands for a weight, from 0 to FULL
ABSENT, WEIGHED, UNWEIGHED, REJECTED, EVALUATION, QUARANTINED = range(6)  # what became of a node in a round


@dataclass(frozen=True)
class Mark:
    """How a cell without a weight is drawn.

    name         its CSS class
    words        what the key and the readout say
    letter       which stands for it in the page's data
    top, height  the part of the cell that it fills
    """

    name: str
    words: str
    letter: str
    top: float = 0.0
    height: float = 1.0

    @property
    def box(self) -> str:
        """The mark in a cell of its own, as the data of an SVG path."""
        return self.boxes(np.ones((1, 1), np.bool_))

    def boxes(self, cells: NDArray[np.bool_]) -> str:
        """The mark in these cells, as the data of an SVG path: a box for each stretch of neighbours in a row."""
        boxes = []
        for row, marked in enumerate(cells):
            edges = np.flatnonzero(np.diff(marked.astype(np.int8), prepend=0, append=0)).tolist()
            for start, end in zip(edges[::2], edges[1::2], strict=True):
                boxes.append(f"M{start} {row + self.top:g}H{end}v{self.height:g}H{start}z")
        return "".join(boxes)


MARKS = {
    REJECTED: Mark("rejected", "reply rejected", "x"),
    EVALUATION: Mark("rejected", "only its evaluation rejected", "z", 0.6, 0.4),
    QUARANTINED: Mark("quarantined", "in quarantine", "q", 0.4, 0.2),
    UNWEIGHED: Mark("unweighed", "took part, without a weight", "u"),
    ABSENT: Mark("absent", "not asked", ".", 0, 0),
}
KEPT = Mark("kept", "no new model", "")


@dataclass(frozen=True, eq=False)
class States:
    """What became of each node in each round.

    codes    (nodes, rounds) ABSENT, WEIGHED, ...
    shares   (nodes, rounds) 1 is an equal share per sample, NaN for nodes without one
    """

    codes: NDArray[np.int8]
    shares: NDArray[np.float64]

    def condensed(self, starts: NDArray[np.intp]) -> States:
        """Each group of rounds as one: what happened most often to the node when it was asked, and its mean weight."""
        if len(starts) == self.codes.shape[1]:
            return self
        counts = np.stack([np.add.reduceat(self.codes == kind, starts, axis=1, dtype=np.intp) for kind in range(1, 6)])
        codes = np.where(counts.any(axis=0), 1 + counts.argmax(axis=0), ABSENT).astype(np.int8)
        means = group_means(self.shares, starts, axis=1)
        return States(codes, np.where(np.isin(codes, (WEIGHED, EVALUATION)), means, np.nan))


@dataclass(frozen=True)
class Label:
    """A text beside the rows of the map."""

    text: str
    height: float
    is_suspect: bool


@dataclass(frozen=True, eq=False)
class NodeMap(Block):
    """The map, laid out: the most suspicious node on top.

    title    how many nodes, suspects and rounds there are, and what is left out
    nodes    the ids of the rows
    rounds   the numbers of the columns; the first round of each where several are drawn as one
    states   of the cells
    kept     whether the model was kept in each column
    labels   of the rows
    row      the height of a row, in pixels
    """

    template: ClassVar[str] = "node_map.html"
    letters: ClassVar[str] = LETTERS
    marks: ClassVar[tuple[Mark, ...]] = tuple(MARKS.values())
    title: str
    nodes: tuple[str, ...]
    rounds: tuple[int, ...]
    states: States
    kept: NDArray[np.bool_]
    labels: tuple[Label, ...]
    row: float

    @property
    def columns(self) -> int:
        return len(self.rounds)

    @property
    def height(self) -> float:
        return self.row * len(self.nodes)

    @property
    def image(self) -> str:
        return data_uri(self.states.shares)

    @property
    def cells(self) -> list[str]:
        """A word for each node, a letter for each cell, for the page's script to read out."""
        steps = np.round(np.clip(self.states.shares / FULL, 0, 1) * (len(LETTERS) - 1))
        pairs = zip(self.states.codes.tolist(), np.nan_to_num(steps).astype(np.intp).tolist(), strict=True)
        return [
            "".join(LETTERS[step] if code == WEIGHED else MARKS[code].letter for code, step in zip(*row, strict=True))
            for row in pairs
        ]

    @property
    def paths(self) -> list[tuple[str, str]]:
        """The marks in the map: CSS class and data of an SVG path."""
        drawn = [(mark.name, mark.boxes(self.states.codes == code)) for code, mark in MARKS.items() if mark.height]
        return [(name, path) for name, path in drawn if path]

    @property
    def kept_path(self) -> str:
        return KEPT.boxes(self.kept[None])

    @property
    def gaps(self) -> str:
        """Lines between rows and columns that are large enough, as the data of an SVG path."""
        rows = [f"M0 {k}H{self.columns}" for k in range(1, len(self.nodes))] if self.row >= READABLE else []
        columns = [f"M{k} 0V{len(self.nodes)}" for k in range(1, self.columns)] if self.columns <= FEW else []
        return "".join([*rows, *columns])

    @property
    def ticks(self) -> tuple[Tick, ...]:
        return column_ticks(self.rounds)

    @property
    def has_weights(self) -> bool:
        return bool(np.isin(self.states.codes, (WEIGHED, EVALUATION)).any())

    @property
    def met(self) -> list[Mark]:
        """The marks that occur."""
        return [mark for code, mark in MARKS.items() if (self.states.codes == code).any()]


def states(rounds: Sequence[RoundRecord], nodes: Sequence[str]) -> States:
    """What became of these nodes, in this order, in the rounds."""
    codes = np.zeros((len(nodes), len(rounds)), np.int8)
    shares = np.full(codes.shape, np.nan)
    row = {node: k for k, node in enumerate(nodes)}
    for column, record in enumerate(rounds):
        for node, seen in judge_round(record).items():
            codes[row[node], column] = _code(seen)
            if seen.share is not None and seen.status != "rejected":
                shares[row[node], column] = seen.share
    return States(codes, shares)


def node_map(rounds: Sequence[RoundRecord], ranked: Sequence[Standing]) -> NodeMap:
    """The map of the rounds, with the nodes in the order of `ranked`: suspects first."""
    every = states(rounds, [one.node for one in ranked])
    shown = ranked[:MOST_ROWS]
    starts = groups(len(rounds), MOST_COLUMNS)
    kept = np.array([record.outcome != "aggregated" for record in rounds])
    row = max(1.0, min(HIGHEST, TALL / len(shown)))
    return NodeMap(
        title=_title(len(rounds), len(starts), ranked, len(shown)),
        nodes=tuple(one.node for one in shown),
        rounds=tuple(rounds[k].round for k in starts),
        states=States(every.codes[: len(shown)], every.shares[: len(shown)]).condensed(starts),
        kept=np.add.reduceat(kept, starts, dtype=np.intp) > 0,
        labels=_labels(shown, short_names([one.node for one in ranked]), row),
        row=row,
    )


def _code(seen: Seen) -> int:
    if seen.status == "quarantined":
        return QUARANTINED
    if seen.status == "rejected":
        return REJECTED
    if seen.bad_evaluation:
        return EVALUATION
    return UNWEIGHED if seen.share is None else WEIGHED


def _title(rounds: int, columns: int, ranked: Sequence[Standing], shown: int) -> str:
    suspects = sum(one.is_suspect for one in ranked)
    title = f"{len(ranked)} nodes, {suspects} of them suspects; {rounds} round{'s' * (rounds > 1)}."
    if columns < rounds:
        title += f" Neighbours are drawn together, {rounds} rounds as {columns}."
    if shown < len(ranked):
        title += f" Shown are the {shown} most suspicious of {len(ranked)} nodes."
    return title


def _labels(shown: Sequence[Standing], names: dict[str, str], row: float) -> tuple[Label, ...]:
    """The name of each node; or, where rows are too low for that, a word for all suspects and one for all others."""
    if row >= READABLE:
        return tuple(
            Label(shown_name(one.node, one.name and one.name[:LABEL], names), row, one.is_suspect) for one in shown
        )
    suspects = sum(one.is_suspect for one in shown)
    both = (Label("suspects", suspects * row, True), Label("others", (len(shown) - suspects) * row, False))
    return tuple(
        label if label.height >= READABLE else Label("", label.height, label.is_suspect)
        for label in both
        if label.height
    )
