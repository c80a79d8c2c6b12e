"""What a rule says of itself, beside its definition; whoever chooses a route through the data reads it from here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

__all__ = ["Declaration", "declaration_of", "declares"]

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declaration:
    """The facts about a rule or a mixing.

    view       "geometry": it weighs clients by their distances; "columns": it treats every column by itself, and asks the
               geometry for nothing but m
    centres    it asks how far clients are from several weighted centres, so that a Gram matrix can save passes
    pairs      it asks how far clients are from each other, which needs a Gram matrix
    certifies  its result comes with a proof of how far liars can have moved it
    from_last  by definition it starts where the last round ended
    """

    view: Literal["geometry", "columns"] = "geometry"
    centres: bool = True
    pairs: bool = False
    certifies: bool = False
    from_last: bool = False


def declares(**facts: Any) -> Callable[[Function], Function]:
    """Declare these facts about a rule, as a decorator.

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
    """What a rule declares; of a rule that declares nothing, that it asks for distances to centres, and for no more."""
    declared = getattr(function, "declared", None)
    return declared if isinstance(declared, Declaration) else Declaration()
