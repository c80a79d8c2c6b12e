"""Configurations for `fedhold run`: a TOML file, and the experiments it describes."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator, Mapping
from importlib.resources import files
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from fedhold.errors import integer, listed, require, unknown
from fedhold.lab.experiment import Experiment, liars
from fedhold.storage import write_whole

KEYS = ("data", "rule", "attack", "epsilon", "f_told", "seeds", "m", "partition", "model", "rounds", "step", "options")
MOST = 1_000_000  # experiments of a grid; more than that is a slip of the pen, and would fill the memory
NEEDED = ("data", "rule")
WORDS = ("data", "rule", "attack", "partition", "model")
START = "`fedhold init` writes one to start from."


def load(path: Path) -> list[Experiment]:
    """Every combination of what the TOML file at `path` lists, each once. Its keys:

    data       a key of DATA with its parameters, "mnist(hidden=64)"; or module:name
    rule       a spec, as for aggregate(); {f} in it is replaced by the number of liars, floor(epsilon * m)
    attack     a key of ATTACKS with its parameters, "alie(z=1.5)", or module:name; or "none" (the default)
    epsilon    the fraction of liars; 0 means "none"
    f_told     what {f} is replaced by instead, whatever the number of liars: how a rule does that is told a wrong f
    seeds      how many, or a list of them; 1 by default
    m, partition, model, rounds, step    as for Experiment
    [options]  those of the run, as for Experiment: momentum, batch, ...
    [[grid]]   any number of tables with these keys, each a grid of its own; they share the keys outside

    A list of values means one experiment for each of them. `fedhold init` writes an example to start from. Modules of your own
    parts are looked for beside the file first.

    path  the file
    """
    path = Path(path)
    given = read_toml(path)
    importable_beside(path)
    grids = given.pop("grid", [{}])
    if not isinstance(grids, list) or not all(isinstance(grid, dict) for grid in grids):
        raise ValueError(f"{path}: write each grid as a table [[grid]].")
    try:
        joined = [_joined(given, grid) for grid in grids]
        _check_f_told(joined)
        every = [experiment for grid in joined for experiment in _grid(dict(grid))]
    except (TypeError, ValueError) as problem:
        raise ValueError(f"{path}: {problem}") from None
    return list(dict.fromkeys(every))


def read_toml(path: Path) -> dict[str, Any]:
    """What a TOML file says; a ValueError of one line where it cannot be read.

    path  the file
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path} does not exist. {START}") from None
    except IsADirectoryError:
        raise ValueError(f"{path} is a directory, not a configuration. Name a TOML file in it; {START}") from None
    except OSError as problem:
        raise ValueError(f"{path} cannot be read: {problem.strerror}.") from None
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not TOML: it is no text in UTF-8. {START}") from None
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise ValueError(f"{path} is not TOML: {' '.join(str(problem).split())}.") from None


def importable_beside(path: Path) -> None:
    """Let the modules beside a file be imported by their names; worker processes get the same path."""
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)


def write_start(path: Path) -> None:
    """Write the configuration to start from; a ValueError where the file is there already.

    path  the file to write
    """
    if path.exists():
        raise ValueError(f"{path} is there already. Name another file, or remove it first.")
    write_whole(path, files("fedhold.lab").joinpath("grid.toml").read_bytes())


def _joined(shared: Mapping[str, Any], grid: Mapping[str, Any]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for table in (shared.get("options", {}), grid.get("options", {})):
        if not isinstance(table, dict):
            raise ValueError(f"write options as a table [options], got {table!r}.")
        options.update(table)
    return {**shared, **grid, "options": options}


def _check_f_told(grids: list[dict[str, Any]]) -> None:
    told = [str(grid.get("rule")) for grid in grids if "f_told" in grid]
    if told and not any("{f}" in rules for rules in told):
        raise ValueError('f_told changes nothing: no rule has {f}, as in rule = "trimmed_mean(f={f})". Leave it out.')


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
        remedy = f"Write at least one, or leave {name} out." if values == [] else "Write numbers or texts."
        raise ValueError(f"{name} must be one value or a list of values, got {value!r}. {remedy}")
    return values


def _experiment(chosen: dict[str, Any], options: tuple[tuple[str, Any], ...]) -> Experiment:
    attack = chosen.pop("attack", "none")
    if attack != "none" and "epsilon" not in chosen:
        raise ValueError("an attack needs epsilon, the fraction of liars.")
    rule, epsilon = chosen.pop("rule"), chosen.pop("epsilon", 0.0)
    attack = "none" if epsilon == 0 else attack
    told = chosen.pop("f_told", None)
    if "{f}" in rule:
        f = liars(epsilon, chosen.get("m", Experiment.m)) if told is None else integer(told, "f_told")
        rule = rule.replace("{f}", str(f))
    return Experiment(
        rule=rule,
        attack=None if attack == "none" else attack,
        epsilon=0.0 if attack == "none" else epsilon,
        seed=chosen.pop("seeds", 0),
        options=options,
        **chosen,
    )
