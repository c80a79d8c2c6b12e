"""A Flower strategy for every rule of fedhold, which one bad client can neither stop nor capture."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
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
from fedhold.flower.averages import average_metrics
from fedhold.flower.grid import exchange, sample, sample_size, wait_for_nodes
from fedhold.flower.limits import Limits
from fedhold.flower.model import Model
from fedhold.flower.quarantine import Quarantine, offenders
from fedhold.flower.replies import Reply, read_replies
from fedhold.flower.rounds import Round, Rule, aggregate_replies, check_rule, log_rows, with_reason
from fedhold.flower.state import State, former_name, load, save
from fedhold.spec import DEFAULT, parse

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

# Each purpose that needs random numbers has a stream of its own, so that none depends on how many the others drew.
SAMPLE_TO_TRAIN, SAMPLE_TO_EVALUATE, AGGREGATE = range(3)
SEED_BITS = 128


@dataclass(frozen=True)
class _Sample:
    """The nodes that a round asks, and those that quarantine leaves out of it."""

    asked: list[int]
    quarantined: list[int]


class RobustStrategy(FedAvg):
    """FedAvg with a robust rule in place of the average, on updates: what each client adds to the model it was sent.

    rule              a rule of fedhold, as for aggregate(): "spectral_huber", "krum(f=2)", "bucketing | median", or a function
    parameters        parameters of the rule that are not part of its name, such as {"f": 2}
    sample_cap        as for aggregate(); the n_i are the clients' `weighted_by_key`
    byzantine         f of the certificate in the audit; a fifth of the admitted clients unless given
    audit             a file that gets one JSON line per round: what was done to every node, and why
    checkpoint        a folder for the state after every round; `resume` goes on from it
    quarantine        Quarantine(...): leave nodes that offend again and again out of sampling for a while
    quorum            the model is kept unless more than this fraction of the nodes asked send a usable reply; a half unless
                      given. The bound of the rule holds besides: krum(f=2) takes no fewer than 7
    max_reply_bytes   larger replies are rejected before they are put together; 4 times the model and 1 MiB unless given
    wait              seconds to wait for `min_available_nodes` before a TimeoutError
    seed              of node sampling, and of rules that draw: the same seed and nodes give the same bits. Unless given it is
                      drawn from the operating system and kept in the checkpoint, since nodes that know it know what is drawn
    fedavg            every argument of Flower's FedAvg, by keyword

    A reply that cannot be used is rejected with a reason, and a round without enough good ones keeps the model. Integers and
    bools of a model have no distances: each becomes the weighted median of what the admitted clients sent. Of metrics, the
    Huber location over the nodes whose metrics are usable is taken, with capped weights, unless you give a function of your
    own for them; the plain averages are in the audit.
    """

    def __init__(
        self,
        rule: str | Callable[..., Any] = DEFAULT,
        *,
        parameters: Mapping[str, Any] | None = None,
        sample_cap: float | None = 3.0,
        byzantine: int | None = None,
        audit: str | Path | None = None,
        checkpoint: str | Path | None = None,
        quarantine: Quarantine | None = None,
        quorum: float = 0.5,
        max_reply_bytes: int | None = None,
        wait: float = 600.0,
        seed: int | None = None,
        **fedavg: Any,
    ) -> None:
        super().__init__(**fedavg)
        stages = parse(rule, parameters or {})
        self.audit = None if audit is None else Path(audit)
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        self.quarantine = quarantine
        self.max_reply_bytes = None if max_reply_bytes is None else integer(max_reply_bytes, "max_reply_bytes")
        self.wait = positive(wait, "wait", zero=True)
        self.seed = None if seed is None else integer(seed, "seed")
        if sample_cap is not None and positive(sample_cap, "sample_cap", infinite=True) < 1:
            raise ValueError(f"sample_cap must be at least 1, or None to trust; got {sample_cap}.")
        require(
            0 <= positive(quorum, "quorum", zero=True) < 1,
            "RobustStrategy",
            needs="0 <= quorum < 1",
            remedy="It is a fraction of the nodes asked; usual is 0.5.",
            quorum=quorum,
        )
        self.rule = Rule(
            name=" | ".join(map(str, stages)),
            rule=rule,
            parameters=dict(parameters or {}),
            sample_cap=sample_cap,
            from_last=stages[-1].declared.from_last,
            byzantine=None if byzantine is None else integer(byzantine, "byzantine"),
            certify=self.audit is not None,
            quorum=float(quorum),
            least=check_rule(rule, parameters or {}, stages),
            accuses=all(stage.declared.accuses for stage in stages),
        )
        self._facts = {"rule": self.rule.name, "sample_cap": sample_cap}
        self._former_facts = {"rule": former_name(stages)}
        self._drawn = self._new_seed()
        self._no_reply = "no reply"
        self._state: State | None = None
        self._round: Round | None = None

    def summary(self) -> None:
        """Log what this strategy will do."""
        flower_log.info("\t├──> Rule: %s", self.rule.name)
        flower_log.info("\t│\t├──Quorum: more than %g of the nodes asked", self.rule.quorum)
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
        """Run `num_rounds` rounds from the initial arrays. A checkpoint that already holds a round is an error.

        grid             Flower's grid, as the ServerApp gets it
        initial_arrays   the model to start from
        num_rounds       how many rounds
        timeout          the seconds that a round waits for replies, in training and in evaluation each
        train_config     sent to every node that is asked to train
        evaluate_config  sent to every node that is asked to evaluate
        evaluate_fn      (round, arrays) -> metrics of the server's own, before the first round and after each
        """
        saved = self._saved()
        if saved is not None and saved.round:
            raise ValueError(
                f"checkpoint {self.checkpoint} already holds round {saved.round} of a run. Call resume(...) to go on with "
                "it; or delete it, or name another folder."
            )
        state = State(Model.of(initial_arrays), self._new_seed())
        return self._run(state, grid, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)

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
        was open is lost, and done again. `num_rounds` is the total; `initial_arrays` may be left out where there is a
        checkpoint. The other arguments are those of `start`.
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
        return self._run(state, grid, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def _run(
        self,
        state: State,
        grid: Grid,
        num_rounds: int,
        timeout: float,
        train_config: ConfigRecord | None,
        evaluate_config: ConfigRecord | None,
        evaluate_fn: EvaluateFn | None,
    ) -> Result:
        """The rounds after `state`, which changes with them, up to round `num_rounds`.

        These are the calls of Flower's own `start`. What differs: it begins at any round, exchanges messages in a way that a
        bad reply cannot end, and writes audit and checkpoint after every round.
        """
        self._state, self._no_reply = state, f"no reply within {timeout:g} s"
        flower_log.info("Starting %s: rounds %d to %d", type(self).__name__, state.round + 1, num_rounds)
        self.summary()
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config
        if state.round == 0:
            _evaluate_on_server(state, evaluate_fn)
            self._write(state)
        for t in range(state.round + 1, num_rounds + 1):
            flower_log.info("")
            flower_log.info("[ROUND %d/%d]", t, num_rounds)
            arrays = state.model.record()
            messages = list(self.configure_train(t, arrays, train_config, grid))
            limits = Limits.of(state.model, self.max_reply_bytes)
            moved, trained = self.aggregate_train(t, exchange(grid, messages, timeout, limits))
            state.round = t
            if moved is not None:
                arrays, state.model = moved, Model.of(moved)
            _add_metrics(state, "train", trained)
            try:
                messages = list(self.configure_evaluate(t, arrays, evaluate_config, grid))
            except TimeoutError:  # too few nodes are left to evaluate, but the training was sound and must not be lost
                self._write(state)
                raise
            _add_metrics(state, "evaluate", self.aggregate_evaluate(t, exchange(grid, messages, timeout, limits)))
            _evaluate_on_server(state, evaluate_fn)
            self._write(state)
        result = state.result()
        flower_log.info("")
        for line in str(result).splitlines():
            flower_log.info("\t%s", line)
        return result

    # The parts of a round, as Flower calls them. They also work in a loop of your own, which then has to write its own audit
    # and checkpoint, and does without the deadlines, limits and secrets of `exchange`.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages that send the model to a sample of the connected nodes that are not in quarantine."""
        current = self._round = Round(server_round, Model.of(arrays))
        if self.fraction_train == 0.0:
            return []
        drawn = self._sample(
            SAMPLE_TO_TRAIN, server_round, grid, self.fraction_train, self.min_train_nodes, self.rule.least
        )
        current.rows += [
            NodeRecord(str(node), "train", "quarantined", "left out of sampling") for node in drawn.quarantined
        ]
        current.train_messages = self._messages(MessageType.TRAIN, server_round, drawn.asked, arrays, config)
        return current.train_messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model after the robust aggregate of the updates, and the averages of usable metrics."""
        current = self._current(server_round)
        if not current.train_messages:
            return None, None
        read = self._read(current.train_messages, replies, current.model, with_arrays=True)
        last = None if self._state is None else self._state.last
        rng = self._rng(AGGREGATE, server_round)
        asked = len(current.train_messages)
        outcome = current.outcome = aggregate_replies(current.model, read, asked, self.rule, rng, last)
        used = {int(row.node): row.samples for row in outcome.rows if row.samples and row.status != "rejected"}
        averages = average_metrics(read, used, None, self.train_metrics_aggr_fn, self.weighted_by_key)
        rows = [with_reason(row, averages.reasons.get(int(row.node))) for row in outcome.rows]
        current.rows += rows
        current.averages["train"] = averages.plain
        log_rows("aggregate_train", server_round, asked, rows, outcome.quorum)
        if outcome.model is None:
            flower_log.warning("Round %d keeps the model: %s", server_round, outcome.note)
        if self._state is not None:
            self._state.last = last if outcome.model is None else outcome.last
            if self.quarantine is not None:
                bad = offenders(rows, self.quarantine.share, accuses=self.rule.accuses)
                nodes = [message.metadata.dst_node_id for message in current.train_messages]
                self._state.quarantine = self._state.quarantine.after(self.quarantine, server_round, nodes, bad)
        return None if outcome.model is None else outcome.model.record(), averages.record

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages that ask a sample of the connected nodes to evaluate the model."""
        current = self._current(server_round)
        if self.fraction_evaluate == 0.0:
            return []
        drawn = self._sample(SAMPLE_TO_EVALUATE, server_round, grid, self.fraction_evaluate, self.min_evaluate_nodes)
        current.evaluate_messages = self._messages(MessageType.EVALUATE, server_round, drawn.asked, arrays, config)
        return current.evaluate_messages

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The averages of usable metrics. A node that sent none of those gets a row in the audit."""
        current = self._current(server_round)
        if not current.evaluate_messages:
            return None
        read = self._read(current.evaluate_messages, replies, current.model, with_arrays=False)
        claimed = {reply.node: reply.samples for reply in read if reply.samples is not None}
        cap, function = self.rule.sample_cap, self.evaluate_metrics_aggr_fn
        averages = average_metrics(read, claimed, cap, function, self.weighted_by_key)
        rows = [
            NodeRecord(str(reply.node), "evaluate", "rejected", reason, claimed=reply.claimed)
            for reply in read
            if (reason := reply.reason or averages.reasons.get(reply.node)) is not None
        ]
        current.rows += rows
        current.averages["evaluate"] = averages.plain
        log_rows("aggregate_evaluate", server_round, len(current.evaluate_messages), rows, None)
        return averages.record

    def _sample(self, purpose: int, t: int, grid: Grid, fraction: float, least: int, bound: int = 1) -> _Sample:
        """Wait for nodes, leave out those in quarantine, and draw from the others, of whom at least `bound` must stay."""
        nodes = wait_for_nodes(grid, fraction=fraction, least=least, available=self.min_available_nodes, wait=self.wait)
        size = sample_size(len(nodes), fraction, least)
        out: list[int] = []
        if self.quarantine is not None and self._state is not None:
            out = self._state.quarantine.left_out(t, nodes, max(least, bound, self.rule.needed(size)))
        if out:
            flower_log.warning("Round %d: in quarantine: %s", t, ", ".join(map(str, out)))
        asked = sample([node for node in nodes if node not in out], size, self._rng(purpose, t))
        return _Sample(asked, out)

    def _messages(
        self, kind: str, t: int, nodes: list[int], arrays: ArrayRecord, config: ConfigRecord
    ) -> list[Message]:
        config["server-round"] = t
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(content=record, message_type=kind, dst_node_id=node) for node in nodes]

    def _read(self, sent: list[Message], replies: Iterable[Message], model: Model, *, with_arrays: bool) -> list[Reply]:
        return read_replies(
            sent,
            replies,
            model=model if with_arrays else None,
            weight_key=self.weighted_by_key,
            limits=Limits.of(model, self.max_reply_bytes),
            no_reply=self._no_reply,
        )

    def _rng(self, purpose: int, t: int) -> np.random.Generator:
        """A generator that depends on nothing but seed and round, so that a resumed run draws what it would have drawn."""
        seed = self._drawn if self._state is None else self._state.seed
        return np.random.default_rng([seed, purpose, t])

    def _new_seed(self) -> int:
        """The seed for another run: the user's, or one that nobody can guess."""
        return secrets.randbits(SEED_BITS) if self.seed is None else self.seed

    def _current(self, t: int) -> Round:
        """The round under way, which must be round t."""
        if self._round is None or self._round.number != t:
            raise RuntimeError(f"round {t} was not opened: call configure_train, which keeps what was sent, before it.")
        return self._round

    def _saved(self) -> State | None:
        return None if self.checkpoint is None else load(self.checkpoint, self._facts, self._former_facts, self.seed)

    def _write(self, state: State) -> None:
        """Write audit and checkpoint: the audit first, so that after a crash in between a round is in it twice, not never."""
        if self.audit is not None and state.round > 0:
            append(self.audit, self._current(state.round).record(self.rule, state.run, state.last_metrics()))
        if self.checkpoint is not None:
            save(self.checkpoint, state, self._facts)


def _evaluate_on_server(state: State, evaluate_fn: EvaluateFn | None) -> None:
    if evaluate_fn is not None:
        _add_metrics(state, "server", evaluate_fn(state.round, state.model.record()))


def _add_metrics(state: State, phase: str, metrics: MetricRecord | None) -> None:
    """Log the metrics of the last round, and add them to the history."""
    if metrics is not None:
        flower_log.info("\t└──> %s: %s", phase, metrics)
        state.history[phase][state.round] = dict(metrics)
