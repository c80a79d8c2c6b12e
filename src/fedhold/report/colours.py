"""The colours of pages and figures: one for each curve, and a scale for weights."""

from __future__ import annotations

import numpy as np

# Wong 2011 ("Points of view: Color blindness"), without the yellow that is lost on white; the last is the text's colour.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#882255", "#222222")
DARK_COLOURS = (
    "#4aa3e0",
    "#ff7a29",
    "#1fc797",
    "#e79bc4",
    "#f0b429",
    "#8fd0f7",
    "#d1659b",
    "#e6e9ed",
)  # on a dark page

FULL = 2.0  # times an equal share: the brightest colour of the scale stands for this weight and all above
LEVELS = 15  # colours of the scale; with one more for absent clients they are 16, so that a pixel takes half a byte
CIVIDIS = ((0, 34, 78), (53, 69, 108), (102, 105, 112), (148, 142, 119), (200, 184, 102), (254, 232, 56))
SCALE = np.stack(
    [np.interp(np.linspace(0, 1, LEVELS), np.linspace(0, 1, len(CIVIDIS)), part) for part in np.transpose(CIVIDIS)], axis=1
).round().astype(np.uint8)  # fmt: skip
