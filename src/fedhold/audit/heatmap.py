"""The heat map of an audit: nodes x rounds, weights as colours, and a mark for whoever had none.

The weights are a picture of one pixel per cell; the marks are paths above it, so that light and dark have their own colours.
"""

from __future__ import annotations

import base64
import string
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedhold.audit.records import RoundRecord
from fedhold.audit.suspects import Seen, Standing, judge_round, short_names
from fedhold.report import FULL, picture, round_numbers

__all__ = ["MARKS", "Mark", "draw_ledger", "states"]

MOST_NODES, MOST_COLUMNS = 500, 400  # more nobody sees; rounds are drawn together, nodes with little suspicion left out
TALL, HIGHEST = 600, 20  # pixels: of the whole map, of one row
READABLE = 12  # a row this high has its node's name beside it
LETTERS = string.ascii_uppercase + string.ascii_lowercase[:15]  # a cell as one letter: a weight from 0 to FULL
ABSENT, WEIGHED, UNWEIGHED, REJECTED, EVALUATION, QUARANTINED = range(6)


class Mark(NamedTuple):
    """How a cell without a weight is drawn: its class and words, its letter, and the part of the cell it fills."""

    name: str
    words: str
    letter: str
    top: float = 0.0
    height: float = 1.0


MARKS = {
    REJECTED: Mark("rejected", "reply rejected", "x"),
    EVALUATION: Mark("rejected", "only its evaluation rejected", "z", 0.6, 0.4),
    QUARANTINED: Mark("quarantined", "in quarantine", "q", 0.4, 0.2),
    UNWEIGHED: Mark("unweighed", "took part, without a weight", "u"),
    ABSENT: Mark("absent", "not asked", ".", 0, 0),
}


def states(rounds: Sequence[RoundRecord], nodes: Sequence[str]) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """(nodes, rounds) what became of each node, and its weight in units of an equal share (NaN where it has none)."""
    codes = np.zeros((len(nodes), len(rounds)), np.int8)
    shares = np.full(codes.shape, np.nan)
    row = {node: k for k, node in enumerate(nodes)}
    for column, record in enumerate(rounds):
        for node, seen in judge_round(record).items():
            codes[row[node], column] = _code(seen)
            if seen.share is not None and seen.status != "rejected":
                shares[row[node], column] = seen.share
    return codes, shares


def draw_ledger(rounds: Sequence[RoundRecord], ranked: Sequence[Standing]) -> str:
    """The map as one <figure>: the most suspicious node on top, a bar beside the suspects, the kept rounds marked."""
    codes, shares = states(rounds, [one.node for one in ranked])
    shown = ranked[:MOST_NODES]
    starts = np.unique(np.linspace(0, len(rounds), min(len(rounds), MOST_COLUMNS), endpoint=False).astype(np.intp))
    codes, shares = _together(codes[: len(shown)], shares[: len(shown)], starts)
    kept = np.add.reduceat(np.array([record.outcome != "aggregated" for record in rounds]), starts, dtype=np.intp) > 0
    firsts = [rounds[k].round for k in starts]
    high = max(1.0, min(HIGHEST, TALL / len(shown)))
    names = short_names([one.node for one in ranked])
    every = f" Neighbours are drawn together, {len(rounds)} rounds as {len(starts)}." * (len(starts) < len(rounds))
    fewer = f" Shown are the {len(shown)} most suspicious of {len(ranked)} nodes." * (len(shown) < len(ranked))
    suspects = sum(one.is_suspect for one in ranked)
    title = f"{len(ranked)} nodes, {suspects} of them suspects; {len(rounds)} round{'s' * (len(rounds) > 1)}."
    strip = ""
    if kept.any():
        strip = f'<span class="side">model kept</span>{_sheet("strip", len(kept), 1, 8, _path("kept", kept[None]))}'
    return (
        f'<figure class="ledger" data-rounds="{" ".join(map(str, firsts))}"'
        f' data-nodes="{escape(" ".join(one.node for one in shown))}" data-cells="{_letters(codes, shares)}"'
        f' data-full="{FULL:g}" data-letters="{LETTERS}"'
        f' data-marks="{";".join(mark.letter + mark.words for mark in MARKS.values())}">'
        f'<figcaption>{title}{every}{fewer}</figcaption><div class="sheet">{strip}'
        f"{_side(shown, names, high)}{_cells(title, codes, shares, high)}<span></span>{_rounds(firsts)}</div>"
        f'<p class="note readout" aria-live="polite">Point at a cell to read it.</p>{_key(codes)}</figure>'
    )


def _code(seen: Seen) -> int:
    if seen.status == "quarantined":
        return QUARANTINED
    if seen.status == "rejected":
        return REJECTED
    if seen.bad_evaluation:
        return EVALUATION
    return UNWEIGHED if seen.share is None else WEIGHED


def _together(
    codes: NDArray[np.int8], shares: NDArray[np.float64], starts: NDArray[np.intp]
) -> tuple[NDArray[np.int8], NDArray[np.float64]]:
    """Neighbouring rounds as one column: what happened most often to those asked, and the mean weight."""
    if len(starts) == codes.shape[1]:
        return codes, shares
    kinds = np.stack([np.add.reduceat(codes == kind, starts, axis=1, dtype=np.intp) for kind in range(1, 6)])
    most = np.where(kinds.any(axis=0), 1 + kinds.argmax(axis=0), ABSENT).astype(np.int8)
    counts = np.add.reduceat(~np.isnan(shares), starts, axis=1, dtype=np.intp)
    sums = np.add.reduceat(np.nan_to_num(shares), starts, axis=1)
    means = np.divide(sums, counts, out=np.full(sums.shape, np.nan), where=counts > 0)
    return most, np.where(np.isin(most, (WEIGHED, EVALUATION)), means, np.nan)


def _letters(codes: NDArray[np.int8], shares: NDArray[np.float64]) -> str:
    """A word for each node, a letter for each cell, for the page's script to read out."""
    steps = np.nan_to_num(np.round(np.clip(shares / FULL, 0, 1) * (len(LETTERS) - 1)), nan=0).astype(np.intp)
    return " ".join(
        "".join(LETTERS[step] if code == WEIGHED else MARKS[code].letter for code, step in zip(row, line, strict=True))
        for row, line in zip(codes.tolist(), steps.tolist(), strict=True)
    )


def _cells(title: str, codes: NDArray[np.int8], shares: NDArray[np.float64], high: float) -> str:
    nodes, columns = codes.shape
    data = base64.b64encode(picture(shares)).decode("ascii")
    image = (
        f'<image class="heat sharp" width="{columns}" height="{nodes}" preserveAspectRatio="none"'
        f' href="data:image/png;base64,{data}"/>'
    )
    marks = "".join(
        _path(mark.name, codes == code, mark.top, mark.height) for code, mark in MARKS.items() if mark.height
    )
    lines = "".join(f"M0 {k}H{columns}" for k in range(1, nodes)) if high >= READABLE else ""
    if columns <= 60:
        lines += "".join(f"M{k} 0V{nodes}" for k in range(1, columns))
    return _sheet("cells", columns, nodes, high * nodes, f'{image}{marks}<path class="gaps" d="{lines}"/>', title)


def _sheet(name: str, columns: int, rows: int, high: float, inside: str, title: str = "") -> str:
    """A drawing in units of cells, stretched to the room there is."""
    label = f'role="img" aria-label="{escape(title)}"' if title else 'aria-hidden="true"'
    return (
        f'<svg class="{name}" {label} viewBox="0 0 {columns} {rows}" preserveAspectRatio="none"'
        f' style="height:{high:g}px">{inside}</svg>'
    )


def _path(name: str, where: NDArray[np.bool_], top: float = 0.0, height: float = 1.0) -> str:
    """A box for each stretch of neighbours."""
    boxes = []
    for row, cells in enumerate(where):
        edges = np.flatnonzero(np.diff(cells.astype(np.int8), prepend=0, append=0)).tolist()
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            boxes.append(f"M{start} {row + top:g}H{end}v{height:g}H{start}z")
    return f'<path class="{name}" d="{"".join(boxes)}"/>' if boxes else ""


def _side(shown: Sequence[Standing], names: Mapping[str, str], high: float) -> str:
    """The names of the nodes, or words where the rows are too low for names."""
    suspects = sum(one.is_suspect for one in shown)
    if high >= READABLE:
        parts = [(names[one.node], 1, one.is_suspect) for one in shown]
    else:
        parts = [("suspects", suspects, True), ("others", len(shown) - suspects, False)]
    inside = "".join(
        f'<span{" class=suspect" if suspect else ""} style="height:{count * high:g}px">'
        f"{escape(word) if count * high >= READABLE else ''}</span>"
        for word, count, suspect in parts
        if count
    )
    return f'<div class="side">{inside}</div>'


def _rounds(firsts: Sequence[int]) -> str:
    """Numbers of rounds below their columns."""
    count = len(firsts)
    wanted = {0, *(int(k) - 1 for k in round_numbers(1, count, 5) if k == int(k) and (k - 1) * 12 >= count)}
    marks = "".join(
        f'<span style="left:{100 * (k + 0.5) / count:.2f}%">{firsts[k]}</span>'
        for k in sorted(wanted)
        if 0 <= k < count
    )
    return f'<div class="rounds">{marks}<b>round</b></div>'


def _key(codes: NDArray[np.int8]) -> str:
    """What the colours and the marks mean; only marks that occur."""
    there = set(codes.ravel().tolist())
    box = np.ones((1, 1), np.bool_)
    items = "".join(
        '<span><svg class="swatch" viewBox="0 0 1 1" preserveAspectRatio="none">'
        f"{_path(mark.name, box, mark.top, mark.height)}</svg>{mark.words}</span>"
        for code, mark in MARKS.items()
        if code in there
    )
    ends = f"<span>weight 0</span><span>1: an equal share</span><span>{FULL:g} or more</span>"
    scale = f'<div class="bar"></div><div class="ends">{ends}</div>' if there & {WEIGHED, EVALUATION} else ""
    return f'{scale}<div class="key">{items}</div>'
