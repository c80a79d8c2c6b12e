"""What a rule declares about itself, beside its definition: `aggregate` reads from it how to pass over the data."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, TypeVar, cast

from fedhold.errors import integer, require
from fedhold.geometry import Geometry
from fedhold.kernels import Weights
from fedhold.updates import Centre, Updates

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
        remedy = "Lower f, or gather more clients."
        require(m >= self.per_liar * liars + self.more, rule, needs=str(self), m=m, f=liars, remedy=remedy)

    def most_liars(self, m: int) -> int:
        """The largest f that m clients allow; 0 where they are too few for any."""
        return max((m - self.more) // self.per_liar, 0)


@dataclass(frozen=True)
class Declaration:
    """The facts about a rule or a mixing. The registries, the tables of rules in documents and `aggregate` read them.

    view       "geometry": it weighs clients by their distances; "columns": it treats every column by itself and uses nothing
               of the geometry but m
    centres    it needs the clients' distances to several weighted centres, for which a Gram matrix can save passes
    spreads    it needs the directions in which clients spread, too, for which a Gram matrix can save more passes
    begins     (updates, samples) -> the weighted centre to which it needs the clients' distances first: the pass that checks
               the numbers then finds these, too. None where that is not known beforehand
    pairs      it needs the distances between all pairs of clients, which take a Gram matrix
    certifies  its result comes with a proof of how near everyone else's Huber aggregate is, whichever f are left out
    from_last  by definition it starts from the last round's aggregate
    from_zero  it looks at lengths or directions as seen from 0, so that an offset that all clients share changes its result:
               it is for updates, not for models
    accuses    a weight far below a client's fair part tells against what the client sent. That is not so where the rule leaves
               out a number of clients that was fixed beforehand, since somebody is left out even if nobody lies, nor where it
               weighs random groups, since a client then shares the fate of its group
    bound      how many clients it needs to withstand f liars; None where it takes no f
    check      (m, **parameters) -> None, which raises an error where parameters beside f do not fit m clients
    rows       (m, **parameters) -> how many rows a mixing makes of m clients, at most; by default one for each
    robust     a liar cannot move it as far as he likes
    source     who published it, and when
    needs      what it needs besides its bound, in words for a reader
    also_known_as  its names in papers and other libraries. They are no spellings of it, but an error suggests it for them

    A call is judged by `bound`, `check` and `rows` once, with all clients that sent something. The function itself also gets
    fewer clients than its bound asks for, with an f of 0 then: no client can turn a valid call into an error.
    """

    view: Literal["geometry", "columns"] = "geometry"
    centres: bool = True
    spreads: bool = False
    begins: Callable[[Updates, Weights], Centre] | None = None
    pairs: bool = False
    certifies: bool = False
    from_last: bool = False
    from_zero: bool = False
    accuses: bool = False
    bound: Bound | None = None
    check: Callable[..., None] | None = None
    rows: Callable[..., int] = lambda m, **_: m
    robust: bool = True
    source: str = ""
    needs: str = ""
    also_known_as: tuple[str, ...] = ()


def declares(**facts: Any) -> Callable[[Function], Function]:
    """Declare facts about a rule, as a decorator.

    facts  the fields of `Declaration`

    >>> import numpy as np
    >>> from fedhold import aggregate
    >>> @declares(pairs=True)
    ... def closest(geometry):
    ...     nearest = geometry.squared_distances.sum(axis=1).argmin()
    ...     return (np.arange(geometry.m) == nearest).astype(float)
    >>> declaration_of(closest).pairs
    True
    >>> aggregate(np.array([[1.0], [2.0], [9.0]]), closest).weights
    array([0., 1., 0.])
    """

    declared = Declaration(**facts)

    def mark(function: Function) -> Function:
        @wraps(function)
        def rule(seen: Any, **parameters: Any) -> Any:
            if declared.view == "geometry" and not isinstance(seen, Geometry):
                name = function.__name__
                raise TypeError(
                    f"{name} is a rule: it receives a fedhold.Geometry, got {type(seen).__name__}. Call "
                    f'aggregate(updates, "{name}", ...), which returns weights, the value and a row about every client.'
                )
            return function(seen, **parameters)

        rule.declared = declared  # type: ignore[attr-defined]
        rule.__signature__ = inspect.signature(function)  # type: ignore[attr-defined]  # To find it takes as long as a small solve.
        return cast(Function, rule)

    return mark


def declaration_of(function: Callable[..., Any]) -> Declaration:
    """What a rule declares. One that declares nothing is taken to need distances to centres, no pairs, and to accuse nobody."""
    declared = getattr(function, "declared", None)
    return declared if isinstance(declared, Declaration) else Declaration()
