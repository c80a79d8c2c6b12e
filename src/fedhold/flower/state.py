"""The state of a Flower run after a round, and the checkpoint that holds it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flwr.app import MetricRecord
from flwr.serverapp.strategy import Result
from numpy.typing import NDArray

from fedhold.audit import RoundRecord, Standing, Tally, standings
from fedhold.flower.around import from_json, to_json
from fedhold.flower.model import Model
from fedhold.flower.quarantine import QuarantineState
from fedhold.storage import DamagedCheckpointError, read_checkpoint, write_checkpoint
from fedhold.transport import Arrays

FILE = "checkpoint.npz"
KIND = "Flower run"
MOST_ROWS = 1_000_000  # rows of nodes that a run keeps in memory, some hundred bytes each

History = dict[str, dict[int, dict[str, Any]]]
"""phase ("train", "evaluate", "server") -> round -> metrics."""


@dataclass(repr=False)
class RobustResult(Result):
    """Flower's result, and what was done to every node.

    records  the rounds, as the audit has them; without an audit they have no certificates
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
    quarantine  which nodes are in quarantine
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
    quarantine: QuarantineState = field(default_factory=QuarantineState)
    history: History = field(default_factory=lambda: {"train": {}, "evaluate": {}, "server": {}})
    inner: dict[str, Any] | None = None
    names: dict[int, str] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    records: list[RoundRecord] = field(default_factory=list)

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
    notes = {
        "facts": {**facts, "seed": state.seed},
        "run": state.run,
        "round": state.round,
        "keys": list(state.model.arrays),
        "last": None if state.last is None else list(state.last),
        "quarantine": state.quarantine.to_json(),
        "history": {phase: list(rounds.items()) for phase, rounds in state.history.items()},
        "names": list(state.names.items()),
        "tally": list(state.tally.counts.items()),
    }
    # The keys of a model may be any text, also those that a checkpoint uses itself, so the arrays are numbered.
    arrays = {f"model{i}": array for i, array in enumerate(state.model.arrays.values())}
    arrays |= {f"last{i}": array for i, array in enumerate((state.last or {}).values())}
    remembered: list[NDArray[Any]] = []
    notes["inner"] = None if state.inner is None else to_json(state.inner, remembered)
    arrays |= {f"inner{i}": array for i, array in enumerate(remembered)}
    write_checkpoint(folder / FILE, KIND, arrays, json.dumps(notes))


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
    notes, arrays = saved.notes, saved.arrays
    try:
        state = State(
            model=Model({key: arrays[f"model{i}"] for i, key in enumerate(notes["keys"])}),
            seed=notes["facts"].pop("seed"),
            run=notes["run"],
            round=notes["round"],
            last=None if notes["last"] is None else {key: arrays[f"last{i}"] for i, key in enumerate(notes["last"])},
            quarantine=QuarantineState.from_json(notes["quarantine"]),
            history={phase: dict(map(tuple, rounds)) for phase, rounds in notes["history"].items()},
            inner=_inner(notes["inner"], arrays),
            names=dict(map(tuple, notes["names"])),
            tally=Tally({node: tuple(counts) for node, counts in notes["tally"]}),
        )
        saved_facts = notes["facts"]
        changed = [
            f"{name} {saved_facts[name]!r}, now {now!r}" for name, now in facts.items() if saved_facts[name] != now
        ]
        changed += ["another seed"] * (seed not in (None, state.seed))  # which stays a secret
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise DamagedCheckpointError(path, problem) from None
    if changed:
        raise ValueError(
            f"checkpoint {path} is of another run: it had {'; '.join(changed)}. Name another folder, or delete it."
        )
    return state


def _inner(saved: Mapping[str, Any] | None, arrays: Mapping[str, NDArray[Any]]) -> dict[str, Any] | None:
    """What the strategy inside remembers, from the notes and the arrays of a checkpoint."""
    if saved is None:
        return None
    remembered = [arrays[f"inner{i}"] for i in range(sum(name.startswith("inner") for name in arrays))]
    return dict(from_json(saved, remembered))
