"""Averages of metrics over nodes, which one node's nonsense neither ends nor enters, and one node's lie cannot move far."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.aggregation import aggregate
from fedhold.report import one_line

# A number beyond so many times the median node's (or 1, where that is less) tells nothing of the federation.
FAR = 1e6
# A Huber location takes half a millisecond. Of more numbers than this, the median of each is taken: all in one call.
MANY = 1000

Metrics = Mapping[str, Any]
Form = set[tuple[str, int]]
"""The keys of metrics, each with the length of its list; -1 for a single number."""


@dataclass(frozen=True)
class Averages:
    """The averages of metrics over nodes.

    reasons   the nodes whose metrics were left out, and why
    samples   the number of samples that counts, of the others
    robust    the Huber location of each metric that more than half of the nodes have, or the median where these are more than
              1,000 numbers; empty where no node had usable metrics
    plain     the weighted means of the same metrics, for comparison
    """

    reasons: Mapping[Any, str]
    samples: Mapping[Any, float]
    robust: Mapping[str, Any] = field(default_factory=dict)
    plain: Mapping[str, Any] = field(default_factory=dict)


def average_metrics(
    metrics: Mapping[Any, Metrics], samples: Mapping[Any, float], sample_cap: float | None = None
) -> Averages:
    """Average the metrics that are usable, each node weighted by its number of samples.

    metrics     node -> its metrics by name, each a number or a list of numbers
    samples     node -> its number of samples
    sample_cap  numbers beyond this many times their median count as that; None for no cap

    >>> average_metrics({1: {"loss": 0.5}, 2: {"loss": 0.7}, 3: {"loss": 9.0}}, {1: 10, 2: 10, 3: 10}).plain
    {'loss': 3.4}
    """
    reasons = unusable_metrics(metrics)
    counted = {node: samples[node] for node in metrics if node not in reasons}
    if not counted:
        return Averages(reasons, {})
    cap = math.inf if sample_cap is None else sample_cap * statistics.median(counted.values())
    counted = {node: min(number, cap) for node, number in counted.items()}
    weights = np.array(list(counted.values()), np.float64)
    columns = {
        name: np.array([metrics[node][name] for node in counted], np.float64)
        for name, _ in sorted(set.intersection(*(_form(metrics[node]) for node in counted)))
    }
    many = sum(column[0].size for column in columns.values()) > MANY
    return Averages(
        reasons,
        counted,
        {name: _median(column) if many else _location(column, weights) for name, column in columns.items()},
        {name: np.average(column, axis=0, weights=weights).tolist() for name, column in columns.items()},
    )


def _location(values: NDArray[Any], samples: NDArray[Any]) -> Any:
    """The Huber location of a metric over the nodes, the rows; of lists of numbers, that of each column by itself."""
    if values.ndim > 1:
        return [_location(column, samples) for column in values.T]
    return float(aggregate(values[:, None], "huber", samples=samples, sample_cap=None).value[0])


def _median(values: NDArray[Any]) -> Any:
    """The median of a metric over the nodes, the rows, of each number by itself."""
    return aggregate(values.reshape(len(values), -1), "median").value.reshape(values.shape[1:]).tolist()


def unusable_metrics(metrics: Mapping[Any, Metrics]) -> dict[Any, str]:
    """The nodes whose metrics must stay out of the averages, and why.

    These are nodes with a number that is not finite, without a metric that more than half of the nodes have (or with a list of
    another length under its name), or with a number beyond 1e6 times the median node's. Metrics that fewer nodes have are
    left out of the averages, and cost nobody anything.

    metrics  node -> its metrics by name, each a number or a list of numbers

    >>> unusable_metrics({1: {"loss": 0.5}, 2: {"loss": float("nan")}, 3: {"cost": 0.4}, 4: {"loss": 0.6, "more": 1}})
    {2: "metric 'loss' is not finite", 3: "metrics miss 'loss'"}
    """
    reasons: dict[Any, str] = {}
    for node, own in metrics.items():
        odd = [key for key, value in own.items() if not all(map(math.isfinite, _values(value)))]
        if odd:
            reasons[node] = f"metric {one_line(repr(odd[0]))} is not finite"
    forms = {node: _form(own) for node, own in metrics.items() if node not in reasons}
    usual = _usual(metrics[node] for node in forms)
    for node, form in forms.items():
        if missed := [entry for entry in usual if entry not in form]:
            reasons[node] = _difference(dict(form), *missed[0])
    left = [node for node in metrics if node not in reasons]
    for key, _ in usual:
        sizes = {node: max(map(abs, _values(metrics[node][key])), default=0.0) for node in left}
        limit = FAR * max(float(np.median(list(sizes.values()))), 1.0)
        for node, size in sizes.items():
            if size > limit:
                reasons.setdefault(node, f"metric {one_line(repr(key))} is {size:g}, beyond {limit:g}")
    return dict(sorted(reasons.items()))


def _values(value: Any) -> list[float]:
    try:
        return list(map(float, value if isinstance(value, list) else [value]))
    except OverflowError:  # an integer beyond all floats
        return [math.inf]


def _form(metrics: Metrics) -> Form:
    return {(key, len(value) if isinstance(value, list) else -1) for key, value in metrics.items()}


def _usual(metrics: Iterable[Metrics]) -> list[tuple[str, int]]:
    """The metrics that more than half of the nodes have in one form, by name: no minority of them chooses what is averaged."""
    forms = list(map(_form, metrics))
    counts = Counter(entry for form in forms for entry in form)
    return sorted(entry for entry, count in counts.items() if 2 * count > len(forms))


def _difference(own: Mapping[str, int], key: str, expected: int) -> str:
    """How the metrics of a node differ from those of most nodes in the one under this key."""
    if key not in own:
        return f"metrics miss {one_line(repr(key))}"
    sizes = ("one number" if n < 0 else f"a list of {n}" for n in (own[key], expected))
    return "metric {} is {}, expected {}".format(one_line(repr(key)), *sizes)
