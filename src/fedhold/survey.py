"""The first look at the data: what a rule can learn in the same pass that finds out who is admitted.

Files are to be read as seldom as possible; in memory, only what pairs of clients share is worth it. It takes for granted that
everyone will be admitted: where that comes out wrong, what depends on it is computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.geometry import Geometry, Gram, central_client, gram_pass
from fedhold.kernels import Vector, worth_compiling
from fedhold.rules import m_estimators as rules
from fedhold.rules import mixing, selection
from fedhold.updates import Admission, Pass, Updates, columns_tile, surveying

__all__ = ["Survey"]

COLUMN_RULES = (rules.median, rules.trimmed_mean, rules.mean_around_median)
FEW = 32  # clients: below, all pairs of them cost less than the passes of a solve
NO_DISTANCES = (rules.mean, rules.centered_clipping)
PAIRWISE = (
    *(selection.krum, selection.multi_krum, selection.bulyan, selection.spectral_filter),
    mixing.nearest_neighbour_mixing,
)


@dataclass
class Survey:
    """What to look for.

    stages  the functions, the rule last; `run` calls it on a geometry
    """

    stages: Sequence[Callable[..., Any]]
    run: Callable[[Geometry], Any]
    _row: Vector | None = field(default=None, init=False)
    _gram: bool = field(default=False, init=False)

    def __call__(self, updates: Updates) -> Pass | None:
        # Compiled code is done with a block while it is in cache; interpreted code had better look at the whole again.
        at_once = updates.on_disk or updates.sweeps.threads
        if at_once and len(self.stages) == 1 and self.stages[0] in COLUMN_RULES:
            try:
                rule = self.run(Geometry(updates, np.ones(updates.m)))
            except ValueError:  # it will be told once it is known who is admitted
                return None
            self._row = updates.zeros()
            kernel, alone = surveying(rule, self._row, updates.sweeps), updates.sweeps.threads
            return Pass(kernel, columns_tile(updates), threads=True, scratch=not alone)
        # From the disk, another look would cost more than all products; few clients have few products.
        few = updates.m <= FEW and worth_compiling(updates.m * updates.d) and self.stages[-1] not in COLUMN_RULES
        saves = (updates.on_disk or few) and self.stages[-1] not in NO_DISTANCES
        self._gram = saves or any(stage in PAIRWISE for stage in self.stages)
        return gram_pass(updates, central_client(updates)) if self._gram else None

    def geometry(self, admission: Admission, start: Vector | None) -> Geometry:
        """The admitted clients, with all that is known of them."""
        updates, fit = admission.updates.reaching(start), admission.fit
        geometry = Geometry(updates, admission.samples, admission.norms)
        if self._gram and admission.seen is not None:
            matrix = admission.seen.reshape(len(fit), -1)
            found = Gram(matrix if fit.all() else _moved_up(matrix, np.flatnonzero(fit)))
            geometry.gram = found if found.fine(geometry.resolution) else None
        return geometry

    def row(self, admission: Admission) -> tuple[Vector, Vector] | None:
        """The column rule's row, and the products that tell the distances to it; None where it is to be computed again."""
        if self._row is None or admission.seen is None or not admission.fit.all():
            return None
        return self._row, admission.seen


def _moved_up(matrix: NDArray[np.float64], kept: NDArray[np.intp]) -> NDArray[np.float64]:
    """The rows and columns kept, in the matrix's own memory: a copy can be as large as a part of the data."""
    for place, row in enumerate(kept):
        matrix[place, : len(kept)] = matrix[row, kept]
    return matrix[: len(kept), : len(kept)]
