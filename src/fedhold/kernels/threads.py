"""Threads that share the blocks of a pass, and those of BLAS.

The calling thread of a pass works, too, and never waits for a thread that has not begun.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, wraps
from itertools import count
from threading import Lock
from typing import Any, TypeVar, cast

__all__ = ["one_blas_thread", "shared", "thread_count"]

Item = TypeVar("Item")
Result = TypeVar("Result")
Called = TypeVar("Called", bound=Callable[..., Any])


def thread_count() -> int:
    """How many threads to use: $FEDHOLD_THREADS, or one per core that this process may use."""
    given = os.environ.get("FEDHOLD_THREADS", "")
    if given.isdigit():
        return max(int(given), 1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """map(work, items), by several threads: results come in order, each as soon as those before it are there.

    work     a function of one item
    items    the items; each is taken by one thread
    workers  the number of threads, including the calling one

    Several threads may call this at once, and `work` may call it again. An error in `work` is raised here, after all threads
    have stopped.

    >>> list(shared(abs, [-1, 2, -3], workers=2))
    [1, 2, 3]
    """
    done = dict[int, Result]()
    numbers, ended, given = count(), False, 0

    def take_part() -> None:
        while not ended and (number := next(numbers)) < len(items):
            done[number] = work(items[number])

    others = [_pool(workers - 1).submit(take_part) for _ in range(min(workers, len(items)) - 1)]
    try:
        while (number := next(numbers)) < len(items):
            done[number] = work(items[number])
            while given in done:
                yield done.pop(given)
                given += 1
    finally:
        ended = True
        begun = [other for other in others if not other.cancel()]  # Those that have not begun have nothing left to do.
        for other in begun:
            other.exception()  # This waits until the thread has finished.
    for other in begun:
        other.result()
    yield from (done[number] for number in range(given, len(items)))


@cache
def _pool(size: int) -> ThreadPoolExecutor:
    """A pool of threads. It is kept, because starting a thread can take as long as its share of the work."""
    return ThreadPoolExecutor(size, thread_name_prefix="fedhold")


if hasattr(os, "register_at_fork"):  # A forked process has none of these threads.
    os.register_at_fork(after_in_child=_pool.cache_clear)


def one_blas_thread(function: Called) -> Called:
    """Let BLAS use one thread of this process while the function that this decorates runs; then as many as before.

    The threads of BLAS wait for each other by spinning. Where another process wants the cores, too, products then cost ten to
    a hundred times the time: all pairs of 100 x 25,450 numbers took 5 ms with one thread, and 688 ms with two. Where several
    threads are inside at once, the limit ends with the one that set it.
    """

    @wraps(function)
    def limited(*arguments: Any, **named: Any) -> Any:
        # Whoever has set the limit takes it back. A second one would take the limit for what was there before, and restore it.
        if not _limiting.acquire(blocking=False):
            return function(*arguments, **named)
        try:
            with _blas().limit(limits=1, user_api="blas"):
                return function(*arguments, **named)
        finally:
            _limiting.release()

    return cast(Called, limited)


@cache
def _blas() -> Any:
    """The BLAS of NumPy. To look for it takes twenty times as long as to set its limit."""
    import numpy as np  # noqa: F401  # It loads the library that is then found.
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


_limiting = Lock()
