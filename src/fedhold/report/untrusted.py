"""Text that clients chose, made safe to store and to show: no control characters, no endless lines, no spreadsheet formulas.

`one_line` is for what a server stores or logs, `visible` for what a terminal or a page shows, `quoted` for CSV files.
"""

from __future__ import annotations

from fedhold.errors import MOST_STORED, one_line, visible

__all__ = ["MOST_STORED", "one_line", "quoted", "visible"]


def quoted(text: object) -> str:
    """The visible text for a cell of a CSV file: an apostrophe precedes what a spreadsheet would take for a formula.

    >>> quoted("=1+1"), quoted("numbers that are not finite")
    ("'=1+1", 'numbers that are not finite')
    """
    shown = visible(text)
    return f"'{shown}" if shown.lstrip()[:1] in ("=", "+", "-", "@") and shown.strip() else shown
