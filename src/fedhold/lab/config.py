"""Configurations for `fedhold run`: a TOML file, and the experiments it describes."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from fedhold.errors import integer, listed, require, unknown
from fedhold.lab.experiment import Experiment, liars

KEYS = ("data", "rule", "attack", "epsilon", "seeds", "m", "partition", "rounds", "step", "options")
MOST = 1_000_000  # experiments of a grid; more than that is a slip of the pen, and would fill the memory
NEEDED = ("data", "rule")
WORDS = ("data", "rule", "attack", "partition")


def load(path: Path) -> list[Experiment]:
    """Every combination of what the TOML file at `path` lists, each once. Its keys:

    data       a key of DATA
    rule       a spec, as for aggregate(); {f} in it is replaced by the number of liars, floor(epsilon * m)
    attack     a key of ATTACKS, or "none" (the default)
    epsilon    the fraction of liars; 0 under "none"
    seeds      how many, or a list of them; 1 by default
    m, partition, rounds, step    as for Experiment
    [options]  as for Experiment
    [[grid]]   any number of tables with these keys, each a grid of its own; they share the keys outside

    A list of values means one experiment for each of them. examples/grid.toml is an example to start from.
    """
    path = Path(path)
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist. Start from examples/grid.toml.") from None
    except OSError as problem:
        raise ValueError(f"{path} cannot be read: {problem.strerror}. Name a TOML file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as problem:
        raise ValueError(f"{path} is not TOML: {problem}.") from None
    grids = given.pop("grid", [{}])
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise ValueError(f"{path}: write each grid as a table [[grid]].")
    try:
        every = [experiment for grid in grids for experiment in _grid(_joined(given, grid))]
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{path}: {problem}") from None
    return list(dict.fromkeys(every))


def _joined(shared: Mapping[str, Any], grid: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for table in (shared.get("options", {}), grid.get("options", {})):
        if not isinstance(table, dict):
            raise ValueError(f"write options as a table [options], got {table!r}.")
        options.update(table)
    return {**shared, **grid, "options": options}


def _grid(words: dict[str, Any]) -> Iterator[Experiment]:
    for name in words:
        if name not in KEYS:
            raise ValueError(unknown("key", name, [*KEYS, "grid"]) + " Options of the run go under [options].")
    missing = [name for name in NEEDED if name not in words]
    if missing:
        raise ValueError(f"it must say {listed(missing)}.")
    options = words.pop("options")
    for chosen in _combinations(words):
        for chosen_options in _combinations(options):
            yield _experiment(dict(chosen), tuple(chosen_options.items()))


def _combinations(words: Mapping[str, Any]) -> list[dict[str, Any]]:
    choices = [_choices(name, value) for name, value in words.items()]
    total = prod(map(len, choices))
    require(total <= MOST, "a grid", needs=f"at most {MOST} experiments", remedy="Make it smaller.", experiments=total)
    return [dict(zip(words, chosen, strict=True)) for chosen in product(*choices)]


def _choices(name: str, value: Any) -> list[Any]:
    if name == "seeds" and not isinstance(value, list):
        return list(range(min(integer(value, "seeds", at_least=1), MOST + 1)))
    values = value if isinstance(value, list) else [value]
    if name in WORDS and not all(isinstance(one, str) for one in values):
        raise ValueError(f"{name} must be text in quotes, got {value!r}.")
    if not values or any(isinstance(one, list | dict) for one in values):
        raise ValueError(f"{name} must be one value or a list of values, got {value!r}.")
    return values


def _experiment(chosen: dict[str, Any], options: tuple[tuple[str, Any], ...]) -> Experiment:
    attack = chosen.pop("attack", "none")
    if attack != "none" and "epsilon" not in chosen:
        raise ValueError("an attack needs epsilon, the fraction of liars.")
    rule, epsilon = chosen.pop("rule"), chosen.pop("epsilon", 0.0)
    if "{f}" in rule:
        rule = rule.replace("{f}", str(liars(epsilon, chosen.get("m", Experiment.m))))
    return Experiment(
        rule=rule,
        attack=None if attack == "none" else attack,
        epsilon=0.0 if attack == "none" else epsilon,
        seed=chosen.pop("seeds", 0),
        options=options,
        **chosen,
    )
