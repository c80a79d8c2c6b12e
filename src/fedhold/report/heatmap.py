"""Who was held down: clients x rounds as a picture of weights, and how well low weights tell liars from the rest."""

from __future__ import annotations

import base64
import struct
import zlib
from html import escape

import numpy as np
from numpy.typing import NDArray

from fedhold.kernels import Vector
from fedhold.report.charts import HEIGHT, INNER_HEIGHT, INNER_WIDTH, LEFT, TOP, WIDTH, x_axis

__all__ = ["FULL", "SCALE", "arranged", "detection", "draw_weights", "flagged", "picture"]

FULL = 2.0  # times an equal share: the brightest colour stands for this weight and all above
MOST_ROWS, MOST_COLUMNS = 500, 400  # a larger picture is averaged down: nobody sees more, and the page stays small
LEVELS = 15  # and one more for absent clients: 16 colours, so that a pixel is half a byte
ANCHORS = ((0, 34, 78), (53, 69, 108), (102, 105, 112), (148, 142, 119), (200, 184, 102), (254, 232, 56))  # cividis
ABSENT = (255, 255, 255)  # and transparent

SCALE = np.stack(
    [np.interp(np.linspace(0, 1, LEVELS), np.linspace(0, 1, len(ANCHORS)), part) for part in np.transpose(ANCHORS)], axis=1
).round().astype(np.uint8)  # fmt: skip


def flagged(weights: NDArray[np.floating]) -> NDArray[np.bool_]:
    """(rounds, m) whether a client's weight is below half the median weight of those that took part in the round."""
    w = weights.astype(np.float64)
    held = np.zeros(w.shape, np.bool_)
    present = ~np.isnan(w).all(axis=1)
    held[present] = w[present] < 0.5 * np.nanmedian(w[present], axis=1, keepdims=True)
    return held


def detection(weights: NDArray[np.floating], byzantine: NDArray[np.bool_]) -> tuple[Vector, Vector]:
    """Precision and recall of `flagged` against the truth, per round, among those that took part.

    precision = liars among the flagged / flagged,  recall = liars among the flagged / liars;  NaN where that is 0 / 0.
    """
    held = flagged(weights)
    liars = byzantine & ~np.isnan(weights)
    caught = (held & byzantine).sum(axis=1).astype(np.float64)
    return _ratio(caught, held.sum(axis=1)), _ratio(caught, liars.sum(axis=1))


def arranged(weights: NDArray[np.floating], byzantine: NDArray[np.bool_]) -> tuple[NDArray[np.float64], int]:
    """The picture's numbers, clients down and rounds across: liars first. And how many of its rows are liars'."""
    parts = [weights[:, who].T.astype(np.float64) for who in (byzantine, ~byzantine)]
    m = byzantine.size
    most = [max(1, round(MOST_ROWS * len(part) / m)) if m > MOST_ROWS else len(part) for part in parts]
    short = [_shrunk(_shrunk(part, rows, 0), MOST_COLUMNS, 1) for part, rows in zip(parts, most, strict=True)]
    return np.vstack(short), len(short[0])


def picture(shares: NDArray[np.float64]) -> bytes:
    """A matrix of weights (1 is an equal share, NaN is absent) as a PNG of 16 colours."""
    levels = np.full(shares.shape, LEVELS, np.uint8)
    there = ~np.isnan(shares)
    levels[there] = np.round(np.clip(shares[there] / FULL, 0, 1) * (LEVELS - 1))
    rows, columns = len(levels), len(levels.T)
    even = np.pad(levels, ((0, 0), (0, columns % 2)))
    packed = np.pad(even[:, ::2] << 4 | even[:, 1::2], ((0, 0), (1, 0)))  # a row begins with its filter: none
    header = struct.pack(">IIBBBBB", columns, rows, 4, 3, 0, 0, 0)  # 4 bits, palette
    parts = {
        b"IHDR": header,
        b"PLTE": SCALE.tobytes() + bytes(ABSENT),
        b"tRNS": bytes([255] * LEVELS + [0]),
        b"IDAT": zlib.compress(packed.tobytes(), 9),
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(_block(name, data) for name, data in (*parts.items(), (b"IEND", b"")))


def draw_weights(title: str, weights: NDArray[np.floating], byzantine: NDArray[np.bool_]) -> str:
    """The heat map as SVG: liars on top, marked by a bar and a word."""
    shares, liars = arranged(weights, byzantine)
    data = base64.b64encode(picture(shares)).decode("ascii")
    cut = TOP + INNER_HEIGHT * liars / len(shares)
    sharp = " sharp" if len(shares) < INNER_HEIGHT else ""
    bottom = TOP + INNER_HEIGHT
    words = []
    if liars:
        words.append(f'<rect class="liars" x="{LEFT - 6}" y="{TOP}" width="5" height="{cut - TOP:.1f}"/>')
        words.append(f'<text class="liars" x="{LEFT - 9}" y="{(TOP + cut) / 2 + 4:.1f}" text-anchor="end">liars</text>')
    if liars < len(shares):
        words.append(f'<text x="{LEFT - 9}" y="{(cut + bottom) / 2 + 4:.1f}" text-anchor="end">honest</text>')
    if 0 < liars < len(shares):
        words.append(f'<path class="cut" d="M{LEFT - 6} {cut:.1f}h{INNER_WIDTH + 6}"/>')
    name = f"{byzantine.size} clients, {int(byzantine.sum())} of them liars"
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}: {name}">'
        f'<text class="name" x="4" y="11">{name}</text>'
        f'<image class="heat{sharp}" x="{LEFT}" y="{TOP}" width="{INNER_WIDTH}" height="{INNER_HEIGHT}"'
        f' preserveAspectRatio="none" href="data:image/png;base64,{data}"/>{"".join(words)}{x_axis(len(weights))}</svg>'
    )


def _ratio(part: Vector, whole: NDArray[np.integer]) -> Vector:
    return np.divide(part, whole, out=np.full(part.shape, np.nan), where=whole > 0)


def _shrunk(matrix: NDArray[np.float64], most: int, axis: int) -> NDArray[np.float64]:
    """Means of neighbours along an axis, so that at most so many are left; the absent do not count."""
    n = matrix.shape[axis]
    if n <= most:
        return matrix
    starts = np.unique(np.linspace(0, n, most, endpoint=False).astype(np.intp))
    present = np.add.reduceat(~np.isnan(matrix), starts, axis=axis, dtype=np.intp)
    return _ratio(np.add.reduceat(np.nan_to_num(matrix), starts, axis=axis), present)


def _block(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
