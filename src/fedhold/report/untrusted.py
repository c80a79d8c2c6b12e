"""Text that clients chose, made safe to store and to show: no control characters, no endless lines, no spreadsheet formulas.

`one_line` is for what a server stores or logs, `visible` for what a terminal or a page shows, `quoted` for CSV files.
"""

from __future__ import annotations

from fedhold.errors import visible

MOST_STORED = 200  # characters of it that an audit file keeps


def quoted(text: object) -> str:
    """The visible text for a cell of a CSV file: an apostrophe precedes what a spreadsheet would take for a formula.

    >>> quoted("=1+1"), quoted("numbers that are not finite")
    ("'=1+1", 'numbers that are not finite')
    """
    shown = visible(text)
    return f"'{shown}" if shown.lstrip()[:1] in ("=", "+", "-", "@") and shown.strip() else shown


def one_line(text: object, most: int = MOST_STORED) -> str:
    r"""The text as one line of at most `most` characters, with a blank for every run of unprintable characters and blanks.

    >>> one_line("no\x00 such\n\n file"), one_line("x" * 9, most=6)
    ('no such file', 'xxx...')
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)[: 4 * most]).split())
    return line if len(line) <= most else line[: most - 3] + "..."
