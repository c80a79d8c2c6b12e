"""Experiments: one run, described by what can be written down, with every name and option checked."""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from fedhold.errors import integer, listed, positive, require, unknown, well_typed
from fedhold.lab.attacks import ATTACKS
from fedhold.lab.consensus import RSA_OPTIONS, rsa_parameters
from fedhold.lab.federation import check_loop
from fedhold.lab.knowledge import reads_thresholds
from fedhold.lab.partition import PARTITIONS
from fedhold.lab.scenarios import DATA, cost_of
from fedhold.spec import parse
from fedhold.thresholds import threshold_function

# The version of keys and result files. Raise it when the same experiment would give other numbers, bit by bit.
# 5: gradients of images and the Krum attack's distances are plain products, which add in another order.
FORMAT = 5

# Options that federate() takes.
LOOP_OPTIONS = (
    *("batch", "certify", "evaluate_every", "local_steps", "momentum", "participation", "radius", "root", "sample_cap"),
)

Option = float | int | str | None


@dataclass(frozen=True)
class Experiment:
    """One run, described by what can be written down; equal experiments have equal results.

    data       a key of DATA: synthesized, heterogeneous, mnist, fashion_mnist
    rule       a spec for aggregate(), or "rsa(penalty=...)"
    attack     a key of ATTACKS; None with epsilon 0
    epsilon    floor(epsilon * m) clients lie, drawn once per run
    seed       of all randomness of the run
    m          the number of clients
    partition  a key of PARTITIONS
    rounds     how many steps of gradient descent
    step       their length
    options    further arguments as pairs (name, value), in any order:
               of federate()   batch, momentum, local_steps, participation, sample_cap, root, certify, radius, evaluate_every
               of the data     samples, d, variance (regression); samples, hidden (images)
               of the attack   attack_scale, attack_z, ...; attack_threshold: the T that huber_attack assumes, a number or
                               "by_samples(0, 2)" or "automatic"; by default the rule's own
               of partition    partition_alpha, partition_shards
               keep_weights    1: keep every client's weight in every round

    >>> print(Experiment("synthesized", "huber", "sign_flip", 0.2, seed=0, m=100))
    huber on synthesized, 100 clients, balanced; sign_flip, epsilon 0.2; 200 rounds of step 0.02, seed 0
    """

    data: str
    rule: str
    attack: str | None
    epsilon: float
    seed: int
    m: int = 500
    partition: str = "balanced"
    rounds: int = 200
    step: float = 0.02
    options: tuple[tuple[str, Option], ...] = ()

    def __post_init__(self) -> None:
        for word in ("data", "rule", "partition", "attack"):
            if not isinstance(getattr(self, word), str | None if word == "attack" else str):
                raise TypeError(f"{word} must be text, got {getattr(self, word)!r:.100}. Write it in quotes.")
        names = [name for name, _ in self.options]
        twice = listed(sorted({name for name in names if names.count(name) > 1}))
        require(twice == "none", "options", needs="each name once", remedy="Remove one of them.", twice=twice)
        for name, value in (
            ("epsilon", positive(self.epsilon, "epsilon", zero=True)),
            ("step", positive(self.step, "step")),
            ("seed", integer(self.seed, "seed")),
            ("m", integer(self.m, "m", at_least=1)),
            ("rounds", integer(self.rounds, "rounds", at_least=1)),
            ("options", tuple(sorted({name: _plain(value) for name, value in self.options}.items()))),
        ):
            object.__setattr__(self, name, value)
        if rsa_parameters(self.rule) is None:
            threshold_function(parse(self.rule, {})[-1].parameters.get("threshold", "automatic"))
        require(self.epsilon < 1, "epsilon", needs="epsilon < 1", remedy="It is a fraction.", epsilon=self.epsilon)
        if self.attack is None:
            require(self.epsilon == 0, "no attack", needs="epsilon = 0", remedy="Name one.", epsilon=self.epsilon)
        _check_names(self)
        _check_values(self)

    @property
    def liars(self) -> int:
        """The number of clients that lie, the paper's q."""
        return liars(self.epsilon, self.m)

    @property
    def cost(self) -> float:
        """About how long the run takes, in rounds on the synthesized data."""
        loop = Options.of(self).loop
        return self.rounds * cost_of(self.data) * loop.get("local_steps", 1) * loop.get("participation", 1.0)

    def key(self) -> str:
        """A hash that is the same for equal experiments on every machine; the name of the result's file."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def __str__(self) -> str:
        lies = f"{self.attack}, epsilon {self.epsilon:g}" if self.attack else "no attack"
        more = "".join(f", {name} {value}" for name, value in self.options)
        where = f"{self.data}, {self.m} clients, {self.partition}"
        return f"{self.rule} on {where}; {lies}; {self.rounds} rounds of step {self.step:g}, seed {self.seed}{more}"


def liars(epsilon: float, m: int) -> int:
    """floor(epsilon * m), which is 29 for 0.29 of 100 although 0.29 * 100 is a little less in floats.

    >>> liars(0.29, 100)
    29
    """
    return int(np.floor(positive(epsilon, "epsilon", zero=True) * integer(m, "m") + 1e-9))


def _plain(value: Option) -> Option:
    """2.0 as 2 and true as 1: equal options must give equal keys."""
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole and value is not None else value


@dataclass(frozen=True)
class Options:
    """The options of an experiment, each with the function that takes it.

    loop          of federate() or rsa()
    data          of the function in DATA
    attack        of the function in ATTACKS, without the prefix "attack_"
    partition     of the function in PARTITIONS, without the prefix "partition_"
    keep_weights  whether the result keeps every client's weight in every round
    """

    loop: dict[str, Any]
    data: dict[str, Any]
    attack: dict[str, Any]
    partition: dict[str, Any]
    keep_weights: bool

    @classmethod
    def of(cls, experiment: Experiment) -> Options:
        """The experiment's options, sorted. A text for `attack_threshold` is read as in a rule's spec."""
        options = dict(experiment.options)
        attack, partition = _prefixed(options, "attack_"), _prefixed(options, "partition_")
        if isinstance(attack.get("threshold"), str):
            try:
                attack["threshold"] = parse(f"huber(threshold={attack['threshold']})", {})[-1].parameters["threshold"]
            except (TypeError, ValueError) as problem:
                raise ValueError(f"attack_threshold: {problem}") from None
        own = {name: value for name, value in options.items() if not name.startswith(("attack_", "partition_"))}
        keep_weights = bool(own.pop("keep_weights", False))
        loop = {name: own.pop(name) for name in LOOP_OPTIONS if name in own}
        return cls(loop=loop, data=own, attack=attack, partition=partition, keep_weights=keep_weights)


def _prefixed(options: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): value for name, value in options.items() if name.startswith(prefix)}


def _check_names(experiment: Experiment) -> None:
    """Raise a ValueError for an unknown name, with the nearest one that is known."""
    for what, name, known in (
        ("data", experiment.data, DATA),
        ("partition", experiment.partition, PARTITIONS),
        ("attack", experiment.attack, ATTACKS),
    ):
        if name is not None and name not in known:
            raise ValueError(unknown(what, name, known))
    loop = LOOP_OPTIONS if rsa_parameters(experiment.rule) is None else RSA_OPTIONS
    options = {*loop, "keep_weights", *_keywords(DATA[experiment.data])}
    options |= {f"partition_{name}" for name in _keywords(PARTITIONS[experiment.partition])}
    if experiment.attack is not None:
        attack = ATTACKS[experiment.attack]
        options |= {f"attack_{name}" for name in _keywords(attack)}
        options |= {"attack_threshold"} if reads_thresholds(attack) else set()
    for name, _ in experiment.options:
        if name not in options:
            raise ValueError(unknown("option", name, options))


def _check_values(experiment: Experiment) -> None:
    """Raise a TypeError or a ValueError for an option that no run could work with."""
    options = Options.of(experiment)
    check_loop(**options.loop)
    keep = dict(experiment.options).get("keep_weights", 0)
    require(keep in (0, 1), "keep_weights", needs="0 or 1", remedy="1 keeps them.", keep_weights=repr(keep))
    for prefix, function, given in (
        ("", DATA[experiment.data], options.data),
        ("partition_", PARTITIONS[experiment.partition], options.partition),
        ("attack_", ATTACKS.get(experiment.attack or ""), options.attack),
    ):
        for name, value in given.items():
            try:
                well_typed(function, name, value)  # type: ignore[arg-type]
            except (TypeError, ValueError) as problem:
                raise type(problem)(f"{prefix}{problem}") from None
    if "threshold" in options.attack:
        threshold_function(options.attack["threshold"])


def _keywords(function: Callable[..., Any]) -> set[str]:
    return {name for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}
