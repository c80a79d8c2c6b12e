"""Which nodes' metrics must stay out of an average: one node's nonsense neither ends a run nor enters it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedhold.report import one_line

FAR = (
    1e6  # times the median node's value (or 1, where that is less); beyond it a number tells nothing of the federation
)

Metrics = Mapping[str, Any]
Form = tuple[tuple[str, int], ...]
"""The keys of metrics in order, each with the length of its list; -1 for a single number."""


def unusable_metrics(metrics: Mapping[int, Metrics]) -> dict[int, str]:
    """The nodes whose metrics must stay out of the averages, and why.

    These are nodes with a number that is not finite, with other keys (or lists of another length) than most nodes, or with a
    number beyond 1e6 times the median node's.

    metrics  node -> its metrics by name, each a number or a list of numbers

    >>> unusable_metrics({1: {"loss": 0.5}, 2: {"loss": float("nan")}, 3: {"loss": 0.4, "more": 1}, 4: {"loss": 0.6}})
    {2: "metric 'loss' is not finite", 3: "metrics have an extra 'more'"}
    """
    reasons: dict[int, str] = {}
    for node, own in metrics.items():
        odd = [key for key, value in own.items() if not all(map(math.isfinite, _values(value)))]
        if odd:
            reasons[node] = f"metric {one_line(repr(odd[0]))} is not finite"
    forms = {node: _form(own) for node, own in metrics.items() if node not in reasons}
    if not forms:
        return reasons
    counts = Counter(forms.values())
    usual = min(counts, key=lambda form: (-counts[form], len(form), form))
    for node, form in forms.items():
        if form != usual:
            reasons[node] = _difference(dict(form), dict(usual))
    left = [node for node in metrics if node not in reasons]
    for key, _ in usual:
        sizes = {node: max(map(abs, _values(metrics[node][key])), default=0.0) for node in left}
        limit = FAR * max(float(np.median(list(sizes.values()))), 1.0)
        for node, size in sizes.items():
            if size > limit:
                reasons.setdefault(node, f"metric {one_line(repr(key))} is {size:g}, beyond {limit:g}")
    return dict(sorted(reasons.items()))


def _values(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _form(metrics: Metrics) -> Form:
    return tuple(sorted((key, len(value) if isinstance(value, list) else -1) for key, value in metrics.items()))


def _difference(own: Mapping[str, int], usual: Mapping[str, int]) -> str:
    """The first difference between the form of a node's metrics and that of most nodes."""
    for key in usual:
        if key not in own:
            return f"metrics miss {one_line(repr(key))}"
    for key in own:
        if key not in usual:
            return f"metrics have an extra {one_line(repr(key))}"
    key = next(key for key in own if own[key] != usual[key])
    sizes = ("one number" if n < 0 else f"a list of {n}" for n in (own[key], usual[key]))
    return "metric {} is {}, expected {}".format(one_line(repr(key)), *sizes)
