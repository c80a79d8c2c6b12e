"""An NVFlare aggregator for every rule of fedhold: pass it as `aggregator=` to NVFlare's FedAvg."""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from fedhold.aggregation import aggregate
from fedhold.audit import (
    NodeRecord,
    RoundRecord,
    Tally,
    append,
    average_metrics,
    below_quorum,
    certificate_of,
    facts_of,
    judge_round,
    liars_feared,
    log_rows,
    log_suspects,
    objection,
    replies_needed,
    row_of,
    with_reason,
)
from fedhold.errors import integer, one_line, positive, require, visible
from fedhold.groups import Groups, Patterns, check_groups, check_scale, matches
from fedhold.guard import Guard
from fedhold.positive import positive_after
from fedhold.result import Aggregation
from fedhold.spec import DEFAULT, parse
from fedhold.updates import DamagedFileError, Rejection, StoredArray, open_update

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
LONGEST_CLAIM = 40  # characters of a claim that is no number
DIFFERENCES = (ParamsType.DIFF, "the differences from the model that was sent")
MODELS = (ParamsType.FULL, "whole models")
NEEDS = {"steps": DIFFERENCES, "exclude": DIFFERENCES, "check_model": MODELS, "guard": MODELS}


class RobustAggregator(ModelAggregator):
    """Aggregate what clients send, whole models or differences, with a rule of fedhold.

    rule         a rule of fedhold, as for aggregate(): "spectral_huber", "krum(f=2)", "bucketing | median"
    parameters   parameters of the rule that are not part of its name, such as {"f": 2}
    sample_cap   as for aggregate(); n_i is the number of local steps that a client claims, and 1 where it claims none
    steps        divide every difference by the local steps that its client claims, as `steps` of aggregate() says; a client
                 that claims none is then rejected
    memory       give the rule the scale of earlier rounds, as `scale` of aggregate(); for huber and spectral_huber
    seed         for runs that must repeat, what rules that draw begin from; keep it from the clients. None: they draw from the
                 operating system
    byzantine    how many of the connected clients you fear to lie: a round then needs more than twice as many usable results.
                 Also f of the certificate in the audit, which is a fifth of the admitted clients unless given
    audit        a file on the server that gets one JSON line per round: what was done to every client, and why
    quorum       the model is kept unless more than this fraction of the clients asked send a usable result
    asked        how many clients a round asks, which is NVFlare's `num_clients`; all that are connected unless given
    groups       as for aggregate(): "adapters", or {"lora_A": "*.lora_A.*"}
    exclude      patterns of the arrays that stay as they are in the model
    check_model  a test of a new model, a dict of arrays: where it is false or raises, the model is kept
    guard        the loss of a model, a dict of arrays, on each of 30 to 100 samples of the server's own, as for aggregate()
    on_round     is called with the RoundRecord of every round; what it raises is logged, and ends nothing

    Whole models are aggregated as they come, because the model that was sent is not known here. To all rules that makes no
    difference, but to `clipping` it does: let clients send differences there. `steps` and `exclude` need differences;
    `check_model` and `guard` need whole models, and in whole models alone variances and scales stay positive. A round in which
    clients send the other kind keeps the model, and says so.

    A client that cannot be used is named in the log with the reason; a round without enough good ones keeps the model. Of
    metrics the Huber location over the clients whose metrics are usable is taken.

    With `enable_tensor_disk_offload=True` the clients' tensors stay on disk and are read in parts: memory holds some vectors
    of the size of the model, however many clients there are.
    """

    def __init__(
        self,
        rule: str = DEFAULT,
        parameters: Mapping[str, Any] | None = None,
        sample_cap: float | None = 3.0,
        steps: bool = False,
        memory: bool = False,
        seed: int | None = None,
        byzantine: int | None = None,
        audit: str | None = None,
        quorum: float = 0.5,
        asked: int | None = None,
        groups: Groups | None = None,
        exclude: Patterns | None = None,
        check_model: Callable[[dict[str, Any]], object] | None = None,
        guard: Guard | None = None,
        on_round: Callable[[RoundRecord], object] | None = None,
    ) -> None:
        super().__init__()
        # NVFlare writes a job from the attributes that are called as arguments are: each must keep what was given.
        self.rule, self.parameters, self.sample_cap, self.seed = rule, parameters, sample_cap, seed
        self.steps, self.memory, self.groups, self.exclude = steps, memory, groups, exclude
        self.byzantine, self.audit, self.quorum, self.asked = byzantine, audit, quorum, asked
        self.check_model, self.guard, self.on_round = check_model, guard, on_round
        self._stages = parse(rule, parameters or {})  # an unknown rule is an error now, before a round is lost on it
        if isinstance(groups, str):
            check_groups([""], groups, None)  # and so is an unknown word
        if memory:
            check_scale(self._stages[-1], "memory", groups, exclude)
        if byzantine is not None:
            integer(byzantine, "byzantine")
        require(
            0 <= positive(quorum, "quorum", zero=True) < 1,
            "RobustAggregator",
            needs="0 <= quorum < 1",
            remedy="It is a fraction of the clients asked; usual is 0.5.",
            quorum=quorum,
        )
        self._rng = np.random.default_rng(seed)  # It goes on from round to round: no two rounds draw alike.
        self._run, self._round, self._tally = uuid.uuid4().hex, 0, Tally()
        self._scale: float | None = None
        self._results: dict[str, FLModel] = {}

    @property
    def suspects(self) -> list[str]:
        """The names of the suspects so far, the most suspicious first."""
        return self._tally.suspects()

    def accept_model(self, model: FLModel) -> None:
        """Keep one client's result for `aggregate_model`; of several from one client, the first."""
        self._results.setdefault(str((model.meta or {}).get("client_name", f"client {len(self._results)}")), model)

    def reset_stats(self) -> None:
        """Begin a round."""
        self._results = {}

    def aggregate_model(self) -> FLModel:
        """The aggregate of this round's results. Where there is none, an empty difference, which keeps the model."""
        began = time.perf_counter()
        sent = _Sent.of(self._results)
        self._results = {}  # The files of tensors on disk go with the last reference to them.
        self._round += 1
        record = self._opened(sent)
        try:
            self._check(sent)
            done = self._aggregated(sent)
            record = self._counted(record, done)
            self._check_quorum(record, done)
            params, corrected = _next_params(sent, done)
            record = replace(
                record,
                certificate=None if self.audit is None else certificate_of(done, self.byzantine, self),
                seconds={"aggregation": time.perf_counter() - began},
                corrected=corrected,
                **facts_of(done),
            )
            self._check_params(params)
        except ValueError as problem:
            self._close(replace(record, note=str(problem)), began)
            return FLModel(params_type=ParamsType.DIFF, params={})
        self._scale = done.scale
        record = _with_metrics(replace(record, outcome="aggregated"), sent)
        self._close(record, began)
        return FLModel(params_type=sent.kind, params=params, metrics=dict(record.metrics["train"]))

    # The steps of a round. Those that raise a ValueError keep the model, and the error says why.

    def _opened(self, sent: _Sent) -> RoundRecord:
        """The record of the round before anything was aggregated."""
        rows = tuple(
            NodeRecord(one_line(name), "train", "dropped", "the model was kept", claimed=_claim(n))
            for name, n in zip(sent.results, sent.claims(1), strict=True)
        )
        asked = max(self.asked or self._connected(), len(rows))
        quorum = {"asked": asked, "usable": len(rows), "needed": replies_needed(self.quorum, asked)}
        rule = " | ".join(map(str, self._stages))
        return RoundRecord(self._run, self._round, "", rule, "kept", rows, quorum=quorum)

    def _check(self, sent: _Sent) -> None:
        """Raise where there is nothing, where an argument needs the other kind of results, or fits none of their arrays."""
        if not sent.results:
            raise ValueError("no client sent a result")
        for name, (kind, words) in NEEDS.items():
            if getattr(self, name) not in (None, False) and sent.kind != kind:
                raise ValueError(f"{name} needs {words}. Let clients send these.")
        if usual := sent.usual_keys():
            check_groups(usual, self.groups, self.exclude)

    def _aggregated(self, sent: _Sent) -> Aggregation:
        """What the rule makes of the updates, without the arrays that stay: NVFlare adds to the model what an aggregate has."""
        guard, updates = self.guard, sent.updates
        if self.exclude is not None:
            updates = [_without(one, self.exclude) for one in updates]
        return aggregate(
            updates,
            self._stages,
            samples=sent.claims(1),
            steps=sent.claims(None) if self.steps else None,
            scale=self._scale if self.memory else None,
            sample_cap=self.sample_cap,
            rng=self._rng,
            groups=self.groups,
            guard=None if guard is None else lambda value: guard(_like_sent(value, updates)),
        )

    def _counted(self, record: RoundRecord, done: Aggregation) -> RoundRecord:
        """The record with what was done to every client, how many of them could be used, and how many had to be."""
        rows = tuple(row_of(row, client) for row, client in zip(record.nodes, done.clients, strict=True))
        asked = (record.quorum or {})["asked"]
        usable = sum(row.status != "rejected" for row in rows)
        needed = replies_needed(self.quorum, asked, self._feared(asked, done))
        return replace(record, nodes=rows, quorum={"asked": asked, "usable": usable, "needed": needed})

    def _feared(self, asked: int, done: Aggregation) -> int:
        """How many liars there may be among those who were not rejected."""
        feared = liars_feared(self.byzantine, asked, max(asked, self._connected()))
        return max(feared - len(done.clients.with_status("rejected")), 0)

    def _check_quorum(self, record: RoundRecord, done: Aggregation) -> None:
        quorum = record.quorum or {}
        if few := below_quorum(quorum, self.quorum, self._feared(quorum["asked"], done)):
            raise ValueError(few)

    def _check_params(self, params: dict[str, Any]) -> None:
        if self.check_model is not None and (note := objection(self.check_model, params)):
            raise ValueError(note)

    def _close(self, record: RoundRecord, began: float) -> None:
        """Put a round into the log and the audit, and hand it to the user's function."""
        now, seconds = datetime.now(UTC).isoformat(timespec="seconds"), time.perf_counter() - began
        record = replace(record, time=now, seconds={**record.seconds, "round": seconds})
        seen = list(judge_round(record).values())
        self._tally = self._tally.after(seen)
        log_rows("train", record, (record.quorum or {})["asked"], self)
        if record.note:
            self.warning(f"the model is kept: {record.note}")
        log_suspects(record, seen, self.suspects, len(self._tally.counts), self)
        if self.audit is not None:
            append(Path(self.audit), record)
        if self.on_round is not None:
            try:
                self.on_round(record)
            except Exception as problem:  # whoever watches a run must not end it
                self.warning(f"Round {record.round}: on_round raised {type(problem).__name__}: {problem}")

    def _connected(self) -> int:
        """How many clients are connected; 0 where NVFlare does not say."""
        engine: Any = None if self.fl_ctx is None else self.fl_ctx.get_engine()
        return len(engine.get_clients()) if hasattr(engine, "get_clients") else 0


@dataclass(frozen=True)
class _Sent:
    """What the clients of a round sent.

    results  by the names of the clients, and in their order: the same results give the same bits whenever they arrive
    kind     what most clients sent: whole models, or differences
    updates  the arrays of every result, or why it has none
    """

    results: dict[str, FLModel]
    kind: ParamsType
    updates: list[Any]

    @staticmethod
    def of(results: Mapping[str, FLModel]) -> _Sent:
        """What there is in the results of a round."""
        ordered = {name: results[name] for name in sorted(results)}
        kinds = Counter(result.params_type for result in ordered.values()).most_common(1)
        kind = kinds[0][0] if kinds else ParamsType.DIFF
        return _Sent(ordered, kind, [_update(result, kind) for result in ordered.values()])

    def claims(self, default: int | None) -> list[Any]:
        """The numbers of local steps that the clients claim."""
        return [(result.meta or {}).get(WEIGHT, default) for result in self.results.values()]

    def usual_keys(self) -> list[str]:
        """The names of the arrays that most clients have."""
        dicts = [one for one in self.updates if isinstance(one, dict)]
        counts = Counter(str(key) for one in dicts for key in one)
        return [key for key, number in counts.items() if 2 * number > len(dicts)]


def _claim(claim: object) -> float | str | None:
    """A claim for the audit."""
    is_number = isinstance(claim, int | float) and not isinstance(claim, bool)
    return claim if is_number else visible(claim, LONGEST_CLAIM)  # type: ignore[return-value]


def _numbers(metrics: object) -> dict[str, Any]:
    """The metrics that are numbers."""
    given = metrics if isinstance(metrics, Mapping) else {}
    return {name: value for name, value in given.items() if isinstance(value, int | float)}


def _update(result: FLModel, kind: ParamsType) -> Any:
    """The arrays of a result, or why it has none.

    A reference to a tensor that NVFlare left on disk becomes one to the part of the file where its numbers are, which are
    read, and checked, when they are needed. Anything but a dict of arrays is no update; text would be taken for a path.
    """
    params = result.params
    if result.params_type != kind:
        return Rejection(f"sent a result of kind {visible(result.params_type, 20)}, where most clients sent {kind}")
    if not isinstance(params, Mapping):
        return Rejection(f"{type(params).__name__} is no dict of arrays")
    files: dict[str, Any] = {}
    update = {}
    try:
        for name, value in params.items():
            if _is_on_disk(value):
                if value.file_path not in files:
                    files[value.file_path] = open_update(value.file_path)
                value = files[value.file_path][value.key]
            update[name] = value
    except (DamagedFileError, KeyError) as problem:
        return Rejection(f"its tensors on disk cannot be read: {getattr(problem, 'reason', problem)}")
    return update


def _without(update: Any, exclude: Patterns) -> Any:
    """An update without the arrays that are excluded."""
    return (
        {key: update[key] for key in update if not matches(str(key), exclude)} if isinstance(update, dict) else update
    )


def _next_params(sent: _Sent, done: Aggregation) -> tuple[dict[str, Any], int]:
    """The new model or difference, and how many numbers of it were raised: variances and scales of models stay positive."""
    if sent.kind != ParamsType.FULL:
        return _like_sent(done.value, sent.updates), 0
    raised, corrected = positive_after(done, done.value, sent.updates)
    return _like_sent(done.value | raised, sent.updates), corrected


def _with_metrics(record: RoundRecord, sent: _Sent) -> RoundRecord:
    """The record with the averages of the metrics of the clients that could be used."""
    rows = dict(zip(sent.results, record.nodes, strict=True))
    used = {name: row.samples for name, row in rows.items() if row.samples and row.status != "rejected"}
    averages = average_metrics({name: _numbers(sent.results[name].metrics) for name in used}, used)
    return replace(
        record,
        nodes=tuple(with_reason(row, averages.reasons.get(name)) for name, row in rows.items()),
        metrics={"train": averages.robust},
        averages={"train": averages.plain},
    )


def _is_on_disk(value: object) -> bool:
    """Whether it is a reference to a tensor on disk, as the server's own download made it: no client can send one."""
    return type(value).__module__ == "nvflare.app_opt.pt.lazy_tensor_dict" and hasattr(value, "materialize")


def _like_sent(value: dict[str, Any], sent: list[Any]) -> dict[str, Any]:
    """The aggregate as tensors, where tensors were sent that lie on disk."""
    dtypes = {
        name: array.dtype
        for one in sent
        if isinstance(one, dict)
        for name, array in one.items()
        if isinstance(array, StoredArray)
    }
    if not dtypes:
        return value
    import torch

    def tensor(name: str, array: Any) -> Any:
        if not isinstance(array, np.ndarray):
            return array
        is_half = dtypes.get(name) == "bfloat16"  # which NumPy lacks
        return torch.from_numpy(array.astype(np.float32)).bfloat16() if is_half else torch.from_numpy(array)

    return {name: tensor(name, array) for name, array in value.items()}
