"""Run experiments: one here and now, or many in processes or on a cluster, to be interrupted and resumed at will."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from fedhold.errors import InfeasibleError, integer
from fedhold.lab.executors import News, run_tasks, tell
from fedhold.lab.experiment import Experiment
from fedhold.lab.federation import Counts, Federated, Round, federate, rsa, rsa_parameters
from fedhold.lab.knowledge import Mask
from fedhold.lab.randomness import Purpose, chance
from fedhold.lab.results import Result, Store, environment
from fedhold.lab.scenarios import prepare
from fedhold.lab.tasks import Measurable, Task
from fedhold.report import ProgressLines


def run(
    experiment: Experiment, checkpoint: Path | None = None, on_round: Callable[[Round], None] | None = None
) -> Result:
    """Run one experiment in this process. Where a bound refuses it, such as m >= 4f + 3, the result says so.

    checkpoint  a file to resume from, written after every round
    on_round    called with every row of the history

    >>> result = run(Experiment("synthesized(d=5, samples=200)", "huber", "sign_flip", 0.2, 0, m=20, rounds=3))
    >>> len(result.series["rmse"]), len(result.byzantine)
    (3, 4)
    """
    begun = time.perf_counter()
    m, seed = experiment.m, experiment.seed
    byzantine = np.zeros(m, dtype=bool)
    byzantine[chance(seed, Purpose.BYZANTINE).permutation(m)[: experiment.liars]] = True
    reason, learnt, counts, constant = "", None, None, None
    try:
        learnt, counts, constant = _learnt(experiment, byzantine, checkpoint, on_round)
    except InfeasibleError as refusal:
        reason = str(refusal)
    kept = None if learnt is None or not dict(experiment.options).get("keep_weights") else learnt.weights
    return Result(
        experiment=experiment,
        series={} if learnt is None else _series(learnt),
        byzantine=np.flatnonzero(byzantine).tolist(),
        weights=None if kept is None else kept.astype(np.float16),
        seconds=time.perf_counter() - begun,
        environment=environment(),
        infeasible=reason,
        samples=None if kept is None or counts is None else counts.tolist(),
        constant=constant,
    )


def _learnt(
    experiment: Experiment,
    byzantine: Mask,
    checkpoint: Path | None,
    on_round: Callable[[Round], None] | None,
) -> tuple[Federated, Counts, float | None]:
    """What the run has learnt, the clients' n_i, and the accuracy of one answer for all."""
    e = experiment
    scenario = prepare(e.data, e.partition, e.m, e.seed, model=e.model)
    common: dict[str, Any] = {
        **{name: value for name, value in e.options if name != "keep_weights"},
        **{"attack": e.attack, "byzantine": byzantine, "rounds": e.rounds, "step": e.step, "seed": e.seed},
        **{"checkpoint": checkpoint, "on_round": on_round},
    }
    task, shards = scenario.task, scenario.shards
    consensus = rsa_parameters(experiment.rule)
    if consensus is not None:
        learnt = rsa(task, shards, **consensus, **common)
    else:
        learnt = federate(task, shards, rule=experiment.rule, **common)
    return learnt, shards.counts, _constant(task)


def _constant(task: Task) -> float | None:
    """The accuracy of the same answer for every test sample, the most frequent class; None where there are no classes."""
    if not isinstance(task, Measurable) or task.samples.targets.dtype.kind not in "iu":
        return None
    _, counts = np.unique(task.samples.targets, return_counts=True)
    return float(counts.max() / counts.sum())


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
    this is called again. An experiment that a bound refuses has a result that says so; one that fails for another reason is an
    error after all others are done.
    """
    missing = [experiment for experiment in dict.fromkeys(experiments) if not store.has(experiment)]
    missing.sort(key=lambda e: (-e.cost, e.data, e.partition, e.m, e.seed))  # neighbours share their data
    failures = run_cells(missing, store, jobs=jobs, progress=progress)
    if failures:
        first = next(iter(failures))
        raise RuntimeError(
            f"{len(failures)} of {len(missing)} experiments failed. The first, {first}:\n{failures[first]}"
        )
    return [store.get(experiment) for experiment in experiments]


def run_cells(
    experiments: Sequence[Experiment],
    store: Store,
    *,
    jobs: int = 2,
    cluster: str | None = None,
    checkpoints: bool = True,
    seconds: float = math.inf,
    progress: bool = True,
) -> dict[Experiment, str]:
    """Run experiments in the order in which they are given, store each result, and return the tracebacks of those that failed.

    store        where results go, one file each, as soon as they are there
    jobs         how many processes on this machine
    cluster      the address of the scheduler of a Dask cluster to run them on instead
    checkpoints  whether a run that is interrupted can go on from its last round, which costs a file in every round
    seconds      begin to stop after so long; what is unfinished then is left
    progress     whether to show a bar with the time left on the terminal, or a line now and then where there is none
    """
    integer(jobs, "jobs", at_least=1)
    failures: dict[Experiment, str] = {}
    deadline = time.monotonic() + seconds
    here = store if cluster is None else None  # A worker of another machine does not see this one's files.
    running = run_tasks(_work, [(one, here, checkpoints) for one in experiments], jobs=jobs, cluster=cluster)
    with closing(running) as events, _bar([one.cost for one in experiments], shown=progress) as reached:
        for event in events:
            if isinstance(event, News):
                reached(event.task, event.fraction)
                continue
            if event.failure is not None:
                failures[experiments[event.task]] = event.failure
            elif event.result is not None:
                store.put(event.result)
            reached(event.task, 1.0)
            if time.monotonic() > deadline:
                break
    return failures


def _work(task: tuple[Experiment, Store | None, bool]) -> Result | None:
    """Run one experiment in a worker process, and store its result, so that nothing is lost; without a store, return it."""
    experiment, store, checkpoints = task
    checkpoint = store.checkpoint(experiment) if store is not None and checkpoints else None
    result = run(experiment, checkpoint, lambda row: tell(row.round / experiment.rounds))
    if store is None:
        return result
    store.put(result)
    if checkpoint is not None:
        checkpoint.unlink(missing_ok=True)
    return None


@contextmanager
def _bar(costs: list[float], *, shown: bool) -> Iterator[Callable[[int, float], None]]:
    """A progress bar with the time left, or lines, moved by reached(number of the run, fraction of it)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console, total, now, begun = Console(stderr=True), sum(costs), ProgressLines(), time.monotonic()
    done, runs, completed = [0.0] * len(costs), 0, 0.0
    columns = (TextColumn("{task.fields[runs]} of {task.fields[all]} runs"), BarColumn(None), TimeRemainingColumn())
    bar = shown and bool(costs) and console.is_terminal
    with Progress(*columns, console=console, disable=not bar, speed_estimate_period=600, expand=True) as progress:
        shown_task = progress.add_task("", total=total, runs=0, all=len(costs))

        def reached(number: int, fraction: float) -> None:
            nonlocal runs, completed
            completed += (fraction - done[number]) * costs[number]
            runs += done[number] < 1.0 <= fraction  # the last round is told before the result
            done[number] = fraction
            progress.update(shown_task, completed=completed, runs=runs)
            if shown and not bar and completed:
                left = (time.monotonic() - begun) * (total / completed - 1)
                now.say(f"{runs} of {len(costs)} runs, {completed / total:.0%}; about {left / 60:.0f} min left")

        yield reached
