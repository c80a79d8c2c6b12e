"""Work for the tests of the process pool, in a file of its own because worker processes import it by name."""

import os
import time


def act(task, tell):
    """What a task says: tell two numbers and return; fail; or die."""
    if task == "die":
        os._exit(1)
    if task == "fail":
        raise ValueError("no such luck")
    tell(1)
    tell(2)
    return task, os.environ["OPENBLAS_NUM_THREADS"]


def unsendable(task, tell):  # noqa: ARG001
    return lambda: task


def sleep(task, tell):
    tell(os.getpid())
    time.sleep(task)
