"""A Flower strategy for every rule of fedhold, which one bad client can neither stop nor capture."""

from __future__ import annotations

import logging
import math
import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy

from fedhold.audit import (
    MOST_NAME,
    Averages,
    NodeRecord,
    RoundRecord,
    append,
    average_metrics,
    judge_round,
    log_rows,
    log_suspects,
    objection,
    read,
    read_private_key,
    with_reason,
)
from fedhold.errors import integer, listed, one_line, positive, require
from fedhold.flower.around import PLAIN_AVERAGE, Inner, Proposal
from fedhold.flower.model import Model
from fedhold.flower.quarantine import Quarantine, offenders
from fedhold.flower.rounds import Outcome, Round, Rule, aggregate_replies, with_hashes
from fedhold.flower.state import RobustResult, State, load, save
from fedhold.flower.validation import Loss, Validation
from fedhold.groups import Groups, Patterns, check_groups, check_scale
from fedhold.kernels import one_blas_thread
from fedhold.sampling import captured, told_risk
from fedhold.spec import DEFAULT, parse
from fedhold.transport import Arrays, Limits, Reply, exchange, read_replies, sample, sample_size, wait_for_nodes

log = logging.getLogger("flwr")  # our lines appear among Flower's own

Average = Callable[[list[RecordDict], str], MetricRecord]  # of replies, and the key of their numbers of samples
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]

# Each purpose that needs random numbers has a stream of its own, so that none depends on how many the others drew.
SAMPLE_TO_TRAIN, SAMPLE_TO_EVALUATE, AGGREGATE, VALIDATE = range(4)
SEED_BITS = 128

# Without liars no round moved the model by more than 7 times the median of the five before it, whether rates were constant,
# fell or warmed up; 8 where they were restarted at a hundredfold, and 9 where they rose tenfold at once.
LEAP, RECENT = 10.0, 5


class RobustStrategy(FedAvg):
    """FedAvg with a robust rule in place of the average, on updates: what each client adds to the model it was sent.

    rule              a rule of fedhold, as for aggregate(): "spectral_huber", "krum(f=2)", "bucketing | median", or a function
    parameters        parameters of the rule that are not part of its name, such as {"f": 2}
    sample_cap        as for aggregate(); the n_i are the clients' `weighted_by_key`
    steps_key         the metric in which nodes say how many local steps they made, such as "local-steps": each update is then
                      divided by its node's, as `steps` of aggregate() says. Unless given, updates count as they come
    memory            give the rule the scale of earlier rounds, as `scale` of aggregate(); for huber and spectral_huber where
                      nodes send single gradients and hold few classes each
    byzantine         how many of the nodes you fear to lie: a round then needs more than twice as many usable replies, and the
                      log says how likely samples of nodes are to be captured. A step from such a sample of 10 times those
                      of recent rounds is held back until the next round confirms it. Also f of the certificate in the
                      audit, which is a fifth of the admitted clients unless given
    audit             a file that gets one JSON line per round: what was done to every node, and why
    audit_key         a PEM file with an Ed25519 private key that signs every line of the audit; needs the extra `sign`
    audit_max_bytes   a larger audit goes on in a new file; the full one gets a number, such as audit.jsonl.1
    checkpoint        a folder for the state after every round; `resume` goes on from it
    quarantine        Quarantine(...): leave nodes that offend again and again out of sampling for a while
    quorum            the model is kept unless more than this fraction of the nodes asked send a usable reply; a half unless
                      given. The bound of the rule holds besides: krum(f=2) takes no fewer than 7
    max_reply_bytes   larger replies are rejected before they are put together; 4 times the model and 1 MiB unless given
    wait              seconds to wait for `min_available_nodes` before a TimeoutError
    around            another strategy of Flower to make robust: FedAvgM, FedAdam, FedAdagrad, FedYogi, FedProx, or your own
                      subclass of FedAvg. It says what to send, and gets the robust aggregate as one client's reply
    validate          the loss of a model on data of the server's own, or Validation(...): what the replies of some nodes do to
                      it goes into the audit
    check_model       a test of a new model, as an ArrayRecord: where it is false or raises, the round keeps the model it had
    groups            as for aggregate(), by the keys of the ArrayRecord: "adapters", or {"head": "head.*"}
    exclude           patterns of the keys of arrays that stay as they are in the model
    guard             the loss of a model on each of 30 to 100 samples of the server's own, as `guard` of aggregate(): honest
                      minorities are followed where these samples say so. `validate` takes the same function
    on_round          is called with the RoundRecord of every round; what it raises is logged, and ends nothing
    name_key          nodes may call themselves by a text under this key in a ConfigRecord of their replies
    seed              of node sampling, and of rules that draw: the same seed and nodes give the same bits. Unless given it is
                      drawn from the operating system and kept in the checkpoint, since nodes that know it know what is drawn
    fedavg            every argument of Flower's FedAvg, by keyword; give them to the other strategy where there is one

    A reply that cannot be used is rejected with a reason, and a round without enough good ones keeps the model. Integers and
    bools of a model have no distances: each becomes the weighted median of what the admitted clients sent. Of metrics, the
    Huber location over the nodes whose metrics are usable is taken, with capped weights, unless you give a function of your
    own for them (of more than 1,000 numbers the median); the plain averages are in the audit. A metric counts if more than
    half of the nodes have it. Evaluation has the same quorum; without it a round has no metrics from nodes.
    """

    def __init__(
        self,
        rule: str | Callable[..., Any] = DEFAULT,
        *,
        parameters: Mapping[str, Any] | None = None,
        sample_cap: float | None = 3.0,
        steps_key: str | None = None,
        memory: bool = False,
        byzantine: int | None = None,
        audit: str | Path | None = None,
        audit_key: str | Path | None = None,
        audit_max_bytes: int | None = None,
        checkpoint: str | Path | None = None,
        quarantine: Quarantine | None = None,
        quorum: float = 0.5,
        max_reply_bytes: int | None = None,
        wait: float = 600.0,
        around: FedAvg | None = None,
        validate: Validation | Loss | None = None,
        check_model: Callable[[ArrayRecord], object] | None = None,
        groups: Groups | None = None,
        exclude: Patterns | None = None,
        guard: Loss | None = None,
        on_round: Callable[[RoundRecord], object] | None = None,
        name_key: str = "node-name",
        seed: int | None = None,
        **fedavg: Any,
    ) -> None:
        if around is not None and fedavg:
            raise TypeError(
                f"give {listed(fedavg)} to {type(around).__name__}, which is inside, and not to RobustStrategy."
            )
        self.around = around
        self._inner = None if around is None else Inner(around)
        super().__init__(**(fedavg if self._inner is None else self._inner.sampling))
        self.validation = (
            Validation(validate) if validate is not None and not isinstance(validate, Validation) else validate
        )
        self.guard = guard
        self.on_round, self.check_model = on_round, check_model
        self.name_key = name_key
        self.audit = None if audit is None else Path(audit)
        self.audit_key = None if audit_key is None else read_private_key(Path(audit_key))
        self.audit_max_bytes = (
            None if audit_max_bytes is None else integer(audit_max_bytes, "audit_max_bytes", at_least=1)
        )
        self.checkpoint = None if checkpoint is None else Path(checkpoint)
        if not isinstance(quarantine, Quarantine | None):
            raise TypeError(
                f"quarantine must be Quarantine(...) or None, got {quarantine!r}. Pass Quarantine() for the usual."
            )
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
            stages=parse(rule, parameters or {}),
            sample_cap=sample_cap,
            byzantine=None if byzantine is None else integer(byzantine, "byzantine"),
            certify=self.audit is not None,
            quorum=float(quorum),
            groups=groups,
            exclude=exclude,
            steps_key=steps_key,
            memory=memory,
        )
        self.rule.check()
        if memory:
            check_scale(self.rule.stages[-1], "memory", groups, exclude)
        inside = None if self._inner is None else self._inner.name
        self._facts = {"rule": self.rule.name, "sample_cap": sample_cap, "around": inside}
        self._facts |= {"groups": getattr(groups, "__name__", str(groups)), "exclude": str(exclude)}
        self._facts |= {"steps_key": steps_key, "memory": memory}
        self._no_reply = "no reply"
        self._state: State | None = None
        self._round: Round | None = None

    def __init_subclass__(cls, **more: Any) -> None:
        """Refuse a class that has another strategy of Flower among its bases: which of both would aggregate?"""
        super().__init_subclass__(**more)
        others = [
            base.__name__
            for base in cls.__mro__
            if issubclass(base, Strategy) and not issubclass(base, RobustStrategy) and base not in FedAvg.__mro__
        ]
        if others:
            raise TypeError(
                f"{cls.__name__} inherits from RobustStrategy and from {others[0]}, whose aggregation would never be called. "
                f"Put one around the other: RobustStrategy(rule, around={others[0]}(...))."
            )

    def summary(self) -> None:
        """Log what this strategy will do."""
        log.info("\t├──> Rule: %s", self.rule.name)
        log.info("\t│\t├──Quorum: more than %g of the nodes asked", self.rule.quorum)
        log.info("\t│\t├──Samples capped at: %s times the median", self.rule.sample_cap)
        for name in ("audit", "checkpoint", "quarantine"):
            log.info("\t│\t├──%s: %s", name.capitalize(), getattr(self, name))
        if self._inner is None:
            super().summary()
        else:
            log.info("\t├──> Around: %s", self._inner.name)
            self._inner.strategy.summary()

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> RobustResult:
        """Run `num_rounds` rounds from the initial arrays. A checkpoint that already holds a round is an error.

        grid             Flower's grid, as the ServerApp gets it
        initial_arrays   the model to start from
        num_rounds       how many rounds
        timeout          the seconds that a round waits for replies, in training and in evaluation each
        train_config     sent to every node that is asked to train
        evaluate_config  sent to every node that is asked to evaluate
        evaluate_fn      (round, arrays) -> metrics of the server's own, before the first round and after each
        """
        integer(num_rounds, "num_rounds")
        saved = self._saved()
        if saved is not None and saved.round:
            raise ValueError(
                f"checkpoint {self.checkpoint} already holds round {saved.round} of a run. Call resume(...) to go on with "
                "it; or delete it, or name another folder."
            )
        state = State(Model.of(initial_arrays), self._new_seed())
        if self.around is not None:
            self._inner = Inner(self.around)  # without what it remembers from another run
        return self._run(state, grid, num_rounds, timeout, train_config, evaluate_config, evaluate_fn)

    def resume(
        self, grid: Grid, initial_arrays: ArrayRecord | None = None, num_rounds: int = 3, **more: Any
    ) -> RobustResult:
        """Go on from the checkpoint up to round `num_rounds`, as if nothing had happened; without one, start.

        So a ServerApp that always calls `resume` does the right thing the first time and after a crash: only the round that
        was open is lost, and done again. `num_rounds` is the total; `initial_arrays` may be left out where there is a
        checkpoint. The other arguments are those of `start`.
        """
        if self.checkpoint is None:
            raise ValueError("resume needs a checkpoint; met None. Pass RobustStrategy(checkpoint='run/').")
        integer(num_rounds, "num_rounds")
        state = self._saved()
        if state is None:
            if initial_arrays is None:
                raise ValueError(f"{self.checkpoint} holds no checkpoint. Pass initial_arrays to start from.")
            return self.start(grid, initial_arrays, num_rounds, **more)
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
        if self._inner is not None and state.inner is not None:
            self._inner.recall(state.inner)
        try:
            rounds = [] if self.audit is None else read(self.audit)
            state.records = [one for one in rounds if one.run == state.run and one.round <= state.round]
        except (OSError, ValueError) as problem:  # a file that is no audit costs the records and no more
            log.warning("The rounds before are not in the result: %s", problem)
        log.info("Resuming run %s after round %d", state.run, state.round)
        return self._run(state, grid, num_rounds, **more)

    def _run(
        self,
        state: State,
        grid: Grid,
        num_rounds: int,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> RobustResult:
        """The rounds after `state`, which changes with them, up to round `num_rounds`.

        These are the calls of Flower's own `start`. What differs: it begins at any round, exchanges messages in a way that a
        bad reply cannot end, and writes audit and checkpoint after every round.
        """
        positive(timeout, "timeout", zero=True)
        self._state, self._no_reply = state, f"no reply within {timeout:g} s"
        check_groups(list(state.model.arrays), self.rule.groups, self.rule.exclude)
        log.info("Starting %s: rounds %d to %d", type(self).__name__, state.round + 1, num_rounds)
        self.summary()
        train_config = ConfigRecord() if train_config is None else train_config
        evaluate_config = ConfigRecord() if evaluate_config is None else evaluate_config

        def evaluate_here() -> None:
            if evaluate_fn is not None:
                # In a simulation Ray forks: a child of a process whose threads of BLAS are at work may wait for them for ever.
                state.add_metrics("server", one_blas_thread(evaluate_fn)(state.round, state.model.record()))

        if state.round == 0:
            evaluate_here()
            self._write(state)
        if self.rule.byzantine and self.fraction_train and state.round < num_rounds:
            fraction, least = self.fraction_train, self.min_train_nodes
            there = wait_for_nodes(
                grid, fraction=fraction, least=least, available=self.min_available_nodes, wait=self.wait
            )
            asked, left = sample_size(len(there), fraction, least), num_rounds - state.round
            risk, warned = told_risk(len(there), self.rule.byzantine, asked, left)
            log.log(logging.WARNING if warned else logging.INFO, risk)
        for t in range(state.round + 1, num_rounds + 1):
            log.info("")
            log.info("[ROUND %d/%d]", t, num_rounds)
            arrays = state.model.record()
            messages = list(self.configure_train(t, arrays, train_config, grid))
            limits = Limits.of(state.model.arrays, self.max_reply_bytes)
            moved, trained = self.aggregate_train(t, exchange(grid, messages, timeout, limits))
            state.round = t
            if moved is not None:
                arrays, state.model = moved, Model.of(moved)
            state.add_metrics("train", trained)
            try:
                messages = list(self.configure_evaluate(t, arrays, evaluate_config, grid))
            except TimeoutError:  # too few nodes are left to evaluate, but the training was sound and must not be lost
                self._write(state)
                raise
            state.add_metrics("evaluate", self.aggregate_evaluate(t, exchange(grid, messages, timeout, limits)))
            evaluate_here()
            self._write(state)
        result = state.result()
        log.info("")
        for line in str(result).splitlines():
            log.info("\t%s", line)
        return result

    # The parts of a round, as Flower calls them. They also work in a loop of your own, which then has to write its own audit
    # and checkpoint, and does without the deadlines, limits and secrets of `exchange`.

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages that send the model to a sample of the connected nodes that are not in quarantine."""
        model = Model.of(arrays)
        if self._state is None:
            self._state = State(model, self._new_seed())
        current = self._round = Round.opened(server_round, model, self.rule, self._state)
        if self.fraction_train == 0.0:
            return []
        drawn, left_out = self._sample(
            SAMPLE_TO_TRAIN, current, grid, self.fraction_train, self.min_train_nodes, self.rule.least
        )
        rows = tuple(NodeRecord(str(node), "train", "quarantined", "left out of sampling") for node in left_out)
        current.record = replace(current.record, nodes=rows)
        current.train = self._messages(MessageType.TRAIN, server_round, arrays, config, grid, drawn)
        if self._inner is not None and current.train:  # which may send another model
            current.model = Model.of(current.train[0].content.array_records[self.arrayrecord_key])
        return current.train

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The model after the robust aggregate of the updates, and the averages of usable metrics."""
        current = self._current(server_round)
        state = current.state
        if not current.train:
            return None, None
        read = self._read(current, current.train, replies, like=current.model.arrays)
        outcome = aggregate_replies(
            current,
            read,
            len(current.train),
            self.rule,
            self._rng(AGGREGATE, current) if self.rule.takes("rng") else None,
            root=self.validation.root(current.model) if self.validation and self.rule.takes("root") else None,
            guard=self.guard,
        )
        rows = outcome.record.nodes
        used = {int(row.node): row.samples for row in rows if row.samples and row.status != "rejected"}
        averages, metrics = self._averaged(read, used, None, self.train_metrics_aggr_fn)
        made = self._next_model(current, outcome, math.fsum(used.values()), metrics)
        current.record = replace(
            outcome.record,
            outcome="kept" if made.model is None else "aggregated",
            note=made.note,
            nodes=tuple(with_reason(row, averages.reasons.get(int(row.node))) for row in rows),
            averages={"train": averages.plain},
            corrected=outcome.record.corrected + made.corrected,
        )
        if self.audit is not None:
            current.record = with_hashes(current.record, read, current.model, made.model)
        if self.validation is not None:
            current.record = self._validated(self.validation, current, read, made.model)
        log_rows("train", current.record, len(current.train), log)
        if self.quarantine is not None:
            seen = judge_round(current.record).values()
            sent = [reply.node for reply in read if reply.answered]
            bad = offenders(seen, self.quarantine.share, accuses=self.rule.accuses)
            state.quarantine = state.quarantine.after(self.quarantine, server_round, sent, bad)
        if made.model is None:
            log.warning("Round %d keeps the model: %s", server_round, made.note)
            return None, made.metrics
        if self.rule.memory and outcome.model is not None:
            state.scale = outcome.record.scale
        if self.rule.from_last and outcome.model is not None:
            state.last = outcome.model.minus(current.model)
        return made.model.record(), made.metrics

    def _next_model(self, current: Round, outcome: Outcome, samples: float, metrics: MetricRecord | None) -> Proposal:
        """What becomes of the aggregate of a round: the next model, or none and the reason why the model is kept."""
        if outcome.model is None:
            return Proposal(None, metrics, outcome.record.note)
        if note := self._leap(current, outcome.model):
            return Proposal(None, None, note)
        if self._inner is None:
            note = self._objection(outcome.model)
            return Proposal(outcome.model if note is None else None, metrics, note)
        t, to = current.record.round, current.train[0]
        return self._inner.train(t, outcome.model, samples, metrics, to, current.model, self._objection)

    def _objection(self, model: Model) -> str | None:
        """Why the user's own test keeps a model from being adopted; None where it passes."""
        return None if self.check_model is None else objection(self.check_model, model.record())

    def _leap(self, current: Round, moved: Model) -> str | None:
        """Why a round is held back that would move the model far beyond what recent rounds did; None where it is not.

        It is for samples that may be captured: liars who are most of one are likely not most of the next. So a second such
        round in a row is believed, as where a learning rate rises.
        """
        state, asked = current.state, len(current.train)
        if not captured(current.nodes, min(self.rule.byzantine or 0, current.nodes), asked, ties=True):
            return None
        with np.errstate(over="ignore"):
            parts = [float(np.linalg.norm(part)) for part in moved.minus(current.model).values()]
        step, usual = math.hypot(*parts), float(np.median(state.steps)) if state.steps else 0.0
        far = step > LEAP * usual > 0
        if far and not state.leapt:
            state.leapt = True
            return (
                f"a step of {step:.3g}, where recent rounds made {usual:.3g}, from a sample that liars may have captured: it "
                "is held back unless the next round confirms it"
            )
        state.steps, state.leapt = [*([] if far else state.steps), step][-RECENT:], False
        return None

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages that ask a sample of the connected nodes to evaluate the model."""
        current = self._current(server_round)
        if self.fraction_evaluate == 0.0:
            return []
        drawn, _ = self._sample(SAMPLE_TO_EVALUATE, current, grid, self.fraction_evaluate, self.min_evaluate_nodes)
        current.evaluate = self._messages(MessageType.EVALUATE, server_round, arrays, config, grid, drawn)
        return current.evaluate

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """The averages of usable metrics. A node that sent none of those gets a row in the audit."""
        current = self._current(server_round)
        if not current.evaluate:
            return None
        read = self._read(current, current.evaluate, replies, like=None)
        claimed = {reply.node: reply.samples for reply in read if reply.samples is not None}
        averages, metrics = self._averaged(read, claimed, self.rule.sample_cap, self.evaluate_metrics_aggr_fn)
        asked, usable = len(current.evaluate), len(averages.samples)
        found = (
            sum(reply.answered for reply in read) - usable
        )  # who sent what cannot be used is one of the liars feared
        needed = self.rule.needed(asked, max(self.rule.feared(asked, current.nodes) - found, 0))
        if usable < needed:
            log.warning(
                "Round %d has no evaluation: %d of %d nodes asked sent usable metrics, and the quorum is %d",
                *(server_round, usable, asked, needed),
            )
            averages, metrics = replace(averages, plain={}), None
        rows = tuple(
            NodeRecord(str(reply.node), "evaluate", "rejected", reason, claimed=reply.claimed)
            for reply in read
            if (reason := reply.reason or averages.reasons.get(reply.node)) is not None
        )
        record = current.record
        current.record = replace(
            record, nodes=record.nodes + rows, averages={**record.averages, "evaluate": averages.plain}
        )
        log_rows("evaluate", current.record, len(current.evaluate), log)
        if self._inner is None or metrics is None:
            return metrics
        return self._inner.evaluate(server_round, math.fsum(claimed.values()), metrics, current.evaluate[0])

    def _averaged(
        self, replies: list[Reply], samples: Mapping[int, float], sample_cap: float | None, function: Average
    ) -> tuple[Averages, MetricRecord | None]:
        """The averages of the metrics of the nodes with `samples`, by the user's function where there is one.

        It gets the whole replies, but for the numbers of samples: these are the ones that count. In place of Flower's own
        function, which one node can move as far as it likes, the location of each metric is taken.
        """
        present = {reply.node: reply for reply in replies if reply.node in samples}
        averages = average_metrics({node: one.metrics or {} for node, one in present.items()}, samples, sample_cap)
        if not averages.samples:
            return averages, None
        if function is PLAIN_AVERAGE:
            return averages, MetricRecord(dict(averages.robust))
        records = []
        for node, used in averages.samples.items():
            one = present[node]
            count = int(used) if isinstance(one.claimed, int) and one.claimed == used else used
            usual = {name: value for name, value in (one.metrics or {}).items() if name in averages.robust}
            metrics = MetricRecord({**usual, self.weighted_by_key: count})
            records.append(RecordDict({**(one.content or {}), one.key: metrics}))
        return replace(averages, plain={}), function(records, self.weighted_by_key)

    def _validated(
        self, validation: Validation, current: Round, replies: list[Reply], moved: Model | None
    ) -> RoundRecord:
        """The record of a round with what the replies of some nodes do to the loss on the server's own data."""
        rows = current.record.nodes
        admitted = [int(row.node) for row in rows if row.status not in ("rejected", "quarantined")]
        suspects = [int(node) for node in current.state.tally.suspects()]
        chosen = validation.chosen(admitted, suspects, self._rng(VALIDATE, current))
        arrays = {reply.node: reply.arrays for reply in replies if reply.node in chosen and reply.arrays is not None}
        measured, losses = validation.measure(rows, arrays, current.model, moved)
        return replace(current.record, nodes=tuple(measured), validation=losses)

    def _sample(
        self, purpose: int, current: Round, grid: Grid, fraction: float, least: int, bound: int = 1
    ) -> tuple[list[int], list[int]]:
        """Wait for nodes, leave out those in quarantine, and draw from the others, of whom at least `bound` must stay.

        Returns the nodes drawn, and those left out.
        """
        nodes = wait_for_nodes(grid, fraction=fraction, least=least, available=self.min_available_nodes, wait=self.wait)
        size, t = sample_size(len(nodes), fraction, least), current.record.round
        out: list[int] = []
        if self.quarantine is not None:
            needed = max(self.rule.needed(size), 2 * (self.rule.byzantine or 0) + 1)
            out = current.state.quarantine.left_out(t, nodes, max(least, bound, needed))
        if out:
            log.warning("Round %d: in quarantine: %s", t, ", ".join(map(str, out)))
        current.nodes = len(nodes) - len(out)
        return sample([node for node in nodes if node not in out], size, self._rng(purpose, current)), out

    def _messages(
        self, kind: str, t: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, nodes: list[int]
    ) -> list[Message]:
        """The messages to the nodes drawn: one model and one config, which the strategy inside may change."""
        if self._inner is not None:
            return self._inner.messages(kind, t, arrays, config, grid, nodes)
        config["server-round"] = t
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return [Message(content=record, message_type=kind, dst_node_id=node) for node in nodes]

    def _read(
        self, current: Round, sent: list[Message], replies: Iterable[Message], *, like: Arrays | None
    ) -> list[Reply]:
        read = read_replies(
            sent,
            replies,
            like=like,
            weight_key=self.weighted_by_key,
            name_key=self.name_key,
            limits=Limits.of(current.model.arrays, self.max_reply_bytes),
            no_reply=self._no_reply,
        )
        current.state.names |= {one.node: name for one in read if (name := one_line(one.name or "", MOST_NAME))}
        return read

    def _rng(self, purpose: int, current: Round) -> np.random.Generator:
        """A generator that depends on nothing but seed and round, so that a resumed run draws what it would have drawn."""
        return np.random.default_rng([current.state.seed, purpose, current.record.round])

    def _new_seed(self) -> int:
        """The seed for another run: the user's, or one that nobody can guess."""
        return secrets.randbits(SEED_BITS) if self.seed is None else self.seed

    def _current(self, t: int) -> Round:
        """The round under way, which must be round t."""
        if self._round is None or self._round.record.round != t:
            raise RuntimeError(f"round {t} was not opened: call configure_train, which keeps what was sent, before it.")
        return self._round

    def _saved(self) -> State | None:
        return None if self.checkpoint is None else load(self.checkpoint, self._facts, self.seed)

    def _write(self, state: State) -> None:
        """Put the round into the log, the records and the audit, hand it to the user's function, and keep the state after it.

        The checkpoint is last, so that after a crash in between a round is told twice, and not never.
        """
        if state.round > 0:
            record = self._current(state.round).closed()
            seen = list(judge_round(record).values())
            state.tally = state.tally.after(seen)
            state.remember(record)
            log_suspects(record, seen, state.tally.suspects(), len(state.tally.counts), log)
            if self.audit is not None:
                append(self.audit, record, key=self.audit_key, max_bytes=self.audit_max_bytes)
            if self.on_round is not None:
                try:
                    self.on_round(record)
                except Exception:  # whoever watches a run must not end it
                    log.warning("Round %d: on_round raised", record.round, exc_info=True)
        if self.checkpoint is not None:
            state.inner = None if self._inner is None else self._inner.memory()
            save(self.checkpoint, state, self._facts)
