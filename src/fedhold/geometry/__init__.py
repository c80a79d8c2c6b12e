"""The first view: distances between clients, and to any weighted centre -> m weights.

In: the matrix of updates. Out: `Geometry`, all that a geometry rule may see, and the solver.
Imports: `fedhold.updates` and below.
"""

from fedhold.geometry.gram import SQUARE_RUN, Gram, central_client, gram_pass, residuals
from fedhold.geometry.newton import pulls_at
from fedhold.geometry.solver import Solved, solve
from fedhold.geometry.view import Geometry, Matrix, Weights, normalised

__all__ = [
    "SQUARE_RUN",
    "Geometry",
    "Gram",
    "Matrix",
    "Solved",
    "Weights",
    "central_client",
    "gram_pass",
    "normalised",
    "pulls_at",
    "residuals",
    "solve",
]
