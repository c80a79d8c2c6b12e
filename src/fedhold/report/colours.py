"""The colours of pages and figures: a style for each rule, the same everywhere, and a scale for weights."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from fedhold.spec import RULES

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
SCALE_COLOURS = ["#{:02x}{:02x}{:02x}".format(*colour) for colour in SCALE.tolist()]

DASHES = ("", "6 3", "1.5 3", "8 3 1.5 3")  # each pattern serves for as many rules as there are colours
MARKERS = 6  # shapes of markers

# The rules that are most often in one chart have a colour each and solid lines, in the order of COLOURS; the others of the
# registry follow with dashes. The last pattern is for rules that are not in the registry.
FIRST = ("spectral_huber", "krum", "median", "trimmed_mean", "huber", "geometric_median", "median_of_means", "mean")
NUMBERS = {name: k for k, name in enumerate(dict.fromkeys((*FIRST, *RULES)))}


@dataclass(frozen=True)
class Style:
    """How a curve is drawn: the number of its colour, its dashes as SVG writes them (empty for a solid line), and the number of
    the shape of its markers."""

    colour: int
    dashes: str = ""
    marker: int = 0


def rule_style(spec: str) -> Style:
    """The style of a rule, the same in every page and figure; that of a rule of one's own comes from its name.

    spec  or a label that begins with the rule's name; parameters and mixings change nothing

    >>> rule_style("krum") == rule_style("bucketing(size=2) | krum(f=3)") == rule_style("krum, told f")
    True
    """
    name = re.split(r"[(, ]", spec.rpartition("|")[2].strip())[0]
    if name not in NUMBERS:
        return Style(zlib.crc32(name.encode()) % len(COLOURS), DASHES[-1])
    return Style(NUMBERS[name] % len(COLOURS), DASHES[NUMBERS[name] // len(COLOURS)])


def rule_styles(specs: Mapping[str, str]) -> dict[str, Style]:
    """The styles of the rules in a page: variants of one rule share colour and dashes, and differ in their markers.

    specs  the spec of each label, in the order of the page

    >>> [style.marker for style in rule_styles({"huber": "huber", "T = 1": "huber(threshold=1)"}).values()]
    [0, 1]
    """
    met: Counter[Style] = Counter()
    styles = {}
    for label, spec in specs.items():
        style = rule_style(spec)
        styles[label] = Style(style.colour, style.dashes, met[style] % MARKERS)
        met[style] += 1
    return styles


def plain_styles(labels: Iterable[str]) -> dict[str, Style]:
    """Styles for curves that are no rules: every label another colour, as long as there are any, and then other dashes."""
    return {
        label: Style(k % len(COLOURS), DASHES[k // len(COLOURS) % len(DASHES)])
        for k, label in enumerate(dict.fromkeys(labels))
    }
