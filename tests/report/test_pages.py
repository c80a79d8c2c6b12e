"""Pages: what is put into them is text, whatever it is; empty sections are left out; tables know their numbers."""

import inspect
import math
import subprocess
import sys
from html.parser import HTMLParser
from importlib import resources

import numpy as np
import pytest

import fedhold.audit
import fedhold.lab  # noqa: F401  both have blocks of their own
from fedhold.report import (
    Block,
    Cards,
    Chart,
    Folded,
    Heading,
    Paragraph,
    Section,
    Table,
    curve,
    page,
    weight_map,
)

HOSTILE = "<script>alert(1)</script> \"' onload=x {{ 7 * 7 }} {% raw %} ${7*7} &amp;"


class Tags(HTMLParser):
    """The tags of a page with their attributes, and its text."""

    def __init__(self, source):
        super().__init__()
        self.tags, self.text, self.open = [], "", []
        self.feed(source)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def hostile_page():
    chart = Chart(HOSTILE, HOSTILE, (curve(HOSTILE, (0,), [[1.0, 2.0]]),))
    table = Table(HOSTILE, (HOSTILE, "b"), [(HOSTILE, 1.0), (None, True)], long=[HOSTILE])
    blocks = [
        Paragraph(HOSTILE),
        Heading(HOSTILE),
        table,
        Folded(HOSTILE, [table, Paragraph(HOSTILE)]),
        Cards([chart, weight_map(HOSTILE, np.ones((2, 3)), np.arange(3) < 1)]),
    ]
    return page(HOSTILE, HOSTILE, [Section(HOSTILE, blocks)])


def test_whatever_enters_a_page_is_text():
    source = hostile_page()
    seen = Tags(source)
    assert seen.open == []
    assert [tag for tag, _ in seen.tags].count("script") == 0
    assert not any("onload" in attributes for _, attributes in seen.tags)
    assert seen.text.count(HOSTILE) >= 11


def test_what_makes_pages_is_loaded_by_the_first_page():
    code = "import sys, fedhold.audit, fedhold.lab; print(*sys.modules, sep='\\n')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(run.stdout.split()).isdisjoint({"jinja2", "rich", "click", "matplotlib"})
    assert "fedhold.report.figures" in run.stdout.split()


def blocks(kind=Block):
    return [block for sub in kind.__subclasses__() for block in (sub, *blocks(sub))]


@pytest.mark.parametrize(
    "block", [one for one in blocks() if not inspect.isabstract(one)], ids=lambda block: block.__name__
)
def test_every_block_has_a_macro_of_its_name(block):
    source = resources.files("fedhold.report").joinpath("templates", block.template).read_text(encoding="utf-8")
    assert f"{{% macro {block.__name__}(it) -%}}" in source


def test_sections_without_blocks_are_left_out():
    source = page("t", "s", [Section("Empty one", []), Section("Who was held down", [Paragraph("text")])])
    assert "Empty one" not in source
    assert '<a href="#who-was-held-down">Who was held down</a>' in source
    assert '<h2 id="who-was-held-down">' in source


@pytest.mark.parametrize(
    ("column", "kind"),
    [
        ((1, 2.5), "number"),
        ((1, None), "number"),
        ((None, None), "short"),
        ((1, True), "short"),
        ((1, "text"), "short"),
        (("a", "a text that may be broken into lines"), ""),
    ],
)
def test_columns_of_numbers_are_flush_right_and_short_texts_are_not_broken(column, kind):
    assert Table("", ("a",), [(value,) for value in column]).classes == [kind]


def test_a_column_has_equal_decimals():
    table = Table("", ("a", "b"), [(0.5, 1.0), (12.345, "infeasible"), (None, 2.25), (math.nan, 3)])
    assert table.texts == [("0.5", "1.00"), ("12.3", "infeasible"), ("", "2.25"), ("-", "3")]


def test_a_table_without_header_has_none():
    assert "<thead" not in Table("", ("", ""), [("a", 1)]).__html__()
    assert "<thead" in Table("", ("", "b"), [("a", 1)]).__html__()
