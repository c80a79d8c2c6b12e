"""What a rule declares about itself, beside its definition: `aggregate` reads from it how to pass over the data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from typing import Any, Literal, TypeVar, cast

from fedhold.geometry import Geometry, Solved
from fedhold.updates import Columnwise, admit

__all__ = ["Declaration", "declaration_of", "declares"]

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Declaration:
    """The facts about a rule or a mixing.

    view       "geometry": it weighs clients by their distances; "columns": it treats every column by itself and uses nothing
               of the geometry but m
    centres    it needs the clients' distances to several weighted centres, for which a Gram matrix can save passes
    pairs      it needs the distances between all pairs of clients, which take a Gram matrix
    certifies  its result comes with a proof of how far liars can have moved it
    from_last  by definition it starts from the last round's aggregate
    """

    view: Literal["geometry", "columns"] = "geometry"
    centres: bool = True
    pairs: bool = False
    certifies: bool = False
    from_last: bool = False


def declares(**facts: Any) -> Callable[[Function], Function]:
    """Declare facts about a rule, as a decorator. The rule can then be called on an array, too.

    facts  the fields of `Declaration`

    Called on an (m, d) array, or on whatever else `aggregate` takes, a geometry rule returns its m weights, a column rule
    its row and a mixing its matrix. That is for looking at a rule: it does not reject clients as `aggregate` does.

    >>> import numpy as np
    >>> @declares(pairs=True)
    ... def closest(geometry):
    ...     nearest = geometry.squared_distances.sum(axis=1).argmin()
    ...     return (np.arange(geometry.m) == nearest).astype(float)
    >>> declaration_of(closest).pairs
    True
    >>> closest(np.array([[1.0], [2.0], [9.0]]))
    array([0., 1., 0.])
    """
    declared = Declaration(**facts)

    def mark(function: Function) -> Function:
        @wraps(function)
        def rule(geometry: Any, **parameters: Any) -> Any:
            if isinstance(geometry, Geometry):
                return function(geometry, **parameters)
            return _on_updates(function, geometry, parameters)

        rule.declared = declared  # type: ignore[attr-defined]
        return cast(Function, rule)

    return mark


def _on_updates(function: Callable[..., Any], updates: Any, parameters: dict[str, Any]) -> Any:
    """What a rule makes of updates: weights, a row, or the matrix of a mixing."""
    admission = admit(updates, None, None, None, lambda _: None)
    if admission.rejected:
        first = next(i for i, reason in enumerate(admission.reasons) if reason)
        name = function.__name__
        raise ValueError(
            f"{name} was called on updates of which {admission.rejected} cannot be used, first that of client {first}: "
            f'{admission.reasons[first]}. aggregate(updates, "{name}", ...) rejects such clients and goes on.'
        )
    geometry = Geometry(admission.updates, admission.samples, admission.look)
    if parameters.get("start") is not None:
        parameters = {**parameters, "start": admission.start(parameters["start"])}
    outcome = function(geometry, **parameters)
    if isinstance(outcome, Columnwise):
        return admission.shaped(geometry.column_row(outcome))
    return outcome.weights if isinstance(outcome, Solved) else outcome


def declaration_of(function: Callable[..., Any]) -> Declaration:
    """What a rule declares. A rule that declares nothing is taken to need distances to centres, and no pairs."""
    declared = getattr(function, "declared", None)
    return declared if isinstance(declared, Declaration) else Declaration()
