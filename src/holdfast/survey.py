"""The first look at the data: what a rule can learn in the same pass that finds out who is admitted.

It takes for granted that everyone will be. Where that comes out wrong, what depends on it is computed again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from holdfast import gram, rules
from holdfast.admission import Admission
from holdfast.arrays import Vector
from holdfast.columns import surveying
from holdfast.geometry import Geometry
from holdfast.gram import Gram, central_client, gram_kernel
from holdfast.updates import Block, Kernel, Updates

__all__ = ["Survey"]

COLUMN_RULES = (rules.median, rules.trimmed_mean, rules.mean_around_median)
NO_DISTANCES = (rules.mean, rules.centered_clipping)


@dataclass
class Survey:
    """What to look for.

    rule   the function; `run` calls it on a geometry
    mixed  it will not see the clients themselves
    """

    rule: Callable[..., Any]
    run: Callable[[Geometry], Any]
    mixed: bool
    _row: Vector | None = field(default=None, init=False)
    _gram: bool = field(default=False, init=False)

    def __call__(self, updates: Updates) -> tuple[Kernel[Block] | None, bool]:
        if self.rule in COLUMN_RULES and not self.mixed:
            try:
                rule = self.run(Geometry(updates, np.ones(updates.m)))
            except ValueError:  # it will be told once it is known who is admitted
                return None, False
            self._row = np.empty(updates.d)
            return surveying(rule, self._row), True
        if (self.rule in NO_DISTANCES and not self.mixed) or updates.m > gram.CLIENTS:
            return None, False
        self._gram = True
        return gram_kernel(central_client(updates)), False

    def geometry(self, admission: Admission, start: Vector | None) -> Geometry:
        """The admitted clients, with all that is known of them."""
        updates, fit = admission.updates.reaching(start), admission.fit
        geometry = Geometry(updates, admission.samples, admission.norms)
        if self._gram and admission.seen is not None:
            found = Gram(admission.seen.reshape(len(fit), -1)[np.ix_(fit, fit)])
            geometry.gram = found if found.fine(geometry.resolution) else None
        return geometry

    def row(self, admission: Admission) -> tuple[Vector, Vector] | None:
        """The column rule's row, and the products that tell the distances to it; None where it is to be computed again."""
        if self._row is None or admission.seen is None or not admission.fit.all():
            return None
        return self._row, admission.seen
