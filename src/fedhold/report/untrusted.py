"""Text that clients chose, made safe to show: no control characters, no endless lines, no formulas in a table."""

from __future__ import annotations

__all__ = ["MOST", "quoted", "visible"]

MOST = 160  # characters of a text that a client chose; the rest tells nobody more


def visible(text: object, most: int = MOST, *, encoding: str = "utf-8") -> str:
    r"""The text with all that a terminal or a browser would act on written out, cut after `most` characters.

    >>> visible("a\x1b[31m b\u202e c\nd")
    'a\\x1b[31m b\\u202e c\\nd'
    """
    whole = str(text)
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in whole[:most]
    )
    cut = "..." if len(whole) > most or len(shown) > most else ""
    return (shown[:most] + cut).encode(encoding, "backslashreplace").decode(encoding)


def quoted(text: object) -> str:
    """The same for a cell of a CSV file: what a spreadsheet would take for a formula begins with an apostrophe.

    >>> quoted("=1+1"), quoted("numbers that are not finite")
    ("'=1+1", 'numbers that are not finite')
    """
    shown = visible(text)
    return f"'{shown}" if shown.lstrip()[:1] in ("=", "+", "-", "@") and shown.strip() else shown
