"""How a command fails."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer


@contextmanager
def usage_errors(*more: type[Exception]) -> Iterator[None]:
    """Show a ValueError, and errors of the classes in `more`, as a mistake in the call: without a traceback, exit code 2."""
    classes: tuple[type[Exception], ...] = (ValueError, *more)
    try:
        yield
    except classes as problem:
        raise typer.BadParameter(str(problem)) from None
