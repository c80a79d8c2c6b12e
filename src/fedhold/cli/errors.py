"""How a command fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import click

from fedhold.errors import visible

LONGEST = 4000  # characters of a message that are shown


@contextmanager
def usage_errors(*more: type[Exception]) -> Iterator[None]:
    """Show an error that a call can cause in one line, without a traceback.

    A ValueError, a TypeError and errors of the classes in `more` are mistakes in the call, exit code 2. What the disk refuses,
    and experiments that fail on the way, have exit code 1.
    """
    classes: tuple[type[Exception], ...] = (ValueError, TypeError, *more)
    try:
        yield
    except classes as problem:
        raise click.BadParameter(str(problem)) from None
    except (BrokenPipeError, click.exceptions.Exit):  # Nobody reads on, which click ends quietly; or all has been said.
        raise
    except OSError as problem:
        raise failure(f"{told(problem)}. Check the path, its rights and the space left, and call again") from None
    except RuntimeError as problem:
        raise failure(str(problem).removesuffix(".")) from None


def failure(message: str) -> click.exceptions.Exit:
    """Print why a command that was called rightly has failed; the exception that then ends it, with exit code 1."""
    for line in f"Error: {message}.".splitlines():  # Only an error that nobody expected has several lines: a traceback.
        click.echo(visible(line, LONGEST), err=True)
    return click.exceptions.Exit(1)


def told(problem: OSError) -> str:
    """What the operating system refuses, and where."""
    return ": ".join(str(part) for part in (problem.strerror or problem, problem.filename) if part is not None)


@contextmanager
def shown_safely() -> Iterator[None]:
    """Escape what a terminal could act on in the messages of click, which quote arguments such as names of files."""
    try:
        yield
    except click.ClickException as problem:
        problem.message = visible(problem.message, LONGEST)  # type: ignore[misc]
        raise
