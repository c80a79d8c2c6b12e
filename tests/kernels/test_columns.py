"""Order statistics of columns against sorting, taken literally."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis.extra.numpy import arrays

from fedhold import aggregate, save_update
from fedhold.kernels import columns, length, middle
from fedhold.kernels.arrays import SORTED
from fedhold.kernels.columns import NETWORK

MS = [1, 2, 3, 4, 5, 20, 31, NETWORK - 1, NETWORK, NETWORK + 1, NETWORK + 2, 261, 1000]
every_m = pytest.mark.parametrize("m", MS)
every_dtype = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def spread_over_the_exponents(rng, m, d):
    return rng.standard_normal((m, d)) * 10.0 ** rng.integers(-37, 37, (m, d))


def nested(_, m, d):
    """Every number halves the way to one of two neighbours: half of those left never holds half of the numbers."""
    centre = np.linspace(0.5, 2, d)
    return centre + np.where(np.arange(m) % 2, 1, -1)[:, None] * 2.0 ** -(np.arange(m) % 150)[:, None]


DATA = {
    "normal": lambda rng, m, d: rng.standard_normal((m, d)),
    "offset": lambda rng, m, d: 1e4 + rng.standard_normal((m, d)),
    "liars": lambda rng, m, d: rng.standard_normal((m, d)) * np.where(np.arange(m) < 0.4 * m, 1e30, 1)[:, None],
    "few values": lambda rng, m, d: rng.integers(-2, 3, (m, d)) / 3,
    "mostly one value": lambda rng, m, d: np.where(rng.random((m, d)) < 0.7, 0.1, rng.standard_normal((m, d))),
    "all equal": lambda rng, m, d: np.broadcast_to(rng.standard_normal(d), (m, d)),
    "zeros of both signs": lambda rng, m, d: rng.choice([0.0, -0.0, 1e-45, -1e-45], (m, d)),
    "subnormal": lambda rng, m, d: 1e-41 * rng.standard_normal((m, d)),
    "near the largest": lambda rng, m, d: 3.4e38 * rng.choice([-1, 1], (m, d)) * rng.random((m, d)),
    "all exponents": spread_over_the_exponents,
    "nested": nested,
    "cubed, to a spike": lambda rng, m, d: rng.standard_normal((m, d)) ** 9,
}
every_kind = pytest.mark.parametrize("kind", DATA)


def sorted_median(X):
    ordered = np.sort(X, axis=0).astype(np.float64)
    return ordered[(len(X) - 1) // 2] / 2 + ordered[len(X) // 2] / 2


def sorted_trimmed_mean(X, f):
    return np.sort(X, axis=0)[f : len(X) - f].astype(np.float64).mean(axis=0)


def sorted_mean_around_median(X, keep):
    ordered = np.sort(X, axis=0).astype(np.float64)
    nearest = np.argsort(np.abs(ordered - sorted_median(X)), axis=0, kind="stable")[:keep]
    return np.take_along_axis(ordered, nearest, axis=0).mean(axis=0)


def assert_agrees(X):
    """All three rules, for the least and the most that they can leave out."""
    m, eps = len(X), float(np.finfo(X.dtype).eps)
    # Numbers near the least one, 5e-324, are rounded to multiples of it, each time that one of m is added or divided.
    least = float(np.finfo(X.dtype).smallest_subnormal)
    before, room = X.copy(), 4 * eps * (4 + np.sqrt(m)) * np.abs(X).max(axis=0).astype(np.float64) + m * least
    np.testing.assert_allclose(columns.median(X), sorted_median(X), rtol=eps, atol=least)
    for f in {0, m // 5, (m - 1) // 2}:
        assert (np.abs(columns.trimmed_mean(X, f=f) - sorted_trimmed_mean(X, f)) <= room).all()
    for keep in {1, m - m // 5, m}:
        found, expected = columns.mean_around_median(X, keep=keep), sorted_mean_around_median(X, keep)
        assert (np.abs(found - expected) <= room).all()
    np.testing.assert_array_equal(X, before)


@every_dtype
@every_m
@every_kind
def test_agrees_with_sorting(kind, m, dtype):
    X = DATA[kind](np.random.default_rng(m), m, 70)
    # Where squares of float32 numbers would overflow or vanish, `aggregate` reads them as float64.
    assert_agrees(X.astype(dtype if 1e-12 < np.abs(X).max() < 1e12 else np.float64))


@st.composite
def blocks(draw):
    m, width = draw(st.integers(1, 9) | st.integers(NETWORK - 2, NETWORK + 9)), draw(st.sampled_from([32, 64]))
    largest = 2.0**40 if width == 32 else 1e120  # `aggregate` reads larger numbers otherwise.
    numbers = st.floats(-largest, largest, width=width, allow_subnormal=False)
    few = draw(st.none() | st.lists(numbers, min_size=1, max_size=3))
    return draw(
        arrays(f"float{width}", (m, draw(st.integers(1, 3))), elements=st.sampled_from(few) if few else numbers)
    )


@settings(max_examples=150, deadline=None)
@given(blocks())
def test_agrees_with_sorting_whatever_the_numbers(X):
    assert_agrees(X)


VIEWS = {
    "columns of a larger array": lambda X: np.hstack([X, X])[:, 5 : 5 + X.shape[1]],
    "Fortran order": np.asfortranarray,
    "every second column": lambda X: np.repeat(X, 2, axis=1)[:, ::2],
    "rows from the last": lambda X: X[::-1],
    "every second row": lambda X: np.repeat(X, 2, axis=0)[::2],
    "one row for all": lambda X: np.broadcast_to(X[0], X.shape),
    "not aligned": lambda X: np.frombuffer(b"\0" + X.tobytes(), X.dtype, offset=1).reshape(X.shape),
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("shape", [(20, 130), (150, 3), (5, 1), (1, 9)], ids=str)
def test_any_layout_in_memory(view, shape):
    X = VIEWS[view](np.random.default_rng(0).standard_normal(shape).astype(np.float32))
    np.testing.assert_array_equal(columns.median(X), sorted_median(X).astype(np.float32))


@every_dtype
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("m", [20, 150])
def test_what_is_not_finite_ends(m, bad, dtype):
    X = np.random.default_rng(0).standard_normal((m, 70)).astype(dtype)
    X[::3, ::2], X[:, 1] = bad, bad
    clean = np.arange(70) % 2 > 0
    clean[1] = False
    np.testing.assert_array_equal(columns.median(X)[clean], sorted_median(X)[clean].astype(dtype))
    with np.errstate(invalid="ignore"):  # as `Updates.read` has it
        columns.trimmed_mean(X, f=m // 4)
        columns.mean_around_median(X, keep=m // 2)


@pytest.mark.parametrize(("m", "low", "high"), [(1, 0, 0), (2, 0, 1), (20, 9, 10), (33, 5, 27), (100, 0, 99)])
def test_networks_are_cut_to_what_matters(m, low, high):
    comparators = columns._network(m, low, high)
    X = np.random.default_rng(m).standard_normal((m, 500))
    for a, b in comparators:
        X[a], X[b] = np.minimum(X[a], X[b]), np.maximum(X[a], X[b])
    np.testing.assert_array_equal(X[[low, high]], np.sort(X, axis=0)[[low, high]])
    assert (X[:low] <= X[low]).all()
    assert (X[high + 1 :] >= X[high]).all()


def test_a_huge_number_outside_the_window_leaves_no_rounding_behind():
    X = np.array([[-1e30], [1.0], [1.25], [1.5], [1e30]])
    np.testing.assert_array_equal(columns.mean_around_median(X, 3), [1.25])
    np.testing.assert_array_equal(columns.mean_around_median(X[:4], 3), [1.25])


CALLS = [
    "median",
    "trimmed_mean(f=3)",
    "mean_around_median(f=3)",
    "bulyan(f=3)",
    "bucketing(size=2) | trimmed_mean(f=2)",
]


@pytest.mark.parametrize("rule", CALLS)
@every_dtype
def test_every_form_gives_the_same(rule, dtype, tmp_path):
    X = np.random.default_rng(0).standard_normal((24, 700)).astype(dtype)
    for i, row in enumerate(X):
        save_update(row, tmp_path / f"{i:03}.npy")
    expected = aggregate(X, rule, rng=0)
    for given_as in (np.asfortranarray(X), list(X), tmp_path):
        result = aggregate(given_as, rule, rng=0)
        np.testing.assert_allclose(result.value, expected.value, rtol=0, atol=4 * np.finfo(dtype).eps)
        np.testing.assert_allclose(result.clients.distances, expected.clients.distances, rtol=1e-4)


@pytest.mark.parametrize("m", [1, 2, 7, SORTED, SORTED + 1, SORTED + 2, 5001])
@pytest.mark.parametrize("kind", ["normal", "few values", "integers", "largest floats"])
def test_the_middle_of_few_and_many_numbers_is_their_median(m, kind):
    rng = np.random.default_rng(m)
    made = {
        "normal": lambda: rng.standard_normal(m).astype(np.float32),
        "few values": lambda: rng.integers(-2, 3, m) / 3,
        "integers": lambda: rng.integers(-5, 5, m).astype(np.intc),
        "largest floats": lambda: np.finfo(np.float64).max * rng.uniform(0.6, 1, m),
    }
    numbers = made[kind]()
    before = numbers.copy()
    ordered = np.sort(numbers).astype(np.float64)
    assert middle(numbers) == ordered[(m - 1) // 2] / 2 + ordered[m // 2] / 2
    assert (numbers == before).all()


@pytest.mark.parametrize(("number", "expected"), [(0.0, 0.0), (3e-200, 6e-200), (1.0, 2.0), (3e200, 6e200)])
def test_a_length_is_right_where_squares_vanish_or_overflow(number, expected):
    assert length(np.full(4, number)) == pytest.approx(expected, rel=1e-14)
