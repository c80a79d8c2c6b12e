"""The runs behind the whole grid of docs/choose.md, kept in docs/arena.json, so that others go on from them.

    python benchmarks/arena_grid.py WHOLE --restore     # put them into WHOLE ...
    fedhold arena --out WHOLE                           # ... and run what is missing, over hours
    python benchmarks/arena_grid.py WHOLE --keep        # keep what is there now

Of a run only its end is kept, with all digits, since ranks hang on small differences: the metric, the success of a backdoor, or
why it was refused. A column, which is a setting, an
attack, a fraction of liars and a seed, is kept where every rule has been run.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from fedhold.lab import Arena, Experiment, Result, Setting, Store
from fedhold.lab.leaderboard import BACKDOOR

KEPT = Path(__file__).parents[1] / "docs" / "arena.json"


@dataclass(frozen=True)
class Column:
    """Runs that are compared with each other: one for each rule of the arena."""

    setting: Setting
    attack: str | None
    epsilon: float
    seed: int

    def runs(self, arena: Arena) -> list[Experiment]:
        return [arena.experiment(self.setting, rule, self.attack, self.epsilon, self.seed) for rule in arena.rules]

    @property
    def name(self) -> list[Any]:
        return [self.setting.data, self.setting.partition, self.attack, self.epsilon, self.seed]


def columns(arena: Arena) -> Iterator[Column]:
    """All columns of an arena."""
    for seed, setting in product(arena.seeds, arena.settings):
        yield Column(setting, None, 0.0, seed)
        for attack, epsilon in product(arena.attacks, arena.epsilons):
            if arena.meets(setting, attack):
                yield Column(setting, attack, epsilon, seed)


def keep(arena: Arena, store: Store, path: Path = KEPT) -> None:
    """Write the columns of a store in which every rule has been run, and the models before learning."""
    reasons, lines, stills = list[str](), list[str](), list[str]()
    for seed, setting in product(arena.seeds, arena.settings):
        if (still := store.find(arena.still(setting, seed))) is not None:
            stills.append(json.dumps([setting.data, setting.partition, seed, still.metric, still.end, still.constant]))
    for column in columns(arena):
        found = [store.find(run) for run in column.runs(arena)]
        if all(found):
            ends = [_end(result, reasons) for result in found if result is not None]
            lines.append(json.dumps([*column.name, ends]))
    parts = {"rules": json.dumps(arena.rules), "reasons": json.dumps(reasons)}
    parts |= {"still": _listed(stills), "columns": _listed(lines)}
    path.write_text("{\n" + ",\n".join(f'"{name}": {part}' for name, part in parts.items()) + "\n}\n", encoding="utf-8")
    print(f"{len(lines)} columns of {sum(1 for _ in columns(arena))} are kept in {path}.")


def _listed(lines: list[str]) -> str:
    return "[\n" + ",\n".join(lines) + "\n]"


def _end(result: Result, reasons: list[str]) -> Any:
    """The metric at the end, null where the run diverged; with the success of a backdoor; or the number of a reason."""
    if result.infeasible:
        if result.infeasible not in reasons:
            reasons.append(result.infeasible)
        return {"refused": reasons.index(result.infeasible)}
    planted = result.series.get(BACKDOOR, [None])[-1]
    return result.end if planted is None else [result.end, planted]


def kept(arena: Arena, path: Path = KEPT) -> dict[Experiment, Result]:
    """The runs that are kept of an arena: with their ends alone."""
    record = json.loads(path.read_text(encoding="utf-8"))
    settings = {(setting.data, setting.partition): setting for setting in arena.settings}
    found, metrics = dict[Experiment, Result](), dict[Setting, str]()
    for data, partition, seed, metric, end, constant in record["still"]:
        if (setting := settings.get((data, partition))) is not None:
            metrics[setting] = metric
            run = arena.still(setting, seed)
            found[run] = Result(run, {metric: [end]}, [], None, 0.0, {}, constant=constant)
    for data, partition, attack, epsilon, seed, ends in record["columns"]:
        setting = settings.get((data, partition))
        for rule, end in zip(record["rules"], ends, strict=True):
            if setting is not None and rule in arena.rules:
                run = arena.experiment(setting, rule, attack, epsilon, seed)
                found[run] = _result(run, metrics[setting], end, record["reasons"])
    return found


def _result(run: Experiment, metric: str, end: Any, reasons: list[str]) -> Result:
    if isinstance(end, dict):
        return Result(run, {}, [], None, 0.0, {}, infeasible=reasons[end["refused"]])
    ends = {metric: end} if not isinstance(end, list) else {metric: end[0], BACKDOOR: end[1]}
    series = {name: [None] * (run.rounds - 1) + [value] for name, value in ends.items()}
    return Result(run, series, [], None, 0.0, {})


def restore(arena: Arena, store: Store, path: Path = KEPT) -> None:
    """Put the kept runs into a store that lacks them."""
    runs = kept(arena, path)
    missing = [result for run, result in runs.items() if not store.has(run)]
    for result in missing:
        store.put(result)
    print(f"{len(missing)} of {len(runs)} runs put into {store.root}; the others were there.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("whole", type=Path, help="the --out of fedhold arena, without --quick")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--keep", action="store_true", help="write docs/arena.json from the runs in WHOLE")
    what.add_argument("--restore", action="store_true", help="put the runs of docs/arena.json into WHOLE")
    given = parser.parse_args()
    act = keep if given.keep else restore
    act(Arena.registered(), Store(given.whole / "results"))


if __name__ == "__main__":
    main()
