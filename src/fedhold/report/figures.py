"""Figures: drawn once by matplotlib (the extra `report`), as SVG for a page, as PNG or PDF for a file.

Nothing here uses pyplot, and matplotlib's settings are the caller's again after every figure. Titles and labels may come from
clients: they are shown as they are, never read as formulas, and their length is bounded. matplotlib is loaded by the first
figure that is drawn. Without it a page shows the table behind each figure.
"""

from __future__ import annotations

import importlib.util
import io
import re
import textwrap
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from xml.etree import ElementTree

from fedhold.errors import visible
from fedhold.report.colours import COLOURS
from fedhold.report.pages import INSTALL, Block

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Paper

    from fedhold.report.tables import Table

WIDTH = 5.8  # inches; a page shows an inch as 72 units, so that text keeps its size on a phone
DPI = 150  # of PNG files
TITLE_LETTERS, MOST_TITLE = 64, 400  # in a line of a file's title, and in all of it
LABEL_LETTERS = 60  # of a label; what is longer is cut
INK, SOFT, GRID, CARD = "#1c2024", "#5b636d", "#e8ebee", "#ffffff"
# What a page writes in place of these colours, so that they follow its light and dark scheme.
PAGE_COLOURS = {
    **{colour: f"var(--c{k})" for k, colour in enumerate(COLOURS)},
    **{INK: "var(--ink)", SOFT: "var(--soft)", GRID: "var(--grid)", CARD: "var(--card)"},
}
SETTINGS: dict[str, Any] = {
    "text.parse_math": False,
    "svg.fonttype": "none",
    "lines.scale_dashes": False,
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": SOFT,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "axes.edgecolor": SOFT,
    "grid.color": GRID,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "legend.handlelength": 3.5,  # shows the dashes beside the marker
}
METADATA: dict[str, dict[str, Any]] = {  # dates and versions would change the bytes
    "svg": {"Date": None, "Creator": None},
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}
SVG_ELEMENTS = {"svg", "g", "defs", "clipPath", "path", "rect", "use", "image", "text"}
XLINK = "{http://www.w3.org/1999/xlink}"


def can_plot() -> bool:
    """Whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


class Figure(Block, ABC):
    """A block that is drawn. `table` holds what it shows, for those who do not see it."""

    template: ClassVar[str] = "figures.html"
    title: str

    @property
    @abstractmethod
    def summary(self) -> str:
        """What is shown, for those who do not see it."""

    @property
    @abstractmethod
    def note(self) -> str:
        """A sentence below the figure; may be empty."""

    @property
    @abstractmethod
    def table(self) -> Table:
        """The numbers in the figure, few enough for a page."""

    @property
    @abstractmethod
    def height(self) -> float:
        """In inches."""

    @abstractmethod
    def draw(self, paper: Paper) -> None:
        """Draw everything but the title."""

    @property
    def svg(self) -> str:
        """An element for a page; empty without matplotlib."""
        return _inline(self._saved("svg").decode(), self.title, self.summary) if can_plot() else ""

    def save(self, path: Path) -> None:
        """Write a file with the title above the figure: PNG or PDF, as the name ends. Needs matplotlib."""
        if not can_plot():
            raise ImportError(f"{path.name} was not written: {INSTALL}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self._saved(path.suffix.removeprefix("."), title=self.title))

    def _saved(self, kind: str, title: str = "") -> bytes:
        import matplotlib.style
        from matplotlib.figure import Figure as Paper

        written = io.BytesIO()
        settings = {**SETTINGS, "svg.hashsalt": visible(self.title)}  # ids are the same in every run
        with matplotlib.style.context(["default", settings]), warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Glyph")  # a client may write in letters that the font lacks
            lines = textwrap.wrap(visible(title, MOST_TITLE), TITLE_LETTERS)
            paper = Paper(figsize=(WIDTH, self.height + 0.2 * len(lines)), dpi=DPI, layout="constrained")
            if lines:
                paper.suptitle("\n".join(lines), fontsize="medium")
            self.draw(paper)
            paper.savefig(written, format=kind, metadata=METADATA[kind], transparent=kind == "svg")
        return written.getvalue()


def label(text: object) -> str:
    """A text that a figure can show."""
    return visible(text, LABEL_LETTERS)


def _inline(document: str, title: str, summary: str) -> str:
    """An SVG document as an element of a page: what a drawing needs, in the colours of the page."""
    root = ElementTree.fromstring(document)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    used = set(re.findall(r'(?:url\(|href=")#([^")]+)', document))
    for element in root.iter():
        for child in list(element):
            if child.tag not in SVG_ELEMENTS:
                element.remove(child)
        element.attrib = {
            name: value for name, value in map(_short, element.attrib.items()) if name != "id" or value in used
        }
    root.attrib = {
        **{"class": "plot", "viewBox": root.attrib["viewBox"]},
        **{"role": "img", "aria-label": f"{visible(title)}: {visible(summary)}"},
    }
    return re.sub(r"\n\s*", "", ElementTree.tostring(root, encoding="unicode"))


def _short(attribute: tuple[str, str]) -> tuple[str, str]:
    """An attribute as a page needs it: in the page's colours and font, coordinates with one digit after the point."""
    name, value = attribute[0].removeprefix(XLINK), attribute[1]
    if name == "style":
        value = re.sub("#[0-9a-f]{6}", lambda met: PAGE_COLOURS.get(met[0], met[0]), value)
        value = re.sub(r"font-family: [^;]*;? ?", "", value)
    if name in ("d", "x", "y"):
        value = re.sub(r"-?\d+\.\d+", lambda met: f"{float(met[0]):.1f}".removesuffix(".0"), value)
        value = re.sub(r"\s+", " ", value).strip()
    return name, value
