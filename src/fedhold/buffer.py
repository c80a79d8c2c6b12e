"""Buffered asynchronous rounds: replies come one at a time, and every so many distinct clients make the next model.

A reply is an update: what its client added to the model of the round that it began from. Whoever trains for long holds nobody
up; its update counts for less the more rounds have passed since (Nguyen et al. 2022, "Federated Learning with Buffered
Asynchronous Aggregation", whose plain sum of the buffer becomes a robust rule here).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedhold.aggregation import aggregate
from fedhold.errors import integer, require, visible
from fedhold.kernels import host
from fedhold.result import Aggregation
from fedhold.spec import DEFAULT, parse
from fedhold.storage import read_checkpoint, write_checkpoint

__all__ = ["Buffer", "Received"]

KIND = "buffer of replies"
LONGEST_NAME = 200  # characters of a client's name


@dataclass(frozen=True)
class Received:
    """What became of a reply.

    reason      why it was refused; '' where it waits in the buffer, or was aggregated
    result      the aggregation, where this reply filled the buffer; its value has been added to the model
    clients     the clients of the result, in the order of its rows
    staleness   how many rounds the model was ahead of each of them
    """

    reason: str = ""
    result: Aggregation | None = None
    clients: tuple[str, ...] = ()
    staleness: tuple[int, ...] = ()


class Buffer:
    """Collect updates of one model, and aggregate them robustly whenever `size` distinct clients have sent one.

    size           how many distinct clients make an aggregate; above twice `byzantine`, and what the rule needs
    rule           a rule of fedhold, as for aggregate(), or a spec such as "krum(f=2)"
    max_staleness  an update that began more rounds ago is refused
    model          the model to start from, a dict of arrays; an update of other names, shapes or dtypes is refused
    byzantine      how many of any `size` clients may lie; a quarter unless given. Fast clients fill more buffers than
                   others, so count the liars among the fast
    sample_cap     as for aggregate()
    path           a file that gets the whole state, model and waiting updates, after every reply, whole or not at all: after
                   a crash the same call goes on from it, and at most the reply that was being taken is lost. None: no file
    rng            as for aggregate(), for rules that draw

    A client's weight is that of its samples times 1 / sqrt(1 + staleness): the rule gets these products as sample counts. A
    claim is capped before, so that no claim makes up for staleness.

    **A second reply of a client that waits is refused.** Were it to replace the first, a client could look at what others do
    and choose its vote last, and one that sends often would keep the server writing. The client may send again after the
    aggregate. So the buffer holds at most `size` updates of the size of the model: no reply makes it larger.

    Names of clients must be those that your transport has authenticated: whoever may choose names can fill a buffer alone.

    >>> import numpy as np
    >>> buffer = Buffer(5, "median", max_staleness=2, model={"w": np.zeros(2)}, byzantine=1)
    >>> for client in "abcd":
    ...     received = buffer.add(client, {"w": np.ones(2)}, began=0, samples=10)
    >>> buffer.add("a", {"w": np.ones(2)}, began=0).reason
    'its update of round 0 waits already; it may send another after the next aggregate'
    >>> buffer.add("liar", {"w": np.full(2, -99.0)}, began=0).staleness
    (0, 0, 0, 0, 0)
    >>> buffer.round, buffer.model
    (1, {'w': array([1., 1.])})
    """

    def __init__(
        self,
        size: int,
        rule: str | Callable[..., Any] = DEFAULT,
        max_staleness: int = 10,
        *,
        model: Mapping[str, Any],
        byzantine: int | None = None,
        sample_cap: float | None = 3.0,
        path: str | os.PathLike[str] | None = None,
        rng: np.random.Generator | int | None = None,
    ) -> None:
        self.size, self.max_staleness = integer(size, "size"), integer(max_staleness, "max_staleness")
        self.byzantine = (self.size - 1) // 4 if byzantine is None else integer(byzantine, "byzantine")
        require(
            self.size > 2 * self.byzantine and self.size >= 3,
            "Buffer",
            needs="size >= 3 and size > 2 byzantine",
            remedy="A liar captures a buffer of fewer: collect more clients.",
            size=self.size,
            byzantine=self.byzantine,
        )
        self.stages, self.sample_cap, self.rng = parse(rule, {}), sample_cap, rng
        rows = self.size
        for stage in self.stages:  # what the rule needs is an error now, before a reply is lost on it
            rows = stage.check(rows)
        self.model = {name: np.array(_array(array)) for name, array in model.items()}
        self.path = None if path is None else Path(path)
        self.round = 0
        self._waiting: dict[str, tuple[dict[str, Any], int, float]] = {}
        if self.path is not None:
            with suppress(FileNotFoundError):
                self._load(self.path)

    @property
    def waiting(self) -> tuple[str, ...]:
        """The clients whose updates wait, in the order in which they came."""
        return tuple(self._waiting)

    def add(self, client: str, update: Mapping[str, Any], began: int, samples: float = 1.0) -> Received:
        """Take one reply; the one that fills the buffer gets the aggregate.

        client    its authenticated name
        update    what it added to the model it was sent, a dict of arrays
        began     the `round` of the buffer when that model was sent; a claim, unless the server has noted it itself
        samples   how many samples it claims

        A reply that cannot be used is refused with a reason, and changes nothing.
        """
        reason, arrays = self._refused(client, update, began, samples), {}
        if not reason:
            arrays = {
                name: np.array(_array(array)) for name, array in update.items()
            }  # copies: the caller's may change
            finite = all(np.isfinite(array).all() for array in arrays.values() if array.dtype.kind == "f")
            reason = "" if finite else "numbers that are not finite"
        if reason:
            return Received(reason)
        self._waiting[client] = arrays, int(began), float(samples)
        received = self._aggregated() if len(self._waiting) == self.size else Received()
        if self.path is not None:
            self._save(self.path)
        return received

    def _refused(self, client: object, update: object, began: object, samples: object) -> str:
        """Why a reply cannot be used; '' where it can, unless a number of it is not finite."""
        if not isinstance(client, str) or len(client) > LONGEST_NAME:
            return f"a client's name is a text of at most {LONGEST_NAME} characters"
        if client in self._waiting:
            return f"its update of round {self._waiting[client][1]} waits already; it may send another after the next aggregate"
        if isinstance(began, bool) or not isinstance(began, int | np.integer) or not 0 <= began <= self.round:
            return f"it began from round {visible(began, 20)}, of which there is no model: the last is {self.round}"
        if self.round - began > self.max_staleness:
            return f"it began from round {began}, {self.round - began} rounds ago; {self.max_staleness} are the most"
        if (
            isinstance(samples, bool)
            or not isinstance(samples, int | float | np.integer | np.floating)
            or not 0 < samples <= sys.float_info.max
        ):
            return f"samples {visible(samples, 20)} is no positive number"
        if not isinstance(update, Mapping) or set(update) != set(self.model):
            return "it has not the arrays of the model"
        for name, expected in self.model.items():
            try:
                array = _array(update[name])
            except Exception:  # The object is a client's.
                return f"{visible(name, 80)} is no array"
            if array.shape != expected.shape or array.dtype != expected.dtype:
                met, wanted = f"{array.dtype} {array.shape}", f"{expected.dtype} {expected.shape}"
                return f"{visible(name, 80)} is {visible(met, 80)}, expected {wanted}"
        return ""

    def _aggregated(self) -> Received:
        """The aggregate of all that wait, which the buffer then forgets."""
        waiting, self._waiting = self._waiting, {}
        staleness = tuple(self.round - began for _, began, _ in waiting.values())
        samples = np.array([claim for *_, claim in waiting.values()])
        if self.sample_cap is not None:
            samples = np.minimum(samples, self.sample_cap * np.median(samples))
        weights = samples / np.sqrt(1 + np.array(staleness))
        sent = [arrays for arrays, *_ in waiting.values()]
        try:
            result = aggregate(sent, self.stages, samples=weights, sample_cap=None, rng=self.rng, like=self.model)
        except ValueError as problem:  # numbers so large that nobody is left
            return Received(f"the buffer of {len(sent)} updates was thrown away: {problem}")
        self.round += 1
        with np.errstate(over="ignore", invalid="ignore"):
            moved = {name: np.asarray(array + result.value[name], array.dtype) for name, array in self.model.items()}
        if not all(np.isfinite(array).all() for array in moved.values()):
            return Received("the aggregate is not finite, and the model stays as it was")
        self.model = moved
        return Received("", result, tuple(waiting), staleness)

    # The file.

    def _facts(self) -> dict[str, Any]:
        rule = " | ".join(map(str, self.stages))
        return {"rule": rule, "size": self.size, "model": [f"{k} {v.dtype} {v.shape}" for k, v in self.model.items()]}

    def _save(self, path: Path) -> None:
        held = {"model": self.model} | {str(i): own for i, (own, *_) in enumerate(self._waiting.values())}
        arrays = {f"{key} {name}": array for key, own in held.items() for name, array in own.items()}
        rows = [[client, began, samples] for client, (_, began, samples) in self._waiting.items()]
        write_checkpoint(path, KIND, arrays, json.dumps({"facts": self._facts(), "round": self.round, "waiting": rows}))

    def _load(self, path: Path) -> None:
        saved = read_checkpoint(path, KIND)
        if saved.notes["facts"] != self._facts():
            raise ValueError(f"{path} holds a buffer of another size, rule or model. Name another file, or delete it.")
        self.round, self.model = int(saved.notes["round"]), {name: saved.arrays[f"model {name}"] for name in self.model}
        for i, (client, began, samples) in enumerate(saved.notes["waiting"]):
            self._waiting[client] = {name: saved.arrays[f"{i} {name}"] for name in self.model}, began, samples


def _array(array: Any) -> np.ndarray[Any, Any]:
    """An array of any library as one of NumPy."""
    found = host(array)
    if not isinstance(found, np.ndarray) or found.dtype.kind not in "fiu":
        raise TypeError(f"{type(array).__name__} is no array of numbers in the server's memory")
    return found
