"""The first view: distances between clients, and to any weighted centre -> m weights.

In: the matrix of updates, and what the first look at it found. Out: `Geometry`, all that a geometry rule may see, and the
solver of the Huber problem. Imports: `fedhold.updates`, `fedhold.kernels`.

    geometry.py    Geometry: distances by passes over the data, or from the Gram matrix
    gram.py        the m x m Gram matrix
    principal.py   the directions in which clients spread most, in the space of m weights
    line.py        the same problem for numbers, solved exactly
    solver.py      the fixed point of the Huber problem, in the space of m weights
"""

from fedhold.geometry.geometry import Geometry, Measurement, normalised, sampled_centre
from fedhold.geometry.line import location
from fedhold.geometry.principal import Principal
from fedhold.geometry.solver import HuberCentre, Rescaled, Solved, pulls_at, solve

__all__ = [
    "Geometry",
    "HuberCentre",
    "Measurement",
    "Principal",
    "Rescaled",
    "Solved",
    "location",
    "normalised",
    "pulls_at",
    "sampled_centre",
    "solve",
]
