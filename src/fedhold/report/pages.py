"""Pages: sections of blocks, written as one HTML file that needs nothing else.

A block is a dataclass that holds what to show, and no HTML. The macro that bears its name in templates/ writes it, and every
text that enters a template is escaped there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from fedhold.report.colours import COLOURS, DARK_COLOURS, SCALE_COLOURS

if TYPE_CHECKING:
    from jinja2 import Environment

INSTALL = "matplotlib draws the figures, and is not installed; from a checkout of fedhold: pip install '.[report]'."


class Block:
    """A part of a page. `template` names the file in templates/ that has a macro of the class's name.

    Templates show a block where they write {{ block }}: `__html__` tells them that its text is HTML already.
    """

    template: ClassVar[str] = "blocks.html"

    def __html__(self) -> str:
        macros = _templates().get_template(self.template).module
        return str(getattr(macros, type(self).__name__)(self))


@dataclass(frozen=True)
class Paragraph(Block):
    """Running text."""

    text: str


@dataclass(frozen=True)
class Source(Block):
    """Where something comes from: its title and authors, and a link to it."""

    text: str
    link: str
    url: str


@dataclass(frozen=True)
class Heading(Block):
    """A heading above a table."""

    text: str


@dataclass(frozen=True)
class Cards(Block):
    """Figures side by side, as many as the screen has room for."""

    figures: Sequence[Block]


@dataclass(frozen=True)
class Folded(Block):
    """Blocks that open on a click on the summary."""

    summary: str
    blocks: Sequence[Block]


@dataclass(frozen=True)
class Section:
    """A heading of the page, and the blocks below it."""

    title: str
    blocks: Sequence[Block]

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-")


def page(title: str, summary: str, sections: Iterable[Section]) -> str:
    """The whole HTML file. Sections without blocks are left out.

    title      of the page, in its head and as its first heading
    summary    one or two sentences below the title
    sections   in their order; the page begins with links to them
    """
    kept = [section for section in sections if section.blocks]
    return _templates().get_template("page.html").render(title=title, summary=summary, sections=kept)


@cache
def _templates() -> Environment:
    from jinja2 import Environment, PackageLoader, StrictUndefined  # loaded when the first page is asked for

    environment = Environment(
        loader=PackageLoader("fedhold.report"),
        autoescape=True,
        auto_reload=False,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    colours = {"colours": COLOURS, "dark_colours": DARK_COLOURS, "gradient": SCALE_COLOURS[::2]}
    environment.globals.update(colours, install=INSTALL)
    return environment
