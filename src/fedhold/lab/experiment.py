"""Experiments: one run, described by what can be written down, with every name and parameter checked.

Data, partition, attack and model are written as rules are, "dirichlet(alpha=0.1)"; one of the user's own is "module:name".
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedhold.errors import integer, listed, positive, require, unknown, well_typed
from fedhold.lab.attacks import ATTACKS
from fedhold.lab.federation import RSA_OPTIONS, TrainingSettings, rsa_parameters
from fedhold.lab.knowledge import declares, needs_server, needs_thresholds
from fedhold.lab.partition import PARTITIONS
from fedhold.lab.scenarios import DATA, MODELS, PASSED, WITHOUT_TORCH, clients_of, cost_of
from fedhold.spec import Part, function_named, name_of, parse
from fedhold.thresholds import threshold_function

# The version of keys and result files. Raise it when the same experiment would give other numbers, bit by bit.
# 6: parts are kept as they are written, with their parameters.
FORMAT = 6

# The fields that are parts, with their registries.
PARTS: dict[str, Mapping[str, Callable[..., Any]]] = {
    "data": DATA,
    "partition": PARTITIONS,
    "attack": ATTACKS,
    "model": MODELS,
}
# Settings of federate() that are fields of an experiment, or that cannot be written down.
FIELDS = ("rule", "rounds", "step", "seed", "centre")
LOOP_OPTIONS = tuple(setting.name for setting in fields(TrainingSettings) if setting.name not in FIELDS)
RUN_OPTIONS = (*LOOP_OPTIONS, "keep_weights")

TRIES_IN_A_ROUND = 2  # lies that an attack can try on the server's rule while a round takes place

Option = float | int | None


@dataclass(frozen=True)
class Experiment:
    """One run, described by what can be written down; equal experiments have equal results.

    data       a key of DATA (synthesized, heterogeneous, mnist, fashion_mnist, cifar10, heart_disease, femnist), with its
               parameters: "mnist(hidden=64)"; or "module:name" for a function of your own, see docs/own.md
    rule       a spec for aggregate(), or "rsa(penalty=...)"
    attack     a key of ATTACKS with its parameters, "alie(z=1.5)", or "module:name"; None with epsilon 0. For huber_attack
               `threshold` is the T that the liars assume: a number, by_samples(0, 2) or automatic; by default the rule's own
    epsilon    floor(epsilon * m) clients lie, drawn once per run
    seed       of all randomness of the run
    m          the number of clients
    partition  a key of PARTITIONS with its parameters, "dirichlet(alpha=0.1)", or "module:name"; leave it out for data that has
               clients of its own (femnist)
    rounds     how many steps of gradient descent
    step       their length
    options    further arguments of federate() as pairs (name, value), in any order: batch, momentum, local_steps,
               participation, sample_cap, root, certify, radius, evaluate_every; and keep_weights, 1: keep every client's
               weight in every round
    model      a key of MODELS (mlp, linear_regression, cnn, resnet18) or "module:name", for data that lets one choose; None:
               the usual model of the data

    A part may also be given as a `Part`, or as a function of your own that worker processes can import. It is kept as its text,
    with its parameters in alphabetical order.

    >>> print(Experiment("synthesized(samples=500, d=5)", "huber", "sign_flip", 0.2, seed=0, m=100))
    huber on synthesized(d=5, samples=500), 100 clients, balanced; sign_flip, epsilon 0.2; 200 rounds of step 0.02, seed 0
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
    model: str | None = None

    def __post_init__(self) -> None:
        numbers = {
            "epsilon": positive(self.epsilon, "epsilon", zero=True),
            "step": positive(self.step, "step"),
            "seed": integer(self.seed, "seed"),
            "m": integer(self.m, "m", at_least=1),
            "rounds": integer(self.rounds, "rounds", at_least=1),
        }
        vars(self).update(numbers)
        for field in ("rule", *PARTS):
            given = getattr(self, field)
            if given is not None or field not in ("attack", "model"):
                vars(self)[field] = _text(field, given)
        if rsa_parameters(self.rule) is None:
            threshold_function(parse(self.rule, {})[-1].parameters.get("threshold", "automatic"))
        _check_liars(self)
        for field in PARTS:
            if getattr(self, field) is not None:
                vars(self)[field] = str(_checked(field, getattr(self, field)))
        whose = clients_of(self.data)
        if whose and self.partition != Experiment.partition:
            raise ValueError(
                f"{self.data} has clients of its own, {whose}, and {self.partition} would do nothing. Leave the partition out."
            )
        vars(self)["options"] = _checked_options(self)

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> Experiment:
        """The experiment of a stored result, without a look at what its names mean: they may be unknown here.

        record  the fields by name, as `asdict` gives them; a ValueError or TypeError where they are not that

        >>> Experiment.recorded(asdict(Experiment("synthesized", "huber", "ipm", 0.2, 0)) | {"rule": "mine"}).rule
        'mine'
        """
        known = {field.name for field in fields(cls)}
        kinds: dict[str, Any] = dict.fromkeys(("epsilon", "seed", "m", "rounds", "step"), int | float)
        kinds |= dict.fromkeys(("data", "rule", "partition"), str) | dict.fromkeys(("attack", "model"), str | None)
        if record.keys() != known or not all(isinstance(record[name], kind) for name, kind in kinds.items()):
            raise ValueError(f"an experiment has the fields {listed(sorted(known))}, met {listed(sorted(record))}.")
        experiment = object.__new__(cls)
        vars(experiment).update(record, options=tuple((str(name), value) for name, value in record["options"]))
        return experiment

    @property
    def liars(self) -> int:
        """The number of clients that lie, the paper's q."""
        return liars(self.epsilon, self.m)

    @property
    def cost(self) -> float:
        """About how long the run takes, in rounds on the synthesized data."""
        options: dict[str, Any] = dict(self.options)
        rounds = self.rounds * options.get("local_steps", 1) * options.get("participation", 1.0)
        model = None if self.model is None else self.part("model").name
        return float(rounds * cost_of(self.part("data").name, model) * (1 + self._tried / TRIES_IN_A_ROUND))

    @property
    def _tried(self) -> int:
        """How often an attack that tries its lies on the server's rule does so in a round."""
        if self.attack is None:
            return 0
        part = self.part("attack")
        attack = function_named(part.name, "attack", ATTACKS)
        usual = inspect.signature(attack).parameters.get("evaluations")
        tried = part.parameters.get("evaluations", 1 if usual is None else usual.default)
        return int(tried) if declares(attack, needs_server) else 0

    @property
    def own(self) -> list[str]:
        """The parts that are no part of fedhold, each as module:name."""
        stages = [] if rsa_parameters(self.rule) is not None else parse(self.rule, {})
        names = [self.part(field).name for field in PARTS if getattr(self, field) is not None]
        return sorted({name for name in (*names, *(stage.name for stage in stages)) if ":" in name})

    def part(self, field: str) -> Part:
        """A field with its parameters.

        field  data, attack, partition or model, unless it is None

        >>> Experiment("mnist(hidden=64)", "huber", None, 0.0, seed=0).part("data")
        Part(name='mnist', parameters={'hidden': 64})
        """
        return Part.read(getattr(self, field), field)

    def given(self, field: str, **parameters: Any) -> Experiment:
        """The same experiment with other parameters of a part.

        field       data, attack, partition or model, unless it is None
        parameters  by name; the part keeps those that it has besides

        >>> Experiment("mnist(hidden=64)", "huber", "alie", 0.2, seed=0).given("attack", z=2).attack
        'alie(z=2)'
        """
        part = self.part(field)
        text = str(Part(part.name, {**part.parameters, **parameters}))
        return replace(self, **{field: text})  # type: ignore[arg-type]

    @property
    def dealt(self) -> str:
        """How the data is dealt out: the partition, or "by writer", say, for data with clients of its own."""
        return clients_of(self.data) or self.partition

    def key(self) -> str:
        """A hash that is the same for equal experiments on every machine; the name of the result's file.

        It covers the source of the user's own parts, so that a result is not taken for that of a part that has changed since.
        """
        hashed = {"format": FORMAT, "code": {name: _source(name) for name in self.own}, **asdict(self)}
        return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:20]

    def __str__(self) -> str:
        lies = f"{self.attack}, epsilon {self.epsilon:g}" if self.attack else "no attack"
        more = "".join(f", {name} {value}" for name, value in self.options)
        where = ", ".join(filter(None, (self.data, f"{self.m} clients", self.dealt, self.model)))
        return f"{self.rule} on {where}; {lies}; {self.rounds} rounds of step {self.step:g}, seed {self.seed}{more}"


def liars(epsilon: float, m: int) -> int:
    """floor(epsilon * m), which is 29 for 0.29 of 100 although 0.29 * 100 is a little less in floats.

    >>> liars(0.29, 100)
    29
    """
    return int(np.floor(positive(epsilon, "epsilon", zero=True) * integer(m, "m") + 1e-9))


def _plain(value: Any) -> Any:
    """2.0 as 2 and true as 1: equal values must give equal keys."""
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole else value


def _text(field: str, given: Any) -> str:
    if callable(given):
        return name_of(given)
    if not isinstance(given, str | Part):
        raise TypeError(f"{field} must be a text or a function, got {given!r:.100}. Write its name in quotes.")
    return str(given)


def _source(name: str) -> str:
    """A hash of the file that an own part is defined in."""
    function_named(name, "part", {})
    path = getattr(sys.modules[name.partition(":")[0]], "__file__", None)
    if path is None:
        raise ValueError(
            f"{name} is defined in no file, so that worker processes cannot import it. Put it into a module."
        )
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


# What is checked


def _checked(field: str, text: str) -> Part:
    """The part, if there is such a function with such parameters, and a run could work with their values."""
    try:
        part = Part.read(text, field)
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{field} {text!r:.100}: {problem}") from None
    function = function_named(part.name, field, PARTS[field])
    if part.name in MODELS and part.name not in WITHOUT_TORCH and find_spec("torch") is None:
        raise ValueError(f"the model {part.name} needs torch. From a checkout of fedhold: pip install '.[torch]'")
    there = inspect.signature(function).parameters.values()
    # Parameters that a user may give go by name or have a default.
    own = [p.name for p in there if p.name not in PASSED and (p.kind is p.KEYWORD_ONLY or p.default is not p.empty)]
    if field == "attack" and declares(function, needs_thresholds):
        own.append("threshold")
        threshold_function(part.parameters.get("threshold", "automatic"))
    parameters = {name: _plain(value) for name, value in sorted(part.parameters.items())}
    for name, value in parameters.items():
        if name not in own and not any(p.kind is p.VAR_KEYWORD for p in there):
            raise TypeError(f"{part.name}: {unknown('parameter', name, own)}")
        well_typed(function, name, value)
    return Part(part.name, parameters)


def _check_liars(experiment: Experiment) -> None:
    epsilon, m, attack = experiment.epsilon, experiment.m, experiment.attack
    require(epsilon < 1, "epsilon", needs="epsilon < 1", remedy="It is a fraction.", epsilon=epsilon)
    if attack is None:
        require(epsilon == 0, "no attack", needs="epsilon = 0", remedy="Name one.", epsilon=epsilon)
        return
    remedy = f"Let at least one client lie, epsilon = {1 / m:.3g}, or leave the attack away."
    needs = "floor(epsilon * m) >= 1"
    require(liars(epsilon, m) > 0, f"the attack {attack}", needs=needs, remedy=remedy, epsilon=epsilon, m=m)


def _checked_options(experiment: Experiment) -> tuple[tuple[str, Option], ...]:
    """The options in alphabetical order, if no name is unknown and a run could work with their values."""
    options: dict[str, Any] = {name: _plain(value) for name, value in experiment.options}
    names = [name for name, _ in experiment.options]
    twice = listed(sorted({name for name in names if names.count(name) > 1}))
    require(twice == "none", "options", needs="each name once", remedy="Remove one of them.", twice=twice)
    known = (*(LOOP_OPTIONS if rsa_parameters(experiment.rule) is None else RSA_OPTIONS), "keep_weights")
    for name in names:
        if name not in known:
            part = 'Parameters of data, attack, partition and model go behind their names, as in "mnist(hidden=64)".'
            raise ValueError(f"{unknown('option', name, known)} {part}")
    keep = options.get("keep_weights", 0)
    require(keep in (0, 1), "keep_weights", needs="0 or 1", remedy="1 keeps them.", keep_weights=repr(keep))
    loop = {name: value for name, value in options.items() if name != "keep_weights"}
    TrainingSettings(rounds=experiment.rounds, step=experiment.step, **loop)
    return tuple(sorted(options.items()))
