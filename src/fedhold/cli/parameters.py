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
    kind, several = _kind(annotation)
    required = parameter.default is parameter.empty
    words: dict[str, Any] = {"type": _type(kind, declared)}
    if not required:
        words["default"] = parameter.default
    if isinstance(declared, Argument):
        if declared.complete is not None:
            complete = declared.complete
            words["shell_complete"] = lambda _, __, begun: [word for word in complete() if word.startswith(begun)]
        return _Argument(
            [parameter.name],
            declared.help,
            required=required,
            nargs=-1 if several else 1,
            callback=_listed(several),
            **words,
        )
    name = declared.name or f"--{parameter.name.strip('_').replace('_', '-')}"
    return click.Option(
        [name, parameter.name],
        help=declared.help,
        required=required,
        is_flag=kind is bool,
        multiple=several,
        show_default=not required and parameter.default not in (None, "", False),
        callback=_listed(several),
        **words,
    )


def _kind(annotation: Any) -> tuple[Any, bool]:
    """The type of one value, and whether there may be several of them."""
    (kind,) = [part for part in get_args(annotation) if part is not NoneType] if _optional(annotation) else [annotation]
    return (get_args(kind)[0], True) if get_origin(kind) is list else (kind, False)


def _optional(annotation: Any) -> bool:
    return NoneType in get_args(annotation)


def _type(kind: Any, declared: Argument | Option) -> Any:
    if kind is Path:
        return click.Path(path_type=Path)
    least = declared.least if isinstance(declared, Option) else None
    if least is not None:
        return click.FloatRange(min=least) if kind is float else click.IntRange(min=int(least))
    return kind


def _listed(several: bool) -> Callable[[click.Context, click.Parameter, Any], Any] | None:
    """Click gives tuples where there may be several values; our functions take lists."""
    return (lambda _, __, values: list(values or ())) if several else None
