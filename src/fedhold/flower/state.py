"""The state of a Flower run after a round, and the file that holds it."""

from __future__ import annotations

import io
import json
import uuid
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedhold.flower.api import MetricRecord, Result
from fedhold.flower.model import Arrays, Model
from fedhold.flower.quarantine import Ward
from fedhold.storage import write_whole

__all__ = ["History", "State", "load", "save"]

FORMAT = 1
FILE = "checkpoint.npz"

History = dict[str, dict[int, dict[str, Any]]]
"""phase ("train", "evaluate", "server") -> round -> metrics."""


@dataclass
class State:
    """All that the next round depends on, and what the result will tell of the rounds before.

    run       the same also after a resume; it ties the lines of an audit together
    round     the last round that was closed; 0 before the first
    last      the last aggregate, for rules that start from it
    history   the metrics of every round
    """

    model: Model
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    round: int = 0
    last: Arrays | None = None
    ward: Ward = field(default_factory=Ward)
    history: History = field(default_factory=lambda: {"train": {}, "evaluate": {}, "server": {}})

    def told(self) -> dict[str, dict[str, Any]]:
        """The metrics of the last round, by phase."""
        return {phase: rounds[self.round] for phase, rounds in self.history.items() if self.round in rounds}

    def result(self) -> Result:
        """As Flower returns it; unlike Flower's, it has the model also where no round changed it."""
        train, evaluate, server = (
            {t: MetricRecord(dict(metrics)) for t, metrics in self.history[phase].items()}
            for phase in ("train", "evaluate", "server")
        )
        return Result(self.model.record(), train, evaluate, server)


def save(folder: Path, state: State, facts: Mapping[str, Any]) -> None:
    """Write the state whole or not at all; `facts` are what must be the same when the run is resumed."""
    notes = {
        "format": FORMAT,
        "facts": dict(facts),
        "run": state.run,
        "round": state.round,
        "keys": list(state.model.arrays),
        "last": None if state.last is None else list(state.last),
        "ward": state.ward.to_json(),
        "history": {phase: list(rounds.items()) for phase, rounds in state.history.items()},
    }
    arrays = {f"model{i}": array for i, array in enumerate(state.model.arrays.values())}
    arrays |= {f"last{i}": array for i, array in enumerate((state.last or {}).values())}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, notes=np.frombuffer(json.dumps(notes).encode(), np.uint8), **arrays)
    write_whole(folder / FILE, file.getvalue())


def load(folder: Path, facts: Mapping[str, Any]) -> State | None:
    """The state saved last; None where there is none. A file that is damaged, or of another run, is a ValueError."""
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as file:
            saved = {name: file[name] for name in file.files}
        notes = json.loads(saved["notes"].tobytes())
        state = State(
            model=Model({key: saved[f"model{i}"] for i, key in enumerate(notes["keys"])}),
            run=notes["run"],
            round=notes["round"],
            last=None if notes["last"] is None else {key: saved[f"last{i}"] for i, key in enumerate(notes["last"])},
            ward=Ward.from_json(notes["ward"]),
            history={phase: dict(map(tuple, rounds)) for phase, rounds in notes["history"].items()},
        )
    except (zipfile.BadZipFile, EOFError, OSError, ValueError, KeyError, TypeError, AttributeError) as problem:
        raise ValueError(
            f"checkpoint {path} is damaged ({type(problem).__name__}: {problem}). Put back a copy of it, or delete it and "
            "start over."
        ) from None
    if notes["format"] != FORMAT:
        raise ValueError(
            f"checkpoint {path} has format {notes['format']}, this version reads {FORMAT}. Update fedhold."
        )
    changed = [f"{name} {met!r}, now {facts[name]!r}" for name, met in notes["facts"].items() if met != facts[name]]
    if changed:
        raise ValueError(
            f"checkpoint {path} is of another run: it had {'; '.join(changed)}. Name another folder, or delete it."
        )
    return state
