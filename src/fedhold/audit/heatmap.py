"""The heat map of an audit: nodes x rounds, the suspects on top; a colour of its own for every cell that has no weight."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fedhold.audit.records import RoundRecord
from fedhold.audit.suspects import Seen, Standing, judge_round, short_names, shown_name
from fedhold.report import HeatMap, Mark

NAME_LETTERS = 16  # of what a node calls itself, beside its row
MARKS = (
    Mark("reply rejected", "#d95f02"),
    Mark("only its evaluation rejected", "#f4a582"),
    Mark("in quarantine", "#c764a5"),
    Mark("took part, without a weight", "#b9c0c8"),
)
WEIGHED, REJECTED, EVALUATION, QUARANTINED, UNWEIGHED = range(5)  # the codes of a map with these marks


def node_map(rounds: Sequence[RoundRecord], ranked: Sequence[Standing]) -> HeatMap:
    """The map of the rounds, with the nodes in the order of `ranked`: suspects first."""
    codes = np.zeros((len(ranked), len(rounds)), np.int8)
    shares = np.full(codes.shape, np.nan)
    row = {one.node: k for k, one in enumerate(ranked)}
    for column, record in enumerate(rounds):
        for node, seen in judge_round(record).items():
            codes[row[node], column] = _code(seen)
            if seen.share is not None:
                shares[row[node], column] = seen.share
    suspects, short = sum(one.is_suspect for one in ranked), short_names(list(row))
    return HeatMap(
        "What became of every node",
        f"{len(ranked)} nodes, {suspects} of them suspects; {len(rounds)} round{'s' * (len(rounds) > 1)}",
        shares,
        codes,
        MARKS,
        tuple(shown_name(one.node, one.name and one.name[:NAME_LETTERS], short) for one in ranked),
        tuple(record.round for record in rounds),
        (("suspects", suspects), ("others", len(ranked) - suspects)),
        np.array([record.outcome != "aggregated" for record in rounds]),
    )


def _code(seen: Seen) -> int:
    if seen.status == "quarantined":
        return QUARANTINED
    if seen.status == "rejected":
        return REJECTED
    if seen.bad_evaluation:
        return EVALUATION
    return UNWEIGHED if seen.share is None else WEIGHED
