"""One round on the server: from the replies to the next model, and an account of every node."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

import numpy as np

from fedhold.aggregation import Aggregation, Client, aggregate
from fedhold.audit import NodeRecord, RoundRecord, screened
from fedhold.errors import positive
from fedhold.flower.api import Message, MetricRecord, RecordDict, flower_log
from fedhold.flower.model import Arrays, Model
from fedhold.flower.replies import Reply
from fedhold.spec import Stage

__all__ = ["Averages", "OpenRound", "Rule", "Settled", "account", "averaged", "settle", "tell", "tried"]

MOST = 1000  # clients to try a rule on: more would take longer than it is worth
LIARS = 0.2  # the share of clients that a certificate is about unless the user says how many


@dataclass(frozen=True)
class Rule:
    """What aggregate() is to be called with, every round.

    name       the whole of it, as a spec
    starts     whether the rule begins from its last aggregate
    byzantine  f of the certificate; a fifth of the admitted clients unless given
    certify    whether to ask for a certificate: it costs an m x m matrix
    """

    name: str
    rule: str | Callable[..., Any]
    parameters: Mapping[str, Any]
    sample_cap: float | None
    starts: bool
    byzantine: int | None
    certify: bool


@dataclass(frozen=True)
class Settled:
    """What a round came to; `model` is None where it stays as it was, and `note` then says why."""

    model: Model | None
    rows: tuple[NodeRecord, ...]
    note: str | None = None
    last: Arrays | None = None
    converged: bool | None = None
    iterations: int | None = None
    certificate: dict[str, Any] | None = None
    seconds: float = 0.0


@dataclass
class OpenRound:
    """A round that is under way: what was sent to whom, and what has come of it."""

    number: int
    model: Model
    sent: list[Message] = field(default_factory=list)
    asked_to_evaluate: list[Message] = field(default_factory=list)
    rows: list[NodeRecord] = field(default_factory=list)
    settled: Settled = field(default_factory=lambda: Settled(None, (), note="nobody was asked to train"))
    began: float = field(default_factory=time.perf_counter)


@dataclass(frozen=True)
class Averages:
    """Averages over nodes, and whose metrics had to stay out of them."""

    record: MetricRecord | None
    reasons: Mapping[int, str]

    def remarked(self, row: NodeRecord) -> NodeRecord:
        """The row, with what was wrong with the node's metrics."""
        return replace(row, reason=_joined(row.reason, self.reasons.get(int(row.node))))


def settle(
    model: Model, replies: Sequence[Reply], rule: Rule, rng: np.random.Generator, start: Arrays | None
) -> Settled:
    """Aggregate the updates of the replies that can be used; where that cannot be done, keep the model and say why."""
    good = [reply for reply in replies if reply.reason is None]
    if not good:
        return Settled(None, tuple(map(_turned_away, replies)), f"none of {len(replies)} replies can be used")
    began = time.perf_counter()
    updates = [model.update(reply.arrays or {}) for reply in good]
    call: dict[str, Any] = dict(rule.parameters)
    if rule.starts and start is not None:
        call["start"] = start
    try:
        result = aggregate(
            updates,
            rule.rule,
            samples=np.array([reply.samples for reply in good], np.float64),
            rng=rng,
            sample_cap=rule.sample_cap,
            like=updates[0],
            **call,
        )
    except ValueError as problem:  # nobody admitted, or fewer than the rule's bound asks for
        return Settled(None, _left_alone(replies, good, updates), str(problem))
    admitted = [i for i, client in enumerate(result.clients) if client.status != "rejected"]
    weights = [1.0 if result.weights is None else float(result.weights[i]) for i in admitted]
    if not all(np.isfinite(array).all() for array in result.value.values()):
        return Settled(None, _left_alone(replies, good, updates), "the aggregate is not finite")
    moved = model.moved(result.value, [good[i].arrays or {} for i in admitted], weights)
    seconds = time.perf_counter() - began
    judged = {reply.node: client for reply, client in zip(good, result.clients, strict=True)}
    return Settled(
        model=moved,
        rows=tuple(
            _row(reply, judged[reply.node]) if reply.reason is None else _turned_away(reply) for reply in replies
        ),
        last=dict(result.value) if rule.starts else None,
        converged=result.converged,
        iterations=result.iterations,
        certificate=_certificate(result, rule, len(admitted)),
        seconds=seconds,
    )


def tried(rule: Rule, stages: Sequence[Stage]) -> None:
    """Raise what a round would: parameters out of range are told before the first, and not taken for too few replies."""
    if rule.sample_cap is not None and positive(rule.sample_cap, "sample_cap", infinite=True) < 1:
        raise ValueError(f"sample_cap must be at least 1, or None to trust; got {rule.sample_cap}.")
    given = [(name, value) for stage in stages for name, value in stage.parameters.items()]
    if callable(rule.rule) or any(isinstance(value, list | tuple | np.ndarray) for _, value in given):
        return  # made for this very federation
    f, size = (max([1, *(v for n, v in given if n == name and isinstance(v, int))]) for name in ("f", "size"))
    clients = (4 * f + 4) * size  # enough for every bound, also after bucketing
    if clients <= MOST:
        aggregate(np.random.default_rng(0).standard_normal((clients, 4)), rule.rule, **rule.parameters)


def _certificate(result: Aggregation, rule: Rule, admitted: int) -> dict[str, Any] | None:
    if not rule.certify or result.proof is None:
        return None
    f = int(LIARS * admitted) if rule.byzantine is None else rule.byzantine
    try:
        radius = float(result.proof.certificate().radius(f))
    except (RuntimeError, ValueError) as problem:  # a liar's numbers, too large for a proof, must not cost the round
        flower_log.warning("No certificate: %s", problem)
        radius = math.inf
    return {"f": f, "radius": radius}


def _turned_away(reply: Reply) -> NodeRecord:
    return NodeRecord(str(reply.node), "train", "rejected", reply.reason, weight=0.0, claimed=reply.claimed)


def _left_alone(replies: Sequence[Reply], good: Sequence[Reply], updates: Sequence[Arrays]) -> tuple[NodeRecord, ...]:
    """The rows of a round without an aggregate: who is to blame, and who is not."""
    finite = {
        reply.node: all(np.isfinite(array).all() for array in update.values())
        for reply, update in zip(good, updates, strict=True)
    }
    rows = []
    for reply in replies:
        if reply.reason is None and finite[reply.node]:
            reason = _joined("the model was kept", reply.remark)
            rows.append(NodeRecord(str(reply.node), "train", "dropped", reason, claimed=reply.claimed))
        else:
            rows.append(_turned_away(replace(reply, reason=reply.reason or "numbers that are not finite")))
    return tuple(rows)


def _row(reply: Reply, client: Client) -> NodeRecord:
    return NodeRecord(
        node=str(reply.node),
        phase="train",
        status=client.status,
        reason=_joined(client.reason, reply.remark),
        distance=client.distance,
        threshold=client.threshold,
        weight=client.weight,
        claimed=reply.claimed,
        samples=client.samples,
    )


def _joined(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part) or None


def averaged(
    replies: Sequence[Reply],
    samples: Mapping[int, float],
    sample_cap: float | None,
    function: Callable[[list[RecordDict], str], MetricRecord],
    weight_key: str,
) -> Averages:
    """The user's, or Flower's, average of the metrics that pass the screen, each weighted by its n_i after the cap.

    Only the nodes in `samples` take part. The function gets their replies whole, but for the n_i.
    """
    present = [reply for reply in replies if reply.node in samples]
    reasons = screened({reply.node: reply.metrics or {} for reply in present})
    sane = [reply for reply in present if reply.node not in reasons]
    if not sane:
        return Averages(None, reasons)
    limit = math.inf if sample_cap is None else sample_cap * statistics.median(samples[reply.node] for reply in sane)
    records = []
    for reply in sane:
        used = min(samples[reply.node], limit)
        whole = isinstance(reply.claimed, int) and reply.claimed == used
        records.append(RecordDict(dict((reply.content or {}).items())))
        records[-1][reply.key] = MetricRecord({**(reply.metrics or {}), weight_key: int(used) if whole else used})
    return Averages(function(records, weight_key), reasons)


def account(opened: OpenRound, rule: Rule, run: str, metrics: Mapping[str, Mapping[str, Any]]) -> RoundRecord:
    """The round as the audit has it."""
    settled = opened.settled
    return RoundRecord(
        run=run,
        round=opened.number,
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        rule=rule.name,
        parameters={name: repr(value) if callable(value) else value for name, value in rule.parameters.items()},
        outcome="kept" if settled.model is None else "aggregated",
        nodes=tuple(opened.rows),
        note=settled.note,
        converged=settled.converged,
        iterations=settled.iterations,
        certificate=settled.certificate,
        seconds={"round": time.perf_counter() - opened.began, "aggregation": settled.seconds},
        metrics=metrics,
    )


def tell(phase: str, t: int, asked: int, rows: Sequence[NodeRecord]) -> None:
    """Log who was rejected, and what else is odd."""
    flower_log.info("%s: %d nodes asked, %d rejected", phase, asked, sum(row.status == "rejected" for row in rows))
    for row in rows:
        if row.reason and row.status != "dropped":
            flower_log.warning("Round %d: node %s %s: %s", t, row.node, row.status, row.reason)
