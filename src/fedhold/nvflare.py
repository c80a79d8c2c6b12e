"""An NVFlare aggregator for every rule of fedhold: pass it as `aggregator=` to NVFlare's FedAvg."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.aggregators.model_aggregator import ModelAggregator

from fedhold.aggregation import aggregate
from fedhold.audit import screened
from fedhold.report import one_line
from fedhold.spec import parse

__all__ = ["RobustAggregator"]

WEIGHT = "NUM_STEPS_CURRENT_ROUND"  # in the meta of a result; NVFlare believes what is there


class RobustAggregator(ModelAggregator):
    """Aggregate what clients send, whole models or differences, with a rule of fedhold.

    rule, parameters, sample_cap  as for aggregate(); n_i is the number of local steps a client says it took, 1 without a word

    Whole models are aggregated as they come, for the model that was sent is not known here. To all rules that is the same,
    but not to `clipping`: let clients send differences there. A client that cannot be used is named in the log with the
    reason; a round without enough good ones keeps the model.
    """

    def __init__(
        self, rule: str = "huber", parameters: Mapping[str, Any] | None = None, sample_cap: float | None = 3.0
    ) -> None:
        super().__init__()
        parse(rule, parameters or {})  # said here, before a round is lost on it
        self.rule, self.parameters, self.sample_cap = rule, dict(parameters or {}), sample_cap
        self.results: dict[str, FLModel] = {}

    def accept_model(self, model: FLModel) -> None:
        """Keep one client's result for `aggregate_model`; of several from one client, the first."""
        self.results.setdefault(str((model.meta or {}).get("client_name", f"client {len(self.results)}")), model)

    def reset_stats(self) -> None:
        """Begin a round."""
        self.results = {}

    def aggregate_model(self) -> FLModel:
        """The aggregate of this round's results; no differences at all where there is none, which keeps the model."""
        names = sorted(self.results)  # not as they came: the same results give the same bits
        results = [self.results[name] for name in names]
        kinds = Counter(result.params_type for result in results).most_common(1)
        alike = [result.params if result.params_type == kinds[0][0] else None for result in results]
        claims = [(result.meta or {}).get(WEIGHT, 1) for result in results]
        try:
            done = aggregate(alike, self.rule, samples=claims, sample_cap=self.sample_cap, **self.parameters)
        except ValueError as problem:
            self.warning(f"the model is kept: {problem}")
            return FLModel(params_type=ParamsType.DIFF, params={})
        for name, client in zip(names, done.clients, strict=True):
            if client.reason:
                self.warning(f"{one_line(name)} {client.status}: {client.reason}")
        kept = {i: client.samples for i, client in enumerate(done.clients) if client.status != "rejected"}
        return FLModel(params_type=kinds[0][0], params=done.value, metrics=self._metrics(names, results, kept))

    def _metrics(
        self, names: Sequence[str], results: Sequence[FLModel], samples: Mapping[int, float]
    ) -> dict[str, float]:
        """Averages, by n_i, over the clients whose metrics are sane."""
        given = {
            i: {k: v for k, v in (results[i].metrics or {}).items() if isinstance(v, int | float)} for i in samples
        }
        odd = screened(given)
        for i, reason in odd.items():
            self.warning(f"{one_line(names[i])}: {reason}")
        sane = [i for i in given if i not in odd]
        total = math.fsum(samples[i] for i in sane)
        keys = given[sane[0]] if sane else []
        return {key: float(np.sum([given[i][key] * (samples[i] / total) for i in sane])) for key in keys}
