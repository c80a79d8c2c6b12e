"""What a rule declares about itself, beside its definition: `aggregate` reads from it how to pass over the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

__all__ = ["Declaration", "declaration_of", "declares"]

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declaration:
    """The facts about a rule or a mixing.

    view       "geometry": it weighs clients by their distances; "columns": it treats every column by itself and uses nothing
               of the geometry but m
    centres    it needs the clients' distances to several weighted centres, for which a Gram matrix can save passes
    pairs      it needs the distances between all pairs of clients, which take a Gram matrix
    certifies  its result comes with a proof of how near it is to the Huber centre without any f liars
    from_last  by definition it starts from the last round's aggregate
    """

    view: Literal["geometry", "columns"] = "geometry"
    centres: bool = True
    pairs: bool = False
    certifies: bool = False
    from_last: bool = False


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
    """What a rule declares. A rule that declares nothing is taken to need distances to centres, and no pairs."""
    declared = getattr(function, "declared", None)
    return declared if isinstance(declared, Declaration) else Declaration()
