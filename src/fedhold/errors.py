"""Errors that say the bound, the values met and the remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable
from numbers import Integral, Real

__all__ = ["FEWER", "InfeasibleError", "condition", "integer", "listed", "positive", "require", "unknown"]

FEWER = "Lower f, or gather more clients."  # the remedy where a bound on m in terms of f fails


class InfeasibleError(ValueError):
    """A bound that the given numbers do not meet, such as m >= 2f + 3: the call was sound, and cannot be answered."""


def require(condition: bool, rule: str, *, needs: str, remedy: str, **met: object) -> None:
    """Raise an InfeasibleError that names the bound, the values and the remedy unless `condition` holds."""
    if not condition:
        values = ", ".join(f"{name} = {value}" for name, value in met.items())
        raise InfeasibleError(f"{rule} needs {needs}; met {values}. {remedy}")


def condition(holds: bool, bound: str, needs: str, remedy: str, **met: float) -> None:
    """As `require`, for the conditions of a theorem: the values are numbers, shown to six digits."""
    if not holds:
        values = ", ".join(f"{name} = {value:.6g}" for name, value in met.items())
        raise ValueError(f"{bound} needs {needs}: {values}; {remedy}")


def integer(value: object, name: str, *, at_least: int = 0) -> int:
    """`value` as an int; a float, a bool or a number below `at_least` is an error."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r}. Pass a whole number such as {name}={at_least}.")
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


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """The message for an unknown name: it offers the nearest known one, and lists all of them."""
    words = sorted(known)
    near = difflib.get_close_matches(name, words, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return f"unknown {what} {name!r}.{hint} Known: {listed(words)}."


def listed(words: Iterable[str]) -> str:
    """Words joined by commas, or 'none'."""
    return ", ".join(words) or "none"
