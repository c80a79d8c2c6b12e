"""What a caller most likely meant who passed something else than updates, and the line to write instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from numbers import Real
from pathlib import PurePath
from typing import Any

__all__ = ["mistake"]

ALL = {  # the class of the argument, by its name and package -> what to pass
    "Module": "a list with the state_dict() of every client's model",
    "DataFrame": "updates.to_numpy(), with one row per client",
    "Series": "a list with one array per client",
    "Iterator": "list(updates)",
    "Mapping": "list(updates.values())",
}
EACH = {  # the same for the class of every client's update
    "Module": "[model.state_dict() for model in updates]",
    "DataFrame": "[frame.to_numpy() for frame in updates]",
    "Series": "[series.to_numpy() for series in updates]",
    "Iterator": "[list(update) for update in updates]",
    "Future": "[future.result() for future in updates]",
    "Delayed": "list(dask.compute(*updates))",
    "ObjectRef": "ray.get(updates)",
    "Real": "numpy.reshape(updates, (-1, 1)), if every client sent one number",
    "numbers": "numpy.array(updates)",
    "pair": "the updates alone, and the second parts as samples=",
    ".pt": "[torch.load(path, weights_only=True) for path in updates]",
}


def mistake(updates: Any) -> TypeError | None:
    """The error for updates of which none can be read; None where nothing is known that the caller may have meant.

    >>> mistake(update for update in [])
    TypeError('updates are a generator. Pass list(updates).')
    """
    if not isinstance(updates, list | tuple):
        remedy = ALL.get(_sort(updates), "an array or a list with one update per client")
        return TypeError(f"updates are a {type(updates).__name__}. Pass {remedy}.")
    remedies = {EACH.get(_sort(update), "") for update in updates}
    told = remedies.pop() if len(remedies) == 1 else ""
    return TypeError(f"updates are {type(updates[0]).__name__} objects. Pass {told}.") if told else None


def _sort(thing: Any) -> str:
    """What a thing is, among those that have a remedy; "" for others."""
    names = {base.__name__ for base in type(thing).__mro__ if base.__module__.partition(".")[0] in FOREIGN}
    known = next((name for name in (*ALL, *EACH) if name in names), "")
    if known:
        return known
    if isinstance(thing, str | PurePath):
        return ".pt" if PurePath(thing).suffix in (".pt", ".pth", ".bin") else ""
    for kind in (Real, Iterator, Mapping):
        if isinstance(thing, kind):
            return kind.__name__
    if isinstance(thing, list | tuple) and thing:
        if all(isinstance(part, Real) for part in thing):
            return "numbers"
        return "pair" if len(thing) == 2 and isinstance(thing[1], Real) else ""
    return ""


FOREIGN = ("torch", "pandas", "dask", "distributed", "concurrent", "asyncio", "ray")
