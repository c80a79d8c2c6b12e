"""Threads that share work: the caller works too, so that nobody waits for a thread that is slow to wake."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import count
from typing import TypeVar

__all__ = ["shared", "threads"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def threads() -> int:
    """How many to work with: $FEDHOLD_THREADS, or one per core this process may use."""
    given = os.environ.get("FEDHOLD_THREADS", "")
    if given.isdigit():
        return max(int(given), 1)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def shared(work: Callable[[Item], Result], items: Sequence[Item], workers: int) -> Iterator[Result]:
    """map(work, items), by so many threads: in order, each result as soon as those before it are there.

    Several callers may do so at once, also from within such work.
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
        begun = [other for other in others if not other.cancel()]  # who has not begun finds everything done
        for other in begun:
            other.exception()  # its end
    for other in begun:
        other.result()
    yield from (done[number] for number in range(given, len(items)))


@cache
def _pool(size: int) -> ThreadPoolExecutor:
    """Kept: to start a thread can take as long as its share of the work."""
    return ThreadPoolExecutor(size, thread_name_prefix="fedhold")


if hasattr(os, "register_at_fork"):  # a child process has none of these threads
    os.register_at_fork(after_in_child=_pool.cache_clear)
