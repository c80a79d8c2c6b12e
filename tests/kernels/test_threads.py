"""Threads that share work do all of it, once and in order, whoever calls them and whatever goes wrong."""

import os
import subprocess
import sys
import threading
import time

import pytest

from fedhold.kernels import shared


def test_every_item_once_and_in_order():
    assert list(shared(lambda x: x * x, range(100), 4)) == [x * x for x in range(100)]
    assert list(shared(str, [], 4)) == []


def test_many_callers_and_work_within_work():
    def outer(x):
        return sum(shared(lambda y: x * y, range(10), 3))

    results = {}
    callers = [
        threading.Thread(target=lambda i=i: results.update({i: list(shared(outer, range(8), 3))})) for i in range(6)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(30)
    assert results == {i: [45 * x for x in range(8)] for i in range(6)}


@pytest.mark.parametrize("culprit", [0, 1, 7])
def test_a_failure_is_told_once_nobody_works_any_more(culprit):
    busy = []

    def work(x):
        busy.append(x)
        try:
            time.sleep(0.01)
            if x == culprit:
                raise ZeroDivisionError
        finally:
            busy.remove(x)

    with pytest.raises(ZeroDivisionError):
        list(shared(work, range(8), 3))
    assert busy == []


def test_results_are_not_hoarded():
    """A sum of large matrices must not hold all of them."""
    held, most = set(), 0

    def work(x):
        held.add(x)
        time.sleep(0.002)
        return x

    for x in shared(work, range(40), 2):
        most = max(most, len(held))
        held.remove(x)
    assert most < 20


def test_whoever_stops_early_leaves_nobody_at_work():
    busy, begun = [], []

    def work(x):
        busy.append(x)
        begun.append(x)
        time.sleep(0.01)
        busy.remove(x)

    results = shared(work, range(100), 3)
    next(results)
    results.close()
    assert busy == []
    assert len(begun) < 50, "nobody begins what is not wanted any more"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_threads_of_its_own():
    script = (
        "import os\nfrom fedhold.kernels import shared\n"
        "squares = lambda: list(shared(lambda x: x * x, range(4), 2))\n"
        "squares()\nchild = os.fork()\n"
        "assert squares() == [0, 1, 4, 9]\n"
        "if child:\n    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)


# BLAS

BLAS = """
import threading
import numpy as np
from threadpoolctl import threadpool_info
from fedhold.kernels import one_blas_thread
from fedhold.lab import LinearRegression, balanced, federate, rsa, shard, synthesized

def blas_threads():
    return {pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"}

rng = np.random.default_rng(0)
samples = synthesized(rng, samples=40, d=3).train
shards, met = shard(samples, balanced(40, 4, rng)), []
for learn, more in ((federate, {}), (rsa, {"penalty": 0.1})):
    learn(LinearRegression(samples), shards, rounds=1, step=0.1, on_round=lambda _: met.append(blas_threads()), **more)
    met.append(blas_threads())
try:
    federate(LinearRegression(samples), shards, rounds=1, step=0.1, on_round=lambda _: 1 / 0)
except ZeroDivisionError:
    met.append(blas_threads())

first_in, second_in, first_out = (threading.Event() for _ in range(3))

@one_blas_thread
def first():
    met.append(blas_threads())
    first_in.set()
    second_in.wait(60)

@one_blas_thread
def second():
    second_in.set()
    first_out.wait(60)

def begin():
    first()
    first_out.set()

def follow():
    first_in.wait(60)
    second()

runs = [threading.Thread(target=run) for run in (begin, follow)]
for run in runs:
    run.start()
for run in runs:
    run.join(120)
print(met, blas_threads())
"""


def test_clients_learn_with_one_thread_of_blas_which_is_taken_back():
    """After a run, after one that fails, and after two at once of which the first to begin is the first to end.

    It holds in whichever thread a run is.
    """
    told = subprocess.run(
        [sys.executable, "-c", BLAS],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "2"},
        **{"capture_output": True, "text": True, "check": True, "timeout": 120},
    )
    assert told.stdout == "[{1}, {2}, {1}, {2}, {2}, {1}] {2}\n"
