"""How numbers are written, and how the texts of clients are made safe to store and to show."""

import math

import pytest

from audits import CLAIM, ESCAPES
from fedhold.errors import MOST_SHOWN, MOST_STORED, one_line, visible
from fedhold.report.tables import column, csv_cell, number, quoted


def test_numbers_are_short():
    assert [number(v) for v in (1.0, 0.25, 1e-12, 99999.4, 2.5e6, -math.inf)] == [
        "1",
        "0.25",
        "1e-12",
        "99999",
        "2.5e6",
        "-∞",
    ]


def test_columns_for_readers_and_cells_for_files():
    assert column([None, True, False, 3, 0.123456, math.nan, "text"]) == ["", "yes", "no", "3", "0.123", "-", "text"]
    assert column([0.5, 12.0, 1e9, 1e-7]) == ["0.5", "12.0", "1e9", "1e-7"]
    assert column([3.0, 4.0]) == ["3", "4"]
    assert column([0.000123, 0.00456]) == ["0.000123", "0.004560"]
    assert [csv_cell(v) for v in (None, True, 3, 0.1234567891, math.nan, math.inf)] == [
        None,
        True,
        3,
        "0.12345679",
        "",
        "inf",
    ]


def test_visible_leaves_nothing_to_act_on():
    shown = visible(ESCAPES + "\ud800\u2028\u200f\x00")
    assert shown.isprintable()
    assert "\\x1b[31mred" in shown
    assert "\\ud800" in shown
    assert len(visible("\x1b" * 10_000)) <= MOST_SHOWN + 3
    assert visible("naïve 数", encoding="ascii") == "na\\xefve \\u6570"


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@sum", " =1", CLAIM])
def test_no_cell_is_a_formula(text):
    assert quoted(text).startswith("'")


def test_one_line_is_one_line():
    stored = one_line(ESCAPES + "\u2028\n two  blanks")
    assert stored.isprintable()
    assert "\x1b" not in stored
    assert stored.endswith("2J two blanks")
    assert len(one_line("x" * 10_000)) == MOST_STORED
    assert one_line("x" * 10_000).endswith("x...")
    assert one_line("x" * MOST_STORED) == "x" * MOST_STORED
    assert one_line(["no", "text"]) == "['no', 'text']"
