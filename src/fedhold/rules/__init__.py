"""Aggregation rules: each one is a pure function of the geometry that declares what it needs.

In: a `Geometry`. Out: m weights from a geometry rule; from a column rule, the function to apply to each block of columns;
from a mixing, the matrix that makes new rows from the clients. Imports: `fedhold.geometry` and below, `fedhold.thresholds`.

    declaration.py    what a rule declares about itself, beside its definition
    m_estimators.py   geometry rules that minimise a sum of losses, or take steps towards such a minimum; and the mean
    spectral.py       geometry rules that look at the directions in which clients spread
    selection.py      geometry rules that choose clients by how near they are to each other, or to a place
    columns.py        column rules; and `by_columns` for a rule of your own
    directions.py     geometry rules that look from 0
    mixing.py         what may be done to the clients before a rule sees them

RULES and MIXINGS have what these files declare, in the order of the files and of the definitions in them. Imports with a star
show the same names to type checkers.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from fedhold.rules import columns, directions, m_estimators, mixing, selection, spectral
from fedhold.rules.columns import *  # noqa: F403
from fedhold.rules.columns import by_columns
from fedhold.rules.declaration import Bound, Declaration, declaration_of, declares
from fedhold.rules.directions import *  # noqa: F403
from fedhold.rules.m_estimators import *  # noqa: F403
from fedhold.rules.mixing import *  # noqa: F403
from fedhold.rules.selection import *  # noqa: F403
from fedhold.rules.spectral import *  # noqa: F403


def _declared_in(*modules: ModuleType) -> dict[str, Callable[..., Any]]:
    """name -> function, for every function that a module of ours declares."""
    return {
        name: function
        for module in modules
        for name, function in vars(module).items()
        if hasattr(function, "declared") and function.__module__ == module.__name__
    }


RULES = _declared_in(m_estimators, spectral, selection, columns, directions)
MIXINGS = _declared_in(mixing)

__all__ = [
    "MIXINGS",
    "RULES",
    "Bound",
    "Declaration",
    "by_columns",
    "declaration_of",
    "declares",
    *RULES,
    *MIXINGS,
]


def __dir__() -> list[str]:
    """The public names, for help() and for the completion of names."""
    return sorted(__all__)
