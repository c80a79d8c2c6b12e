"""Work on the machines of a Dask cluster: the same events as from processes of this machine."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Generator, Sequence
from typing import Any

from fedhold.lab.processes import Done, Failed, News

CONNECT = 30.0  # seconds to find the scheduler
LOOK = 5.0  # seconds between two looks at whether there still are workers
ABANDONED = 300.0  # seconds without a worker after which the work is given up
AHEAD = 4  # tasks per thread that the scheduler holds at a time: it keeps every worker busy, and an interruption loses little


def on_cluster(work: Callable[[Any], Any], tasks: Sequence[Any], address: str) -> Generator[News | Done | Failed]:
    """Run work(task) for every task on a Dask cluster, and yield what happens as it happens.

    work     a function that the workers can import by name
    tasks    values that can be pickled
    address  of the scheduler, such as tcp://10.0.0.1:8786

    Workers need fedhold, the data sets, and the modules of your own parts. Close the iterator to stop: tasks that have not
    begun are withdrawn. A cluster that cannot be reached, or has had no worker for five minutes, is a RuntimeError; what was
    done until then is done.
    """
    if not tasks:
        return
    try:
        from distributed import Client, as_completed
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
        waiting, number, seen = dict[Any, int](), 0, time.monotonic()
        arrived = as_completed(loop=client.loop)
        try:
            while number < len(tasks) or waiting:
                room = AHEAD * max(1, sum(client.nthreads().values())) - len(waiting)
                fresh = range(number, min(number + max(room, 0), len(tasks)))
                for k in fresh:  # Not pure: two equal tasks of two runs must not share a result that is gone.
                    future = client.submit(work, tasks[k], pure=False, retries=2)
                    waiting[future] = k
                    arrived.add(future)
                number = fresh.stop if fresh else number
                batch = _some(arrived, LOOK)
                for future in batch:
                    yield _outcome(waiting.pop(future), future)
                now = time.monotonic()
                seen = now if batch or client.nthreads() else seen
                if now - seen > ABANDONED:
                    raise RuntimeError(
                        f"the cluster at {address} has had no worker for {ABANDONED:.0f} s. Start workers."
                    )
        finally:
            if waiting:
                client.cancel(list(waiting), force=True)


def _some(arrived: Any, seconds: float) -> list[Any]:
    """The futures that are done, after waiting up to so long for the first."""
    begun = time.monotonic()
    while not (batch := arrived.next_batch(block=False)) and time.monotonic() - begun < seconds:
        time.sleep(0.02)
    return list(batch)


def _outcome(number: int, future: Any) -> Done | Failed:
    try:
        return Done(number, future.result(timeout=CONNECT))
    except Exception:  # raised by the work, or by a worker that was lost too often
        return Failed(number, traceback.format_exc())
