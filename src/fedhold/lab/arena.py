"""The arena: every rule against every attack, on several data sets and partitions, with up to 40 % of liars.

    Arena        what is compared: settings x attacks x fractions of liars x rules x seeds
    run_arena    runs the cells that are missing, one file each
    Standings    (leaderboard.py) what came out, by worst case and by mean rank

Rules and attacks come from their registries, so that a new one takes part by being registered, and one of the user's own by
its name. A rule that must be told the number of liars is told the truth, and is marked.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

from fedhold.errors import integer, unknown
from fedhold.lab.attacks import ATTACKS
from fedhold.lab.config import importable_beside, read_toml
from fedhold.lab.experiment import Experiment, Option, liars
from fedhold.lab.knowledge import declares, needs_server
from fedhold.lab.results import Store
from fedhold.lab.runner import run_cells
from fedhold.spec import DEFAULT, FROM_CALL, MIXINGS, RULES, Part, function_named, parse

CLIENTS = 25  # bulyan's m >= 4f + 3 holds up to 20 % of liars, krum's m >= 2f + 3 up to 40 %
EPSILONS = (0.1, 0.2, 0.3, 0.4)
QUICK_CLIENTS = 15  # The same bounds hold at 20 and 40 %, and smea has few enough sets to try at both.
QUICK_EPSILONS = (0.2, 0.4)
# Searches with the fewest lies that they can try: each costs a call of the rule, in every round.
QUICK_SEARCHES = {
    "optimal_alie": "optimal_alie(evaluations=20)",
    "optimal_ipm": "optimal_ipm(evaluations=10)",
    "worst_case": "worst_case(restarts=2, evaluations=20)",
}
MIXED = ("trimmed_mean", "huber")  # rules that are also tried behind a mixing: one by columns, one by distances
ROOT = 20  # samples of its own that a server has, for the rules that compare clients with what it learns from them
GUARDED = " + guard"  # behind a rule: the server guards it with HELD samples of its own
HELD = 50
KEYS = ("rule", "attack", "data", "partition", "rounds", "step", "skewed", "epsilon", "seeds", "m", "options")
STILL = 1e-300  # a step too short to move a model: what such a run measures is the model before learning


@dataclass(frozen=True)
class Setting:
    """A data set and how it is dealt out, with how long to learn from it.

    skewed    whether clients hold different shares of the classes; such settings are judged apart
    searched  whether attacks that try their lies on the server's rule are run on it: they take many times as long as others
    """

    data: str
    partition: str
    rounds: int
    step: float
    skewed: bool = False
    searched: bool = True

    @property
    def label(self) -> str:
        """Data and partition, without parameters that only make it smaller."""
        return f"{Part.read(self.data, 'data').name}, {self.partition}"


def _images(data: str, samples: int, rounds: int) -> tuple[Setting, ...]:
    dealt = {"balanced": False, "random_cuts": False, "dirichlet(alpha=1)": True}
    dealt |= {"dirichlet(alpha=0.1)": True, "by_class(shards=2)": True}
    name = f"{data}(hidden=32, samples={samples})"
    return tuple(Setting(name, partition, rounds, 0.3, skewed) for partition, skewed in dealt.items())


SETTINGS = (
    Setting("synthesized(samples=2500)", "balanced", 50, 0.1),
    Setting("synthesized(samples=2500)", "random_cuts", 50, 0.1),
    Setting("heterogeneous(samples=2500)", "balanced", 50, 0.1),
    Setting("heart_disease", "balanced", 50, 0.5),
    Setting("heart_disease", "random_cuts", 50, 0.5),
    Setting("heart_disease", "dirichlet(alpha=1)", 50, 0.5, skewed=True),
    Setting("heart_disease", "dirichlet(alpha=0.1)", 50, 0.5, skewed=True),
    *_images("mnist", 6000, 60),
    *_images("fashion_mnist", 6000, 60),
)
QUICK_SETTINGS = (
    Setting("synthesized(d=20, samples=1000)", "balanced", 15, 0.2),
    Setting("heterogeneous(d=20, samples=1000)", "balanced", 15, 0.2, searched=False),
    Setting("heart_disease", "balanced", 15, 0.7),
    Setting("mnist(hidden=16, samples=1000, tests=2000)", "dirichlet(alpha=0.1)", 15, 0.5, skewed=True, searched=False),
)


@dataclass(frozen=True)
class Arena:
    """What is compared. Cells are in the order in which they are run: whatever is cut short, rules have met the same attacks.

    settings  the data sets with their partitions
    rules     specs; {f} in one of them is the true number of liars, and " + guard" behind one guards it
    attacks   names, with parameters where they have some
    epsilons  fractions of liars; every rule is also run without any
    seeds     of data, partition, liars and chance
    m         the number of clients
    options   of every run, as for Experiment
    left_out  rules that cannot take part, each with the reason
    """

    settings: tuple[Setting, ...] = SETTINGS
    rules: tuple[str, ...] = ()
    attacks: tuple[str, ...] = ()
    epsilons: tuple[float, ...] = EPSILONS
    seeds: tuple[int, ...] = (0, 1, 2)
    m: int = CLIENTS
    options: tuple[tuple[str, Option], ...] = ()
    left_out: tuple[tuple[str, str], ...] = ()

    @classmethod
    def registered(cls, *, quick: bool = False) -> Arena:
        """Every rule and every attack of the registries.

        quick  few clients with little data, two seeds, two fractions of liars, and short searches, on two settings

        >>> arena = Arena.registered(quick=True)
        >>> "krum(f={f})" in arena.rules, "median" in arena.rules, "alie" in arena.attacks
        (True, True, True)
        """
        rules, left_out = _rules()
        # Attacks that try their lies on the server's rule take many times as long as others; they come last.
        attacks = tuple(sorted((name for name, attack in ATTACKS.items() if not _needed(attack)), key=_searches))
        if not quick:
            return cls(SETTINGS, rules, attacks, left_out=left_out)
        short = tuple(QUICK_SEARCHES.get(name, name) for name in attacks)
        return cls(QUICK_SETTINGS, rules, short, QUICK_EPSILONS, (0, 1), QUICK_CLIENTS, left_out=left_out)

    def meets(self, setting: Setting, attack: str) -> bool:
        """Whether an attack is run on a setting."""
        return setting.searched or not _searches(attack)

    def joined(self, parts: Mapping[str, Any]) -> Arena:
        """This arena, and parts of the user's own beside those it has.

        parts  rule, attack, data: one text or a list of them, which are added. partition: the own data is dealt out so; without
               own data, all data of this arena is. rounds, step, skewed: of the own settings. epsilon, seeds, m, options: in
               place of those it has

        >>> Arena.registered().joined({"rule": "screen | mean"}).rules[-1]
        'screen | mean'
        """
        for name in parts:
            if name not in KEYS:
                raise ValueError(unknown("key", name, KEYS))
        seeds = parts.get("seeds", list(self.seeds))
        return replace(
            self,
            settings=(*self.settings, *self._own_settings(parts)),
            rules=tuple(dict.fromkeys((*self.rules, *_texts(parts, "rule")))),
            attacks=tuple(dict.fromkeys((*self.attacks, *_texts(parts, "attack")))),
            epsilons=tuple(parts["epsilon"] if isinstance(parts.get("epsilon"), list) else self.epsilons),
            seeds=tuple(seeds) if isinstance(seeds, list) else tuple(range(integer(seeds, "seeds", at_least=1))),
            m=integer(parts.get("m", self.m), "m", at_least=1),
            options=tuple({**dict(self.options), **parts.get("options", {})}.items()),
        )

    def _own_settings(self, parts: Mapping[str, Any]) -> list[Setting]:
        data, partitions = _texts(parts, "data"), _texts(parts, "partition")
        base = [replace(self.settings[0], data=one, skewed=False) for one in data]
        if partitions and not data:
            base = list(dict.fromkeys(replace(one, partition="balanced", skewed=False) for one in self.settings))
        length = {name: parts[name] for name in ("rounds", "step") if name in parts}
        return [
            replace(setting, partition=partition, skewed=bool(parts.get("skewed", False)), **length)
            for setting in base
            for partition in partitions or ["balanced"]
        ]

    def narrowed(self, words: Sequence[str]) -> Arena:
        """Only the settings, rules and attacks that have one of the words in their names; a kind that none fits stays whole.

        words  parts of names

        >>> Arena.registered(quick=True).narrowed(["synthesized", "mimic"]).attacks
        ('mimic',)
        """
        for word in words:
            every = [*self.rules, *self.attacks, *(setting.label for setting in self.settings)]
            if not any(word in name for name in every):
                raise ValueError(f"nothing in the arena has {word!r} in its name. It has {', '.join(every)}.")

        def fitting(names: Sequence[Any], label: Callable[[Any], str] = str) -> tuple[Any, ...]:
            return tuple(name for name in names if any(word in label(name) for word in words)) or tuple(names)

        settings = fitting(self.settings, lambda setting: setting.label)
        return replace(self, settings=settings, rules=fitting(self.rules), attacks=fitting(self.attacks))

    def experiment(self, setting: Setting, rule: str, attack: str | None, epsilon: float, seed: int) -> Experiment:
        """The run of one cell with one seed."""
        spec = rule.removesuffix(GUARDED).replace("{f}", str(liars(epsilon, self.m)))
        every = math.ceil(setting.rounds / 10)  # A curve needs ten points, and measuring costs more than learning.
        root = {"root": ROOT} if _takes_root(rule) else {}
        guard = {"guard": HELD} if rule.endswith(GUARDED) else {}
        given = {"evaluate_every": every, **root, **guard, **dict(self.options)}
        return Experiment(
            *(setting.data, spec, attack, epsilon, seed, self.m, setting.partition, setting.rounds, setting.step),
            options=tuple(given.items()),
        )

    def still(self, setting: Setting, seed: int) -> Experiment:
        """A run that does not learn."""
        run = self.experiment(setting, "mean", None, 0.0, seed)
        return replace(run, rounds=1, step=STILL)

    def experiments(self) -> list[Experiment]:
        """Every run, in the order in which they are to be run: an attack on all settings, then the next attack."""
        runs = []
        for seed in self.seeds:
            for setting in self.settings:
                runs.append(self.still(setting, seed))
                runs += [self.experiment(setting, rule, None, 0.0, seed) for rule in self.rules]
            for attack, setting, epsilon, rule in product(self.attacks, self.settings, self.epsilons, self.rules):
                if self.meets(setting, attack):
                    runs.append(self.experiment(setting, rule, attack, epsilon, seed))
        return runs


def known_to(rule: str) -> str:
    """What a rule of an arena knows that a server does not know by itself; "" for one that is told nothing.

    >>> known_to("krum(f={f})"), known_to("huber"), known_to("huber + guard")
    ('told f', '', 'has samples')
    """
    known = {"told f": "{f}" in rule, "has samples": _takes_root(rule) or rule.endswith(GUARDED)}
    return ", ".join(word for word, holds in known.items() if holds)


def _takes_root(rule: str) -> bool:
    """Whether a rule compares clients with an update of the server's own."""
    return parse(rule.removesuffix(GUARDED).replace("{f}", "0"), {})[-1].takes("root")


def read_parts(path: Path) -> dict[str, Any]:
    """The parts of a user's own from a TOML file, for `Arena.joined`; modules beside the file can be named in it.

    path  the file
    """
    importable_beside(path)
    return read_toml(path)


def run_arena(
    arena: Arena,
    store: Store,
    *,
    jobs: int = 2,
    cluster: str | None = None,
    seconds: float = math.inf,
    progress: bool = True,
) -> dict[Experiment, str]:
    """Run what is missing of an arena, and return the tracebacks of runs that failed.

    store     keeps one file per run, whole or not at all: whenever this is killed, the same call goes on from there
    jobs      how many processes on this machine
    cluster   the address of a Dask scheduler, to run on its workers instead
    seconds   stop after about so long
    progress  show a bar with the time left, or lines where output is a pipe
    """
    runs = arena.experiments()
    return run_cells(runs, store, jobs=jobs, cluster=cluster, checkpoints=False, seconds=seconds, progress=progress)


def _rules() -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
    """All rules as specs, and those that cannot take part: they need something that an arena does not have."""
    found: dict[str, str] = {}
    left_out = []
    for name, rule in RULES.items():
        needed = _needed(rule)
        if needed <= {"f"}:
            found[name] = f"{name}(f={{f}})" if "f" in inspect.signature(rule).parameters else name
        else:
            left_out.append((name, f"needs {', '.join(sorted(needed - {'f'}))}"))
    mixings = [f"{name}(f={{f}})" for name, mixing in MIXINGS.items() if _needed(mixing) == {"f"}]
    return (
        *found.values(),
        DEFAULT + GUARDED,
        *(f"{mixing} | {found[rule]}" for mixing in mixings for rule in MIXED),
    ), tuple(left_out)


def _searches(attack: str) -> bool:
    """Whether an attack tries its lies on the server's rule."""
    return declares(function_named(Part.read(attack, "attack").name, "attack", ATTACKS), needs_server)


def _needed(function: Callable[..., Any]) -> set[str]:
    """The parameters that must be given by name, apart from those that aggregate() passes."""
    there = inspect.signature(function).parameters.values()
    return {p.name for p in there if p.kind is p.KEYWORD_ONLY and p.default is p.empty} - set(FROM_CALL)


def _texts(parts: Mapping[str, Any], name: str) -> list[str]:
    given = parts.get(name, [])
    texts = given if isinstance(given, list) else [given]
    for text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{name} must be text in quotes, or a list of texts, got {given!r}.")
        if name == "attack":
            function_named(Part.read(text, name).name, name, ATTACKS)
    return texts
