"""Run experiments: one here and now, or many in processes or on a cluster, to be interrupted and resumed at will.

Processes of this machine and a Dask cluster are executors as in `concurrent.futures`; one loop runs over their futures.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
import threading
import time
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from fedhold.errors import InfeasibleError, integer, positive
from fedhold.lab.experiment import Experiment
from fedhold.lab.federation import Federated, Round, federate, rsa, rsa_parameters
from fedhold.lab.randomness import Purpose, chance
from fedhold.lab.results import Result, Store, environment
from fedhold.lab.scenarios import prepare
from fedhold.lab.tasks import Measurable, Task
from fedhold.report import ProgressLines

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "FEDHOLD_THREADS"), "1")
EVERY = 0.1  # seconds between two looks at how far the workers are
CONNECT = 30.0  # seconds to find the scheduler of a cluster
WORKERS = 300.0  # seconds to wait for its first worker
NOT_BEGUN = -1.0
DIED = (
    "a worker process died without a message: killed, or out of memory. This ran in it, or beside it. What is finished is "
    "stored, and the same command goes on from there; fewer jobs need less memory. A script that starts workers must do so "
    'under `if __name__ == "__main__":`.'
)


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
    begun, e = time.perf_counter(), experiment
    byzantine = np.zeros(e.m, dtype=bool)
    byzantine[chance(e.seed, Purpose.BYZANTINE).permutation(e.m)[: e.liars]] = True
    liars, options = np.flatnonzero(byzantine).tolist(), dict[str, Any](e.options)
    keep = options.pop("keep_weights", 0)
    options |= {"attack": e.attack, "byzantine": byzantine, "rounds": e.rounds, "step": e.step, "seed": e.seed}
    options |= {"checkpoint": checkpoint, "on_round": on_round}
    consensus = rsa_parameters(e.rule)
    try:
        scenario = prepare(e.data, e.partition, e.m, e.seed, model=e.model)
        task, shards = scenario.task, scenario.shards
        if consensus is None:
            learnt = federate(task, shards, rule=e.rule, **options)
        else:
            learnt = rsa(task, shards, **consensus, **options)
    except InfeasibleError as refusal:
        return Result(e, {}, liars, None, time.perf_counter() - begun, environment(), str(refusal))
    kept = learnt.weights if keep else None
    return Result(
        experiment=e,
        series=_series(learnt),
        byzantine=liars,
        weights=None if kept is None else kept.astype(np.float16),
        seconds=time.perf_counter() - begun,
        environment=environment(),
        samples=None if kept is None else shards.counts.tolist(),
        constant=_constant(task),
    )


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
    whole = sorted(
        experiments, key=lambda e: (-e.cost, e.data, e.partition, e.m, e.seed)
    )  # neighbours share their data
    failures = run_cells(whole, store, jobs=jobs, progress=progress)
    if failures:
        first = next(iter(failures))
        raise RuntimeError(
            f"{len(failures)} of {len(experiments)} experiments failed. The first, {first}:\n{failures[first]}"
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
    """Run the experiments that are not in the store, in the order in which they are given; return the tracebacks of failures.

    store        where results go, one file each, as soon as they are there
    jobs         how many processes on this machine
    cluster      the address of the scheduler of a Dask cluster to run them on instead
    checkpoints  whether a run that is interrupted can go on from its last round, which costs a file in every round
    seconds      begin to stop after so long; what is unfinished then is left
    progress     whether to show a bar with the time left on the terminal, or a line now and then where there is none
    """
    integer(jobs, "jobs", at_least=1)
    positive(seconds, "seconds", zero=True, infinite=True)
    failures: dict[Experiment, str] = {}
    missing = [one for one in dict.fromkeys(experiments) if not store.has(one)] if seconds else []
    deadline = time.monotonic() + seconds
    kept = checkpoints and cluster is None  # A worker of another machine does not see this one's files.
    tasks = [(one, store.checkpoint(one) if kept else None) for one in missing]
    running = run_tasks(_work, tasks, jobs=jobs, cluster=cluster)
    with closing(running) as events, _bar([one.cost for one in missing], shown=progress) as reached:
        for event in events:
            reached(event.task, event.fraction if isinstance(event, News) else 1.0)
            if isinstance(event, News):
                continue
            if event.failure is not None:
                failures[missing[event.task]] = event.failure
            else:
                store.put(event.result)
                store.checkpoint(missing[event.task]).unlink(missing_ok=True)
            if time.monotonic() > deadline:
                break
    return failures


def _work(task: tuple[Experiment, Path | None]) -> Result:
    """Run one experiment in a worker process."""
    experiment, checkpoint = task
    return run(experiment, checkpoint, lambda row: tell(row.round / experiment.rounds))


@contextmanager
def _bar(costs: list[float], *, shown: bool) -> Iterator[Callable[[int, float], None]]:
    """A progress bar with the time left, or lines, moved by reached(number of the run, fraction of it)."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    console, total, now, begun = Console(stderr=True), sum(costs), ProgressLines(), time.monotonic()
    done = np.zeros(len(costs))
    columns = (TextColumn("{task.fields[runs]} of {task.fields[all]} runs"), BarColumn(None), TimeRemainingColumn())
    bar = shown and bool(costs) and console.is_terminal
    with Progress(*columns, console=console, disable=not bar, speed_estimate_period=600, expand=True) as progress:
        shown_task = progress.add_task("", total=total, runs=0, all=len(costs))

        def reached(number: int, fraction: float) -> None:
            done[number] = fraction
            completed, runs = float(done @ costs), int((done == 1.0).sum())
            progress.update(shown_task, completed=completed, runs=runs)
            if shown and not bar and completed:
                left = (time.monotonic() - begun) * (total / completed - 1)
                now.say(f"{runs} of {len(costs)} runs, {completed / total:.0%}; about {left / 60:.0f} min left")

        yield reached


# Work for other processes


@dataclass(frozen=True)
class News:
    """How much of a task is done: a fraction. Tasks are named by their place in the list."""

    task: int
    fraction: float


@dataclass(frozen=True)
class Done:
    """A task has ended.

    result   what the work returned
    failure  why there is no result: what an error by which calls are refused says, or the traceback of another one
    """

    task: int
    result: Any = None
    failure: str | None = None


def run_tasks(
    work: Callable[[Any], Any], tasks: Sequence[Any], *, jobs: int = 2, cluster: str | None = None
) -> Generator[News | Done]:
    """Run work(task) for every task in other processes, and yield what happens as it happens.

    work     a function that the workers can import by name; on this machine it may `tell` how far it is
    tasks    values that can be pickled
    jobs     how many processes of this machine; each uses one thread, so that their number changes no bit of a result
    cluster  the address of a Dask scheduler, such as tcp://10.0.0.1:8786, to use its workers instead. They need fedhold, the
             data sets, and the modules of your own parts

    A task that fails stops no other. Where a worker process of this machine dies, the tasks that had begun fail, and the rest
    is left. Close the iterator to stop: the processes end at once, as they do if this one is killed, and a cluster withdraws
    what has not begun. A cluster that cannot be reached is a RuntimeError.
    """
    if not tasks:
        return
    memory = multiprocessing.get_context("spawn").RawArray("d", len(tasks))
    fractions = np.frombuffer(memory)
    fractions[:] = NOT_BEGUN
    with _processes(min(jobs, len(tasks)), memory) if cluster is None else _cluster(cluster) as executor:
        waiting: dict[Future[tuple[Any, str | None]], int] = {}
        ended: SimpleQueue[Future[tuple[Any, str | None]]] = SimpleQueue()
        for number, task in enumerate(tasks):
            future = executor.submit(_attempt, work, number, task)
            waiting[future] = number
            future.add_done_callback(ended.put)
        while waiting:
            try:
                future = ended.get(timeout=EVERY)
            except Empty:
                yield from (News(number, float(fractions[number])) for number in _begun(fractions))
                continue
            number = waiting.pop(future)
            try:
                result, failure = future.result()
            except BrokenExecutor:
                if not _begun(fractions):
                    raise RuntimeError(DIED) from None
                yield from (Done(number, failure=DIED) for number in _begun(fractions))
                return
            except Exception:  # The result cannot be sent, or a worker of the cluster was lost too often.
                result, failure = None, traceback.format_exc()
            fractions[number] = NOT_BEGUN
            yield Done(number, result, failure)


def _begun(fractions: NDArray[np.float64]) -> list[int]:
    """The tasks that are being worked on."""
    return [int(number) for number in np.flatnonzero(fractions > NOT_BEGUN)]


@contextmanager
def _processes(jobs: int, memory: Any) -> Iterator[Executor]:
    """Processes of this machine; `memory` holds how far each task is."""
    context = multiprocessing.get_context("spawn")
    watched, alive = context.Pipe(duplex=False)  # The workers watch one end; the other one closes with this process.
    pool = ProcessPoolExecutor(jobs, context, initializer=_begin, initargs=(watched, memory))
    try:
        yield pool
    except BaseException:  # Stopped early: the workers end in the middle of their work.
        alive.close()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        alive.close()
        watched.close()


@contextmanager
def _cluster(address: str) -> Iterator[Executor]:
    """The workers of a Dask cluster."""
    try:
        from distributed import Client
    except ImportError as reason:
        raise ImportError("a cluster needs Dask. From a checkout: pip install '.[dask]' distributed") from reason
    try:
        client = Client(address, timeout=CONNECT, set_as_default=False)
    except (OSError, TimeoutError, ValueError) as reason:
        raise RuntimeError(
            f"no Dask scheduler answers at {address!r} within {CONNECT:.0f} s ({type(reason).__name__}: {reason}). Start one "
            "with `dask scheduler`, and workers with `dask worker ADDRESS`."
        ) from None
    with client:
        try:
            client.wait_for_workers(1, timeout=WORKERS)
        except TimeoutError:
            raise RuntimeError(
                f"the cluster at {address} has had no worker for {WORKERS:.0f} s. Start some with `dask worker {address}`."
            ) from None
        executor = client.get_executor(pure=False)  # Equal tasks of two runs share no result: it may be gone.
        try:
            yield executor
        finally:
            executor.shutdown(wait=False)


# In the worker processes

_fractions: Any = None
_number = 0


def tell(fraction: float) -> None:
    """Say how much of the task at hand is done. A process that works for no other one on this machine has nobody to tell."""
    if _fractions is not None:
        _fractions[_number] = fraction


def _begin(watched: Connection, memory: Any) -> None:
    """Prepare a new worker process."""
    global _fractions
    _fractions = memory
    os.environ.update(ONE_THREAD)  # for libraries that are loaded later, such as torch
    threadpool_limits(1)  # for the BLAS of NumPy, which is loaded
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the first one decides.
    threading.Thread(target=_end_with, args=(watched,), daemon=True).start()


def _end_with(watched: Connection) -> None:
    """End this process when the other end of the pipe is closed: nothing is ever sent."""
    watched.poll(None)
    os._exit(0)


def _attempt(work: Callable[[Any], Any], number: int, task: Any) -> tuple[Any, str | None]:
    """The result, and why there is none: an error travels as text, since not every one can be pickled."""
    global _number
    _number = number
    tell(0.0)
    try:
        return work(task), None
    except (ValueError, TypeError, OSError, RuntimeError) as problem:
        return None, str(problem)
    except Exception:
        return None, traceback.format_exc()
