"""A command of click from a typed function: its parameters say what they are, and what the help says about them.

    def run(config: Annotated[Path, Argument("A TOML file.")], jobs: Annotated[int, Option("Processes.")] = 2) -> None: ...

Click of every version from 8.1 on, which Flower uses too, then prints the same help. Its own arguments have none before 8.5.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin

import click

__all__ = ["Argument", "Option", "command"]


@dataclass(frozen=True)
class Argument:
    """A parameter that is given by its place.

    help      what the help says about it
    complete  the words that a shell may complete it to; None: those of its type, such as names of files
    """

    help: str
    complete: Callable[[], Sequence[str]] | None = None


@dataclass(frozen=True)
class Option:
    """A parameter that is given by its name, or a flag where it is a bool.

    help   what the help says about it
    name   as it is written; by default that of the function's parameter, as --of-the-parameter
    least  the smallest number allowed; None: any
    """

    help: str
    name: str = ""
    least: float | None = None


def command(function: Callable[..., Any], name: str) -> click.Command:
    """The command that calls the function; the function's docstring is its help.

    function  each of its parameters is annotated as Annotated[type, Argument(...)] or Annotated[type, Option(...)], with int,
              float, str, bool or Path for the type, or a list of these, or one of these or None
    name      how the command is called
    """
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    made = [_parameter(parameter) for parameter in parameters]
    return _Command(name, callback=function, params=made, help=inspect.getdoc(function))


class _Argument(click.Argument):
    """An argument with a help, which click's have only from 8.5 on."""

    def __init__(self, names: Sequence[str], told: str, **more: Any) -> None:
        super().__init__(names, **more)
        self.told = told


class _Command(click.Command):
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(one.get_usage_pieces(ctx)[0], one.told) for one in self.params if isinstance(one, _Argument)]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)

    def format_arguments(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Nothing: from 8.5 on click would list the arguments once more."""


def _parameter(parameter: inspect.Parameter) -> click.Parameter:
    annotation, declared = get_args(parameter.annotation)
    parts = get_args(annotation)
    kind = next(part for part in parts if part is not NoneType) if NoneType in parts else annotation
    several, required = get_origin(kind) is list, parameter.default is parameter.empty
    if several:
        (kind,) = get_args(kind)
    words: dict[str, Any] = {"type": click.Path(path_type=Path) if kind is Path else kind, "required": required}
    if several:  # Click gives tuples; our functions take lists.
        words["callback"] = lambda _, __, values: list(values or ())
    if not required:
        words["default"] = parameter.default
    if isinstance(declared, Argument):
        if (complete := declared.complete) is not None:
            words["shell_complete"] = lambda _, __, begun: [word for word in complete() if word.startswith(begun)]
        return _Argument([parameter.name], declared.help, nargs=-1 if several else 1, **words)
    if declared.least is not None:
        words["type"] = (
            click.FloatRange(min=declared.least) if kind is float else click.IntRange(min=int(declared.least))
        )
    return click.Option(
        [declared.name or f"--{parameter.name.strip('_').replace('_', '-')}", parameter.name],
        help=declared.help,
        is_flag=kind is bool,
        multiple=several,
        show_default=not required and parameter.default not in (None, "", False),
        **words,
    )
