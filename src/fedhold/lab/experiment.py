"""Experiments: one run, described by what can be written down, with every name and option checked.

Data, partition, attack and model are written as rules are, "dirichlet(alpha=0.1)"; one of the user's own is "module:name".
"""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from fedhold.errors import integer, listed, positive, require, unknown, well_typed
from fedhold.lab.attacks import ATTACKS
from fedhold.lab.consensus import RSA_OPTIONS, rsa_parameters
from fedhold.lab.federation import TrainingSettings
from fedhold.lab.knowledge import reads_server, reads_thresholds
from fedhold.lab.partition import PARTITIONS
from fedhold.lab.scenarios import DATA, MODELS, PASSED, WITHOUT_TORCH, clients_of, cost_of
from fedhold.spec import Part, function_named, name_of, parse
from fedhold.thresholds import threshold_function

# The version of keys and result files. Raise it when the same experiment would give other numbers, bit by bit.
# 5: gradients of images and the Krum attack's distances are plain products, which add in another order.
FORMAT = 5

# Settings of federate() that are fields of an experiment, or that cannot be written down.
FIELDS = ("rule", "parameters", "rounds", "step", "seed", "centre")
LOOP_OPTIONS = tuple(setting.name for setting in fields(TrainingSettings) if setting.name not in FIELDS)
RUN_OPTIONS = (*LOOP_OPTIONS, "keep_weights")

# The fields whose parameters bear their name among the options, as in partition_alpha; those of the data stand alone.
PREFIXED = ("attack", "partition", "model")

TRIES_IN_A_ROUND = 2  # lies that an attack can try on the server's rule while a round takes place

Option = float | int | str | None


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

    A function of your own may be given instead of its name, if worker processes can import it.

    Made from "mnist(hidden=64)", an experiment has the plain name in `data` and the parameter among its options: those of the
    data by their own names, others as attack_z, partition_alpha, model_width. `spelled` puts them together again.

    >>> one = Experiment("synthesized(d=5)", "huber", "sign_flip", 0.2, seed=0, m=100)
    >>> print(one)
    huber on synthesized(d=5), 100 clients, balanced; sign_flip, epsilon 0.2; 200 rounds of step 0.02, seed 0
    >>> one.data, one.options
    ('synthesized', (('d', 5),))
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
        for word in ("data", "rule", "partition", "attack", "model"):
            given = getattr(self, word)
            if not (isinstance(given, str) or callable(given) or (given is None and word in ("attack", "model"))):
                raise TypeError(f"{word} must be a text or a function, got {given!r:.100}. Write its name in quotes.")
        names = [name for name, _ in self.options]
        twice = listed(sorted({name for name in names if names.count(name) > 1}))
        require(twice == "none", "options", needs="each name once", remedy="Remove one of them.", twice=twice)
        for name, value in (
            ("epsilon", positive(self.epsilon, "epsilon", zero=True)),
            ("step", positive(self.step, "step")),
            ("seed", integer(self.seed, "seed")),
            ("m", integer(self.m, "m", at_least=1)),
            ("rounds", integer(self.rounds, "rounds", at_least=1)),
        ):
            object.__setattr__(self, name, value)
        for name in ("data", "rule", "attack", "partition", "model"):
            if callable(given := getattr(self, name)):
                object.__setattr__(self, name, name_of(given))
        if rsa_parameters(self.rule) is None:
            threshold_function(parse(self.rule, {})[-1].parameters.get("threshold", "automatic"))
        _check_liars(self)
        _unfold(self)
        _check_clients(self)
        _check_torch(self)
        _check_names(self)
        _check_values(self)

    @classmethod
    def recorded(cls, record: Mapping[str, Any]) -> Experiment:
        """The experiment of a stored result, without a look at what its names mean: they may be unknown here.

        record  the fields by name, as `asdict` gives them; a ValueError or TypeError where they are not that

        >>> Experiment.recorded(asdict(Experiment("synthesized", "huber", "ipm", 0.2, 0)) | {"rule": "mine"}).rule
        'mine'
        """
        texts, numbers = ("data", "rule", "partition"), ("epsilon", "seed", "m", "rounds", "step")
        known = {field.name for field in fields(cls)}
        if (
            record.keys() != known
            or not all(isinstance(record[name], str) for name in texts)
            or not all(isinstance(record[name], str | None) for name in ("attack", "model"))
            or not all(isinstance(record[name], int | float) for name in numbers)
        ):
            raise ValueError(f"an experiment has the fields {listed(sorted(known))}, met {listed(sorted(record))}.")
        experiment = object.__new__(cls)
        options = tuple(sorted((str(name), _plain(value)) for name, value in record["options"]))
        for name, value in {**record, "options": options}.items():
            object.__setattr__(experiment, name, value)
        return experiment

    @property
    def liars(self) -> int:
        """The number of clients that lie, the paper's q."""
        return liars(self.epsilon, self.m)

    @property
    def cost(self) -> float:
        """About how long the run takes, in rounds on the synthesized data."""
        loop: dict[str, Any] = self.loop
        model = cost_of(self.data, self.model)
        rounds = self.rounds * loop.get("local_steps", 1) * loop.get("participation", 1.0)
        return float(rounds * model * (1 + self._tried / TRIES_IN_A_ROUND))

    @property
    def _tried(self) -> int:
        """How often an attack that tries its lies on the server's rule does so in a round."""
        attack = None if self.attack is None else function_named(self.attack, "attack", ATTACKS)
        if attack is None or not reads_server(attack):
            return 0
        usual = inspect.signature(attack).parameters.get("evaluations")
        return int(self._given("attack").get("evaluations", 1 if usual is None else usual.default))

    @property
    def own(self) -> list[str]:
        """The parts that are no part of fedhold, each as module:name."""
        stages = [] if rsa_parameters(self.rule) is not None else parse(self.rule, {})
        names = (self.data, self.partition, self.attack or "", self.model or "", *(stage.name for stage in stages))
        return sorted({name for name in names if ":" in name})

    def part(self, field: str) -> Part:
        """A field with its parameters, as it is run: a text for the attack's threshold is read as in a rule's spec.

        field  data, attack, partition or model, unless it is None

        >>> Experiment("mnist(hidden=64)", "huber", None, 0.0, seed=0).part("data")
        Part(name='mnist', parameters={'hidden': 64})
        """
        given = self._given(field)
        if field == "attack" and isinstance(text := given.get("threshold"), str):
            try:
                given = {**given, **Part.read(f"T(threshold={text})", "threshold").parameters}
            except (TypeError, ValueError) as problem:
                raise ValueError(f"attack_threshold: {problem}") from None
        return Part(getattr(self, field), given)

    def _given(self, field: str) -> dict[str, Any]:
        """The parameters of data, attack, partition or model, as the options have them."""
        places = [(place_of(option), value) for option, value in self.options]
        return {place[1]: value for place, value in places if place is not None and place[0] == field}

    def spelled(self, field: str) -> str:
        """A field with its parameters, as in "dirichlet(alpha=0.1)"; "" for an attack or a model that there is none of.

        field  data, attack, partition or model. The partition of data with clients of its own is called "by writer", say
        """
        if field == "partition" and (whose := clients_of(self.data)):
            return whose
        name = getattr(self, field)
        inside = ", ".join(f"{word}={_shown(word, value)}" for word, value in self._given(field).items())
        return f"{name}({inside})" if inside else name or ""

    @property
    def loop(self) -> dict[str, Option]:
        """The options that are no parameters of data, attack, partition or model."""
        return {name: value for name, value in self.options if place_of(name) is None}

    def key(self) -> str:
        """A hash that is the same for equal experiments on every machine; the name of the result's file.

        It covers the source of the user's own parts, so that a result is not taken for that of a part that has changed since.
        """
        hashed: dict[str, Any] = {"format": FORMAT, **asdict(self)}
        if self.model is None:
            del hashed["model"]
        if own := self.own:
            hashed["code"] = {name: _source(name) for name in own}
        return hashlib.sha256(json.dumps(hashed, sort_keys=True).encode()).hexdigest()[:20]

    def __str__(self) -> str:
        lies = f"{self.spelled('attack')}, epsilon {self.epsilon:g}" if self.attack else "no attack"
        more = "".join(f", {name} {value}" for name, value in self.loop.items())
        where = f"{self.spelled('data')}, {self.m} clients, {self.spelled('partition')}"
        where += f", {self.spelled('model')}" if self.model else ""
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


# How parts are written, and where their parameters stand


def place_of(option: str) -> tuple[str, str] | None:
    """The field whose parameter an option is, and the parameter's name; None for an option of the run itself.

    option  its name

    >>> place_of("partition_alpha"), place_of("momentum"), place_of("samples")
    (('partition', 'alpha'), None, ('data', 'samples'))
    """
    for field in PREFIXED:
        if option.startswith(f"{field}_"):
            return field, option.removeprefix(f"{field}_")
    return None if option in RUN_OPTIONS else ("data", option)


def _unfold(experiment: Experiment) -> None:
    """Leave plain names in the fields, and put the parameters behind them among the options."""
    options = {name: _plain(value) for name, value in experiment.options}
    for field in ("data", *PREFIXED):
        text = getattr(experiment, field)
        if text is None:
            continue
        if not isinstance(text, str):
            raise TypeError(f"{field} must be a text or a function, got {text!r}.")
        part = Part.read(text, field, literal=True)
        object.__setattr__(experiment, field, part.name)
        for name, value in part.parameters.items():
            option = name if field == "data" else f"{field}_{name}"
            if place_of(option) != (field, name):
                raise ValueError(
                    f"{part.name}: an option of the run is called {name}, too. Give the parameter another name."
                )
            remedy = f"Leave it out of the options: {text!r} says it."
            require(option not in options, option, needs="to be given once", remedy=remedy, given=options.get(option))
            if not isinstance(value, int | float | str | None):
                raise ValueError(f"{name} must be a number, a text or None, got {value!r:.100}.")
            options[option] = _plain(value)
    object.__setattr__(experiment, "options", tuple(sorted(options.items())))


def _shown(name: str, value: Option) -> str:
    return value if name == "threshold" and isinstance(value, str) else repr(value)


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


def _check_liars(experiment: Experiment) -> None:
    epsilon, m, attack = experiment.epsilon, experiment.m, experiment.attack
    require(epsilon < 1, "epsilon", needs="epsilon < 1", remedy="It is a fraction.", epsilon=epsilon)
    if attack is None:
        require(epsilon == 0, "no attack", needs="epsilon = 0", remedy="Name one.", epsilon=epsilon)
        return
    remedy = f"Let at least one client lie, epsilon = {1 / m:.3g}, or leave the attack away."
    require(
        liars(epsilon, m) > 0,
        f"the attack {attack}",
        needs="floor(epsilon * m) >= 1",
        remedy=remedy,
        epsilon=epsilon,
        m=m,
    )


def _check_clients(experiment: Experiment) -> None:
    whose = clients_of(experiment.data)
    if whose and experiment.partition != Experiment.partition:
        raise ValueError(
            f"{experiment.data} has clients of its own, {whose}, and {experiment.partition} would do nothing. Leave the "
            "partition out."
        )


def _check_torch(experiment: Experiment) -> None:
    if experiment.model in MODELS and experiment.model not in WITHOUT_TORCH and find_spec("torch") is None:
        raise ValueError(
            f"the model {experiment.model} needs torch. From a checkout of fedhold: pip install '.[torch]'"
        )


def _check_names(experiment: Experiment) -> None:
    """Raise a ValueError for an unknown name or option, with the nearest one that is known."""
    loop = LOOP_OPTIONS if rsa_parameters(experiment.rule) is None else RSA_OPTIONS
    options = {*loop, "keep_weights"}
    for field, known, passed in (
        ("data", DATA, PASSED),
        ("partition", PARTITIONS, ()),
        ("attack", ATTACKS, ()),
        ("model", MODELS, PASSED),
    ):
        name = getattr(experiment, field)
        if name is None:
            continue
        function = function_named(name, field, known)
        accepted = _parameters(function, passed)
        if field == "attack" and reads_thresholds(function):
            accepted.add("threshold")
        if "**" in accepted:  # It takes whatever it is given.
            accepted |= set(experiment._given(field))
        options |= {word if field == "data" else f"{field}_{word}" for word in accepted}
    for name, _ in experiment.options:
        if name not in options:
            raise ValueError(_unknown_option(experiment, name, options))


def _unknown_option(experiment: Experiment, name: str, known: set[str]) -> str:
    """The message: a parameter of a part is called as it is written behind the part's name."""
    place = place_of(name)
    if place is None or (field := getattr(experiment, place[0])) is None or place[0] == "data":
        return unknown("option", name, known)
    own = [at[1] for word in known if (at := place_of(word)) is not None and at[0] == place[0]]
    return f"unknown option {name!r}: {field} has no such parameter. {unknown('parameter', place[1], own)}"


def _parameters(function: Callable[..., Any], passed: tuple[str, ...]) -> set[str]:
    """The parameters that a user may give: those that go by name or have a default, but not those passed; ** for any."""
    there = inspect.signature(function).parameters.values()
    own = [
        p for p in there if p.name not in passed and (p.kind is not p.POSITIONAL_OR_KEYWORD or p.default is not p.empty)
    ]
    return {"**" if p.kind is p.VAR_KEYWORD else p.name for p in own}


def _check_values(experiment: Experiment) -> None:
    """Raise a TypeError or a ValueError for an option that no run could work with."""
    loop: dict[str, Any] = experiment.loop
    keep = loop.pop("keep_weights", 0)
    TrainingSettings(rounds=experiment.rounds, step=experiment.step, **loop)
    require(keep in (0, 1), "keep_weights", needs="0 or 1", remedy="1 keeps them.", keep_weights=repr(keep))
    for field, known in (("data", DATA), ("partition", PARTITIONS), ("attack", ATTACKS), ("model", MODELS)):
        if getattr(experiment, field) is None:
            continue
        part = experiment.part(field)
        function = function_named(part.name, field, known)
        for name, value in part.parameters.items():
            try:
                well_typed(function, name, value)
            except (TypeError, ValueError) as problem:
                prefix = "" if field == "data" else f"{field}_"
                raise type(problem)(f"{prefix}{problem}") from None
        if field == "attack" and "threshold" in part.parameters:
            threshold_function(part.parameters["threshold"])
