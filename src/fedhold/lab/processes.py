"""Work done by processes of their own, each with one thread for BLAS, so that the number of them changes no bit."""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any

__all__ = ["ONE_THREAD", "bar", "in_processes"]

ONE_THREAD = dict.fromkeys(("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "FEDHOLD_THREADS"), "1")

Work = Callable[[Any, Callable[[Any], None]], None]  # (task, tell): `tell` sends news to whoever waits


def in_processes(work: Work, tasks: Sequence[Any], jobs: int) -> Generator[tuple[int, str, Any]]:
    """Run work(task, tell) for every task, `jobs` at a time; yields (number of the task, kind, what) as it comes.

    kind   "news": what the work told; "done": nothing; "failed": its traceback. The other tasks go on after a failure.
    Close the iterator to stop: the processes are ended at once. Should this process be killed, they end by themselves at
    their next news. A process that dies, as for want of memory, is an error here.
    """
    context = multiprocessing.get_context("spawn")
    waiting, busy = deque(enumerate(tasks)), dict[Connection, int]()
    processes = []
    try:
        with _environment(ONE_THREAD):
            for _ in range(min(jobs, len(tasks))):
                ours, theirs = context.Pipe()
                process = context.Process(target=_serve, args=(theirs, work), daemon=True)
                process.start()
                theirs.close()  # so that we see the end of it when the process dies
                processes.append(process)
                _hand_out(ours, waiting, busy)
        while busy:
            for connection in wait(list(busy)):
                assert isinstance(connection, Connection)
                number = busy[connection]
                try:
                    kind, what = connection.recv()
                except EOFError:
                    raise RuntimeError(
                        "a worker process died without a word: killed, or out of memory. What it finished is stored, and the "
                        "same command goes on from there; fewer jobs need less memory. A script that starts workers must do so "
                        'under `if __name__ == "__main__":`.'
                    ) from None
                yield number, kind, what
                if kind != "news":
                    _hand_out(connection, waiting, busy)
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.join()


@contextmanager
def bar(costs: list[float], *, shown: bool) -> Iterator[Callable[[int, float], None]]:
    """A bar with the time left, moved by reached(number of the run, fraction of it)."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    done = [0.0] * len(costs)
    columns = (TextColumn("{task.fields[runs]} of {task.fields[all]} runs"), BarColumn(None), TimeRemainingColumn())
    with Progress(*columns, disable=not shown or not costs, speed_estimate_period=600, expand=True) as progress:
        shown_task = progress.add_task("", total=sum(costs), runs=0, all=len(costs))

        def reached(number: int, fraction: float) -> None:
            done[number] = fraction
            runs = sum(part == 1.0 for part in done)
            progress.update(shown_task, completed=sum(map(float.__mul__, done, costs)), runs=runs)

        yield reached


def _hand_out(connection: Connection, waiting: deque[tuple[int, Any]], busy: dict[Connection, int]) -> None:
    """The next task to this process, or its leave."""
    busy.pop(connection, None)
    if waiting:
        busy[connection], task = waiting.popleft()
        connection.send((task,))
    else:
        connection.send(None)


def _serve(connection: Connection, work: Work) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of the terminal; the first one decides
    try:
        while (handed := connection.recv()) is not None:
            try:
                work(handed[0], lambda news: connection.send(("news", news)))
                connection.send(("done", None))
            except ConnectionError:
                raise
            except Exception:
                connection.send(("failed", traceback.format_exc()))
    except (EOFError, ConnectionError):
        return  # whoever waited is gone


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
