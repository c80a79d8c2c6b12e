"""Algorithm 1 of the paper: broadcast the model, collect the clients' answers, let some lie, aggregate, step; and RSA.

`TrainingSettings` says how, and `federate` is the loop; its steps follow in the order in which it takes them. `rsa` learns by
consensus in place of aggregation. A run of either can be resumed after every round.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.aggregation import aggregate
from fedhold.errors import integer, positive, require, unknown, word_among
from fedhold.kernels import Floats, Vector, one_blas_thread
from fedhold.lab.attacks import ATTACKS
from fedhold.lab.datasets import Samples
from fedhold.lab.knowledge import (
    Attack,
    Knowledge,
    Lies,
    Mask,
    Poisoned,
    check_mask,
    declares,
    needs_server,
    needs_thresholds,
    poisons_data,
)
from fedhold.lab.randomness import Purpose, chance
from fedhold.lab.tasks import Guarding, Measurable, Shards, Task
from fedhold.result import Aggregation
from fedhold.spec import Part, Stage, function_named, parse
from fedhold.storage import Checkpoint, fingerprint
from fedhold.thresholds import Threshold, follows_distances, threshold_function

REACH = 1e100  # A root with larger numbers is refused by aggregate().
RSA_OPTIONS = ("batch", "evaluate_every")  # the options of federate() that rsa() has too

Counts = NDArray[np.intp]
Claims = NDArray[np.intp] | NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class TrainingSettings:
    """How a federation is trained; checked here, once.

    rule               a name, a spec or a function, as for aggregate(), or stages that were parsed before; f is not changed in
                       rounds where only some clients are asked
    rounds, step       how many steps of gradient descent, and their length
    seed               of all randomness: generators are default_rng([seed, purpose, round])
    radius, centre     the ball that the model is projected onto; by default all space, and w_0
    batch              how many samples a client draws for each gradient; by default it uses all of its samples
    momentum           a client sends M_i <- momentum * M_i + (1 - momentum) * G_i, the first time G_i itself
    local_steps        k > 1: a client takes k steps of length `step` from w to w_i and sends (w - w_i) / step, the sum of
                       its k gradients. With rule="mean" the new model is then the mean of the w_i, as in FedAvg; RFA and
                       RAGA are rule="geometric_median"
    participation      the fraction of the clients, drawn anew every round, that is asked
    sample_cap         as for aggregate(), but by default the n_i are trusted, as in the paper's figures
    root               how many samples the server holds itself, for rules that compare clients with its own update (fl_trust,
                       monna): drawn once from those of the truthful clients; by default it holds none
    memory             give the rule the scale of earlier rounds, `scale` of aggregate(); for huber and spectral_huber
    guard              how many samples the server holds itself to guard the rule with, as `guard` of aggregate(): drawn in the
                       same way; by default it has no guard
    certify            f: put the certificate's radius(f) into the history; costs an m x m matrix per round
    evaluate_every     call task.evaluate every so many rounds, and after the last one

    >>> TrainingSettings(rounds=3, step=0.1, momentum=1.5)
    Traceback (most recent call last):
        ...
    fedhold.errors.InfeasibleError: federate needs 0 <= momentum < 1; met momentum = 1.5. Usual is 0.9.
    """

    rule: str | Callable[..., Any] | tuple[Stage, ...] = "huber"
    rounds: int
    step: float
    seed: int = 0
    radius: float = float("inf")
    centre: Floats | None = None
    batch: int | None = None
    momentum: float = 0.0
    local_steps: int = 1
    participation: float = 1.0
    sample_cap: float | None = None
    root: int | None = None
    memory: bool = False
    guard: int | None = None
    certify: int | None = None
    evaluate_every: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "rounds", integer(self.rounds, "rounds"))
        object.__setattr__(self, "step", positive(self.step, "step"))  # a Python float: float32 models stay float32
        positive(self.radius, "radius", infinite=True)
        for name, least in (
            ("local_steps", 1),
            ("evaluate_every", 1),
            ("batch", 1),
            ("certify", 0),
            ("root", 1),
            ("guard", 2),
        ):
            if (value := getattr(self, name)) is not None:
                integer(value, name, at_least=least)
        if not isinstance(self.memory, bool):
            raise TypeError(f"memory must be true or false, got {self.memory!r}. Pass True, or leave it out.")
        usual = positive(self.momentum, "momentum", zero=True) < 1
        require(usual, "federate", needs="0 <= momentum < 1", remedy="Usual is 0.9.", momentum=self.momentum)
        part, remedy = positive(self.participation, "participation") <= 1, "1 asks all."
        require(part, "federate", needs="0 < participation <= 1", remedy=remedy, participation=self.participation)
        capped = self.sample_cap is None or positive(self.sample_cap, "sample_cap", infinite=True) >= 1
        remedy = "It is a multiple of the median n_i; leave it out to trust all claims."
        require(capped, "federate", needs="sample_cap >= 1", remedy=remedy, sample_cap=self.sample_cap)


@one_blas_thread  # as in the worker processes of run_all, so that a run has the same bits here and there
@np.errstate(over="ignore", invalid="ignore")  # a run that diverges is a result
def federate(
    task: Task,
    shards: Shards,
    *,
    attack: str | Attack | None = None,
    byzantine: Mask | None = None,
    checkpoint: Path | None = None,
    on_round: Callable[[Round], None] | None = None,
    **settings: Any,
) -> Federated:
    """Learn `task` from the clients' shards while some of them lie.  Paper, Algorithm 1.

    w <- Proj(w - step * g),  g the aggregate of the clients' answers,  Proj onto the ball of `radius` around `centre`.

    task        the model and its loss
    shards      every client's samples
    attack      a key of ATTACKS with its parameters, "alie(z=1.5)", module:name or such a function, for the clients marked in
                `byzantine`. A poison (label_flip, backdoor) changes their samples, and they then answer as the others do. An
                attack that needs thresholds takes `threshold`, too, the T that the liars assume: "huber_attack(threshold=1)".
                By default it is the rule's own, or the automatic one where the rule has none
    byzantine   (m,) true for the clients that lie; by default none
    checkpoint  a file, written after every round and read at the start: a run that was killed ends with the same bits
    on_round    called with every row of the history
    settings    those of TrainingSettings: rule, rounds, step, seed, batch, ...

    A server that can admit no client, or whose step would overflow, keeps its model. While it runs, BLAS uses one thread.

    >>> from fedhold.lab import LinearRegression, balanced, shard, synthesized
    >>> rng = np.random.default_rng(0)
    >>> samples = synthesized(rng, samples=400, d=3).train
    >>> shards, liars = shard(samples, balanced(400, 20, rng)), np.arange(20) < 4
    >>> learnt = federate(LinearRegression(samples), shards, attack="sign_flip", byzantine=liars, rounds=50, step=0.2)
    >>> round(learnt.history[-1].metrics["rmse"], 1)
    1.0
    """
    training = TrainingSettings(**settings)
    rule, seed = parse(training.rule, {})[-1], training.seed
    assumed = rule.parameters.get("threshold", "automatic")
    adversary = Adversary.of(attack, byzantine, shards.m, threshold=assumed, sample_cap=training.sample_cap)
    possible = training.root is None or rule.takes("root")
    require(possible, rule.name, needs="no root", remedy="Leave it out.", root=training.root)
    possible = not training.memory or rule.takes("scale")
    require(possible, rule.name, needs="no memory", remedy="Leave it out, or use huber.", memory=training.memory)
    rng = chance(seed, Purpose.ROOT)
    own = None if training.root is None else _own_samples(shards, training.root, adversary.byzantine, rng)
    guard = _guard(task, shards, training, adversary.byzantine)
    run = _Run(task, shards, training, adversary, checkpoint, on_round, attack=attack)
    shards, state = run.shards, run.state
    centre = run.start if training.centre is None else training.centre
    state.setdefault("weights", np.empty((0, shards.m), np.float32))
    sent: Floats | None = None
    for t in run.rounds():
        asked = asked_clients(shards.m, training.participation, chance(seed, Purpose.PARTICIPATION, t))
        present, lying = shards.subset(asked), adversary.byzantine[asked]
        sent = answers(task, state["w"], present, training, chance(seed, Purpose.BATCH, t), sent)
        if training.momentum:
            _apply_momentum(state, asked, shards.m, sent, training.momentum)
        truth = _truthful_mean(sent, present.counts, lying)
        result, seconds, reachable = None, 0.0, True
        vectors: dict[str, Any] = {"start": state.get("last")}
        if "scale" in state:
            vectors["scale"] = float(state["scale"])
        if own is not None:
            root = vectors["root"] = answers(task, state["w"], own, training, chance(seed, Purpose.ROOT, t))[0]
            reachable = bool((np.abs(root) < REACH).all())
        if reachable and _admits_someone(sent, truth, lying):
            moved_by = partial(_moved, state["w"], centre, training)
            if guard is not None:
                vectors["guard"] = partial(_losses_after, guard, moved_by)
            server = partial(_aggregated, training, t, vectors)
            claims = adversary.lie(sent, present.counts, lying, chance(seed, Purpose.ATTACK, t), server)
            begun = time.perf_counter()
            result = server(sent, claims)
            seconds = time.perf_counter() - begun
            if rule.declared.from_last:  # other rules would save next to nothing by starting there
                state["last"] = result.value
            if training.memory and result.scale is not None:
                state["scale"] = np.array(result.scale)
            moved = moved_by(result.value)
            state["w"] = moved if np.isfinite(moved).all() else state["w"]
        _keep_weights(state, result, asked, shards.m)
        run.end(_row(t, result, truth, lying, training.certify, seconds))
    weights = None if np.isnan(state["weights"]).all() else state["weights"]
    return Federated(state["w"], tuple(run.history), weights, adversary.byzantine)


@dataclass(frozen=True)
class Round:
    """One row of a history.

    round        1 after the first step
    metrics      task.evaluate(w) after the step; empty in rounds that `evaluate_every` skips
    error        |aggregate - mean of the truthful clients' answers, weighted by n_i|
    clipped      fraction of the clients that took part; so is `rejected`
    liar_weight  the Byzantine clients' share of the aggregate; None for rules without weights
    radius       leave out any `certify` clients: everyone else's Huber aggregate lies within it; None where not
                 asked, or not proven
    seconds      of the aggregation
    """

    round: int
    metrics: dict[str, float]
    error: float
    clipped: float
    rejected: float
    liar_weight: float | None
    radius: float | None
    seconds: float


@dataclass(frozen=True, eq=False)
class Federated:
    """What a run has learnt.

    w          (d,) the model
    history    one row per round
    weights    (rounds, m) each client's weight in units of an equal share, NaN where it was not asked; None for rules
               without weights
    byzantine  (m,) the clients that lied
    """

    w: Floats
    history: tuple[Round, ...]
    weights: NDArray[np.float32] | None
    byzantine: Mask


class _Run:
    """What federate() and rsa() share: poisoned shards, the state, which a checkpoint keeps, and the history.

    state    arrays by name; "w" is the model
    history  one row per round so far
    start    the model that learning starts from
    """

    def __init__(
        self,
        task: Task,
        shards: Shards,
        training: TrainingSettings,
        adversary: Adversary,
        checkpoint: Path | None,
        on_round: Callable[[Round], None] | None,
        **facts: Any,
    ) -> None:
        poisoned = adversary.poisoned(shards)
        self.task, self.training, self.on_round, self.shards = task, training, on_round, poisoned.shards
        self.probe: Samples | None = None  # what the success of a poison is measured on
        if poisoned.probe is not None:
            if not isinstance(task, Measurable):
                raise TypeError(
                    "this attack's success is measured on the task's samples. Give the task .samples and "
                    ".measure(w, samples)."
                )
            self.probe = poisoned.probe(task.samples)
        self.start = task.initial(chance(training.seed, Purpose.INITIAL))
        facts |= {name: value for name, value in vars(training).items() if name != "rounds"}
        facts |= {"byzantine": adversary.byzantine, "w": self.start}
        facts |= {"offsets": self.shards.offsets, "targets": self.shards.targets}
        self.checkpoint = Checkpoint(checkpoint, fingerprint(**facts))
        saved = self.checkpoint.load(training.rounds)
        self.state: dict[str, NDArray[Any]] = {"w": self.start} if saved is None else saved[0]
        self.history = [] if saved is None else [Round(**row) for row in saved[1]]

    def rounds(self) -> Iterator[int]:
        """The numbers of the rounds that are left."""
        yield from range(len(self.history) + 1, self.training.rounds + 1)

    def end(self, row: Round) -> None:
        """End a round: evaluate, where the settings ask for it, and keep everything.

        The metric "backdoor" is the fraction of the samples of the probe that get the class the liars want.
        """
        if row.round % self.training.evaluate_every == 0 or row.round == self.training.rounds:
            metrics = self.task.evaluate(self.state["w"])
            if self.probe is not None and isinstance(self.task, Measurable):
                metrics = {**metrics, "backdoor": self.task.measure(self.state["w"], self.probe)["accuracy"]}
            row = replace(row, metrics=metrics)
        self.history.append(row)
        self.checkpoint.save(self.state, [vars(one) for one in self.history])
        if self.on_round is not None:
            self.on_round(row)


# What clients send


def asked_clients(m: int, participation: float, rng: np.random.Generator) -> NDArray[np.intp]:
    """The clients that are asked this round, in rising order; at least one."""
    return np.sort(rng.permutation(m)[: max(1, round(participation * m))])


def answers(
    task: Task,
    w: Floats,
    shards: Shards,
    settings: TrainingSettings,
    rng: np.random.Generator,
    out: Floats | None = None,
) -> Floats:
    """(m, d) what the clients send if none lies: the gradient at w, or the sum of those met on several local steps."""
    batch, steps = settings.batch, settings.local_steps
    drawn = [shards if batch is None else shards.batch(batch, rng) for _ in range(steps)]
    if steps == 1:
        return task.gradients(w, drawn[0], out=out)
    out = np.empty((shards.m, w.size), w.dtype) if out is None else out
    for i, total in enumerate(out):
        total[:] = 0
        for samples in drawn:
            total += task.gradients(w - settings.step * total, samples.client(i))[0]
    return out


def _apply_momentum(
    state: dict[str, NDArray[Any]], asked: NDArray[np.intp], m: int, sent: Floats, momentum: float
) -> None:
    """Replace the answers by momenta, in place, and keep these in the state for the next round."""
    memory = state.setdefault("memory", np.zeros((m, sent.shape[1]), sent.dtype))
    known = state.setdefault("known", np.zeros(m, dtype=bool))
    old = known[asked]
    sent[old] = momentum * memory[asked[old]] + (1 - momentum) * sent[old]
    memory[asked], known[asked] = sent, True


def _truthful_mean(honest: Floats, samples: Counts, lying: Mask) -> Floats:
    """The mean of the truthful clients' answers, weighted by n_i; NaN if there are none."""
    shares = np.where(lying, 0, samples)
    with np.errstate(invalid="ignore"):
        mean: Floats = (shares / shares.sum()).astype(honest.dtype) @ honest
    return mean


@dataclass(frozen=True, eq=False)
class Adversary:
    """The clients that lie, and how they do it.

    byzantine   (m,) true for the clients that lie
    attack      makes their lies, or poisons their samples; None where no client lies
    parameters  of the attack
    threshold   the server's T_i as the adversary assumes them; None where the attack needs none
    sample_cap  the server's cap on the n_i, which enters the T_i
    """

    byzantine: Mask
    attack: Attack | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    threshold: Threshold | None = None
    sample_cap: float | None = None

    @classmethod
    def of(
        cls,
        attack: str | Attack | None,
        byzantine: Mask | None,
        m: int,
        *,
        threshold: Any = "automatic",
        sample_cap: float | None = None,
    ) -> Adversary:
        """From the arguments of federate(); `threshold` is the parameter of the server's rule."""
        mask = np.zeros(m, dtype=bool) if byzantine is None else np.asarray(byzantine)
        check_mask(mask, m)
        if attack is None:
            remedy = "Pass attack='sign_flip', say, or omit byzantine."
            require(not mask.any(), "byzantine", needs="an attack", remedy=remedy, liars=int(mask.sum()))
            return cls(mask)
        remedy = "Say who lies: byzantine=np.arange(m) < 4, say, or omit the attack."
        needs = "byzantine, the clients that lie"
        require(byzantine is not None, "attack", needs=needs, remedy=remedy, attack=attack)
        own: dict[str, Any] = {}
        if isinstance(attack, str):
            part = Part.read(attack, "attack")
            attack, own = function_named(part.name, "attack", ATTACKS), dict(part.parameters)
        if not declares(attack, needs_thresholds):
            return cls(mask, attack, own)
        return cls(mask, attack, own, threshold_function(own.pop("threshold", threshold)), sample_cap)

    def poisoned(self, shards: Shards) -> Poisoned:
        """What the clients learn from, once the liars have poisoned their own samples."""
        if self.attack is None or not declares(self.attack, poisons_data):
            return Poisoned(shards)
        poisoned: Poisoned = self.attack(shards, self.byzantine, **self.parameters)
        return poisoned

    def lie(
        self,
        honest: Floats,
        samples: Counts,
        lying: Mask,
        rng: np.random.Generator,
        served: Callable[[Floats, Claims], Aggregation] | None = None,
    ) -> Claims:
        """Replace what the liars would honestly have sent by their lies, in place; returns the n_i that clients claim.

        honest   (m, d) the answers of the clients asked this round
        samples  (m,) their n_i
        lying    (m,) true for the liars among them
        rng      of the attack
        served   what the server would make of updates and claims, for an attack that tries its lies on it
        """
        if self.attack is None or declares(self.attack, poisons_data) or not lying.any():
            return samples
        thresholds = None if self.threshold is None else self._thresholds(self.threshold, honest, samples)
        server = (lambda sent: served(sent, samples).value) if served and declares(self.attack, needs_server) else None
        told = self.attack(Knowledge(honest, lying, rng, thresholds, samples, server), **self.parameters)
        lies = told.updates if isinstance(told, Lies) else told
        shape, wanted = np.shape(lies), (int(lying.sum()), honest.shape[1])
        remedy = "One row per liar: np.broadcast_to(row, (knowledge.f, row.size))."
        require(shape == wanted, "an attack", needs=f"to return shape {wanted}", remedy=remedy, shape=shape)
        honest[lying] = lies
        if not isinstance(told, Lies):
            return samples
        claimed = samples.astype(np.float64)
        claimed[lying] = told.samples
        return claimed

    def _thresholds(self, threshold: Threshold, honest: Floats, samples: Counts) -> Vector:
        """T_i: from the samples where these decide alone, else those that the server would find if no client lied."""
        if self.sample_cap is None and not follows_distances(threshold):
            return threshold(np.zeros(len(samples)), samples.astype(np.float64))
        found = aggregate(honest, "huber", samples=samples, sample_cap=self.sample_cap, threshold=threshold)
        return found.clients.thresholds


# What the server does


def _aggregated(
    settings: TrainingSettings, t: int, call: Mapping[str, Any], sent: Floats, claims: Claims
) -> Aggregation:
    """What the server makes of updates and claims in round t; `call` has the model to start from, and its own data."""
    rng, sample_cap = chance(settings.seed, Purpose.RULE, t), settings.sample_cap
    return aggregate(sent, settings.rule, samples=claims, rng=rng, sample_cap=sample_cap, **call)


def _guard(
    task: Task, shards: Shards, settings: TrainingSettings, byzantine: Mask
) -> Callable[[Floats], Vector] | None:
    """The loss of a model on each of the samples that the server guards itself with."""
    if settings.guard is None:
        return None
    if not isinstance(task, Guarding):
        raise TypeError("guard needs the loss on each sample. Give the task .losses(w, samples).")
    held = _own_samples(shards, settings.guard, byzantine, chance(settings.seed, Purpose.GUARD), "guard")
    samples = Samples(held.inputs, held.targets)
    return lambda w: task.losses(w, samples)


def _losses_after(losses: Callable[[Floats], Vector], moved_by: Callable[[Floats], Floats], value: Floats) -> Vector:
    """The losses of the model that an aggregate leads to."""
    return losses(moved_by(value))


def _own_samples(shards: Shards, count: int, byzantine: Mask, rng: np.random.Generator, name: str = "root") -> Shards:
    """As many samples of the truthful clients, drawn without replacement, as the server is to hold itself."""
    owners = np.flatnonzero(np.repeat(~byzantine, shards.counts))
    needs, remedy = f"{name} <= the samples of the truthful", f"Lower {name}, or let more clients be truthful."
    require(count <= len(owners), name, needs=needs, remedy=remedy, **{name: count, "N": len(owners)})
    rows = np.sort(rng.choice(owners, count, replace=False))
    return Shards(shards.inputs[rows], shards.targets[rows], np.array([0, count], dtype=np.intp))


def _admits_someone(honest: Floats, truth: Floats, lying: Mask) -> bool:
    """Whether the server can admit a truthful client; it cannot once the model has become infinite or NaN."""
    return bool(np.isfinite(truth).all() or lying.all() or np.isfinite(honest[~lying]).all(axis=1).any())


def _moved(w: Floats, centre: Floats, settings: TrainingSettings, value: Floats) -> Floats:
    """The model after a step along an aggregate."""
    return project(w - settings.step * value, centre, settings.radius)


def project(w: Floats, centre: Floats, radius: float) -> Floats:
    """The point of the ball of `radius` around `centre` that is nearest to w."""
    if np.isinf(radius):
        return w
    away = w - centre
    distance = float(np.linalg.norm(away))
    return w if distance <= radius else centre + away * (radius / distance)


def _row(t: int, result: Aggregation | None, truth: Floats, lying: Mask, certify: int | None, seconds: float) -> Round:
    if result is None:
        return Round(t, {}, float("nan"), 0.0, 1.0, None, None, seconds)
    clients = result.clients
    proof = None if certify is None else result.certificate
    return Round(
        round=t,
        metrics={},
        error=float(np.linalg.norm(result.value - truth)),
        clipped=len(clients.with_status("clipped")) / len(clients),
        rejected=len(clients.with_status("rejected")) / len(clients),
        liar_weight=None if result.weights is None else float(result.weights[lying].sum()),
        radius=None if proof is None or certify is None else float(proof.radius(certify)),
        seconds=seconds,
    )


def _keep_weights(state: dict[str, NDArray[Any]], result: Aggregation | None, asked: NDArray[np.intp], m: int) -> None:
    """Append one row of weights in units of an equal share; NaN for the clients that were not asked."""
    row = np.full((1, m), np.nan, np.float32)
    if result is not None and result.weights is not None:
        row[0, asked] = result.weights * len(asked)
    state["weights"] = np.concatenate([state["weights"], row])


# Consensus in place of aggregation


@one_blas_thread
@np.errstate(over="ignore", invalid="ignore")  # a run that diverges is a result
def rsa(
    task: Task,
    shards: Shards,
    *,
    penalty: float,
    decay: float = 0.0,
    attack: str | Attack | None = None,
    byzantine: Mask | None = None,
    checkpoint: Path | None = None,
    on_round: Callable[[Round], None] | None = None,
    **settings: Any,
) -> Federated:
    """Learn `task` without sending a gradient: a message moves each coordinate by penalty * step, whatever its content.

    min over x_0, ..., x_m of  sum_i (F_i(x_i) + penalty |x_i - x_0|_1) + decay/2 |x_0|^2  by subgradient steps:

        x_i <- x_i - step (G_i(x_i) + penalty sign(x_i - x_0))
        x_0 <- x_0 - step (decay x_0 + penalty sum_i sign(x_0 - z_i)),   z_i = x_i, or what a liar says it is

    penalty   the weight of |x_i - x_0|_1: larger values hold the models closer together, and give liars more influence
    decay     the weight of |x_0|^2 / 2

    settings  rounds, step, seed, batch and evaluate_every of TrainingSettings

    Further arguments are those of federate(). Answers are kept as u_i = x_0 - z_i, which points the way a gradient does, so
    that attacks do here what they do in federate(); an answer that is not finite is left out. `error` in the history is the
    distance of the server's step direction to the one that the truthful clients alone would give.
    Li, Xu, Chen, Giannakis, Ling 2019.

    >>> from fedhold.lab import LinearRegression, balanced, shard, synthesized
    >>> rng = np.random.default_rng(0)
    >>> samples = synthesized(rng, samples=400, d=3).train
    >>> shards, liars = shard(samples, balanced(400, 20, rng)), np.arange(20) < 4
    >>> common = {"attack": "sign_flip", "byzantine": liars, "rounds": 100, "step": 0.1}
    >>> learnt = rsa(LinearRegression(samples), shards, penalty=0.05, **common)
    >>> round(learnt.history[-1].metrics["rmse"], 1)
    1.0
    """
    for name in settings:
        word_among(name, "settings", ("rounds", "step", "seed", *RSA_OPTIONS))
    training = TrainingSettings(**settings)
    step, seed = training.step, training.seed
    penalty, decay = positive(penalty, "penalty"), positive(decay, "decay", zero=True)
    adversary = Adversary.of(attack, byzantine, shards.m)
    known = {"attack": attack, "penalty": penalty, "decay": decay}
    run = _Run(task, shards, training, adversary, checkpoint, on_round, **known)
    shards, state, lying = run.shards, run.state, adversary.byzantine
    models = state.setdefault("models", np.tile(run.start, (shards.m, 1)))
    for t in run.rounds():
        w = state["w"]
        told = w - models
        truth = decay * w + penalty * np.sign(told[~lying]).sum(axis=0)
        adversary.lie(told, shards.counts, lying, chance(seed, Purpose.ATTACK, t))
        begun = time.perf_counter()
        admitted = np.isfinite(told).all(axis=1)
        direction = decay * w + penalty * np.sign(told[admitted]).sum(axis=0)
        seconds = time.perf_counter() - begun
        drawn = shards if training.batch is None else shards.batch(training.batch, chance(seed, Purpose.BATCH, t))
        for i, model in enumerate(models):
            gradient = task.gradients(model, drawn.client(i))[0]
            model -= step * (gradient + penalty * np.sign(model - w))
        state["w"] = w - step * direction
        error, rejected = float(np.linalg.norm(direction - truth)), float(1 - admitted.mean())
        run.end(Round(t, {}, error, 0.0, rejected, None, None, seconds))
    return Federated(state["w"], tuple(run.history), None, lying)


def rsa_parameters(rule: str) -> dict[str, Any] | None:
    """The parameters in a spec such as "rsa(penalty=0.01)"; None where the spec names an aggregation rule.

    >>> rsa_parameters("rsa(penalty=0.01, decay=0.1)")
    {'penalty': 0.01, 'decay': 0.1}
    """
    if rule.partition("(")[0].strip() != "rsa":
        return None
    given = dict(Part.read(rule, "rule").parameters)
    for word in given:
        if word not in ("penalty", "decay"):
            raise TypeError(f"rsa: {unknown('parameter', word, ['penalty', 'decay'])}")
    if "penalty" not in given:
        raise TypeError("rsa needs penalty, the weight of |x_i - x_0|_1. Write rsa(penalty=0.01), say.")
    return given
