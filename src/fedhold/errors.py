"""Errors that say the bound, the values met and the remedy, and texts of others shown so that they can do no harm."""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from numbers import Integral, Real
from typing import Any, Literal, get_args, get_origin, get_type_hints

__all__ = [
    "MOST_STORED",
    "InfeasibleError",
    "integer",
    "listed",
    "one_line",
    "positive",
    "require",
    "unknown",
    "visible",
    "well_typed",
    "word_among",
]

MOST_SHOWN = 160  # characters of a client's text that a reader is shown
MOST_STORED = 200  # characters of it that an audit file keeps


class InfeasibleError(ValueError):
    """A bound that the given numbers do not meet, such as m >= 2f + 3: the call was sound, and cannot be answered."""


def require(condition: bool, rule: str, *, needs: str, remedy: str, **met: object) -> None:
    """Raise an InfeasibleError that names the bound, the values and the remedy unless `condition` holds."""
    if not condition:
        values = ", ".join(
            f"{name} = {value:.6g}" if isinstance(value, float) else f"{name} = {value}" for name, value in met.items()
        )
        raise InfeasibleError(f"{rule} needs {needs}; met {values}. {remedy}")


def integer(value: object, name: str, *, at_least: int = 0) -> int:
    """`value` as an int; a float, a bool or a number below `at_least` is an error."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        share = isinstance(value, float) and 0 < value < 1
        such = (
            f"{name}=int({value!r} * m) for a part of m clients"
            if share
            else f"a whole number such as {name}={at_least}"
        )
        raise TypeError(f"{name} must be an integer, got {value!r}. Pass {such}.")
    if value < at_least:
        raise ValueError(
            f"{name} must be at least {at_least}, got {value}. Pass a whole number such as {name}={at_least}."
        )
    return int(value)


def positive(value: object, name: str, *, zero: bool = False, infinite: bool = False) -> float:
    """`value` as a float above 0. With `zero`, 0 is allowed, too; with `infinite`, so is infinity."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r}. Pass a number such as {name}=1.0.")
    number = float(value)
    if math.isnan(number) or number < 0 or (number == 0 and not zero) or (math.isinf(number) and not infinite):
        bound = "a number of at least 0" if zero else "a number above 0"
        raise ValueError(
            f"{name} must be {bound}{'' if infinite else ' and finite'}, got {value!r}. Pass one such as {name}=1.0."
        )
    return number


def well_typed(function: Callable[..., Any], name: str, value: object) -> None:
    """Raise unless `value` fits a parameter of `function` that is annotated as an integer, a number or a word, or may be None.

    It is for values from a spec or a file, so that a mistake shows before the function is called, which may be hours later.
    """
    hint = _hints(function).get(name)
    if get_origin(hint) is Literal:
        word_among(value, name, get_args(hint))
        return
    kinds = get_args(hint) or (hint,)
    if value is None and type(None) in kinds:
        return
    if float in kinds:
        if isinstance(value, bool) or not isinstance(value, Real):
            raise TypeError(f"{name} must be a number, got {value!r}. Pass a number such as {name}=1.0.")
    elif int in kinds:
        integer(value, name)


@lru_cache(maxsize=256)
def _hints(function: Callable[..., Any]) -> Mapping[str, Any]:
    try:
        return get_type_hints(function)
    except Exception:  # A user's function may be annotated with anything, also with names that do not exist.
        return {}


def word_among(value: object, name: str, words: Sequence[str]) -> None:
    """Raise a ValueError unless `value` is one of the words that the parameter `name` may be."""
    if value not in words:
        raise ValueError(unknown(f"value for {name}:", str(value), words))


def unknown(what: str, name: str, known: Iterable[str], meant: str | None = None) -> str:
    """The message for an unknown name: it offers the one that was meant, by default the nearest, and lists all of them."""
    words = sorted(known)
    if meant is None:
        meant = next(iter(difflib.get_close_matches(name, words, n=1)), "")
    hint = f" Did you mean {meant!r}?" if meant else ""
    return f"unknown {what} {name!r}.{hint} Known: {listed(words)}."


def listed(words: Iterable[str]) -> str:
    """Words joined by commas, or 'none'."""
    return ", ".join(words) or "none"


def visible(text: object, most: int = MOST_SHOWN, *, encoding: str = "utf-8") -> str:
    r"""The text with every character that a terminal or a browser could act on written as an escape.

    text       any object; its `str` is taken
    most       how many characters are kept; three dots stand for the rest
    encoding   of the terminal; characters that it lacks are written as escapes, too

    >>> visible("a\x1b[31m b\u202e c\nd")
    'a\\x1b[31m b\\u202e c\\nd'
    """
    whole = str(text)
    shown = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in whole[:most]
    )
    cut = "..." if len(whole) > most or len(shown) > most else ""
    return (shown[:most] + cut).encode(encoding, "backslashreplace").decode(encoding)


def one_line(text: object, most: int = MOST_STORED) -> str:
    r"""The text as one line of at most `most` characters, with a blank for every run of unprintable characters and blanks.

    >>> one_line("no\x00 such\n\n file"), one_line("x" * 9, most=6)
    ('no such file', 'xxx...')
    """
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)[: 4 * most]).split())
    return line if len(line) <= most else line[: most - 3] + "..."
