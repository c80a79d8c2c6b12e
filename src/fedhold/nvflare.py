"""An NVFlare aggregator for every rule of fedhold: pass it as `aggregator=` to NVFlare's FedAvg."""

from __future__ import annotations

import math
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
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
    certificate_of,
    judge_round,
    log_rows,
    log_suspects,
    row_of,
    with_reason,
)
from fedhold.errors import one_line, positive, require, visible
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


class RobustAggregator(ModelAggregator):
    """Aggregate what clients send, whole models or differences, with a rule of fedhold.

    rule        a rule of fedhold, as for aggregate(): "spectral_huber", "krum(f=2)", "bucketing | median"
    parameters  parameters of the rule that are not part of its name, such as {"f": 2}
    sample_cap  as for aggregate(); n_i is the number of local steps that a client claims, and 1 where it claims none
    seed        for runs that must repeat, what rules that draw begin from; keep it from the clients. None: they draw from the
                operating system
    byzantine   f of the certificate in the audit; a fifth of the admitted clients unless given
    audit       a file on the server that gets one JSON line per round: what was done to every client, and why
    quorum      the model is kept unless more than this fraction of the clients asked send a usable result
    asked       how many clients a round asks, which is NVFlare's `num_clients`; all that are connected unless given
    on_round    is called with the RoundRecord of every round; what it raises is logged, and ends nothing

    Whole models are aggregated as they come, because the model that was sent is not known here. To all rules that makes no
    difference, but to `clipping` it does: let clients send differences there. A client that cannot be used is named in the
    log with the reason; a round without enough good ones keeps the model. Of metrics the Huber location over the clients whose
    metrics are usable is taken.

    With `enable_tensor_disk_offload=True` the clients' tensors stay on disk and are read in parts: memory holds some vectors
    of the size of the model, however many clients there are.
    """

    def __init__(
        self,
        rule: str = DEFAULT,
        parameters: Mapping[str, Any] | None = None,
        sample_cap: float | None = 3.0,
        seed: int | None = None,
        byzantine: int | None = None,
        audit: str | None = None,
        quorum: float = 0.5,
        asked: int | None = None,
        on_round: Callable[[RoundRecord], object] | None = None,
    ) -> None:
        super().__init__()
        # NVFlare writes a job from the attributes that are called as arguments are: each must keep what was given.
        self.rule, self.parameters, self.sample_cap, self.seed = rule, parameters, sample_cap, seed
        self.byzantine, self.audit, self.quorum, self.asked, self.on_round = byzantine, audit, quorum, asked, on_round
        self._stages = parse(rule, parameters or {})  # an unknown rule is an error now, before a round is lost on it
        require(
            0 <= positive(quorum, "quorum", zero=True) < 1,
            "RobustAggregator",
            needs="0 <= quorum < 1",
            remedy="It is a fraction of the clients asked; usual is 0.5.",
            quorum=quorum,
        )
        self._rng = np.random.default_rng(seed)  # It goes on from round to round: no two rounds draw alike.
        self._run, self._round, self._tally = uuid.uuid4().hex, 0, Tally()
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
        results, self._results = self._results, {}  # The files of tensors on disk go with the last reference to them.
        self._round += 1
        names = sorted(results)  # not in the order of arrival: the same results give the same bits
        claims = [(results[name].meta or {}).get(WEIGHT, 1) for name in names]
        rows = [
            NodeRecord(one_line(name), "train", "dropped", claimed=_claim(n))
            for name, n in zip(names, claims, strict=True)
        ]
        record = RoundRecord(self._run, self._round, "", " | ".join(map(str, self._stages)), "kept", ())
        asked = max(self.asked or self._connected(), len(names))
        needed = math.floor(self.quorum * asked) + 1
        quorum = {"asked": asked, "usable": len(names), "needed": needed}
        # The kind that most clients sent: models, or differences. Clients that sent the other kind are rejected.
        kind = Counter(one.params_type for one in results.values()).most_common(1)[0][0] if results else ParamsType.DIFF
        made = FLModel(params_type=ParamsType.DIFF, params={})
        note = None
        try:
            sent = [_update(results[name], kind) for name in names]
            done = aggregate(sent, self._stages, samples=claims, sample_cap=self.sample_cap, rng=self._rng)
        except ValueError as problem:
            note = str(problem) if names else "no client sent a result"
            rows = [replace(row, reason="the model was kept") for row in rows]
        else:
            rows = [row_of(row, client) for row, client in zip(rows, done.clients, strict=True)]
            used = {
                name: one.samples for name, one in zip(names, done.clients, strict=True) if one.status != "rejected"
            }
            quorum["usable"] = len(used)
            if len(used) < needed:
                note = (
                    f"{len(used)} of {asked} clients asked sent a usable result, and the quorum is {needed} (more than "
                    f"{self.quorum:g} of them)"
                )
            else:
                averages = average_metrics({name: _numbers(results[name].metrics) for name in used}, used)
                rows = [with_reason(row, averages.reasons.get(name)) for row, name in zip(rows, names, strict=True)]
                params = _like_sent(done.value, sent)
                made = FLModel(params_type=kind, params=params, metrics=dict(averages.robust))
                seconds = {"aggregation": time.perf_counter() - began}
                record = replace(
                    record,
                    outcome="aggregated",
                    converged=done.converged,
                    iterations=done.iterations,
                    certificate=None if self.audit is None else certificate_of(done, self.byzantine, self),
                    seconds=seconds,
                    metrics={"train": averages.robust},
                    averages={"train": averages.plain},
                    f=done.f,
                )
        self._close(replace(record, nodes=tuple(rows), note=note, quorum=quorum), began)
        return made

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
