"""One round on the server: from the replies to the next model, the averages of metrics, and the row of every node."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import ArrayLike

from fedhold.aggregation import aggregate
from fedhold.audit import NodeRecord, RoundRecord, Seen, shown_name
from fedhold.errors import InfeasibleError
from fedhold.flower.model import Model
from fedhold.flower.state import State
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
    """What the aggregation of a round came to.

    model    the next model; None where the round keeps the one it had
    record   the record of the round, with a row for every node, and why the model is kept
    """

    model: Model | None
    record: RoundRecord


@dataclass
class Round:
    """A round that is under way.

    state     of the run before the round
    model     the model that was sent
    record    what the audit has of the round so far
    train     the messages to nodes that were asked to train
    evaluate  the messages to nodes that were asked to evaluate
    began     when the round began, on the clock of time.perf_counter
    """

    state: State
    model: Model
    record: RoundRecord
    train: list[Message] = field(default_factory=list)
    evaluate: list[Message] = field(default_factory=list)
    began: float = field(default_factory=time.perf_counter)

    @staticmethod
    def opened(number: int, model: Model, rule: Rule, state: State) -> Round:
        """Round `number` of the run, before anybody was asked."""
        note = "nobody was asked to train"
        return Round(state, model, RoundRecord(state.run, number, "", rule.name, "kept", (), note))

    def closed(self) -> RoundRecord:
        """The record of the round when it is over."""
        aggregation = self.record.seconds.get("aggregation", 0.0)
        return replace(
            self.record,
            time=datetime.now(UTC).isoformat(timespec="seconds"),
            nodes=tuple(replace(row, name=self.state.names.get(int(row.node))) for row in self.record.nodes),
            seconds={"round": time.perf_counter() - self.began, "aggregation": aggregation},
            metrics=self.state.last_metrics(),
        )


def aggregate_replies(
    opened: Round,
    replies: Sequence[Reply],
    asked: int,
    rule: Rule,
    rng: np.random.Generator | None,
    *,
    root: Arrays | None = None,
    guard: Callable[[ArrayRecord], ArrayLike] | None = None,
) -> Outcome:
    """Aggregate the replies that can be used. Where that cannot be done, keep the model and say why.

    opened   the round, with the model that was sent
    replies  one per node, as read_replies() gives them
    asked    how many nodes were asked
    rule     how to aggregate
    rng      for rules that draw; None for others
    root     the server's own model, for rules that compare clients with it
    guard    the loss of a model on each of the server's samples
    """
    began, model = time.perf_counter(), opened.model
    good = [reply for reply in replies if reply.reason is None]
    quorum = {"asked": asked, "usable": len(good), "needed": rule.needed(asked)}

    def ended(clients: Mapping[int, Client], note: str | None, **facts: Any) -> RoundRecord:
        rows = [_row(reply, clients.get(reply.node)) for reply in replies]
        return replace(opened.record, nodes=(*opened.record.nodes, *rows), note=note, quorum=quorum, **facts)

    def kept(note: str | None = None) -> Outcome:
        few = (
            f"{quorum['usable']} of {asked} nodes asked sent a usable reply, and the quorum is {quorum['needed']} (more than "
            f"{rule.quorum:g} of them)"
        )
        return Outcome(None, ended({}, note or few))

    if quorum["usable"] < quorum["needed"]:
        return kept()
    form = partial(model.update, whole=rule.takes_whole)
    # What was sent in place of an update is one of the f lies that the rule is told of: aggregate() rejects it as such.
    unusable = sum(reply.answered and reply.reason is not None for reply in replies)
    claimed = np.array([reply.samples for reply in good], np.float64)
    call: dict[str, Any] = {}
    if rule.from_last and opened.state.last is not None:
        call["start"] = form(model.moved(opened.state.last))
    if root is not None:
        call["root"] = form(root)
    if guard is not None:
        call["guard"] = partial(_losses_of, guard, model, whole=rule.takes_whole)
    try:
        result = aggregate(
            [*(form(reply.arrays or {}) for reply in good), *[None] * unusable],
            rule.stages,
            samples=np.append(claimed, np.full(unusable, np.median(claimed))),  # the median of all stays as it is
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
    if result.guard is not None and result.guard.note:
        log.warning("Round %d: %s", opened.record.round, result.guard.note)
    seconds = {"aggregation": time.perf_counter() - began}
    record = ended(
        {reply.node: client for reply, client in zip(good, result.clients[: len(good)], strict=True)},
        None,
        outcome="aggregated",
        converged=result.converged,
        iterations=result.iterations,
        certificate=_certificate(result, rule, quorum["usable"]) if rule.certify else None,
        seconds=seconds,
        f=result.f,
        guard=None if result.guard is None else asdict(result.guard),
        diagnosis=None if (found := result.diagnosis) is None or not found.differ else found.text,
    )
    return Outcome(moved, record)


def _losses_of(
    guard: Callable[[ArrayRecord], ArrayLike], model: Model, value: Mapping[str, Any], *, whole: bool
) -> ArrayLike:
    """The losses of the model that an aggregate leads to."""
    moved = model.after(value, whole=whole)
    if moved is None:
        raise ValueError("the aggregate is not finite")
    return guard(moved.record())


def _certificate(result: Aggregation, rule: Rule, admitted: int) -> dict[str, Any] | None:
    """The certificate for the audit; None for a rule without one."""
    f = int(BYZANTINE * admitted) if rule.byzantine is None else rule.byzantine
    try:
        certificate = result.certificate
        return None if certificate is None else {"f": f, "radius": float(certificate.radius(f))}
    except (RuntimeError, ValueError) as problem:  # a liar's numbers, too large for a proof, must not cost the round
        log.warning("No certificate: %s", problem)
        return {"f": f, "radius": math.inf}


def _row(reply: Reply, client: Client | None) -> NodeRecord:
    """The row of a node; `client` is what the aggregation made of its reply, None where it took no part in any."""
    row = NodeRecord(str(reply.node), "train", "dropped", claimed=reply.claimed)
    reason = reply.reason
    if client is None and not all(np.isfinite(array).all() for array in (reply.arrays or {}).values()):
        reason = reason or "numbers that are not finite"
    if reason is not None:
        return replace(row, status="rejected", reason=reason, weight=0.0)
    if client is None:
        return with_reason(replace(row, reason="the model was kept"), reply.remark)
    row = replace(
        row,
        status=client.status,
        reason=client.reason or None,
        distance=client.distance,
        threshold=client.threshold,
        weight=client.weight,
        samples=client.samples,
    )
    return with_reason(row, reply.remark)


def with_reason(row: NodeRecord, reason: str | None) -> NodeRecord:
    """The row, with one more thing to say about the node."""
    return row if reason is None else replace(row, reason=f"{row.reason}; {reason}" if row.reason else reason)


def log_rows(phase: str, record: RoundRecord, asked: int) -> None:
    """Log how many of the `asked` nodes were rejected and what the quorum is, and a line for each row that has a reason."""
    rows = [row for row in record.nodes if row.phase == phase and row.status != "quarantined"]
    rejected = sum(row.status == "rejected" for row in rows)
    quorum = record.quorum if phase == "train" else None
    needs = f", {quorum['usable']} usable, quorum {quorum['needed']}" if quorum else ""
    log.info("aggregate_%s: %d nodes asked, %d rejected%s", phase, asked, rejected, needs)
    told = [row for row in rows if row.reason and row.status != "dropped"]
    for row in told[:MAX_LOGGED]:
        log.warning("Round %d: node %s %s: %s", record.round, row.node, row.status, row.reason)
    if len(told) > MAX_LOGGED:
        more = len(told) - MAX_LOGGED
        log.warning("Round %d: and %d nodes more, which the record of the round has", record.round, more)


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
