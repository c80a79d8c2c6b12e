"""Every compiled twin beside the NumPy loop that it stands for, and beside a formula in float64 that both must meet."""

import os
import subprocess
import sys

import numpy as np
import pytest

from fedhold import aggregate
from fedhold.kernels import BFLOAT16, columns, compiled, loops, widened
from fedhold.kernels.columns import COMPILED_NETWORK
from fedhold.sizes import SEVERAL
from fedhold.updates.tiles import Source

pytest.importorskip("numba", reason="the extra `fast`")

MOST = {
    "_looked": 10_000,
    "_pairs": SEVERAL,
    "_sorted": COMPILED_NETWORK,
}  # clients for whom there is a twin
ROWS = [1, 2, 3, 4, 5, 7, 10, 20, 31, 48, 64, 100, COMPILED_NETWORK, 500]
WIDTHS = [1, 63, 1025]


@pytest.fixture
def asked(monkeypatch):
    """Lets twins read tiles of every size, and says by which name each was called."""
    monkeypatch.setattr(compiled, "ALONE", 1)
    names = []
    for name in ("_looked", "_pairs", "_sorted", "_copied", "_widened"):
        twin = getattr(compiled, name)

        def noted(*arguments, name=name, twin=twin):
            names.append(name)
            twin(*arguments)

        monkeypatch.setattr(compiled, name, noted)
    return names


def no_tile(_):
    """Stands for `compiled.takes` where there is no numba."""
    return False


def ties(rng, m, width):
    return rng.integers(-2, 3, (m, width)) / 3


DATA = {
    "normal": lambda rng, m, width: rng.standard_normal((m, width)),
    "offset": lambda rng, m, width: 1000 + rng.standard_normal((m, width)),
    "ties": ties,
    "zeros of both signs": lambda rng, m, width: rng.choice([0.0, -0.0], (m, width)),
    "subnormal": lambda rng, m, width: 1e-41 * rng.standard_normal((m, width)),
}

LOOPS = {
    "looked": ("_looked", lambda X: looked(X), lambda X: looked_in_float64(X)),
    "pairs": ("_pairs", lambda X: loops.pairs(X), lambda X: X @ X.T),
    "median": ("_sorted", columns.median, lambda X: np.median(X, axis=0)),
    "trimmed mean": (
        "_sorted",
        lambda X: columns.trimmed_mean(X, len(X) // 5),
        lambda X: np.sort(X, axis=0)[len(X) // 5 : len(X) - len(X) // 5].mean(axis=0),
    ),
    "least trimmed": ("_sorted", lambda X: columns.trimmed_mean(X, 0), lambda X: X.mean(axis=0)),
    "most trimmed": (
        "_sorted",
        lambda X: columns.trimmed_mean(X, (len(X) - 1) // 2),
        lambda X: np.median(X, axis=0),
    ),
    "mean around the median": (
        "_sorted",
        lambda X: columns.mean_around_median(X, len(X)),
        lambda X: X.mean(axis=0),
    ),
}
"""loop -> (the twin's name, what the loop finds, what its formula says in float64)."""


def weights(m):
    some = np.arange(1.0, m + 1)
    return some / some.sum()


def looked(X):
    found, row = loops.looked(X, weights=weights(len(X)))
    return np.concatenate([row, found.along, found.squares, [found.size]])


def looked_in_float64(X):
    centre = weights(len(X)) @ X
    return np.concatenate([centre, X @ centre, (X**2).sum(axis=1), [centre @ centre]])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("loop", LOOPS)
def test_a_twin_finds_what_its_loop_finds(loop, kind, dtype, asked, monkeypatch):
    name, find, formula = LOOPS[loop]
    for m in ROWS:
        for width in WIDTHS:
            X = in_longer_rows(DATA[kind](np.random.default_rng(m), m, width), dtype)
            before = X.copy()
            asked.clear()
            twin = find(X)
            assert (name in asked) == (m <= MOST[name])
            np.testing.assert_array_equal(X, before)
            with monkeypatch.context() as without:
                without.setattr(compiled, "takes", no_tile)
                alone = find(X)
            exact = formula(X.astype(np.float64))
            digits = 1e-5 if dtype == np.float32 else 1e-13
            room = (
                digits * (np.abs(exact).max() + np.abs(X).max().astype(np.float64))
                + m * np.finfo(dtype).smallest_subnormal
            )
            for found in (twin, alone):
                np.testing.assert_allclose(found, exact, rtol=digits, atol=room)


def in_longer_rows(X, dtype):
    """A tile whose rows are parts of longer ones."""
    wide = np.full((len(X), X.shape[1] + 9), np.nan, dtype)
    wide[:, 4:-5] = X
    return wide[:, 4:-5]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("m", [20, 97])
def test_what_is_not_finite_stays_in_its_row_and_column(m, bad, dtype, asked):
    X = in_longer_rows(np.random.default_rng(m).standard_normal((m, 300)), dtype)
    X[3, 7], X[::3, 50], X[1, 299] = bad, bad, bad
    clean = np.isfinite(X).all(axis=0)
    found, expected = columns.median(X), np.median(X[:, clean].astype(np.float64), axis=0)
    np.testing.assert_array_equal(found[clean], expected.astype(dtype))
    trimmed = np.sort(X[:, clean].astype(np.float64), axis=0)[4 : m - 4].mean(axis=0)
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(columns.trimmed_mean(X, 4)[clean], trimmed, rtol=1e-5, atol=1e-5)
        squares = loops.looked(X, weights=weights(m))[0].squares
    np.testing.assert_array_equal(np.isfinite(squares), np.isfinite(X).all(axis=1))
    assert asked == ["_sorted", "_sorted", "_looked"]


@pytest.mark.parametrize("m", [2, 5, 48])
def test_order_statistics_have_the_same_bits(m, asked, monkeypatch):
    X = np.random.default_rng(m).standard_normal((m, 3000)).astype(np.float32)
    found = columns.median(X), columns.trimmed_mean(X, m // 5)
    monkeypatch.setattr(compiled, "takes", no_tile)
    np.testing.assert_array_equal(found[0], columns.median(X))
    np.testing.assert_array_equal(found[1], columns.trimmed_mean(X, m // 5))
    assert asked == ["_sorted"] * 2


EVERY = np.arange(2**16, dtype=np.uint16)
LISTS = {
    "float32": [np.random.default_rng(i).standard_normal(3000).astype(np.float32) for i in range(7)],
    "float64": [np.random.default_rng(i).standard_normal(3000) for i in range(7)],
    "parts of longer arrays": [np.arange(5000.0)[i : i + 3000] for i in range(7)],
    "float16": [np.roll(EVERY, i).view(np.float16) for i in range(3)],
    "bfloat16": [np.roll(EVERY, i).view(BFLOAT16) for i in range(3)],
}


@pytest.mark.parametrize("kind", LISTS)
def test_rows_of_a_list_are_gathered(kind, asked):
    """Every number there is of half precision has the same bits as by NumPy."""
    rows = LISTS[kind]
    source = Source.of(rows, len(rows[0]))
    for chosen in (None, np.array([2, 0])):
        some = rows if chosen is None else [rows[i] for i in chosen]
        wide = np.full((len(some), 2600), 7, source.dtype)
        source.fill(wide[:, 50:2550], 40, 2540, chosen)
        expected = np.stack([widened(row[40:2540]) for row in some])
        np.testing.assert_array_equal(wide[:, 50:2550].view(np.uint8), expected.view(np.uint8))
        assert (wide[:, :50] == 7).all()
        assert (wide[:, 2550:] == 7).all()
    assert asked == ["_widened" if "float16" in kind else "_copied"] * 2


def test_rows_of_several_forms_are_gathered_one_by_one(asked):
    rows = [np.ones(3000, np.float32), np.ones(3000, np.float16), np.ones(6000, np.float32)[::2]]
    out = np.empty((3, 3000), np.float32)
    Source.of(rows, 3000).fill(out, 0, 3000, None)
    assert (out == 1).all()
    beside_float64 = np.empty((3, 3000))
    Source.of([np.ones(3000, np.float32)] * 3, 3000).fill(beside_float64, 0, 3000, None)
    assert (beside_float64 == 1).all()
    assert not asked


RULES = ["mean", "huber", "median", "trimmed_mean(f=10)", "mean_around_median(f=10)", "krum(f=10)"]


@pytest.mark.parametrize("rule", RULES)
def test_rules_give_the_same_with_and_without(rule, asked, monkeypatch):
    X = np.random.default_rng(0).standard_normal((50, 90_000)).astype(np.float32)
    X[:10] += 2
    for updates in (X, list(X), list(X.astype(np.float16))):
        found = aggregate(updates, rule)
        with monkeypatch.context() as without:
            without.setattr(compiled, "takes", no_tile)
            alone = aggregate(updates, rule)
        np.testing.assert_allclose(found.value, alone.value, rtol=2e-3 if updates[0].itemsize == 2 else 1e-5, atol=1e-6)
        np.testing.assert_allclose(found.clients.distances, alone.clients.distances, rtol=1e-5)
    assert set(asked) >= {"_copied", "_widened"}


@pytest.mark.parametrize("rule", ["mean", "median"])
def test_how_many_threads_there_are_changes_no_bit(rule, monkeypatch):
    X = list(np.random.default_rng(0).standard_normal((100, 30_000)).astype(np.float32))
    values = []
    for threads in ("1", "2", "5"):
        monkeypatch.setenv("FEDHOLD_THREADS", threads)
        values.append(aggregate(X, rule).value)
    np.testing.assert_array_equal(values[0], values[1])
    np.testing.assert_array_equal(values[0], values[2])


def test_numba_is_imported_by_nothing_small():
    code = (
        "import sys, numpy as np, fedhold; fedhold.aggregate(np.ones((50, 5000), np.float32));"
        "fedhold.aggregate(np.ones((50, 5000), np.float32), 'median'); assert 'numba' not in sys.modules"
    )
    subprocess.run(
        [sys.executable, "-c", code], check=True, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    )
