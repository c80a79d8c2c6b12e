"""Heat maps of clients x rounds: weights as the colours of one picture, the same for experiments, audits and files."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedhold.report.charts import Area, Drawing, Tick, labelled_rounds
from fedhold.report.colours import FULL, LEVELS, SCALE
from fedhold.report.pages import Block
from fedhold.report.weights import ratio

MOST_ROWS, MOST_COLUMNS = 500, 400  # a larger map is condensed: nobody sees more, and the page stays small
ABSENT = (255, 255, 255)  # and transparent

Shares = NDArray[np.float64]  # weights in units of an equal share, NaN for absent clients


@dataclass(frozen=True, eq=False)
class WeightMap(Block):
    """The weights of an experiment's clients by round, the liars on top.

    clients, liars   how many clients there are, and how many of them lie
    shares           (rows, columns) the picture: clients down, rounds across; condensed where there are many
    liar_rows        the first rows of the picture, which are the liars'
    ticks            below the middles of the labelled rounds
    """

    area: ClassVar[Area] = Drawing.area
    title: str
    clients: int
    liars: int
    shares: Shares
    liar_rows: int
    ticks: tuple[Tick, ...]

    @property
    def cut(self) -> float:
        """Where the liars end and the honest begin: 1 at the top of the plot, 0 at its bottom."""
        return 1 - self.liar_rows / len(self.shares)

    @property
    def image(self) -> str:
        return data_uri(self.shares)

    @property
    def is_sharp(self) -> bool:
        """Whether a row is higher than a unit of the drawing, so that its edges should be sharp."""
        return len(self.shares) < self.area.inner_height


def weight_map(title: str, weights: NDArray[np.floating], byzantine: NDArray[np.bool_]) -> WeightMap:
    """The heat map of an experiment.

    weights     (rounds, m) in units of an equal share, NaN for clients that did not take part
    byzantine   (m,) whether a client lies
    """
    parts = [weights[:, who].T.astype(np.float64) for who in (byzantine, ~byzantine)]
    m = byzantine.size
    most = [max(1, round(MOST_ROWS * len(part) / m)) if m > MOST_ROWS else len(part) for part in parts]
    short = [
        group_means(group_means(part, groups(len(part), rows), 0), groups(len(weights), MOST_COLUMNS), 1)
        for part, rows in zip(parts, most, strict=True)
    ]
    return WeightMap(
        title, m, int(byzantine.sum()), np.vstack(short), len(short[0]), column_ticks(range(1, len(weights) + 1))
    )


def column_ticks(rounds: Sequence[int]) -> tuple[Tick, ...]:
    """Ticks for a map with a column for each of these rounds, in the middles of the columns."""
    picked = labelled_rounds(len(rounds))
    return tuple(Tick((k - 0.5) / len(rounds), str(rounds[k - 1])) for k in picked)


def groups(count: int, most: int) -> NDArray[np.intp]:
    """Where the groups start that divide 0 .. count - 1 into at most `most` stretches of about the same length."""
    return np.unique(np.linspace(0, count, min(count, most), endpoint=False).astype(np.intp))


def group_means(shares: Shares, starts: NDArray[np.intp], axis: int) -> Shares:
    """The mean of each group along an axis, without the absent; NaN where all of a group are absent."""
    if len(starts) == shares.shape[axis]:
        return shares
    present = np.add.reduceat(~np.isnan(shares), starts, axis=axis, dtype=np.intp)
    return ratio(np.add.reduceat(np.nan_to_num(shares), starts, axis=axis), present)


def picture(shares: Shares) -> bytes:
    """The weights as a PNG file of 16 colours, a pixel for each; absent clients are transparent."""
    levels = np.full(shares.shape, LEVELS, np.uint8)
    there = ~np.isnan(shares)
    levels[there] = np.round(np.clip(shares[there] / FULL, 0, 1) * (LEVELS - 1))
    rows, columns = len(levels), len(levels.T)
    even = np.pad(levels, ((0, 0), (0, columns % 2)))
    packed = np.pad(even[:, ::2] << 4 | even[:, 1::2], ((0, 0), (1, 0)))  # each row begins with its filter: none
    parts = {
        b"IHDR": struct.pack(">IIBBBBB", columns, rows, 4, 3, 0, 0, 0),  # 4 bits, with a palette
        b"PLTE": SCALE.tobytes() + bytes(ABSENT),
        b"tRNS": bytes([255] * LEVELS + [0]),
        b"IDAT": zlib.compress(packed.tobytes(), 9),
        b"IEND": b"",
    }
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts.items()
    )


def data_uri(shares: Shares) -> str:
    """The picture as an address that holds the file itself."""
    return f"data:image/png;base64,{base64.b64encode(picture(shares)).decode('ascii')}"
