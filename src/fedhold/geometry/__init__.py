"""The first view: distances between clients, and to any weighted centre -> m weights.

In: the matrix of updates. Out: `Geometry`, all that a geometry rule may see, and the solver.
Imports: `fedhold.updates` and below.
"""

from fedhold.geometry.view import Geometry, Matrix, Weights

__all__ = ["Geometry", "Matrix", "Weights"]
