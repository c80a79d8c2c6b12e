"""The state of a Flower run after a round, and the checkpoint that holds it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedhold.flower.api import MetricRecord, Result
from fedhold.flower.model import Arrays, Model
from fedhold.flower.quarantine import QuarantineState
from fedhold.spec import Stage
from fedhold.storage import DamagedCheckpointError, read_checkpoint, write_checkpoint

FILE = "checkpoint.npz"
KIND = "Flower run"

History = dict[str, dict[int, dict[str, Any]]]
"""phase ("train", "evaluate", "server") -> round -> metrics."""


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
    """

    model: Model
    seed: int
    run: str = field(default_factory=lambda: uuid.uuid4().hex)
    round: int = 0
    last: Arrays | None = None
    quarantine: QuarantineState = field(default_factory=QuarantineState)
    history: History = field(default_factory=lambda: {"train": {}, "evaluate": {}, "server": {}})

    def last_metrics(self) -> dict[str, dict[str, Any]]:
        """The metrics of the last round, by phase."""
        return {phase: rounds[self.round] for phase, rounds in self.history.items() if self.round in rounds}

    def result(self) -> Result:
        """The result as Flower returns it. Unlike Flower's, it has the model also where no round changed it."""
        train, evaluate, server = (
            {t: MetricRecord(dict(metrics)) for t, metrics in self.history[phase].items()}
            for phase in ("train", "evaluate", "server")
        )
        return Result(self.model.record(), train, evaluate, server)


def former_name(stages: Sequence[Stage]) -> str:
    """The rule as checkpoints had it before functions of `fedhold.thresholds` told their parameters."""
    return " | ".join(f"{stage.name}({given})" if (given := _former(stage)) else stage.name for stage in stages)


def _former(stage: Stage) -> str:
    return ", ".join(
        f"{name}={getattr(value, '__qualname__', '').partition('.')[0].partition('(')[0] if callable(value) else repr(value)}"
        for name, value in stage.parameters.items()
    )


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
        "ward": state.quarantine.to_json(),  # the key that files have had from the beginning
        "history": {phase: list(rounds.items()) for phase, rounds in state.history.items()},
    }
    # The keys of a model may be any text, also those that a checkpoint uses itself, so the arrays are numbered.
    arrays = {f"model{i}": array for i, array in enumerate(state.model.arrays.values())}
    arrays |= {f"last{i}": array for i, array in enumerate((state.last or {}).values())}
    write_checkpoint(folder / FILE, KIND, arrays, json.dumps(notes))


def load(folder: Path, facts: Mapping[str, Any], former: Mapping[str, Any], seed: int | None) -> State | None:
    """The state that was saved last in the folder; None where there is none.

    A file that is damaged, or of a run with other facts, is a ValueError.

    folder  where the checkpoint is
    facts   as for save()
    former  the same facts as far as earlier versions wrote them in another way
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
            quarantine=QuarantineState.from_json(notes["ward"]),
            history={phase: dict(map(tuple, rounds)) for phase, rounds in notes["history"].items()},
        )
        changed = [
            f"{name} {met!r}, now {facts[name]!r}"
            for name, met in notes["facts"].items()
            if met not in (facts[name], former.get(name, facts[name]))
        ]
        changed += ["another seed"] * (seed not in (None, state.seed))  # which stays a secret
    except (KeyError, TypeError, ValueError, AttributeError) as problem:
        raise DamagedCheckpointError(path, problem) from None
    if changed:
        raise ValueError(
            f"checkpoint {path} is of another run: it had {'; '.join(changed)}. Name another folder, or delete it."
        )
    return state
