"""Work for the tests of executors, in a file of its own because worker processes import it by name."""

import os
import time

from threadpoolctl import threadpool_info

from fedhold.lab import tell


def act(task):
    """What a task says: fail in one of two ways, die, or return the worker's limits on threads."""
    if task == "die":
        os._exit(1)
    if task == "fail":
        raise ValueError("no such luck")
    if task == "unexpected":
        raise KeyError(task)
    blas = {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}
    return task, os.environ.get("FEDHOLD_THREADS"), blas


def unsendable(task):
    return lambda: task


def hold(path):
    """Write down which process this is, say that half is done, and go on for ever."""
    path.write_text(str(os.getpid()))
    tell(0.5)
    time.sleep(600)
