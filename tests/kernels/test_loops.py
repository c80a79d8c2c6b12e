"""Every loop over tiles in every layout: it gives what its formula says in float64, and leaves the tile as it was."""

import dataclasses
import os
import threading
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from fedhold import aggregate
from fedhold.kernels import columns, loops
from fedhold.updates import Updates
from fedhold.updates.tiles import Source, added

LAYOUTS = ("whole", "view", "columns", "reversed", "unaligned")


def laid_out(X, layout):
    """The same numbers, in memory as tiles may come."""
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


@dataclasses.dataclass
class Case:
    """A tile, and what loops may be called with beside it."""

    X: np.ndarray
    weights: np.ndarray
    pulls: np.ndarray
    block: np.ndarray

    @property
    def wide(self):
        return self.X.astype(np.float64)

    @property
    def centre(self):
        return self.weights @ self.wide

    @property
    def digits(self):
        return 2e-4 if self.X.dtype == np.float32 else 1e-11

    @property
    def fewer(self):
        return (len(self.X) - 1) // 3


@st.composite
def cases(draw):
    m = draw(st.integers(1, 21) | st.sampled_from([columns.NETWORK, columns.NETWORK + 1, 130]))
    width = draw(st.sampled_from([1, 2, 63, 1024, 1025, 2100] if m < 100 else [1, 65]))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    X = laid_out((rng.standard_normal((m, width)) + 1).astype(dtype), draw(st.sampled_from(LAYOUTS)))
    weights, pulls = rng.random((2, m))
    return Case(X, weights / weights.sum(), pulls, rng.standard_normal((m, 3)))


def residual_pairs(c):
    found = loops.residual_pairs(c.X, pulls=c.pulls)
    np.testing.assert_allclose(found.squares, (c.wide**2).sum(axis=1), rtol=c.digits / 100, atol=1e-30)
    return found, (c.wide @ c.wide.T, (c.wide**2).sum(axis=1), np.sum((c.pulls @ c.wide) ** 2))


def centred_squares(c):
    (squares, force), row = loops.centred_squares(c.X, weights=c.weights, pulls=c.pulls)
    residual = c.wide - c.centre
    return (squares, force, row), ((residual**2).sum(axis=1), np.sum((c.pulls @ residual) ** 2), c.centre)


def looked(c):
    found, row = loops.looked(c.X, weights=c.weights)
    return (*found, row), ((c.wide**2).sum(axis=1), c.wide @ c.centre, c.centre @ c.centre, c.centre)


def products(c):
    found, row = loops.products(c.X, weights=c.weights)
    assert found.squares is None
    return (found.along, found.size, row), (c.wide @ c.centre, c.centre @ c.centre, c.centre)


LOOPS = {
    "squares": lambda c: ((loops.squares(c.X),), ((c.wide**2).sum(axis=1),)),
    "largest": lambda c: ((loops.largest(c.X),), (np.abs(c.wide).max(axis=1),)),
    "signs": lambda c: (loops.signs(c.X), ((c.wide > 0).sum(axis=1), (c.wide < 0).sum(axis=1))),
    "one row": lambda c: (loops.one_row(c.X, client=0)[1:], (c.wide[0],)),
    "weighted": lambda c: ((loops.weighted(c.X, weights=c.weights),), (c.centre,)),
    "products": products,
    "looked": looked,
    "along": lambda c: ((loops.along(c.X, c.centre),), (c.wide @ c.centre,)),
    "centred squares": centred_squares,
    "images": lambda c: ((loops.images(c.X, columns=c.block),), (c.wide @ (c.block.T @ c.wide).T,)),
    "pairs": lambda c: ((loops.pairs(c.X),), (c.wide @ c.wide.T,)),
    "some pairs": lambda c: ((loops.some_pairs(c.X, clients=np.array([0])),), ((c.wide @ c.wide.T)[:1],)),
    "residual pairs": residual_pairs,
    "median": lambda c: ((columns.median(c.X),), (np.median(c.wide, axis=0),)),
    "trimmed mean": lambda c: (
        (columns.trimmed_mean(c.X, c.fewer),),
        (np.sort(c.wide, axis=0)[c.fewer : len(c.X) - c.fewer].mean(axis=0),),
    ),
    "mean around the median": lambda c: ((columns.mean_around_median(c.X, len(c.X)),), (c.wide.mean(axis=0),)),
    "mean around the trimmed mean": lambda c: (
        (columns.mean_around_trimmed_mean(c.X, c.fewer),),
        (oracles.phocas(c.wide, c.fewer),),
    ),
}
"""loop -> (what it finds, what its formula says in float64)."""


@pytest.mark.parametrize("loop", LOOPS)
@settings(deadline=None, max_examples=40)
@given(case=cases())
def test_a_loop_gives_what_its_formula_says(loop, case):
    before = case.X.copy()
    found, expected = LOOPS[loop](case)
    for one, other in zip(found, expected, strict=True):
        scale = np.abs(np.asarray(other)).max(initial=0.0) + case.X.size
        np.testing.assert_allclose(one, other, rtol=case.digits, atol=case.digits * scale)
    np.testing.assert_array_equal(case.X, before)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_what_is_not_finite_stays_so(value):
    X = np.ones((9, 2000), np.float32)
    X[4, 1500] = value
    with np.errstate(over="ignore", invalid="ignore"):
        found = loops.squares(X), loops.looked(X, weights=np.full(9, 1 / 9))[0].squares
    for squares in found:
        assert not np.isfinite(squares[4])
        assert np.isfinite(np.delete(squares, 4)).all()


def test_pairs_are_symmetric_to_the_last_bit():
    X = np.random.default_rng(0).standard_normal((37, 5000)).astype(np.float32)
    found = loops.pairs(X)
    np.testing.assert_array_equal(found, found.T)


def test_sums_are_added_up_by_field():
    found = added(loops.Products(None, np.ones(2), 2.0), loops.Products(None, np.full(2, 3.0), 5.0))
    np.testing.assert_array_equal(found.along, [4, 4])
    assert (found.squares, found.size) == (None, 7)


def test_a_reference_keeps_the_digits_of_what_rows_differ_by():
    """Around an offset of 1000, float32 products of the rows themselves would be off by hundreds."""
    rng = np.random.default_rng(0)
    X = (1000 + 0.01 * rng.standard_normal((50, 3000))).astype(np.float32)
    weights = np.full(50, 1 / 50)
    updates = Updates((Source.of(X, 3000),), 50)
    found, centre = updates.read(partial(loops.products, weights=weights), minus=3, row=True)
    residual = X.astype(np.float64) - X[3]
    np.testing.assert_allclose(centre, X.astype(np.float64).mean(axis=0), rtol=1e-7)
    np.testing.assert_allclose(found.along, residual @ (weights @ residual), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("rule", ["huber", "krum(f=10)", "trimmed_mean(f=10)", "bulyan(f=10)"])
def test_several_threads_at_once(rule, monkeypatch):
    """Each gets its own answer, the one it would get alone; settings of others stay as they were."""
    monkeypatch.setenv("FEDHOLD_THREADS", "3")
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal((60, 20_000)).astype(np.float32) + i for i in range(4)]
    alone = [aggregate(X, rule).value for X in inputs]
    before = dict(os.environ), np.geterr()
    found = dict[int, list[bool]]()

    def work(i):
        found[i] = [np.array_equal(aggregate(inputs[i], rule).value, alone[i]) for _ in range(5)]

    callers = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(120)
    assert found == {i: [True] * 5 for i in range(4)}
    assert (dict(os.environ), np.geterr()) == before


@pytest.mark.parametrize("rule", ["mean", "huber", "spectral_huber", "krum(f=10)", "median", "fl_trust"])
def test_how_many_threads_there_are_changes_no_bit(rule, monkeypatch):
    X = np.random.default_rng(0).standard_normal((130, 20_000)).astype(np.float32)
    values = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("FEDHOLD_THREADS", threads)
        values.append(aggregate(X, rule).value)
    np.testing.assert_array_equal(values[0], values[1])
    np.testing.assert_array_equal(values[0], values[2])


@pytest.mark.parametrize("offset", [1.0, 100.0, 1000.0])
@pytest.mark.parametrize("rule", ["huber", "geometric_median", "mean", "median"])
def test_an_offset_costs_no_pass_by_subtraction(rule, offset, monkeypatch):
    """Model weights instead of differences: products around a client find what float64 finds."""
    rng = np.random.default_rng(0)
    X = (offset * rng.standard_normal(3000) + rng.standard_normal((70, 3000))).astype(np.float32)
    X[:12] += 2
    wide = aggregate(X.astype(np.float64), rule)
    monkeypatch.setattr(loops, "centred_squares", None)  # Calling it is an error.
    result = aggregate(X, rule)
    typical = np.median(wide.clients.distances)
    assert result.converged
    assert np.linalg.norm(result.value - wide.value) <= 1e-5 * typical + 1e-7 * np.linalg.norm(wide.value)
    np.testing.assert_allclose(result.clients.distances, wide.clients.distances, rtol=1e-4)
