"""Compiled sweeps tell what the interpreted ones tell, and threads that share work lose none of it."""

import os
import subprocess
import sys
import threading
import time

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cases import run_without_numba
from fedhold import aggregate
from fedhold.kernels import compiled_gram, compiled_sweeps, native, sweeps
from fedhold.kernels import threads as crew
from fedhold.updates.mixture import Mixture

LAYOUTS = ("whole", "view", "columns", "reversed", "unaligned")


def laid_out(X, layout):
    """The same numbers, in memory as blocks may come."""
    m, width = X.shape
    if layout == "view":
        wide = np.full((m, width + 11), np.nan, X.dtype)
        wide[:, 5 : 5 + width] = X
        return wide[:, 5 : 5 + width]
    if layout == "columns":
        return np.asfortranarray(X)
    if layout == "reversed":
        return np.ascontiguousarray(X[::-1])[::-1]
    if layout == "unaligned":
        raw = np.zeros(X.nbytes + 1, np.uint8)
        view = raw[1:].view(X.dtype).reshape(X.shape)
        view[:] = X
        return view
    return X


@settings(deadline=None, max_examples=60)
@given(
    m=st.integers(1, 21),
    width=st.sampled_from([1, 2, 63, 1024, 1025, 5000]),
    dtype=st.sampled_from([np.float32, np.float64]),
    layout=st.sampled_from(LAYOUTS),
    placed=st.booleans(),
    pulled=st.booleans(),
    seed=st.integers(0, 9),
)
def test_compiled_as_interpreted(m, width, dtype, layout, placed, pulled, seed):
    rng = np.random.default_rng(seed)
    X = laid_out((rng.standard_normal((m, width)) + 1).astype(dtype), layout)
    before = X.copy()
    rows = rng.random((2 if pulled else 1, m))
    place = rng.standard_normal(width) if placed else None
    centres = np.empty(width), np.empty(width)
    told = [one.sweep(X, rows, place, centre) for one, centre in zip((sweeps, compiled_sweeps), centres, strict=True)]
    digits = 1e-4 if dtype is np.float32 else 1e-12
    size = np.abs(told[0]).max() + m * width  # of what was added up
    np.testing.assert_allclose(*told, rtol=digits, atol=digits * size)
    np.testing.assert_allclose(*centres, rtol=digits, atol=digits * m)
    delta = rng.standard_normal(width).astype(dtype)
    pair = [one.products(X, delta, place) for one in (sweeps, compiled_sweeps)]
    np.testing.assert_allclose(*pair, rtol=digits, atol=digits * width)
    np.testing.assert_allclose(compiled_sweeps.row_squares(X), sweeps.row_squares(X), rtol=digits)
    np.testing.assert_array_equal(X, before)


@settings(deadline=None, max_examples=40)
@given(
    m=st.integers(1, 21),
    width=st.sampled_from([1, 63, 1024, 2100]),
    dtype=st.sampled_from([np.float32, np.float64]),
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 9),
)
def test_compiled_products_of_pairs(m, width, dtype, layout, seed):
    rng = np.random.default_rng(seed)
    X = laid_out((rng.standard_normal((m, width)) + 1).astype(dtype), layout)
    place = X[m // 2].copy()
    residual = X.astype(np.float64) - place
    digits = 1e-5 if dtype is np.float32 else 1e-12
    for exactly, points in ((True, residual), (False, X.astype(np.float64))):
        products, squares = compiled_gram.gram(X, place, exactly=exactly)
        np.testing.assert_allclose(products, residual @ residual.T, rtol=digits, atol=digits * width)
        np.testing.assert_allclose(
            squares, (points**2).sum(axis=1), rtol=digits / 10 if exactly else digits, atol=1e-30
        )
        np.testing.assert_array_equal(products, products.T)


@settings(deadline=None, max_examples=40)
@given(
    m=st.integers(1, 21),
    p=st.integers(1, 9),
    width=st.sampled_from([1, 63, 257]),
    layout=st.sampled_from(LAYOUTS),
    seed=st.integers(0, 9),
)
def test_compiled_mixtures(m, p, width, layout, seed):
    """Rows that come twice, too; far from 0, where sums of many would lose what the rows differ by."""
    rng = np.random.default_rng(seed)
    rows = laid_out((rng.standard_normal((m, width)) + 1000).astype(np.float32), layout)
    matrix = rng.random((p, m))[rng.integers(0, p, p + 3)]
    matrix /= matrix.sum(axis=1, keepdims=True)
    expected = matrix @ rows.astype(np.float64)
    for fast in (False, True):
        found = Mixture(matrix).of(rows, fast=fast)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_what_is_not_finite_stays_so(value):
    X = np.ones((9, 2000), np.float32)
    X[4, 1500] = value
    with np.errstate(over="ignore", invalid="ignore"):
        found, expected = compiled_sweeps.row_squares(X), sweeps.row_squares(X)
    np.testing.assert_array_equal(np.isfinite(found), np.isfinite(expected))
    assert not np.isfinite(found[4])


@pytest.mark.parametrize("rule", ["huber", "geometric_median", "krum", "median", "mean"])
def test_the_same_aggregate_with_and_without(rule, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3000)).astype(np.float32)
    X[:10] += 2
    parameters = {"f": 10} if rule == "krum" else {}
    interpreted = aggregate(X, rule, **parameters)
    monkeypatch.setattr(native, "ENOUGH", 0)
    for threads in ("1", "3"):
        monkeypatch.setenv("FEDHOLD_THREADS", threads)
        fast = aggregate(X, rule, **parameters)
        np.testing.assert_allclose(fast.value, interpreted.value, atol=2e-5)
        np.testing.assert_allclose(fast.clients.distances, interpreted.clients.distances, rtol=1e-5)


@pytest.mark.parametrize("rule", ["huber", "krum(f=10)", "trimmed_mean(f=10)", "bulyan(f=10)"])
@pytest.mark.parametrize("enough", [0, sys.maxsize])
def test_several_threads_at_once(rule, enough, monkeypatch):
    """Each gets its own answer, the one it would get alone; settings of others stay as they were."""
    monkeypatch.setattr(native, "ENOUGH", enough)
    monkeypatch.setenv("FEDHOLD_THREADS", "3")
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((60, 4000)).astype(np.float32) + i for i in range(4)]
    alone = [aggregate(X, rule).value for X in inputs]
    before = dict(os.environ), np.geterr(), numba.get_num_threads()
    found = dict[int, list[bool]]()

    def work(i):
        found[i] = [np.array_equal(aggregate(inputs[i], rule).value, alone[i]) for _ in range(5)]

    callers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(120)
    assert found == {i: [True] * 5 for i in range(4)}
    assert (dict(os.environ), np.geterr(), numba.get_num_threads()) == before


def test_without_numba_there_is_an_interpreter():
    told = run_without_numba(
        "import numpy as np, fedhold",
        "X = np.random.default_rng(0).standard_normal((20, 300_000)).astype(np.float32)",
        "print(fedhold.aggregation(X).converged, 'fedhold.kernels.compiled_sweeps' in sys.modules)",
    )
    assert told == ["True", "False"]


# The crew


def test_every_item_once_and_in_order():
    assert list(crew.shared(lambda x: x * x, range(100), 4)) == [x * x for x in range(100)]
    assert list(crew.shared(str, [], 4)) == []


def test_many_callers_and_work_within_work():
    def outer(x):
        return sum(crew.shared(lambda y: x * y, range(10), 3))

    results = {}
    callers = [
        threading.Thread(target=lambda i=i: results.update({i: list(crew.shared(outer, range(8), 3))}))
        for i in range(6)
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
        list(crew.shared(work, range(8), 3))
    assert busy == []


def test_results_are_not_hoarded():
    """A sum of large matrices must not hold all of them."""
    held, most = set(), 0

    def work(x):
        held.add(x)
        time.sleep(0.002)
        return x

    for x in crew.shared(work, range(40), 2):
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

    results = crew.shared(work, range(100), 3)
    next(results)
    results.close()
    assert busy == []
    assert len(begun) < 50, "nobody begins what is not wanted any more"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_has_threads_of_its_own():
    script = (
        "import os\nfrom fedhold import crew\n"
        "squares = lambda: list(crew.shared(lambda x: x * x, range(4), 2))\n"
        "squares()\nchild = os.fork()\n"
        "assert squares() == [0, 1, 4, 9]\n"
        "if child:\n    raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))\n"
    )
    subprocess.run([sys.executable, "-W", "ignore", "-c", script], check=True, timeout=60)
