"""A Flower strategy for every rule of fedhold, which one bad client can neither stop nor capture."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedhold.audit import NodeRecord, append
from fedhold.errors import integer, positive, require
from fedhold.flower.api import (
    ArrayRecord,
    ConfigRecord,
    FedAvg,
    Grid,
    Message,
    MessageType,
    MetricRecord,
    RecordDict,
    Result,
    flower_log,
)
from fedhold.flower.model import Model
from fedhold.flower.nodes import chosen, living
from fedhold.flower.quarantine import Quarantine, offenders
from fedhold.flower.replies import Reply, read_replies
from fedhold.flower.rounds import OpenRound, Rule, account, averaged, settle, tell, tried
from fedhold.flower.run import EvaluateFn, Plan, run
from fedhold.flower.state import State, load, save
from fedhold.spec import parse

__all__ = ["RobustStrategy"]

TRAIN, EVALUATE, RULE = range(3)  # what chance is used for
SPARE = 2**20  # bytes of a reply beside the model: metrics, keys, headers


class RobustStrategy(FedAvg):
    """FedAvg with a robust rule in place of the average, on updates: what each client adds to the model it was sent.

    rule, parameters  as for aggregate(): "krum(f=2)", or "krum" and {"f": 2}
    sample_cap        as for aggregate(); the n_i are the clients' `weighted_by_key`
    byzantine         f of the certificate in the audit; a fifth of the admitted clients unless given
    audit             a file that gets one JSON line per round: what was done to every node, and why
    checkpoint        a folder for the state after every round; `resume` goes on from it
    quarantine        Quarantine(...): leave nodes that offend again and again out of sampling for a while
    max_reply_bytes   larger replies are refused undecoded; 4 times the model and 1 MiB unless given
    wait              seconds to wait for `min_available_nodes` before a TimeoutError
    seed              of node sampling, and of rules that draw: the same seed and nodes give the same bits
    fedavg            every argument of Flower's FedAvg, by keyword

    A reply that cannot be used is rejected with a reason, and a round without enough good ones keeps the model. Integers and
    bools of a model have no distances: each becomes the weighted median of what the admitted clients sent. Metrics are
    averaged over the nodes whose metrics are sane, with capped weights.
    """

    def __init__(
        self,
        rule: str | Callable[..., Any] = "huber",
        *,
        parameters: Mapping[str, Any] | None = None,
        sample_cap: float | None = 3.0,
        byzantine: int | None = None,
        audit: str | Path | None = None,
        checkpoint: str | Path | None = None,
        quarantine: Quarantine | None = None,
        max_reply_bytes: int | None = None,
        wait: float = 600.0,
        seed: int = 0,
        **fedavg: Any,
    ) -> None:
        super().__init__(**fedavg)
        stages = parse(rule, parameters or {})
        self.audit = None if audit is None else Path(audit)
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.quarantine = quarantine
        self.max_reply_bytes = None if max_reply_bytes is None else integer(max_reply_bytes, "max_reply_bytes")
        self.wait = positive(wait, "wait", zero=True)
        self.seed = integer(seed, "seed")
        self.rule = Rule(
            name=" | ".join(map(str, stages)),
            rule=rule,
            parameters=dict(parameters or {}),
            sample_cap=sample_cap,
            starts=stages[-1].declared.from_last,  # other rules would save next to nothing by starting there
            byzantine=None if byzantine is None else integer(byzantine, "byzantine"),
            certify=self.audit is not None,
        )
        tried(self.rule, stages)
        self._silence = "no reply"
        self._state: State | None = None
        self._open: OpenRound | None = None

    def summary(self) -> None:
        """Log what this strategy will do."""
        flower_log.info("\t├──> Rule: %s", self.rule.name)
        flower_log.info("\t│\t├──Samples capped at: %s times the median", self.rule.sample_cap)
        flower_log.info("\t│\t├──Audit: %s", self.audit)
        flower_log.info("\t│\t├──Checkpoint: %s", self.checkpoint)
        flower_log.info("\t│\t└──Quarantine: %s", self.quarantine)
        super().summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run `num_rounds` rounds from the initial arrays. Where the checkpoint holds a run already: see `resume`."""
        saved = self._saved()
        if saved is not None and saved.round:
            raise ValueError(
                f"checkpoint {self.checkpoint} already holds round {saved.round} of a run. Call resume(...) to go on with "
                "it; or delete it, or name another folder."
            )
        plan = Plan(grid, num_rounds, timeout, train_config, evaluate_config, evaluate_fn, self._close)
        return self._run(State(Model.of(initial_arrays)), plan)

    def resume(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord | None = None,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Go on from the checkpoint up to round `num_rounds`, as if nothing had happened; without one, start.

        So a ServerApp that always calls `resume` does the right thing the first time and after a crash: only the round that
        was open is lost, and done again. `num_rounds` is the total.
        """
        if self.checkpoint is None:
            raise ValueError("resume needs a checkpoint; met None. Pass RobustStrategy(checkpoint='run/').")
        state = self._saved()
        if state is None:
            if initial_arrays is None:
                raise ValueError(f"{self.checkpoint} holds no checkpoint. Pass initial_arrays to start from.")
            return self.start(grid, initial_arrays, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)
        if initial_arrays is not None and not state.model.fits(Model.of(initial_arrays)):
            raise ValueError(
                f"checkpoint {self.checkpoint} holds a model of other keys, shapes or dtypes than initial_arrays. Name another "
                "folder, or delete it."
            )
        require(
            state.round <= num_rounds,
            "resume",
            needs="num_rounds, the total, of at least the rounds done",
            remedy="Ask for more rounds, or name another checkpoint.",
            num_rounds=num_rounds,
            done=state.round,
        )
        flower_log.info("Resuming run %s after round %d", state.run, state.round)
        plan = Plan(grid, num_rounds, timeout, train_config, evaluate_config, evaluate_fn, self._close)
        return self._run(state, plan)

    def _run(self, state: State, plan: Plan) -> Result:
        self._state, self._silence = state, f"no reply within {plan.timeout:g} s"
        return run(self, state, plan)

    # The parts of a round, as Flower calls them. In a loop of your own they work too; audit and checkpoint are `start`'s.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Send the model to a sample of the living nodes that are not in quarantine."""
        opened = self._open = OpenRound(server_round, Model.of(arrays))
        if self.fraction_train == 0.0:
            return []
        least = self.min_train_nodes
        nodes, size = living(grid, self.fraction_train, least, self.min_available_nodes, self.wait)
        out = self._quarantined(server_round, nodes, least)
        opened.rows += [NodeRecord(str(node), "train", "quarantined", "left out of sampling") for node in out]
        ask = chosen([node for node in nodes if node not in out], size, self._chance(TRAIN, server_round))
        opened.sent = self._letters(MessageType.TRAIN, server_round, ask, arrays, config)
        return opened.sent

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model after the robust aggregate of the updates, and the averages of sane metrics."""
        opened = self._opened(server_round)
        if not opened.sent:
            return None, None
        read = self._read(opened.sent, replies, opened.model, returns=True)
        last = None if self._state is None else self._state.last
        settled = opened.settled = settle(opened.model, read, self.rule, self._chance(RULE, server_round), last)
        used = {int(row.node): row.samples for row in settled.rows if row.samples and row.status != "rejected"}
        averages = averaged(read, used, None, self.train_metrics_aggr_fn, self.weighted_by_key)
        rows = [averages.remarked(row) for row in settled.rows]
        opened.rows += rows
        tell("aggregate_train", server_round, len(opened.sent), rows)
        if settled.model is None:
            flower_log.warning("Round %d keeps the model: %s", server_round, settled.note)
        if self._state is not None:
            self._state.last = last if settled.model is None else settled.last
            if self.quarantine is not None:
                bad = offenders(rows, self.quarantine.share)
                asked = [message.metadata.dst_node_id for message in opened.sent]
                self._state.ward = self._state.ward.after(self.quarantine, server_round, asked, bad)
        return None if settled.model is None else settled.model.record(), averages.record

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The same for evaluation."""
        opened = self._opened(server_round)
        if self.fraction_evaluate == 0.0:
            return []
        least = self.min_evaluate_nodes
        nodes, size = living(grid, self.fraction_evaluate, least, self.min_available_nodes, self.wait)
        out = self._quarantined(server_round, nodes, least)
        ask = chosen([node for node in nodes if node not in out], size, self._chance(EVALUATE, server_round))
        opened.asked_to_evaluate = self._letters(MessageType.EVALUATE, server_round, ask, arrays, config)
        return opened.asked_to_evaluate

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The averages of sane metrics; whoever sent others has a row in the audit."""
        opened = self._opened(server_round)
        if not opened.asked_to_evaluate:
            return None
        read = self._read(opened.asked_to_evaluate, replies, opened.model, returns=False)
        claimed = {reply.node: reply.samples for reply in read if reply.samples is not None}
        averages = averaged(read, claimed, self.rule.sample_cap, self.evaluate_metrics_aggr_fn, self.weighted_by_key)
        rows = [
            NodeRecord(str(reply.node), "evaluate", "rejected", reason, claimed=reply.claimed)
            for reply in read
            if (reason := reply.reason or averages.reasons.get(reply.node)) is not None
        ]
        opened.rows += rows
        tell("aggregate_evaluate", server_round, len(opened.asked_to_evaluate), rows)
        return averages.record

    def _letters(self, kind: str, t: int, nodes: list[int], arrays: ArrayRecord, config: ConfigRecord) -> list[Message]:
        config["server-round"] = t
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(content=record, message_type=kind, dst_node_id=node) for node in nodes]

    def _read(self, sent: list[Message], replies: Iterable[Message], model: Model, *, returns: bool) -> list[Reply]:
        limit = 4 * model.nbytes + SPARE if self.max_reply_bytes is None else self.max_reply_bytes
        like = model if returns else None
        return read_replies(
            sent, replies, model=like, weight_key=self.weighted_by_key, limit=limit, silence=self._silence
        )

    def _quarantined(self, t: int, nodes: list[int], least: int) -> list[int]:
        out = [] if self.quarantine is None or self._state is None else self._state.ward.out(t, nodes, least)
        if out:
            flower_log.warning("Round %d: in quarantine: %s", t, ", ".join(map(str, out)))
        return out

    def _chance(self, purpose: int, t: int) -> np.random.Generator:
        """Of the round alone, so that a resumed run draws what the uninterrupted one would have drawn."""
        return np.random.default_rng([self.seed, purpose, t])

    def _opened(self, t: int) -> OpenRound:
        if self._open is None or self._open.number != t:
            raise RuntimeError(f"round {t} was not opened: call configure_train, which keeps what was sent, before it.")
        return self._open

    def _facts(self) -> dict[str, Any]:
        return {"rule": self.rule.name, "sample_cap": self.rule.sample_cap, "seed": self.seed}

    def _saved(self) -> State | None:
        return None if self.checkpoint is None else load(self.checkpoint, self._facts())

    def _close(self, state: State) -> None:
        """Audit first: a round is then told twice rather than not at all."""
        if self.audit is not None and state.round > 0:
            append(self.audit, account(self._opened(state.round), self.rule, state.run, state.told()))
        if self.checkpoint is not None:
            save(self.checkpoint, state, self._facts())
