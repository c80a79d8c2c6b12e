"""Work shared by processes, each with one thread for BLAS, so that their number changes no bit of a result."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.queues import SimpleQueue
from typing import Any

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "FEDHOLD_THREADS"), "1")
NEWS_EVERY = 0.1  # seconds between two looks at the news

Work = Callable[[Any, Callable[[Any], None]], Any]
"""work(task, tell): `tell` sends news to the process that waits. What it returns is the result."""


@dataclass(frozen=True)
class News:
    """The work on a task, by its place in the list of tasks, told this."""

    task: int
    told: Any


@dataclass(frozen=True)
class Done:
    """A task is finished."""

    task: int
    result: Any


@dataclass(frozen=True)
class Failed:
    """A task raised an exception; the others go on.

    refusal  what the exception says, where it is one by which a call is refused; None where nobody expected it
    """

    task: int
    traceback: str
    refusal: str | None = None


def in_processes(work: Work, tasks: Sequence[Any], jobs: int) -> Generator[News | Done | Failed]:
    """Run work(task, tell) for every task in worker processes, and yield what happens as it happens.

    work   a function that the workers can import by name
    tasks  values that can be pickled
    jobs   how many processes at most

    Close the iterator to stop: the processes end at once, as they do if this process is killed. A worker that dies, because
    there is too little memory for example, is a RuntimeError here.
    """
    if not tasks:
        return
    context = multiprocessing.get_context("spawn")
    news: SimpleQueue[News] = context.SimpleQueue()
    watched, alive = context.Pipe(duplex=False)  # workers watch one end; the other closes with this process
    pool = ProcessPoolExecutor(min(jobs, len(tasks)), context, initializer=_begin, initargs=(news, watched))
    waiting: dict[Future[Done | Failed], int] = {}
    try:
        with _environment(ONE_THREAD):  # submit() starts the processes
            for number, task in enumerate(tasks):
                waiting[pool.submit(_do, work, number, task)] = number
        while waiting:
            finished, _ = wait(waiting, timeout=NEWS_EVERY, return_when=FIRST_COMPLETED)
            while not news.empty():  # all news of a finished task are there before its result
                yield news.get()
            for future in finished:
                yield _outcome(waiting.pop(future), future)
    finally:
        if waiting:  # stopped early: end the workers in the middle of their work
            alive.close()
        pool.shutdown(cancel_futures=True)
        for end in (alive, watched, news):
            end.close()


def _outcome(number: int, future: Future[Done | Failed]) -> Done | Failed:
    try:
        return future.result()
    except BrokenProcessPool:
        raise RuntimeError(
            "a worker process died without a message: killed, or out of memory. What it finished is stored, and the same "
            "command goes on from there; fewer jobs need less memory. A script that starts workers must do so under "
            '`if __name__ == "__main__":`.'
        ) from None
    except Exception:  # the result cannot be sent from process to process, for example
        return Failed(number, traceback.format_exc())


# In the worker processes

_news: SimpleQueue[News]


def _begin(news: SimpleQueue[News], watched: Connection) -> None:
    """Prepare a new worker process."""
    global _news
    _news = news
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the first one decides
    threading.Thread(target=_end_with, args=(watched,), daemon=True).start()


def _end_with(watched: Connection) -> None:
    """End this process when the other end of the pipe is closed: nothing is ever sent."""
    watched.poll(None)
    os._exit(0)


def _do(work: Work, number: int, task: Any) -> Done | Failed:
    try:
        return Done(number, work(task, lambda told: _news.put(News(number, told))))
    except (ValueError, TypeError, OSError, RuntimeError) as problem:
        return Failed(number, traceback.format_exc(), str(problem))
    except Exception:
        return Failed(number, traceback.format_exc())


@contextmanager
def _environment(values: dict[str, str]) -> Iterator[None]:
    """Environment variables for the processes started inside: BLAS reads them once, when it is loaded."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
