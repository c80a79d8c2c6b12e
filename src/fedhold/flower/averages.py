"""Averages of metrics over nodes: a robust location of each, which one node's lie cannot move far."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.audit import unusable_metrics
from fedhold.flower.api import MetricRecord, RecordDict, plain_average
from fedhold.flower.replies import Reply
from fedhold.geometry import location
from fedhold.kernels import Weights, middle, weighted_median
from fedhold.thresholds import KAPPA

FINE, STEPS = 1e-6, 100  # a step this part of the thresholds ends the search; and the most steps. Some ten are usual.

Average = Callable[[list[RecordDict], str], MetricRecord]
"""(replies, the name of the metric that holds the number of samples) -> averages; as Flower has it."""


@dataclass(frozen=True)
class Averages:
    """The averages of metrics over nodes.

    record    the averages; None where no node had usable metrics
    reasons   the nodes whose metrics were left out, and why
    plain     the weighted means of the same metrics, for comparison; empty where the user's own function averaged
    """

    record: MetricRecord | None
    reasons: Mapping[int, str]
    plain: Mapping[str, Any] = field(default_factory=dict)


def average_metrics(
    replies: Sequence[Reply],
    samples: Mapping[int, float],
    sample_cap: float | None,
    function: Average,
    weight_key: str,
) -> Averages:
    """Average the metrics that are usable, each node weighted by its number of samples.

    replies     one per node
    samples     the number of samples of each node that takes part
    sample_cap  numbers beyond this many times their median count as that; None for no cap
    function    the user's function, which gets the whole replies, but for the capped numbers. In place of Flower's own, which
                one node can move as far as it likes, the location of each metric is taken
    weight_key  the name of the metric that holds the number of samples
    """
    present = [reply for reply in replies if reply.node in samples]
    reasons = unusable_metrics({reply.node: reply.metrics or {} for reply in present})
    usable = [reply for reply in present if reply.node not in reasons]
    if not usable:
        return Averages(None, reasons)
    limit = math.inf if sample_cap is None else sample_cap * statistics.median(samples[reply.node] for reply in usable)
    used = [min(samples[reply.node], limit) for reply in usable]
    if function is not plain_average:
        records = [_with_samples(reply, n, weight_key) for reply, n in zip(usable, used, strict=True)]
        return Averages(function(records, weight_key), reasons)
    columns = {name: np.array([(reply.metrics or {})[name] for reply in usable]) for name in usable[0].metrics or {}}
    weights = np.array(used)
    plain = {name: np.average(column, axis=0, weights=weights).tolist() for name, column in columns.items()}
    robust = {name: _location(column, weights) for name, column in columns.items()}
    return Averages(MetricRecord(robust), reasons, plain)


def _with_samples(reply: Reply, used: float, weight_key: str) -> RecordDict:
    """The whole reply, with the number of samples that counts in place of the number that was claimed."""
    whole = isinstance(reply.claimed, int) and reply.claimed == used
    record = RecordDict(dict((reply.content or {}).items()))
    record[reply.key] = MetricRecord({**(reply.metrics or {}), weight_key: int(used) if whole else used})
    return record


def _location(values: NDArray[Any], samples: Weights) -> Any:
    """The Huber location of a metric over the nodes, the rows; of lists of numbers, that of each column by itself.

    It is what the rule `huber` makes of one number per node. The thresholds depend on the location, and the location on them:
    each is found for the other in turn.
    """
    if values.ndim > 1:
        return [_location(column, samples) for column in values.T]
    if (values == values[0]).all():
        return float(values[0])
    numbers, counts = values.astype(np.float64), samples / samples.max()
    roots = np.sqrt(counts)
    place = float(weighted_median(numbers, roots))  # n_i T_i grows as the root of n_i.
    before = place, 0.0
    with np.errstate(over="ignore"):  # A number near the largest float is infinitely far away.
        for _ in range(STEPS):
            away = numbers - place
            limits = KAPPA * middle(roots * np.abs(away)) / roots
            step = location(away, counts, limits)
            if abs(step) <= FINE * limits.max():
                return place + step
            # Steps shrink along a straight line, which is followed to its end where it is not too flat or too steep.
            fall = (before[1] - step) / (place - before[0]) if place != before[0] else 1.0
            before, place = (place, step), place + step / (fall if 0.25 < fall < 1.5 else 1.0)
    return place
