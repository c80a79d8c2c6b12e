"""Work for other processes, of this machine or of a Dask cluster: one loop over the futures of an executor."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

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
