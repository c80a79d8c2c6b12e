"""An NVFlare aggregator for every rule of fedhold: pass it as `aggregator=` to NVFlare's FedAvg."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from fedhold.aggregation import aggregate
from fedhold.audit import average_metrics
from fedhold.errors import one_line
from fedhold.groups import Groups, Patterns, matches
from fedhold.kernels import dtype_name, from_host, is_array, to_host
from fedhold.positive import positive_after
from fedhold.result import Aggregation
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
    seed        for runs that must repeat, what rules that draw begin from; keep it from the clients. None: they draw from the
                operating system
    groups      as for aggregate(): "adapters", or {"lora_A": "*.lora_A.*"}
    exclude     patterns of the arrays that stay as they are in the model; clients must send differences
    check_model  a test of a new model, a dict of arrays: where it is false or raises, the model is kept; clients must send
                whole models

    Where clients send whole models, variances and scales stay positive. Of differences that cannot be told.

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
        seed: int | None = None,
        groups: Groups | None = None,
        exclude: Patterns | None = None,
        check_model: Callable[[dict[str, Any]], object] | None = None,
    ) -> None:
        super().__init__()
        self.stages = parse(rule, parameters or {})  # an unknown rule is an error now, before a round is lost on it
        self.sample_cap, self.seed = sample_cap, seed
        self.groups, self.exclude, self.check_model = groups, exclude, check_model
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
        try:
            if self.exclude is not None:
                alike = _without(alike, self.exclude, kind)
            done = aggregate(
                alike, self.stages, samples=claims, sample_cap=self.sample_cap, rng=self.rng, groups=self.groups
            )
            params = done.value
            if kind == ParamsType.FULL:
                params, corrected = _positive(done, alike)
                if corrected:
                    self.warning(
                        f"raised {corrected} numbers that were too low where clients' are not, such as variances"
                    )
            if self.check_model is not None:
                _check(self.check_model, params, kind)
        except ValueError as problem:
            self.warning(f"the model is kept: {problem}")
            return FLModel(params_type=ParamsType.DIFF, params={})
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
        return FLModel(params_type=kind, params=params, metrics=dict(averages.robust))


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


def _without(sent: list[dict[str, Any] | None], exclude: Patterns, kind: ParamsType) -> list[dict[str, Any] | None]:
    """The differences without the arrays that are to stay: NVFlare adds to the model what an aggregate has."""
    if kind != ParamsType.DIFF:
        raise ValueError("exclude needs the differences from the model that was sent. Let clients send these.")
    return [None if one is None else {key: one[key] for key in one if not matches(str(key), exclude)} for one in sent]


def _positive(done: Aggregation, sent: list[dict[str, Any] | None]) -> tuple[dict[str, Any], int]:
    """The new model with variances and scales as most clients have them, and how many numbers that changed."""

    def hosted(model: Mapping[str, Any] | None) -> dict[str, Any]:
        return {key: to_host(array, None) for key, array in (model or {}).items() if is_array(array)}

    admitted = done.clients.statuses != "rejected"
    models = [hosted(one) if good else {} for one, good in zip(sent, admitted, strict=True)]
    raised, corrected = positive_after(done, hosted(done.value), models)
    params = {
        key: from_host(raised[key].ravel(), array, dtype_name(array)) if key in raised else array
        for key, array in done.value.items()
    }
    return params, corrected


def _check(test: Callable[[dict[str, Any]], object], params: dict[str, Any], kind: ParamsType) -> None:
    """Raise a ValueError where a model does not pass the user's own test."""
    if kind != ParamsType.FULL:
        raise ValueError("check_model needs whole models. Let clients send these, and not differences.")
    try:
        passed = test(params)
    except Exception as problem:  # a model that liars made may be one that the test cannot stand
        raise ValueError(f"the new model fails check_model: {type(problem).__name__}: {one_line(problem)}") from None
    if not passed:
        raise ValueError(f"the new model fails check_model, which returned {one_line(repr(passed))}")
