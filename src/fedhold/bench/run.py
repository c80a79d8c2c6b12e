"""fedhold bench: our rules, beside those of the other libraries where asked for; tables, JSON, chart, document."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

import fedhold.bench.environment as environment
from fedhold.bench.docs import draw, write
from fedhold.bench.machine import busy, describe, load
from fedhold.bench.measure import OWN, measure_shape
from fedhold.bench.peers import PEERS, Peer
from fedhold.bench.round import one_round
from fedhold.bench.scaling import scaling
from fedhold.bench.show import print_machine, print_results
from fedhold.errors import integer, positive, unknown

__all__ = ["SHAPES", "Outputs", "Plan", "bench", "measure_all", "tell"]

SHAPES = ("500x25450", "100x1000000", "20x4000000", "2000x100000")
FEWEST = 5  # clients: below, a fifth of them is nobody


@dataclass(frozen=True)
class Plan:
    """What to measure."""

    shapes: Sequence[tuple[int, int]]
    rules: Sequence[str]
    repeat: int
    budget: float
    peers: Sequence[Peer] = ()
    scaling: bool = False
    round: bool = False
    seed: int = 0

    @classmethod
    def of(cls, shapes: Sequence[str], rules: str, repeat: int, budget: float, **more: Any) -> Plan:
        """From the words of the command line; no rules are all of them."""
        chosen = [word.strip() for word in rules.split(",") if word.strip()] or list(OWN)
        for rule in chosen:
            if rule not in OWN:
                raise ValueError(unknown("rule", rule, OWN))
        return cls(
            [_shape(text) for text in shapes or SHAPES],
            chosen,
            integer(repeat, "repeat", at_least=1),
            positive(budget, "seconds"),
            **more,
        )


@dataclass(frozen=True)
class Outputs:
    """Where results go, beside the screen; None: nowhere."""

    json: Path | None = None
    chart: Path | None = None
    docs: Path | None = None


def bench(plan: Plan, outputs: Outputs, console: Console, *, peers: bool = False, earlier: Path | None = None) -> int:
    """Measure, or read what was measured earlier; tell it, and keep it. The exit code of the command."""
    place = environment.folder()
    if earlier is not None:
        tell(_read(earlier), outputs, console)
    elif peers and not environment.inside(place):
        environment.prepare(place, console)
        return environment.run_inside(place, sys.argv[1:])
    else:
        whole = replace(plan, peers=PEERS) if peers else plan
        tell(measure_all(whole, console, partial(_keep, outputs.json)), outputs, console)
    return 0


def measure_all(plan: Plan, console: Console, keep: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """Everything the plan asks for, as it goes into the JSON; kept after each part, for a run may take an hour."""
    results: dict[str, Any] = {
        "settings": {
            **{"repeat": plan.repeat, "budget": plan.budget, "seed": plan.seed},
            **{"dtype": "float32", "load before": load()},
        },
        "left out": environment.left_out(environment.folder()) if plan.peers else {},
        "shapes": [],
    }
    common: dict[str, Any] = {"repeat": plan.repeat, "seed": plan.seed}

    def kept() -> None:
        keep(results | {"environment": describe()})  # anew: by now torch is loaded, where it is

    for m, d in plan.shapes:
        calls = plan.repeat * (1 + len(plan.rules) + sum(peer.rule in plan.rules for peer in plan.peers))
        with _watched(console, f"{m} x {d:,}", calls) as watch:
            measured = measure_shape(m, d, plan.rules, plan.peers, budget=plan.budget, watch=watch, **common)
        results["shapes"].append(measured)
        kept()
    if plan.scaling:
        with _watched(console, "growth") as watch:
            results["scaling"] = scaling(budget=plan.budget, watch=watch, **common)
        kept()
    if plan.round:
        with _watched(console, "one round") as watch:
            results["round"] = one_round(peers=bool(plan.peers), watch=watch, **common)
        kept()
    return results | {"environment": describe()}


def tell(results: dict[str, Any], outputs: Outputs, console: Console) -> None:
    """On the screen, and wherever else it shall go."""
    print_machine(console, results["environment"])
    print_results(console, results)
    if warning := busy(results["settings"]["load before"]):
        console.print(f"[yellow]{warning}[/yellow]")
    for name, reason in results["left out"].items():
        console.print(f"{name} was left out: {reason}", markup=False)
    _keep(outputs.json, results)
    if outputs.chart is not None:
        outputs.chart.parent.mkdir(parents=True, exist_ok=True)
        draw(results, outputs.chart)
    if outputs.docs is not None:
        write(results, outputs.docs)
    for kind, path in vars(outputs).items():
        if path is not None:
            console.print(f"{kind}: {path}", markup=False)


def _keep(path: Path | None, results: dict[str, Any]) -> None:
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _read(path: Path) -> dict[str, Any]:
    try:
        results: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        if not {"settings", "environment", "shapes", "left out"} <= set(results):
            raise ValueError("something is missing in it")
    except (OSError, ValueError) as problem:
        raise ValueError(
            f"{path} is no result of a benchmark: {problem}. Write one with fedhold bench --json."
        ) from None
    return results


def _shape(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", text)
    if found is None or int(found[1]) < FEWEST or int(found[2]) < 1:
        raise ValueError(
            f"a shape is clients x numbers, with at least {FEWEST} clients, got {text!r}. Try --shape 500x25450."
        )
    return int(found[1]), int(found[2])


@contextmanager
def _watched(console: Console, what: str, calls: int | None = None) -> Iterator[Callable[[str], None]]:
    """A live line that says what runs now."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task(what, total=calls)

        def watch(now: str) -> None:
            progress.update(task, description=f"{what}: {now}", advance=1)

        yield watch
