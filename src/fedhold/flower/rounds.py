"""One round on the server: from the replies to the next model, the averages of metrics, and the row of every node."""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property, partial
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, Message
from numpy.typing import ArrayLike

from fedhold.aggregation import aggregate
from fedhold.audit import (
    NodeRecord,
    RoundRecord,
    array_hash,
    below_quorum,
    certificate_of,
    facts_of,
    liars_feared,
    replies_needed,
    row_of,
    with_reason,
)
from fedhold.errors import InfeasibleError
from fedhold.flower.model import Model
from fedhold.flower.state import State
from fedhold.groups import Groups, Patterns
from fedhold.positive import positive_after
from fedhold.report import held_down
from fedhold.result import Client
from fedhold.spec import Stage
from fedhold.transport import Arrays, Reply

LEFT = 1e-4  # of a sum of squares, below which a difference of float32 products means nothing
MAX_TRIED = 1000  # a rule that needs more clients is not tried before the run: that would take too long

log = logging.getLogger("flwr")  # our lines appear among Flower's own


@dataclass(frozen=True)
class Rule:
    """What aggregate() is called with in every round.

    stages       the rule and the mixings before it
    sample_cap   as for aggregate()
    byzantine    how many of the nodes are feared to lie, f of the certificate; None for a fifth of the admitted clients there
    certify      whether to compute a certificate, which costs an m x m matrix
    quorum       the fraction of the nodes asked of which more must send a usable reply
    groups       as for aggregate(); so is `exclude`
    steps_key    the metric in which nodes say how many local steps they made; None where updates stay as they are
    memory       whether the rule gets the scale of earlier rounds
    """

    stages: tuple[Stage, ...]
    sample_cap: float | None
    byzantine: int | None
    certify: bool
    quorum: float
    groups: Groups | None = None
    exclude: Patterns | None = None
    steps_key: str | None = None
    memory: bool = False

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
        from_zero = self.steps_key is not None or any(stage.declared.from_zero for stage in self.stages)
        return not from_zero and all(stage.is_ours for stage in self.stages)

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

    def feared(self, asked: int, nodes: int) -> int:
        """How many of the nodes asked may lie: as many of them as of all nodes there are. 0 where nobody said how many."""
        return liars_feared(self.byzantine, asked, nodes)

    def needed(self, asked: int, feared: int = 0) -> int:
        """How many usable replies a round needs that asks so many nodes, f of whom are feared."""
        return replies_needed(self.quorum, asked, feared)

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
    nodes     how many nodes there were to choose from
    record    what the audit has of the round so far
    train     the messages to nodes that were asked to train
    evaluate  the messages to nodes that were asked to evaluate
    began     when the round began, on the clock of time.perf_counter
    """

    state: State
    model: Model
    record: RoundRecord
    nodes: int = 0
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

    def kept(note: str) -> Outcome:
        return Outcome(None, ended({}, note))

    if few := below_quorum(quorum, rule.quorum):
        return kept(few)
    form = partial(model.update, whole=rule.takes_whole)
    # What was sent in place of an update is one of the f lies that the rule is told of: aggregate() rejects it as such.
    unusable = sum(reply.answered and reply.reason is not None for reply in replies)
    claimed = np.array([reply.samples for reply in good], np.float64)
    call: dict[str, Any] = {}
    if rule.from_last and opened.state.last is not None:
        call["start"] = form(model.moved(opened.state.last))
    if root is not None:
        call["root"] = form(root)
    if rule.steps_key is not None:
        call["steps"] = [*((reply.metrics or {}).get(rule.steps_key) for reply in good), *[None] * unusable]
    if rule.memory:
        call["scale"] = opened.state.scale
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
            groups=rule.groups,
            exclude=rule.exclude,
            **call,
        )
    except ValueError as problem:  # nobody was admitted, or fewer clients than the rule needs
        return kept(str(problem))
    quorum["usable"] = sum(client.status != "rejected" for client in result.clients)
    found = len(result.clients) - quorum["usable"]  # Whoever was rejected is one of the liars feared.
    feared = max(rule.feared(asked, opened.nodes) - found, 0)
    quorum["needed"] = rule.needed(asked, feared)
    if few := below_quorum(quorum, rule.quorum, feared):
        return kept(few)
    moved = model.after(result.value, whole=rule.takes_whole)
    if moved is None:
        return kept("the aggregate is not finite")
    raised, corrected = positive_after(result, moved.arrays, [reply.arrays or {} for reply in good], model.arrays)
    seconds = {"aggregation": time.perf_counter() - began}
    clients = dict(zip((reply.node for reply in good), result.clients[: len(good)], strict=True))
    record = ended(
        clients,
        None,
        outcome="aggregated",
        certificate=certificate_of(result, rule.byzantine, log) if rule.certify else None,
        seconds=seconds,
        corrected=corrected,
        **facts_of(result),
    )
    rows = _with_cosines(record.nodes, good, clients, model, moved)
    return Outcome(Model(moved.arrays | raised), replace(record, nodes=rows))


def _product(one: Arrays, two: Arrays) -> np.float64:
    """The inner product of two updates."""
    return np.float64(sum(np.vdot(part, two[key]) for key, part in one.items()))


def _with_cosines(
    rows: Sequence[NodeRecord], replies: Sequence[Reply], clients: Mapping[int, Client], model: Model, moved: Model
) -> tuple[NodeRecord, ...]:
    """The rows with the cosines between each admitted node's update u and the aggregate of the others, a - w u.

    <u, a - w u> = <u, a> - w |u|^2, and |a - w u|^2 = |a|^2 - 2 w <u, a> + w^2 |u|^2. Only where a node has little weight:
    otherwise nobody asks for them, and they take a pass over the replies.
    """
    admitted = [one for one in replies if clients[one.node].status != "rejected"]
    weights = np.array([clients[one.node].weight for one in admitted], np.float64)
    if not held_down(weights, np.array([clients[one.node].samples for one in admitted])).any():
        return tuple(rows)
    cosines, whole = dict[str, float](), moved.minus(model)
    size = _product(whole, whole)
    for reply, weight in zip(admitted, weights.tolist(), strict=True):
        own = model.like(reply.arrays or {}).minus(model)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            square, along = _product(own, own), _product(own, whole)
            others = size - 2 * weight * along + weight**2 * square
            cosine = float((along - weight * square) / np.sqrt(square) / np.sqrt(others))
        # Where the node is nearly all of the aggregate, what is left of the others is rounding.
        if others > LEFT * (size + weight**2 * square) and math.isfinite(cosine):
            cosines[str(reply.node)] = cosine
    return tuple(replace(row, cosine=cosines.get(row.node)) for row in rows)


def _losses_of(
    guard: Callable[[ArrayRecord], ArrayLike], model: Model, value: Mapping[str, Any], *, whole: bool
) -> ArrayLike:
    """The losses of the model that an aggregate leads to."""
    moved = model.after(value, whole=whole)
    if moved is None:
        raise ValueError("the aggregate is not finite")
    return guard(moved.record())


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
    return with_reason(row_of(row, client), reply.remark)


def with_hashes(record: RoundRecord, replies: Sequence[Reply], sent: Model, made: Model | None) -> RoundRecord:
    """The record with the hashes of what every node sent, of the model that was sent, and of the one after the round."""
    arrays = [reply.arrays for reply in replies if reply.arrays is not None]
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # hashlib lets other threads work meanwhile
        before, after, *updates = pool.map(array_hash, [sent.arrays, (made or sent).arrays, *arrays])
    by_node = dict(zip((str(reply.node) for reply in replies if reply.arrays is not None), updates, strict=True))
    rows = (replace(row, update=by_node.get(row.node)) if row.phase == "train" else row for row in record.nodes)
    return replace(record, nodes=tuple(rows), model={"before": before, "after": after})
