"""fedhold list: every name that a user can write in a call or a configuration, with its parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, NamedTuple

import click
from rich.console import Console
from rich.markup import escape

from fedhold.cli.parameters import Argument
from fedhold.report import print_table, table_of
from fedhold.spec import FROM_CALL, MIXINGS, RULES, THRESHOLDS, unknown_part


class _Registry(NamedTuple):
    """Functions that users call by name, where the name is written, and the parameters that the library passes."""

    where: str
    named: Mapping[str, Callable[..., Any]]
    passed: frozenset[str] = frozenset()

    def call(self, name: str) -> str:
        """The parameters of one function that a user may pass, with their defaults."""
        return ", ".join(
            ("**" if p.kind is p.VAR_KEYWORD else "") + p.name + ("" if p.default is p.empty else f"={p.default!r}")
            for p in inspect.signature(self.named[name]).parameters.values()
            if p.name not in self.passed
        )


def _registries() -> list[_Registry]:
    from fedhold.lab import ATTACKS, DATA, MODELS, PARTITIONS

    by_geometry = frozenset({"geometry", *FROM_CALL})
    return [
        _Registry("Rules: aggregate(updates, rule, ...)", RULES, by_geometry),
        _Registry("Mixings: written before a rule, as in 'screen | huber'", MIXINGS, by_geometry),
        _Registry("Thresholds: huber(threshold=...)", THRESHOLDS),
        _Registry(
            'Attacks: federate(..., attack=...), attack = "..." in a config',
            ATTACKS,
            frozenset({"knowledge", "shards", "byzantine"}),
        ),
        _Registry('Tasks: data = "..." in a config', DATA, frozenset({"seed", "cut", "m", "model"})),
        _Registry('Models: model = "..." in a config', MODELS, frozenset({"samples_to_test", "classes"})),
        _Registry('Partitions: partition = "..." in a config', PARTITIONS, frozenset({"labels", "m", "rng"})),
    ]


def _names() -> list[str]:
    return [name for registry in _registries() for name in registry.named]


def list_(
    name: Annotated[str, Argument("A name from the list: show all about it.", _names)] = "",
) -> None:
    """Rules, mixings, thresholds, attacks, tasks and partitions; or one of them in full."""
    if name:
        _show_one(name)
        return
    console = Console(highlight=False)
    for registry in _registries():
        table = table_of("name", "parameters", "")
        for word, function in registry.named.items():
            summary = (inspect.getdoc(function) or "").partition("\n")[0]
            table.add_row(word, escape(registry.call(word)), escape(summary))
        print_table(console, registry.where, table)
    console.print("fedhold list NAME shows one of them in full, with its source.")


def _show_one(name: str) -> None:
    known = {word: registry for registry in _registries() for word in registry.named}
    if name not in known:
        every = {word: registry.named[word] for word, registry in known.items()}
        raise click.BadParameter(unknown_part("name", name, every))
    click.echo(f"{name}({known[name].call(name)})\n\n{inspect.getdoc(known[name].named[name])}")
