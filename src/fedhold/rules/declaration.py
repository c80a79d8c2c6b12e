"""What a rule declares about itself, beside its definition: `aggregate` reads from it how to pass over the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from fedhold.errors import FEWER, integer, require

__all__ = ["Bound", "Declaration", "declaration_of", "declares"]

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Bound:
    """How many clients a rule needs to withstand f liars: m >= per_liar * f + more.

    >>> str(Bound(2, 3)), Bound(2, 3).most_liars(10)
    ('m >= 2f + 3', 3)
    """

    per_liar: int
    more: int

    def __str__(self) -> str:
        return f"m >= {self.per_liar}f + {self.more}"

    def check(self, rule: str, m: int, f: object) -> None:
        """Raise an error unless m clients are enough for f liars."""
        liars = integer(f, "f")
        require(m >= self.per_liar * liars + self.more, rule, needs=str(self), m=m, f=liars, remedy=FEWER)

    def most_liars(self, m: int) -> int:
        """The largest f that m clients allow; 0 where they are too few for any."""
        return max((m - self.more) // self.per_liar, 0)


def _any(m: int, **parameters: Any) -> None:
    """Every parameter fits."""


def _as_many(m: int, **parameters: Any) -> int:  # noqa: ARG001
    """A mixing that makes one row for every client."""
    return m


@dataclass(frozen=True)
class Declaration:
    """The facts about a rule or a mixing.

    view       "geometry": it weighs clients by their distances; "columns": it treats every column by itself and uses nothing
               of the geometry but m
    centres    it needs the clients' distances to several weighted centres, for which a Gram matrix can save passes
    pairs      it needs the distances between all pairs of clients, which take a Gram matrix
    certifies  its result comes with a proof of how near everyone else's aggregate is, whichever f clients are left out
    from_last  by definition it starts from the last round's aggregate
    from_zero  it looks at lengths or directions as seen from 0, so that an offset that all clients share changes its result:
               it is for updates, not for models
    accuses    a weight far below a client's fair part tells against what the client sent. That is not so where the rule leaves
               out a number of clients that was fixed beforehand, since somebody is left out even if nobody lies, nor where it
               weighs random groups, since a client then shares the fate of its group
    bound      how many clients it needs to withstand f liars; None where it takes no f
    check      (m, **parameters) -> None, which raises an error where parameters beside f do not fit m clients
    rows       (m, **parameters) -> how many rows a mixing makes from those of m clients, or the most that it may make

    A call is judged by `bound`, `check` and `rows` once, with all clients that sent something. The function itself also gets
    fewer clients than its bound asks for, with an f of 0 then: no client can turn a valid call into an error.
    """

    view: Literal["geometry", "columns"] = "geometry"
    centres: bool = True
    pairs: bool = False
    certifies: bool = False
    from_last: bool = False
    from_zero: bool = False
    accuses: bool = False
    bound: Bound | None = None
    check: Callable[..., None] = _any
    rows: Callable[..., int] = _as_many


def declares(**facts: Any) -> Callable[[Function], Function]:
    """Declare facts about a rule, as a decorator.

    facts  the fields of `Declaration`

    >>> @declares(pairs=True)
    ... def closest(geometry): ...
    >>> declaration_of(closest).pairs
    True
    """
    declared = Declaration(**facts)

    def mark(function: Function) -> Function:
        function.declared = declared  # type: ignore[attr-defined]
        return function

    return mark


def declaration_of(function: Callable[..., Any]) -> Declaration:
    """What a rule declares. One that declares nothing is taken to need distances to centres, no pairs, and to accuse nobody."""
    declared = getattr(function, "declared", None)
    return declared if isinstance(declared, Declaration) else Declaration()
