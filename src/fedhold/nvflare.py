"""An NVFlare aggregator for every rule of fedhold: pass it as `aggregator=` to NVFlare's FedAvg."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from fedhold.aggregation import aggregate
from fedhold.audit import average_metrics
from fedhold.errors import one_line
from fedhold.spec import DEFAULT, parse

try:
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
    from nvflare.app_common.aggregators.model_aggregator import ModelAggregator
except ImportError as problem:
    raise ImportError(
        f"fedhold.nvflare needs nvflare >= 2.9: {problem}. From a checkout of fedhold: pip install '.[nvflare]'."
    ) from problem

__all__ = ["RobustAggregator"]


def __dir__() -> list[str]:
    """The public names, for help() and for the completion of names."""
    return __all__


WEIGHT = "NUM_STEPS_CURRENT_ROUND"  # in the meta data of a result; NVFlare itself weights by what a client writes there


class RobustAggregator(ModelAggregator):
    """Aggregate what clients send, whole models or differences, with a rule of fedhold.

    rule        a rule of fedhold, as for aggregate(): "spectral_huber", "krum(f=2)", "bucketing | median"
    parameters  parameters of the rule that are not part of its name, such as {"f": 2}
    sample_cap  as for aggregate(); n_i is the number of local steps that a client claims, and 1 where it claims none
    steps       divide every difference by the local steps that its client claims, as `steps` of aggregate() says
    memory      give the rule the scale of earlier rounds, as `scale` of aggregate(); for huber and spectral_huber
    seed        for runs that must repeat, what rules that draw begin from; keep it from the clients. None: they draw from the
                operating system

    Whole models are aggregated as they come, because the model that was sent is not known here. To all rules that makes no
    difference, but to `clipping` it does: let clients send differences there. A client that cannot be used is named in the
    log with the reason; a round without enough good ones keeps the model. Of metrics the Huber location over the clients whose
    metrics are usable is taken.
    """

    def __init__(
        self,
        rule: str = DEFAULT,
        parameters: Mapping[str, Any] | None = None,
        sample_cap: float | None = 3.0,
        steps: bool = False,
        memory: bool = False,
        seed: int | None = None,
    ) -> None:
        super().__init__()
        self.stages = parse(rule, parameters or {})  # an unknown rule is an error now, before a round is lost on it
        if memory and not self.stages[-1].takes("scale"):
            raise TypeError(f"{self.stages[-1].name} remembers no scale. Leave out memory, or use huber.")
        self.sample_cap, self.seed = sample_cap, seed
        self.steps, self.memory = steps, memory
        self.scale: float | None = None
        self.rng = np.random.default_rng(seed)  # It goes on from round to round: no two rounds draw alike.
        self.results: dict[str, FLModel] = {}

    def accept_model(self, model: FLModel) -> None:
        """Keep one client's result for `aggregate_model`; of several from one client, the first."""
        self.results.setdefault(str((model.meta or {}).get("client_name", f"client {len(self.results)}")), model)

    def reset_stats(self) -> None:
        """Begin a round."""
        self.results = {}

    def aggregate_model(self) -> FLModel:
        """The aggregate of this round's results. Where there is none, an empty difference, which keeps the model."""
        names = sorted(self.results)  # not in the order of arrival: the same results give the same bits
        results = [self.results[name] for name in names]
        # The kind that most clients sent: models, or differences. Clients that sent the other kind are rejected.
        kind = Counter(result.params_type for result in results).most_common(1)[0][0] if results else ParamsType.DIFF
        alike = [_arrays(result.params) if result.params_type == kind else None for result in results]
        claims = [(result.meta or {}).get(WEIGHT, 1) for result in results]
        if self.steps and kind != ParamsType.DIFF:
            self.warning(
                "the model is kept: steps divide differences, and clients sent whole models. Send differences."
            )
            return FLModel(params_type=ParamsType.DIFF, params={})
        try:
            done = aggregate(
                alike,
                self.stages,
                samples=claims,
                steps=claims if self.steps else None,
                scale=self.scale,
                sample_cap=self.sample_cap,
                rng=self.rng,
            )
        except ValueError as problem:
            self.warning(f"the model is kept: {problem}")
            return FLModel(params_type=ParamsType.DIFF, params={})
        if self.memory:
            self.scale = done.scale
        for name, client in zip(names, done.clients, strict=True):
            if client.reason:
                self.warning(f"{one_line(name)} {client.status}: {client.reason}")
        samples = {
            name: client.samples
            for name, client in zip(names, done.clients, strict=True)
            if client.status != "rejected"
        }
        given = {name: self.results[name].metrics or {} for name in samples}
        numbers = {name: {k: v for k, v in one.items() if isinstance(v, int | float)} for name, one in given.items()}
        averages = average_metrics(numbers, samples)
        for name, reason in averages.reasons.items():
            self.warning(f"{one_line(name)}: {reason}")
        return FLModel(params_type=kind, params=done.value, metrics=dict(averages.robust))


def _arrays(params: object) -> dict[str, Any] | None:
    """The arrays of a result, also those that NVFlare left on disk (`enable_tensor_disk_offload`); None where it has none.

    Anything but a dict of arrays is no update. Text would be taken for the path of a file.
    """
    if not isinstance(params, Mapping):
        return None
    try:
        return {name: value.materialize() if hasattr(value, "materialize") else value for name, value in params.items()}
    except Exception:  # the bytes on disk are the client's, and so is what reading them raises
        return None
