"""Averages of metrics over nodes: a robust location of each, which one node's lie cannot move far."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from flwr.app import MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from numpy.typing import NDArray

from fedhold.aggregation import aggregate
from fedhold.audit import unusable_metrics
from fedhold.transport import Reply

plain_average = FedAvg().train_metrics_aggr_fn  # what Flower averages metrics by unless the user gives a function

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
    weights = np.array(used)
    columns = {
        name: np.array([(reply.metrics or {})[name] for reply in usable], np.float64)
        for name in usable[0].metrics or {}
    }
    plain = {name: np.average(column, axis=0, weights=weights).tolist() for name, column in columns.items()}
    robust = {name: _location(column, weights) for name, column in columns.items()}
    return Averages(MetricRecord(robust), reasons, plain)


def _with_samples(reply: Reply, used: float, weight_key: str) -> RecordDict:
    """The whole reply, with the number of samples that counts in place of the number that was claimed."""
    whole = isinstance(reply.claimed, int) and reply.claimed == used
    record = RecordDict(dict((reply.content or {}).items()))
    record[reply.key] = MetricRecord({**(reply.metrics or {}), weight_key: int(used) if whole else used})
    return record


def _location(values: NDArray[Any], samples: NDArray[Any]) -> Any:
    """The Huber location of a metric over the nodes, the rows; of lists of numbers, that of each column by itself."""
    if values.ndim > 1:
        return [_location(column, samples) for column in values.T]
    return float(aggregate(values[:, None], "huber", samples=samples, sample_cap=None).value[0])
