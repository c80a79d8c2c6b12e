"""Pieces of the report's page: sections, tables, the claims, and the frame they stand in (report.html)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from importlib import resources
from string import Template
from typing import TYPE_CHECKING

from fedhold.report.curves import number
from fedhold.report.heatmap import FULL, SCALE

if TYPE_CHECKING:
    from fedhold.lab.paper import Verdict

__all__ = [
    "Section",
    "cards",
    "cell",
    "claims",
    "folded",
    "heading",
    "heat_card",
    "page",
    "pair",
    "paragraph",
    "table",
    "tally",
]


@dataclass(frozen=True)
class Section:
    """A heading of the page, and the HTML below it."""

    title: str
    body: str

    @property
    def anchor(self) -> str:
        return self.title.lower().replace(" ", "-")


def page(title: str, summary: str, sections: Iterable[Section]) -> str:
    """The whole file; sections without a body are left out."""
    kept = [section for section in sections if section.body]
    frame = Template(resources.files("fedhold").joinpath("report.html").read_text(encoding="utf-8"))
    return frame.substitute(
        title=escape(title),
        summary=escape(summary),
        gradient=", ".join("#{:02x}{:02x}{:02x}".format(*colour) for colour in SCALE[::2]),
        contents="".join(f'<a href="#{part.anchor}">{escape(part.title)}</a>' for part in kept),
        sections="\n".join(
            f'<section><h2 id="{part.anchor}">{escape(part.title)}</h2>\n{part.body}</section>' for part in kept
        ),
    )


def paragraph(text: str) -> str:
    """Running text."""
    return f"<p>{escape(text)}</p>"


def heading(text: str) -> str:
    """Above a table."""
    return f"<h3>{escape(text)}</h3>"


def cards(figures: Iterable[str]) -> str:
    """Figures side by side, as many as the screen has room for."""
    inside = "\n".join(figures)
    return f'<div class="cards">\n{inside}\n</div>' if inside else ""


def heat_card(title: str, drawing: str) -> str:
    """A heat map with its scale."""
    return (
        f'<figure class="weights"><figcaption>{escape(title)}</figcaption>{drawing}<div class="bar"></div>'
        f'<div class="ends"><span>0</span><span>1: an equal share</span><span>{FULL:g} or more</span></div></figure>'
    )


def pair(above: str, below: str) -> str:
    """Two figures that share their rounds, one above the other."""
    return f'<div class="pair">{above}{below}</div>'


def folded(summary: str, body: str) -> str:
    """Opens on a click."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, long: Collection[str] = ()) -> str:
    """A table that scrolls by itself where the screen is narrow; columns of numbers are flush right.

    Texts of the columns named in `long` are broken into lines, and so is the header then. A header without a word is left out.
    """
    classes = [
        ' class="number"' if _numbers([row[k] for row in rows]) else ' class="long"' * (word in long)
        for k, word in enumerate(header)
    ]
    head = "".join(f"<th{c}>{escape(word)}</th>" for c, word in zip(classes, header, strict=True))
    body = "".join(
        "<tr>" + "".join(f"<td{c}>{escape(cell(value))}</td>" for c, value in zip(classes, row, strict=True)) + "</tr>"
        for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if any(header) else ""
    dense = " dense" if long else ""
    return f'<div class="scroll{dense}"><table>{top}<tbody>{body}</tbody></table></div>'


def claims(verdicts: Sequence[Verdict]) -> str:
    """What the paper says, where, and what came of it: a colour and a word."""
    rows = "".join(
        f"<tr><td>{escape(verdict.says)}</td>"
        f'<td><span class="outcome {verdict.outcome}">{verdict.outcome}</span></td>'
        f'<td class="numbers">{escape(verdict.numbers)}</td><td class="where">{escape(verdict.where)}</td></tr>'
        for verdict in verdicts
    )
    head = "<tr><th>Claim</th><th>Verdict</th><th>Numbers</th><th>Source</th></tr>"
    return f'<div class="scroll claims"><table><thead>{head}</thead><tbody>{rows}</tbody></table></div>' if rows else ""


def tally(verdicts: Iterable[Verdict]) -> str:
    """'Of 3 claims 2 hold, 0 fail, 1 undecided'."""
    counts = Counter(verdict.outcome for verdict in verdicts)
    return f"Of {counts.total()} claims {counts['holds']} hold, {counts['fails']} fail, {counts['undecided']} undecided"


def cell(value: object) -> str:
    """A value as the reader sees it: floats with three digits, nothing for None."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value) if isinstance(value, float) else str(value)


def _numbers(column: Sequence[object]) -> bool:
    return any(value is not None for value in column) and all(
        value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in column
    )
