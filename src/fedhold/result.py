"""What aggregate() returns: the aggregate, one row about every client, and the proof."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from fedhold.certificate import Certificate, Proof
from fedhold.diagnosis import Diagnosis, diagnosed
from fedhold.kernels import Vector, Weights

__all__ = ["CLIPPED", "DROPPED", "KEPT", "REJECTED", "STATUSES", "Aggregation", "Client", "Clients", "Guarded"]

STATUSES = np.array(["kept", "clipped", "dropped", "rejected"])
KEPT, CLIPPED, DROPPED, REJECTED = range(4)  # the place of each among them
COLUMNS = ("client", "status", "weight", "share", "distance", "threshold", "samples", "reason")
SHOWN = 40  # rows of a printed table, half from each end


@dataclass(frozen=True)
class Client:
    """What was done with one client.

    client     its index in the input
    status     kept (as it is), clipped (beyond its threshold), dropped (the rule gave it no weight), rejected (not admitted)
    reason     why it was rejected, or how its samples were capped
    distance   to the aggregate; None for a rejected client
    threshold  T_i of huber and spectral_huber, the radius of centered_clipping; None for other rules
    weight     its part of the aggregate; None for column rules
    share      its weight divided by its part of all samples: 1 is an equal share per sample; None for column rules
    samples    the n_i used
    groups     its status in each group, where there are groups: the rest of the row is of the group that treats it worst
    """

    client: int
    status: str
    reason: str
    distance: float | None
    threshold: float | None
    weight: float | None
    share: float | None
    samples: float
    groups: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, eq=False)
class Clients(Sequence[Client]):
    """One row per client, in input order. The rows are stored as columns, with NaN where a row says None."""

    indices: NDArray[np.intp]
    statuses: NDArray[np.str_]
    reasons: Sequence[str]
    distances: Vector
    thresholds: Vector
    weights: Vector
    shares: Vector
    samples: Vector
    groups: Mapping[str, NDArray[np.str_]] = field(default_factory=dict)

    @overload
    def __getitem__(self, index: int) -> Client: ...
    @overload
    def __getitem__(self, index: slice) -> Clients: ...
    def __getitem__(self, index: int | slice) -> Client | Clients:
        if isinstance(index, slice):
            columns = {name: column[index] for name, column in vars(self).items() if name != "groups"}
            return Clients(**columns, groups={name: statuses[index] for name, statuses in self.groups.items()})
        return Client(
            client=int(self.indices[index]),
            status=str(self.statuses[index]),
            reason=self.reasons[index],
            distance=_number(self.distances[index]),
            threshold=_number(self.thresholds[index]),
            weight=_number(self.weights[index]),
            share=_number(self.shares[index]),
            samples=float(self.samples[index]),
            groups={name: str(statuses[index]) for name, statuses in self.groups.items()},
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
        """One plain dict per client, for a data frame or JSON."""
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
class Guarded:
    """What a guard has chosen.

    taken   "rule", "huber" or "near_mean", from the strictest to the loosest
    losses  the mean loss of each on the server's samples; empty where the guard failed
    gain    by how much the loss of the one taken is lower than that of the rule
    error   the standard error of that difference, over the samples
    note    why the guard had no say; "" where it had
    """

    taken: str
    losses: Mapping[str, float]
    gain: float
    error: float
    note: str = ""


@dataclass(frozen=True, eq=False)
class Aggregation:
    """One aggregate that liars could not capture, and how it was found.

    value       an update with the structure, array library, dtype and device of the clients'. For a Dask array it is a Dask
                array whose numbers the last pass has left on the cluster; they travel only on .compute()
    weights     m numbers >= 0 that sum to 1, so that value = weights @ updates; None for column rules, and where a `start` has
                a share in the value. They sum to another number where updates are rescaled: by `steps`,
                `clipping`, `adaptive_clipping`, `sign_guard`, `fl_trust`
    clients     one row per client
    converged   whether the solver has reached its tolerance; True for rules that solve nothing
    iterations  how many steps it made
    rule        the spec of the rule, as it was given
    f           how many liars the rule withstood among the admitted clients: the f given, less the number rejected. Of several
                stages that take f, the last one's; None where none does
    proof       what `certificate` is made from; None for rules without one
    scale       the typical distance behind the thresholds, to be passed as `scale` in the next round; None for rules that
                remember none
    groups      the result in each group of arrays, by its name, where there are groups. `weights` and `certificate` are then
                None, and those of the groups say what there is to say
    guard       which candidate a guard has chosen, and by how much; None without one. Everything else here is then about that
                candidate, except `rule` and `f`
    """

    value: Any
    weights: Weights | None
    clients: Clients
    converged: bool
    iterations: int
    rule: str
    f: int | None
    proof: Proof | None = field(repr=False)
    scale: float | None = None
    groups: Mapping[str, Aggregation] = field(default_factory=dict, repr=False)
    guard: Guarded | None = None

    @cached_property
    def diagnosis(self) -> Diagnosis | None:
        """Which clients form groups, where the rule has found the distances between all pairs on its way; else None.

        The default rule finds them for up to 128 clients. `fedhold.diagnose(updates)` does so for any updates.
        """
        squares = None if self.proof is None else self.proof.geometry.known_squared_distances
        if squares is None:
            return None
        return diagnosed(squares, np.flatnonzero(self.clients.statuses != "rejected"), len(self.clients))

    @cached_property
    def certificate(self) -> Certificate | None:
        """Its .radius(f): leave out any f clients, and everyone else's Huber aggregate lies within; None for rules without one.

        It is about the value as it is, rounded to its dtype, with thresholds and sample caps as they are; `Certificate.radius`
        can do more. It is computed from the updates when it is first asked for; a RuntimeError is raised if they have changed
        since.
        """
        return None if self.proof is None else self.proof.certificate()

    def __repr__(self) -> str:
        counts = {status: len(self.clients.with_status(status)) for status in STATUSES}
        told = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
        told += "" if self.f is None else f"; f={self.f}"
        told += "" if self.guard is None else f"; guard took {self.guard.taken}"
        return f"Aggregation({self.rule!r}: {told}; converged={self.converged}, iterations={self.iterations})"
