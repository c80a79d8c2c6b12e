"""What a benchmark measures, and its results as they go into a JSON file."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NotRequired, TypedDict

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from bench.inputs import FirstCall, InputTimes, measure_first_calls, measure_inputs
from bench.machine import Machine, describe, load
from bench.round import FailedRound, RoundPeer, RoundTimes, measure_round
from bench.timing import OWN, Contender, Growth, Shape, measure_growth, measure_shape
from fedhold.errors import integer, positive, unknown
from fedhold.report import ProgressLines
from fedhold.storage import write_whole

SHAPES = ("50x7850", "10x100000", "500x25450", "100x1000000", "20x4000000", "2000x100000")
FEWEST = 5  # clients: a fifth of fewer is nobody


@dataclass(frozen=True)
class Peers:
    """What other libraries are measured beside our own rules; none by default.

    rules     their rules
    round     their implementation of the MNIST round
    packages  distributions whose versions go into the results
    left_out  libraries that could not be installed, and why
    """

    rules: Sequence[Contender] = ()
    round: RoundPeer | None = None
    packages: Sequence[str] = ()
    left_out: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """What to measure.

    shapes   (clients, numbers) of each array
    rules    of ours, keys of OWN
    repeat   calls of each rule
    budget   seconds for the calls of a rule
    inputs   whether to measure what people send, and the first call of a process
    scaling  whether to measure the growth of the cost
    round    whether to measure one round on MNIST
    peers    what to measure beside our own rules
    """

    shapes: Sequence[tuple[int, int]]
    rules: Sequence[str]
    repeat: int
    budget: float
    inputs: bool = False
    scaling: bool = False
    round: bool = False
    peers: Peers = field(default_factory=Peers)
    seed: int = 0

    @classmethod
    def of(
        cls,
        shapes: Sequence[str],
        rules: str,
        repeat: int,
        budget: float,
        *,
        inputs: bool = False,
        scaling: bool = False,
        round: bool = False,
        peers: Peers | None = None,
    ) -> Plan:
        """The plan that words of a command line describe.

        shapes  each as "500x25450"; an empty sequence stands for SHAPES
        rules   names with commas between; an empty string stands for all
        """
        chosen = [word.strip() for word in rules.split(",") if word.strip()] or list(OWN)
        for rule in chosen:
            if rule not in OWN:
                raise ValueError(unknown("rule", rule, OWN))
        return cls(
            [_shape(text) for text in shapes or SHAPES],
            chosen,
            integer(repeat, "repeat", at_least=1),
            positive(budget, "seconds"),
            inputs=inputs,
            scaling=scaling,
            round=round,
            peers=peers or Peers(),
        )


def _shape(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)x(\d+)", text)
    if found is None or int(found[1]) < FEWEST or int(found[2]) < 1:
        raise ValueError(
            f"a shape is clients x numbers, with at least {FEWEST} clients, got {text!r}. Try --shape 500x25450."
        )
    return int(found[1]), int(found[2])


Settings = TypedDict(
    "Settings", {"repeat": int, "budget": float, "seed": int, "dtype": str, "load before": float | None}
)
Results = TypedDict(
    "Results",
    {
        "settings": Settings,
        "left out": dict[str, str],
        "shapes": list[Shape],
        "inputs": NotRequired[list[InputTimes]],
        "first calls": NotRequired[list[FirstCall]],
        "scaling": NotRequired[list[Growth]],
        "round": NotRequired[RoundTimes | FailedRound],
        "environment": Machine,
    },
)


def measure_all(plan: Plan, console: Console, keep: Callable[[Results], None]) -> Results:
    """Measure what the plan asks for.

    console  shows what runs now, where it is a terminal
    keep     is called with the results so far after each part: a run may take an hour, and may be interrupted
    """
    peers = plan.peers
    results: Results = {
        "settings": {
            "repeat": plan.repeat,
            "budget": plan.budget,
            "seed": plan.seed,
            "dtype": "float32",
            "load before": load(),
        },
        "left out": dict(peers.left_out),
        "shapes": [],
        "environment": describe(peers.packages),
    }

    def keep_so_far() -> None:
        # The machine is described again: if a peer needs torch, it is loaded by now, and its threads are known.
        results["environment"] = describe(peers.packages)
        keep(results)

    if plan.inputs:
        with _progress(console, "what people send") as watch:
            results["inputs"] = measure_inputs(repeat=plan.repeat, budget=plan.budget, watch=watch)
            results["first calls"] = measure_first_calls(watch=watch)
        keep_so_far()
    for m, d in plan.shapes:
        calls = plan.repeat * (1 + len(plan.rules) + sum(peer.rule in plan.rules for peer in peers.rules))
        with _progress(console, f"{m} x {d:,}", calls) as watch:
            results["shapes"].append(
                measure_shape(
                    m,
                    d,
                    plan.rules,
                    peers.rules,
                    repeat=plan.repeat,
                    budget=plan.budget,
                    seed=plan.seed,
                    watch=watch,
                )
            )
        keep_so_far()
    if plan.scaling:
        with _progress(console, "growth") as watch:
            results["scaling"] = measure_growth(repeat=plan.repeat, budget=plan.budget, seed=plan.seed, watch=watch)
        keep_so_far()
    if plan.round:
        with _progress(console, "one round") as watch:
            results["round"] = measure_round(peers.round, repeat=plan.repeat, seed=plan.seed, watch=watch)
        keep_so_far()
    return results


@contextmanager
def _progress(console: Console, title: str, calls: int | None = None) -> Iterator[Callable[[str], None]]:
    """A live line in a terminal, and elsewhere a line now and then; the function it gives sets what runs now."""
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task, lines = progress.add_task(title, total=calls), ProgressLines()

        def watch(now: str) -> None:
            progress.update(task, description=f"{title}: {now}", advance=1)
            if not console.is_terminal:
                lines.say(f"{title}: {now}")

        yield watch


def write_results(path: Path, results: Results) -> None:
    """Write results as JSON."""
    write_whole(path, (json.dumps(results, indent=1) + "\n").encode())


def read_results(path: Path) -> Results:
    """Results that `write_results` wrote."""
    try:
        results: Results = json.loads(path.read_text(encoding="utf-8"))
        if not {"settings", "environment", "shapes", "left out"} <= set(results):
            raise ValueError("something is missing in it")
    except (OSError, ValueError) as problem:
        raise ValueError(
            f"{path} is no result of a benchmark: {problem}. Write one with python benchmarks/bench --json."
        ) from None
    return results
