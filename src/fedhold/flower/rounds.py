"""One round on the server: from the replies to the next model, the averages of metrics, and the row of every node."""

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
from fedhold.audit import NodeRecord, RoundRecord, unusable_metrics
from fedhold.errors import positive
from fedhold.flower.api import Message, MetricRecord, RecordDict, flower_log
from fedhold.flower.model import Arrays, Model
from fedhold.flower.replies import Reply
from fedhold.spec import Stage

MOST_CLIENTS = 1000  # a rule that needs more than these is not tried beforehand: that would take too long
BYZANTINE = 0.2  # the fraction of clients that a certificate is about, unless the user gives a number


@dataclass(frozen=True)
class Rule:
    """What aggregate() is called with in every round.

    name         the rule and its parameters, as a spec
    rule         the rule as the user gave it: a name, a spec, or a function
    parameters   its parameters, as far as they were given beside it
    sample_cap   as for aggregate()
    from_last    whether the rule starts from its last aggregate
    byzantine    f of the certificate; None for a fifth of the admitted clients
    certify      whether to compute a certificate, which costs an m x m matrix
    """

    name: str
    rule: str | Callable[..., Any]
    parameters: Mapping[str, Any]
    sample_cap: float | None
    from_last: bool
    byzantine: int | None
    certify: bool


@dataclass(frozen=True)
class Outcome:
    """What a round of training came to.

    model        the next model; None where the round keeps the model it had
    rows         one row per node, for the audit
    note         why the model was kept
    last         the aggregate of the updates, for a rule that starts from it in the next round
    converged, iterations, certificate   as the audit has them
    seconds      how long the aggregation took
    """

    model: Model | None
    rows: tuple[NodeRecord, ...]
    note: str | None = None
    last: Arrays | None = None
    converged: bool | None = None
    iterations: int | None = None
    certificate: dict[str, Any] | None = None
    seconds: float = 0.0


@dataclass
class Round:
    """A round that is under way, and what is known of it so far.

    number              counted from 1
    model               the model that was sent
    train_messages      the messages to nodes that were asked to train
    evaluate_messages   the messages to nodes that were asked to evaluate
    rows                the rows for the audit
    outcome             what training came to
    began               when the round began, on the clock of time.perf_counter
    """

    number: int
    model: Model
    train_messages: list[Message] = field(default_factory=list)
    evaluate_messages: list[Message] = field(default_factory=list)
    rows: list[NodeRecord] = field(default_factory=list)
    outcome: Outcome = field(default_factory=lambda: Outcome(None, (), note="nobody was asked to train"))
    began: float = field(default_factory=time.perf_counter)

    def record(self, rule: Rule, run: str, metrics: Mapping[str, Mapping[str, Any]]) -> RoundRecord:
        """The round as the audit has it.

        rule     the rule that aggregated it
        run      the id of the run
        metrics  the averages of this round, by phase
        """
        outcome = self.outcome
        return RoundRecord(
            run=run,
            round=self.number,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            rule=rule.name,
            parameters={name: repr(value) if callable(value) else value for name, value in rule.parameters.items()},
            outcome="kept" if outcome.model is None else "aggregated",
            nodes=tuple(self.rows),
            note=outcome.note,
            converged=outcome.converged,
            iterations=outcome.iterations,
            certificate=outcome.certificate,
            seconds={"round": time.perf_counter() - self.began, "aggregation": outcome.seconds},
            metrics=metrics,
        )


def check_rule(rule: Rule, stages: Sequence[Stage]) -> None:
    """Raise the error that a round would raise, by aggregating a few random rows.

    So parameters out of range are an error before the first round, and are not taken for too few replies in each.
    """
    if rule.sample_cap is not None and positive(rule.sample_cap, "sample_cap", infinite=True) < 1:
        raise ValueError(f"sample_cap must be at least 1, or None to trust; got {rule.sample_cap}.")
    given = [(name, value) for stage in stages for name, value in stage.parameters.items()]
    if callable(rule.rule) or any(isinstance(value, list | tuple | np.ndarray) for _, value in given):
        return  # such rules and parameters may fit the clients of this federation only
    f, size = (max([1, *(v for n, v in given if n == name and isinstance(v, int))]) for name in ("f", "size"))
    clients = (4 * f + 4) * size  # enough for the bound of every rule, also after bucketing
    if clients <= MOST_CLIENTS:
        aggregate(np.random.default_rng(0).standard_normal((clients, 4)), rule.rule, **rule.parameters)


def aggregate_replies(
    model: Model, replies: Sequence[Reply], rule: Rule, rng: np.random.Generator, last: Arrays | None
) -> Outcome:
    """Aggregate the updates of the replies that can be used. Where that cannot be done, keep the model and say why.

    model    the model that was sent
    replies  one per node, as read_replies() gives them
    rule     how to aggregate
    rng      for rules that draw
    last     the last aggregate, for rules that start from it
    """
    good = [reply for reply in replies if reply.reason is None]
    if not good:
        return Outcome(None, tuple(map(_rejected, replies)), f"none of {len(replies)} replies can be used")
    began = time.perf_counter()
    updates = [model.update(reply.arrays or {}) for reply in good]
    call: dict[str, Any] = dict(rule.parameters)
    if rule.from_last and last is not None:
        call["start"] = last
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
    except ValueError as problem:  # nobody was admitted, or fewer clients than the rule needs
        return Outcome(None, _rows_without_aggregate(replies, good, updates), str(problem))
    admitted = [i for i, client in enumerate(result.clients) if client.status != "rejected"]
    weights = [1.0 if result.weights is None else float(result.weights[i]) for i in admitted]
    if not all(np.isfinite(array).all() for array in result.value.values()):
        return Outcome(None, _rows_without_aggregate(replies, good, updates), "the aggregate is not finite")
    moved = model.moved(result.value, [good[i].arrays or {} for i in admitted], weights)
    seconds = time.perf_counter() - began
    clients = {reply.node: client for reply, client in zip(good, result.clients, strict=True)}
    return Outcome(
        model=moved,
        rows=tuple(
            _admitted(reply, clients[reply.node]) if reply.reason is None else _rejected(reply) for reply in replies
        ),
        last=dict(result.value) if rule.from_last else None,
        converged=result.converged,
        iterations=result.iterations,
        certificate=_certificate(result, rule, len(admitted)) if rule.certify else None,
        seconds=seconds,
    )


def _certificate(result: Aggregation, rule: Rule, admitted: int) -> dict[str, Any] | None:
    """The certificate for the audit; None for a rule without one."""
    f = int(BYZANTINE * admitted) if rule.byzantine is None else rule.byzantine
    try:
        certificate = result.certificate
        return None if certificate is None else {"f": f, "radius": float(certificate.radius(f))}
    except (RuntimeError, ValueError) as problem:  # a liar's numbers, too large for a proof, must not cost the round
        flower_log.warning("No certificate: %s", problem)
        return {"f": f, "radius": math.inf}


def _admitted(reply: Reply, client: Client) -> NodeRecord:
    """The row of a node whose reply was aggregated (where it may still have been rejected)."""
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


def _rejected(reply: Reply) -> NodeRecord:
    """The row of a node whose reply could not be used."""
    return NodeRecord(str(reply.node), "train", "rejected", reply.reason, weight=0.0, claimed=reply.claimed)


def _rows_without_aggregate(
    replies: Sequence[Reply], good: Sequence[Reply], updates: Sequence[Arrays]
) -> tuple[NodeRecord, ...]:
    """The rows of a round that keeps the model: bad replies and updates are rejected, the others dropped."""
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
            rows.append(_rejected(replace(reply, reason=reply.reason or "numbers that are not finite")))
    return tuple(rows)


def _joined(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part) or None


@dataclass(frozen=True)
class Averages:
    """The averages of metrics over nodes.

    record    the averages; None where no node had usable metrics
    reasons   the nodes whose metrics were left out, and why
    """

    record: MetricRecord | None
    reasons: Mapping[int, str]

    def add_reason(self, row: NodeRecord) -> NodeRecord:
        """The row of a node, with what was wrong with its metrics."""
        return replace(row, reason=_joined(row.reason, self.reasons.get(int(row.node))))


def average_metrics(
    replies: Sequence[Reply],
    samples: Mapping[int, float],
    sample_cap: float | None,
    function: Callable[[list[RecordDict], str], MetricRecord],
    weight_key: str,
) -> Averages:
    """Average the metrics that are usable, each node weighted by its number of samples.

    replies     one per node
    samples     the number of samples of each node that takes part
    sample_cap  numbers beyond this many times their median count as that; None for no cap
    function    what averages: the user's function, or Flower's. It gets the whole replies, but for the capped numbers
    weight_key  the name of the metric that holds the number of samples
    """
    present = [reply for reply in replies if reply.node in samples]
    reasons = unusable_metrics({reply.node: reply.metrics or {} for reply in present})
    usable = [reply for reply in present if reply.node not in reasons]
    if not usable:
        return Averages(None, reasons)
    limit = math.inf if sample_cap is None else sample_cap * statistics.median(samples[reply.node] for reply in usable)
    records = []
    for reply in usable:
        used = min(samples[reply.node], limit)
        whole = isinstance(reply.claimed, int) and reply.claimed == used
        records.append(RecordDict(dict((reply.content or {}).items())))
        records[-1][reply.key] = MetricRecord({**(reply.metrics or {}), weight_key: int(used) if whole else used})
    return Averages(function(records, weight_key), reasons)


def log_rows(phase: str, round: int, asked: int, rows: Sequence[NodeRecord]) -> None:
    """Log how many of the `asked` nodes were rejected, and a line for each row that has a reason."""
    flower_log.info("%s: %d nodes asked, %d rejected", phase, asked, sum(row.status == "rejected" for row in rows))
    for row in rows:
        if row.reason and row.status != "dropped":
            flower_log.warning("Round %d: node %s %s: %s", round, row.node, row.status, row.reason)
