"""What aggregate() returns: the value, and an account of every client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from holdfast.arrays import Vector, length
from holdfast.certificate import Certificate, top_eigenvalue
from holdfast.geometry import Geometry, Weights
from holdfast.gram import SQUARE_RUN, residuals
from holdfast.solver import Solved

__all__ = ["Aggregation", "Client", "Clients", "Proof"]

COLUMNS = ("client", "status", "weight", "distance", "threshold", "samples", "reason")
SHOWN = 40  # rows of a printed table, half from each end


@dataclass(frozen=True)
class Client:
    """What was done with one client.

    status     kept (as it is), clipped (beyond its threshold), dropped (the rule gave it no weight), rejected (not admitted)
    reason     why it was rejected, or how its samples were capped
    distance   to the aggregate; None for a rejected client
    threshold  T_i of huber, the radius of centered_clipping; None elsewhere
    weight     its share of the aggregate; None for column rules
    samples    the n_i used
    """

    client: int
    status: str
    reason: str
    distance: float | None
    threshold: float | None
    weight: float | None
    samples: float


@dataclass(frozen=True, eq=False)
class Clients(Sequence[Client]):
    """One row per client, in input order; kept as columns, NaN where a row says None."""

    indices: NDArray[np.intp]
    statuses: NDArray[np.str_]
    reasons: Sequence[str]
    distances: Vector
    thresholds: Vector
    weights: Vector
    samples: Vector

    @overload
    def __getitem__(self, index: int) -> Client: ...
    @overload
    def __getitem__(self, index: slice) -> Clients: ...
    def __getitem__(self, index: int | slice) -> Client | Clients:
        if isinstance(index, slice):
            return Clients(**{name: column[index] for name, column in vars(self).items()})
        return Client(
            client=int(self.indices[index]),
            status=str(self.statuses[index]),
            reason=self.reasons[index],
            distance=_number(self.distances[index]),
            threshold=_number(self.thresholds[index]),
            weight=_number(self.weights[index]),
            samples=float(self.samples[index]),
        )

    def __len__(self) -> int:
        return len(self.indices)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Clients) and list(self) == list(other)

    def with_status(self, status: str) -> list[int]:
        """The indices of the clients with this status."""
        found: list[int] = self.indices[self.statuses == status].tolist()
        return found

    def to_dicts(self) -> list[dict[str, Any]]:
        """One plain dict per client, as for a data frame or JSON."""
        return [asdict(row) for row in self]

    def __str__(self) -> str:
        half = SHOWN // 2
        shown = [*self] if len(self) <= SHOWN else [*self[:half], *self[-half:]]
        cells = [COLUMNS, *(tuple(_cell(getattr(row, name)) for name in COLUMNS) for row in shown)]
        widths = [max(len(line[k]) for line in cells) for k in range(len(COLUMNS))]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in cells
        ]
        if len(self) > SHOWN:
            lines.insert(half + 1, f"... {len(self) - SHOWN} more ...")
        return "\n".join(lines)

    __repr__ = __str__


def _number(value: np.float64) -> float | None:
    return None if np.isnan(value) else float(value)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Proof:
    """What a certificate needs, kept until it is asked for: the m x m matrix can cost more than the aggregate itself."""

    geometry: Geometry
    value: Vector
    distances: Vector
    solved: Solved

    def certificate(self) -> Certificate:
        """From the residuals, and all that rounding can have done to them."""
        geometry, shares = self.geometry, self.geometry.shares
        found = residuals(geometry.updates, self.value, self.distances)
        norms = found.lengths
        rounding = geometry.resolution * length(self.value)
        if not np.allclose(norms, self.distances, rtol=1e-3, atol=32 * rounding):
            raise RuntimeError(
                "the updates have changed since they were aggregated, so nothing can be proven about the result. Ask for "
                "result.certificate before you change them, or aggregate a copy."
            )
        distances = np.where(self.distances > 0, norms, 0.0)
        inverse = np.divide(1.0, norms, out=np.zeros_like(norms), where=distances > 0)
        cosines = found.products
        cosines *= inverse[:, None]
        cosines *= inverse
        assert self.solved.thresholds is not None
        thresholds = self.solved.thresholds
        # What rounding did: to the force of each client, which is its distance or its threshold, and to the value.
        forces, before = np.minimum(distances, thresholds), np.minimum(self.distances, thresholds)
        doubt = geometry.resolution * SQUARE_RUN  # of the lengths
        off = float(shares @ (np.abs(forces - before) + doubt * forces)) + rounding * float(shares.sum())
        eigenvalue = top_eigenvalue(cosines, shares * forces, error=found.error)
        slack = self.solved.stationarity + off
        return Certificate(
            samples=geometry.shares,
            distances=geometry.real(distances),
            thresholds=np.where(np.isinf(thresholds), np.inf, geometry.real(thresholds)),
            eigenvalue=float(geometry.real(eigenvalue)),
            slack=float(geometry.real(slack)),
        )


@dataclass(frozen=True, eq=False)
class Aggregation:
    """One aggregate that liars could not capture, and what was done to get it.

    value    structure, array library, dtype and device of one update; of a Dask array, a Dask array whose numbers the last
             pass has left on the cluster: .compute() brings them here, and nothing else does
    weights  m numbers >= 0 that sum to 1 (to less after `clipping`), so that value = weights @ updates; None for column
             rules, and where a `start` has a share in the value
    clients  one row per client
    """

    value: Any
    weights: Weights | None
    clients: Clients
    converged: bool
    iterations: int
    rule: str
    proof: Proof | None = field(repr=False)

    @cached_property
    def certificate(self) -> Certificate | None:
        """.radius(f): how far any f liars can have moved the value, proven, or inf; None for rules without a proof.

        Computed when first asked for, from the updates themselves: a RuntimeError says so if they have changed since.
        """
        return None if self.proof is None else self.proof.certificate()

    def __repr__(self) -> str:
        counts = {
            status: len(self.clients.with_status(status)) for status in ("kept", "clipped", "dropped", "rejected")
        }
        told = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
        return f"Aggregation({self.rule!r}: {told}; converged={self.converged}, iterations={self.iterations})"
