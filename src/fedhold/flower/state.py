"""The state of a Flower run after a round, and the checkpoint that holds it."""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedhold.audit import RoundRecord, Standing, Tally, standings
from fedhold.flower.model import Model
from fedhold.flower.quarantine import QuarantineState
from fedhold.storage import DamagedCheckpointError, read_checkpoint, write_checkpoint
from fedhold.transport import Arrays

log = logging.getLogger("flwr")  # our lines appear among Flower's own

FILE = "checkpoint.npz"
KIND = "Flower run"
PLAIN = (
    "run",
    "round",
    "last",
    "scale",
    "history",
    "inner",
    "names",
    "steps",
    "leapt",
)  # parts of the state that a checkpoint holds as they are
MOST_ROWS = 1_000_000  # rows of nodes that a run keeps in memory, some hundred bytes each

History = dict[str, dict[int, dict[str, Any]]]
"""phase ("train", "evaluate", "server") -> round -> metrics."""


@dataclass(repr=False)
class RobustResult(Result):
    """Flower's result, and what was done to every node.

    records  the rounds, as the audit has them; without an audit they have no certificates and no hashes
    """

    records: tuple[RoundRecord, ...] = ()

    @property
    def suspects(self) -> list[Standing]:
        """The nodes to suspect, the most suspicious first."""
        return [one for one in standings(self.records) if one.is_suspect]


@dataclass
class State:
    """All that the next round depends on, and the metrics of the rounds so far.

    model       the global model
    seed        of all random numbers of the run. Nodes must not know it, since they could then tell what will be drawn
    run         the id of the run, kept when it is resumed; it ties the lines of an audit together
    round       the last round that was finished; 0 before the first
    last        the last aggregate, for rules that start from it
    scale       the scale of earlier rounds, for rules that remember one
    quarantine  which nodes are in quarantine
    steps       how far the last rounds moved the model
    leapt       whether the last round is held back because it would have moved the model far beyond that
    history     the metrics of every round
    inner       what the strategy inside remembers; None where there is none
    names       what nodes call themselves
    tally       how often each node was held down
    records     the rounds so far, as the audit has them, the last MOST_ROWS rows of them. They are in no checkpoint: after a
                resumption those of earlier rounds come from the audit, if there is one
    """

    model: Model
    seed: int
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    round: int = 0
    last: Arrays | None = None
    scale: float | None = None
    quarantine: QuarantineState = field(default_factory=QuarantineState)
    steps: list[float] = field(default_factory=list)
    leapt: bool = False
    history: History = field(default_factory=lambda: {"train": {}, "evaluate": {}, "server": {}})
    inner: dict[str, Any] | None = None
    names: dict[int, str] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    records: list[RoundRecord] = field(default_factory=list)

    def add_metrics(self, phase: str, metrics: MetricRecord | None) -> None:
        """Log the metrics of the last round, and add them to the history."""
        if metrics is not None:
            log.info("\t└──> %s: %s", phase, metrics)
            self.history[phase][self.round] = dict(metrics)

    def last_metrics(self) -> dict[str, dict[str, Any]]:
        """The metrics of the last round, by phase."""
        return {phase: rounds[self.round] for phase, rounds in self.history.items() if self.round in rounds}

    def remember(self, record: RoundRecord) -> None:
        """Add a round to the records; the oldest go where there are too many rows to keep in memory."""
        self.records.append(record)
        while len(self.records) > 1 and sum(len(one.nodes) for one in self.records) > MOST_ROWS:
            del self.records[0]

    def result(self) -> RobustResult:
        """The result as Flower returns it. Unlike Flower's, it has the model also where no round changed it."""
        train, evaluate, server = (
            {t: MetricRecord(dict(metrics)) for t, metrics in self.history[phase].items()}
            for phase in ("train", "evaluate", "server")
        )
        return RobustResult(self.model.record(), train, evaluate, server, tuple(self.records))


def save(folder: Path, state: State, facts: Mapping[str, Any]) -> None:
    """Write the checkpoint, whole or not at all.

    folder  where it goes
    state   what to save
    facts   what must be the same when the run is resumed, by name
    """
    parts = {name: getattr(state, name) for name in PLAIN}
    parts |= {"model": state.model.arrays, "quarantine": vars(state.quarantine), "tally": state.tally.counts}
    arrays: list[NDArray[Any]] = []
    notes = {"facts": {**facts, "seed": state.seed}} | {name: to_json(part, arrays) for name, part in parts.items()}
    write_checkpoint(folder / FILE, KIND, {str(i): array for i, array in enumerate(arrays)}, json.dumps(notes))


def load(folder: Path, facts: Mapping[str, Any], seed: int | None) -> State | None:
    """The state that was saved last in the folder; None where there is none.

    A file that is damaged, or of a run with other facts, is a ValueError.

    folder  where the checkpoint is
    facts   as for save()
    seed    the seed that the run must have; None for whichever it has
    """
    path = folder / FILE
    try:
        saved = read_checkpoint(path, KIND)
    except FileNotFoundError:
        return None
    try:
        arrays, saved_facts = list(saved.arrays.values()), saved.notes["facts"]
        parts = {name: from_json(saved.notes[name], arrays) for name in (*PLAIN, "model", "quarantine", "tally")}
        state = State(
            model=Model(parts.pop("model")),
            seed=saved_facts["seed"],
            quarantine=QuarantineState(**parts.pop("quarantine")),
            tally=Tally(parts.pop("tally")),
            **parts,
        )
        changed = [
            f"{name} {saved_facts[name]!r}, now {now!r}" for name, now in facts.items() if saved_facts[name] != now
        ]
        changed += ["another seed"] * (seed not in (None, state.seed))  # which stays a secret
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as problem:
        raise DamagedCheckpointError(path, problem) from None
    if changed:
        raise ValueError(
            f"checkpoint {path} is of another run: it had {'; '.join(changed)}. Name another folder, or delete it."
        )
    return state


def storable(value: Any) -> bool:
    """Whether a checkpoint can hold the value: a number, a text or an array, or lists and dicts of them."""
    if isinstance(value, np.ndarray | np.generic):
        return not value.dtype.hasobject
    if isinstance(value, dict):
        return all(isinstance(key, str | int) and storable(part) for key, part in value.items())
    if isinstance(value, list | tuple):
        return all(map(storable, value))
    return value is None or isinstance(value, bool | int | float | str | ArrayRecord)


def to_json(value: Any, arrays: list[NDArray[Any]]) -> Any:
    """A storable value as JSON; its arrays are added to `arrays`, and stand in the JSON as their positions there."""
    if isinstance(value, np.ndarray | np.generic):
        arrays.append(np.asarray(value))
        return {"array" if isinstance(value, np.ndarray) else "number": len(arrays) - 1}
    if isinstance(value, ArrayRecord):
        return {"record": [[key, to_json(array.numpy(), arrays)] for key, array in value.items()]}
    if isinstance(value, dict):
        return {"dict": [[key, to_json(part, arrays)] for key, part in value.items()]}
    if isinstance(value, list | tuple):
        parts = [to_json(part, arrays) for part in value]
        return parts if isinstance(value, list) else {"tuple": parts}
    return value


def from_json(saved: Any, arrays: Sequence[NDArray[Any]]) -> Any:
    """The value that to_json() made this of."""
    if isinstance(saved, list):
        return [from_json(part, arrays) for part in saved]
    if not isinstance(saved, dict):
        return saved
    ((kind, part),) = saved.items()
    if kind in ("array", "number"):
        return arrays[part] if kind == "array" else arrays[part][()]
    if kind == "tuple":
        return tuple(from_json(value, arrays) for value in part)
    pairs = {key: from_json(value, arrays) for key, value in part}
    return pairs if kind == "dict" else ArrayRecord({key: Array(array) for key, array in pairs.items()})
