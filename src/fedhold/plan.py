"""What the first pass over the data is to find beside its check, decided before a number is read.

The numbers of clients that decide stand in sizes.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from fedhold.sizes import FEW, MAX_PAIRED, PAIRED, SEVERAL
from fedhold.spec import Stage
from fedhold.updates import AllPairs, Columnwise, Sent, Wanted

__all__ = ["Plan", "plan_for"]


@dataclass(frozen=True)
class Plan:
    """How the data is read.

    wanted       what the first pass finds beside its check
    around_zero  whether a stage looks from 0, so that no client is subtracted from the others
    """

    wanted: Wanted
    around_zero: bool


def plan_for(stages: Sequence[Stage], sent: Sent) -> Plan:
    """The plan for a call. A call that no clients could have made valid is an error here, before anything is read."""
    rows = len(sent.reasons)
    for stage in stages:
        rows = stage.check(rows)
    updates, m = sent.updates, sent.updates.m
    *mixings, final = stages
    declared, by_columns = final.declared, final.declared.view == "columns"
    in_memory = 0 if by_columns else SEVERAL if declared.spreads else FEW
    saves_passes = m <= (PAIRED if updates.costly_to_read else in_memory) and declared.centres
    few_pairs = m <= MAX_PAIRED or updates.costly_to_read
    wanted: Wanted = None
    if by_columns and not mixings and sent.steps is None:
        everyone = final.among(m, sent.rejected)  # The row counts only if all of these clients are admitted.
        wanted = Columnwise(partial(everyone.function, **everyone.parameters))
    elif saves_passes or (few_pairs and any(stage.declared.pairs for stage in stages)):
        wanted = AllPairs()
    elif declared.begins is not None and not mixings and sent.steps is None:
        wanted = declared.begins(updates, sent.samples)
    return Plan(wanted, sent.steps is not None or any(stage.declared.from_zero for stage in stages))
