"""Run experiments: one here and now, or many in processes of their own, to be interrupted and resumed at will."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedhold.errors import integer
from fedhold.lab.consensus import rsa, rsa_parameters
from fedhold.lab.experiment import Experiment, Options
from fedhold.lab.federation import Federated, Round, federate
from fedhold.lab.processes import Failed, News, in_processes
from fedhold.lab.randomness import Purpose, chance
from fedhold.lab.results import Result, Store, environment
from fedhold.lab.scenarios import prepare
from fedhold.report import ProgressLines


def run(
    experiment: Experiment, checkpoint: Path | None = None, on_round: Callable[[Round], None] | None = None
) -> Result:
    """Run one experiment in this process.

    checkpoint  a file to resume from, written after every round
    on_round    called with every row of the history

    >>> small = (("samples", 200), ("d", 5))
    >>> result = run(Experiment("synthesized", "huber", "sign_flip", 0.2, 0, m=20, rounds=3, options=small))
    >>> len(result.series["rmse"]), len(result.byzantine)
    (3, 4)
    """
    begun = time.perf_counter()
    options, m, seed = Options.of(experiment), experiment.m, experiment.seed
    scenario = prepare(experiment.data, experiment.partition, m, seed, options.data, options.partition)
    byzantine = np.zeros(m, dtype=bool)
    byzantine[chance(seed, Purpose.BYZANTINE).permutation(m)[: experiment.liars]] = True
    common: dict[str, Any] = {
        **{"attack": experiment.attack, "attack_parameters": options.attack, "byzantine": byzantine},
        **{"rounds": experiment.rounds, "step": experiment.step, "seed": seed, "checkpoint": checkpoint},
        **{"on_round": on_round, **options.loop},
    }
    consensus = rsa_parameters(experiment.rule)
    if consensus is not None:
        learnt = rsa(scenario.task, scenario.shards, **consensus, **common)
    else:
        learnt = federate(scenario.task, scenario.shards, rule=experiment.rule, **common)
    weights = None if learnt.weights is None or not options.keep_weights else learnt.weights.astype(np.float16)
    return Result(
        experiment=experiment,
        series=_series(learnt),
        byzantine=np.flatnonzero(byzantine).tolist(),
        weights=weights,
        seconds=time.perf_counter() - begun,
        environment=environment(),
    )


def _series(learnt: Federated) -> dict[str, list[float | None]]:
    """The history by columns. NaN becomes None: no comparison with NaN is true, so that it would never count as bad."""
    metrics = dict.fromkeys(name for row in learnt.history for name in row.metrics)
    columns: dict[str, list[float | None]] = {
        name: [row.metrics.get(name) for row in learnt.history] for name in metrics
    }
    for name in ("error", "clipped", "rejected", "liar_weight", "radius"):
        columns[name] = [getattr(row, name) for row in learnt.history]
    return {
        name: [None if value is None or np.isnan(value) else value for value in values]
        for name, values in columns.items()
    }


def run_all(experiments: Sequence[Experiment], store: Store, *, jobs: int = 2, progress: bool = True) -> list[Result]:
    """The results of all experiments, in their order; those not in the store are run first, `jobs` at a time.

    store     where results are kept, and found again
    jobs      how many processes; each has one thread for BLAS, so that `jobs` changes no bit of a result
    progress  whether to show how far it has come: a bar in a terminal, elsewhere a line on standard error now and then

    A run can be interrupted at any time: finished results are stored, and an unfinished one goes on from its last round when
    this is called again.
    """
    integer(jobs, "jobs", at_least=1)
    missing = [experiment for experiment in dict.fromkeys(experiments) if not store.has(experiment)]
    missing.sort(key=lambda e: (-e.cost, e.data, e.partition, e.m, e.seed))  # neighbours share their data
    failures = []
    with (
        closing(in_processes(_work, [(experiment, store) for experiment in missing], jobs)) as events,
        _bar([experiment.cost for experiment in missing], shown=progress) as reached,
    ):
        for event in events:
            if isinstance(event, Failed):
                why = f"\n{event.traceback}" if event.refusal is None else f" {event.refusal}"
                failures.append(f"{missing[event.task]}:{why}")
            else:
                rounds = missing[event.task].rounds
                reached(event.task, event.told / rounds if isinstance(event, News) else 1.0)
    if failures:
        raise RuntimeError(f"{len(failures)} of {len(missing)} experiments failed. The first, {failures[0]}")
    return [store.get(experiment) for experiment in experiments]


def _work(task: tuple[Experiment, Store], tell: Callable[[int], None]) -> None:
    """Run one experiment in a worker process, and store it; tells the rounds done."""
    experiment, store = task
    checkpoint = store.checkpoint(experiment)
    store.put(run(experiment, checkpoint, lambda row: tell(row.round)))
    checkpoint.unlink(missing_ok=True)


@contextmanager
def _bar(costs: list[float], *, shown: bool) -> Iterator[Callable[[int, float], None]]:
    """A progress bar with the time left, or lines, moved by reached(number of the run, fraction of it)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    done, now, begun = [0.0] * len(costs), ProgressLines(), time.monotonic()
    columns = (TextColumn("{task.fields[runs]} of {task.fields[all]} runs"), BarColumn(None), TimeRemainingColumn())
    console = Console()
    disable = not (shown and costs and console.is_terminal)
    with Progress(*columns, console=console, disable=disable, speed_estimate_period=600, expand=True) as progress:
        shown_task = progress.add_task("", total=sum(costs), runs=0, all=len(costs))

        def reached(number: int, fraction: float) -> None:
            done[number] = fraction
            runs = sum(part == 1.0 for part in done)
            completed = sum(map(float.__mul__, done, costs))
            progress.update(shown_task, completed=completed, runs=runs)
            if shown and not console.is_terminal and completed:
                left = (time.monotonic() - begun) * (sum(costs) / completed - 1)
                now.say(f"{runs} of {len(costs)} runs, {completed / sum(costs):.0%}; about {left / 60:.0f} min left")

        yield reached
