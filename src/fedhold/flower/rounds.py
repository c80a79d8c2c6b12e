"""One round on the server: from the replies to the next model, the averages of metrics, and the row of every node."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

import numpy as np
from flwr.app import ConfigRecord, Message
from numpy.typing import NDArray

from fedhold.aggregation import aggregate
from fedhold.audit import MOST_NAME, NodeRecord, RoundRecord, Seen, shown_name
from fedhold.errors import InfeasibleError, one_line
from fedhold.flower.model import Model
from fedhold.result import Aggregation, Client
from fedhold.spec import Stage
from fedhold.transport import Arrays, Reply

MAX_TRIED = 1000  # a rule that needs more clients is not tried before the run: that would take too long
MAX_LOGGED = 10  # nodes that one line of the log names, and nodes with a line of their own in one round
BYZANTINE = 0.2  # the fraction of clients that a certificate is about, unless the user gives a number

log = logging.getLogger("flwr")  # our lines appear among Flower's own


@dataclass(frozen=True)
class Rule:
    """What aggregate() is called with in every round.

    stages       the rule and the mixings before it
    sample_cap   as for aggregate()
    byzantine    f of the certificate; None for a fifth of the admitted clients
    certify      whether to compute a certificate, which costs an m x m matrix
    quorum       the fraction of the nodes asked of which more must send a usable reply
    """

    stages: tuple[Stage, ...]
    sample_cap: float | None
    byzantine: int | None
    certify: bool
    quorum: float

    @cached_property
    def name(self) -> str:
        """The rule and its parameters, as a spec."""
        return " | ".join(map(str, self.stages))

    @property
    def from_last(self) -> bool:
        """Whether the rule starts from its last aggregate."""
        return self.stages[-1].declared.from_last

    @property
    def accuses(self) -> bool:
        """Whether a low weight tells against a client, as the rule and its mixings declare."""
        return all(stage.declared.accuses for stage in self.stages)

    @cached_property
    def takes_whole(self) -> bool:
        """Whether the rule and its mixings give the same aggregate of models as of updates, moved by the model that was sent.

        The models are then aggregated as they came, without subtracting it from each.
        """
        return all(stage.is_ours and not stage.declared.from_zero for stage in self.stages)

    @cached_property
    def least(self) -> int:
        """The fewest clients that the rule takes; 1 where it takes more than MAX_TRIED only."""
        for m in range(1, MAX_TRIED + 1):
            with suppress(ValueError):
                rows = m
                for stage in self.stages:
                    rows = stage.check(rows)
                return m
        return 1

    def takes(self, name: str) -> bool:
        """Whether the rule or one of its mixings has a parameter of this name."""
        return any(stage.takes(name) for stage in self.stages)

    def needed(self, asked: int) -> int:
        """How many usable replies a round needs that asks so many nodes. The rule's own bound holds besides."""
        return math.floor(self.quorum * asked) + 1

    def check(self) -> None:
        """Raise the error that a round would raise for parameters out of range, by a call on made-up clients.

        Rules of the user's own, and parameters with a value for each client, may fit the clients of this federation only.
        """
        given = [value for stage in self.stages for value in stage.parameters.values()]
        by_client = any(isinstance(value, list | tuple | np.ndarray) for value in given)
        if all(stage.is_ours for stage in self.stages) and not by_client:
            with suppress(InfeasibleError):  # it takes more than MAX_TRIED
                aggregate(np.random.default_rng(0).standard_normal((self.least, 4)), self.stages, rng=0)


@dataclass(frozen=True)
class Outcome:
    """What a round of training came to.

    model        the next model; None where the round keeps the model it had
    rows         one row per node, for the audit
    note         why the model was kept
    last         the aggregate of the updates, for a rule that starts from it in the next round
    converged, iterations, certificate   as the audit has them
    seconds      how long the aggregation took
    quorum       how many nodes were asked, how many replies could be used, and how many the quorum needs
    f            how many liars the rule had to withstand among the clients that were left
    """

    model: Model | None
    rows: tuple[NodeRecord, ...]
    note: str | None = None
    last: Arrays | None = None
    converged: bool | None = None
    iterations: int | None = None
    certificate: dict[str, Any] | None = None
    seconds: float = 0.0
    quorum: Mapping[str, int] | None = None
    f: int | None = None


@dataclass
class Round:
    """A round that is under way, and what is known of it so far.

    number              counted from 1
    model               the model that was sent
    train_messages      the messages to nodes that were asked to train
    evaluate_messages   the messages to nodes that were asked to evaluate
    rows                the rows for the audit
    outcome             what training came to
    averages            the plain averages of metrics, by phase
    validation          the losses of the model on the server's own data, before and after
    began               when the round began, on the clock of time.perf_counter
    """

    number: int
    model: Model
    train_messages: list[Message] = field(default_factory=list)
    evaluate_messages: list[Message] = field(default_factory=list)
    rows: list[NodeRecord] = field(default_factory=list)
    outcome: Outcome = field(default_factory=lambda: Outcome(None, (), note="nobody was asked to train"))
    averages: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    validation: Mapping[str, float] | None = None
    began: float = field(default_factory=time.perf_counter)

    def record(
        self, rule: Rule, run: str, metrics: Mapping[str, Mapping[str, Any]], names: Mapping[int, str]
    ) -> RoundRecord:
        """The round as the audit has it.

        rule     the rule that aggregated it
        run      the id of the run
        metrics  the averages of this round, by phase
        names    what nodes call themselves
        """
        outcome = self.outcome
        return RoundRecord(
            run=run,
            round=self.number,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            rule=rule.name,
            parameters={},  # the spec has them
            outcome="kept" if outcome.model is None else "aggregated",
            nodes=tuple(replace(row, name=names.get(int(row.node))) for row in self.rows),
            note=outcome.note,
            converged=outcome.converged,
            iterations=outcome.iterations,
            certificate=outcome.certificate,
            seconds={"round": time.perf_counter() - self.began, "aggregation": outcome.seconds},
            metrics=metrics,
            averages=self.averages,
            quorum=outcome.quorum,
            f=outcome.f,
            validation=self.validation,
        )


def aggregate_replies(
    model: Model,
    replies: Sequence[Reply],
    asked: int,
    rule: Rule,
    rng: np.random.Generator | None,
    *,
    last: Arrays | None = None,
    root: Arrays | None = None,
) -> Outcome:
    """Aggregate the replies that can be used. Where that cannot be done, keep the model and say why.

    model    the model that was sent
    replies  one per node, as read_replies() gives them
    asked    how many nodes were asked
    rule     how to aggregate
    rng      for rules that draw; None for others
    last     the last aggregate of updates, for rules that start from it
    root     the server's own model, for rules that compare clients with it
    """
    began = time.perf_counter()
    good = [reply for reply in replies if reply.reason is None]
    quorum = {"asked": asked, "usable": len(good), "needed": rule.needed(asked)}

    def kept(note: str | None = None) -> Outcome:
        few = (
            f"{quorum['usable']} of {asked} nodes asked sent a usable reply, and the quorum is {quorum['needed']} (more than "
            f"{rule.quorum:g} of them)"
        )
        return Outcome(None, tuple(map(_row_without_aggregate, replies)), note or few, quorum=quorum)

    if quorum["usable"] < quorum["needed"]:
        return kept()
    form = partial(model.update, whole=rule.takes_whole)
    # What was sent in place of an update is one of the f lies that the rule is told of: aggregate() rejects it as such.
    unusable = sum(reply.answered and reply.reason is not None for reply in replies)
    call: dict[str, Any] = {}
    if rule.from_last and last is not None:
        call["start"] = form(model.moved(last))
    if root is not None:
        call["root"] = form(root)
    try:
        result = aggregate(
            [*(form(reply.arrays or {}) for reply in good), *[None] * unusable],
            rule.stages,
            samples=_samples(good, unusable),
            rng=rng,
            sample_cap=rule.sample_cap,
            like=form(model.arrays),
            **call,
        )
    except ValueError as problem:  # nobody was admitted, or fewer clients than the rule needs
        return kept(str(problem))
    quorum["usable"] = sum(client.status != "rejected" for client in result.clients)
    if quorum["usable"] < quorum["needed"]:
        return kept()
    moved = model.after(result.value, whole=rule.takes_whole)
    if moved is None:
        return kept("the aggregate is not finite")
    seconds = time.perf_counter() - began
    clients = {reply.node: client for reply, client in zip(good, result.clients[: len(good)], strict=True)}
    return Outcome(
        model=moved,
        rows=tuple(
            _rejected(reply, reply.reason) if reply.reason else _admitted(reply, clients[reply.node])
            for reply in replies
        ),
        last=moved.minus(model) if rule.from_last else None,
        converged=result.converged,
        iterations=result.iterations,
        certificate=_certificate(result, rule, quorum["usable"]) if rule.certify else None,
        seconds=seconds,
        quorum=quorum,
        f=result.f,
    )


def _samples(good: Sequence[Reply], unusable: int) -> NDArray[np.float64]:
    """The n_i of the replies; those unusable, which are rejected for their numbers, get the median, so that it stays."""
    claimed = np.array([reply.samples for reply in good], np.float64)
    return np.concatenate([claimed, np.full(unusable, np.median(claimed))])


def _certificate(result: Aggregation, rule: Rule, admitted: int) -> dict[str, Any] | None:
    """The certificate for the audit; None for a rule without one."""
    f = int(BYZANTINE * admitted) if rule.byzantine is None else rule.byzantine
    try:
        certificate = result.certificate
        return None if certificate is None else {"f": f, "radius": float(certificate.radius(f))}
    except (RuntimeError, ValueError) as problem:  # a liar's numbers, too large for a proof, must not cost the round
        log.warning("No certificate: %s", problem)
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


def _rejected(reply: Reply, reason: str) -> NodeRecord:
    """The row of a node whose reply could not be used."""
    return NodeRecord(str(reply.node), "train", "rejected", reason, weight=0.0, claimed=reply.claimed)


def _row_without_aggregate(reply: Reply) -> NodeRecord:
    """The row of a node in a round that keeps the model: bad replies are rejected, the others dropped."""
    if reply.reason:
        return _rejected(reply, reply.reason)
    if not all(np.isfinite(array).all() for array in (reply.arrays or {}).values()):
        return _rejected(reply, "numbers that are not finite")
    reason = _joined("the model was kept", reply.remark)
    return NodeRecord(str(reply.node), "train", "dropped", reason, claimed=reply.claimed)


def _joined(*parts: str | None) -> str | None:
    return "; ".join(part for part in parts if part) or None


def name_in(reply: Reply, key: str) -> str | None:
    """What a node calls itself: the text under this key in a ConfigRecord of its reply; None where there is none."""
    records = reply.content.values() if reply.content is not None else ()
    configs = [record for record in records if isinstance(record, ConfigRecord)]
    names = [one_line(config[key], MOST_NAME) for config in configs if isinstance(config.get(key), str)]
    return next(filter(None, names), None)


def with_reason(row: NodeRecord, reason: str | None) -> NodeRecord:
    """The row, with one more thing to say about the node."""
    return row if reason is None else replace(row, reason=_joined(row.reason, reason))


def log_rows(phase: str, round: int, asked: int, rows: Sequence[NodeRecord], quorum: Mapping[str, int] | None) -> None:
    """Log how many of the `asked` nodes were rejected and what the quorum is, and a line for each row that has a reason."""
    rejected = sum(row.status == "rejected" for row in rows)
    needs = f", {quorum['usable']} usable, quorum {quorum['needed']}" if quorum else ""
    log.info("%s: %d nodes asked, %d rejected%s", phase, asked, rejected, needs)
    told = [row for row in rows if row.reason and row.status != "dropped"]
    for row in told[:MAX_LOGGED]:
        log.warning("Round %d: node %s %s: %s", round, row.node, row.status, row.reason)
    if len(told) > MAX_LOGGED:
        log.warning("Round %d: and %d nodes more, which the record of the round has", round, len(told) - MAX_LOGGED)


def log_suspects(record: RoundRecord, seen: Sequence[Seen], suspects: Sequence[str], nodes: int) -> None:
    """Log in one line how many nodes a round held down, and who the suspects are so far.

    record    the round
    seen      what became of its nodes
    suspects  the suspects so far, the most suspicious first
    nodes     how many nodes there have been so far
    """
    names = {row.node: row.name for row in record.nodes}
    told = [shown_name(node, names.get(node)) for node in suspects[:MAX_LOGGED]]
    told += [f"and {len(suspects) - MAX_LOGGED} more"] * (len(suspects) > MAX_LOGGED)
    log.info(
        "Round %d: %d of %d nodes held down; suspects so far: %d of %d%s",
        *(record.round, sum(one.held for one in seen), len(seen), len(suspects), nodes),
        f": {', '.join(told)}" if told else "",
    )
