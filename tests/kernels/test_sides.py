"""Every kernel, on both sides, over the same table of cases: it gives what its formula says, and leaves the block as it was."""

import dataclasses
import itertools
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import fedhold
import oracles
from cases import run_without_numba
from fedhold import aggregate
from fedhold.kernels import NUMPY, NumpyKernels, Products, Rows, Strided, added, choice, numba_side
from fedhold.kernels.numba_side import MANY, NumbaKernels

SIDES = {"numpy": NUMPY, "numba": NumbaKernels()}
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


@dataclasses.dataclass
class Case:
    """A block, and what the kernels may be called with beside it."""

    X: np.ndarray
    weights: np.ndarray
    pulls: np.ndarray
    place: np.ndarray
    delta: np.ndarray
    mixture: np.ndarray

    @property
    def wide(self):
        return self.X.astype(np.float64)

    @property
    def digits(self):
        return 2e-4 if self.X.dtype == np.float32 else 1e-11


@st.composite
def cases(draw):
    m = draw(st.integers(1, 21) | st.sampled_from([MANY, MANY + 1]))
    width = draw(st.sampled_from([1, 2, 63, 1024, 1025, 2100] if m < 100 else [1, 65]))
    dtype = draw(st.sampled_from([np.float32, np.float64]))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    X = laid_out((rng.standard_normal((m, width)) + 1).astype(dtype), draw(st.sampled_from(LAYOUTS)))
    mixture = rng.random((draw(st.integers(1, 9)), m))
    weights, pulls = rng.random((2, m))
    return Case(
        X,
        weights / weights.sum(),
        pulls,
        place=rng.standard_normal(width),
        delta=rng.standard_normal(width).astype(dtype),
        mixture=(mixture / mixture.sum(axis=1, keepdims=True)).astype(np.float32),
    )


def products(case, kernels, anchor):
    """(found, expected) of products around an anchor point."""
    found = kernels.products(case.X, case.delta, anchor)
    origin = np.zeros(len(case.delta)) if anchor is None else anchor
    return found, Products((case.wide - origin) @ case.delta, case.delta.astype(float) @ case.delta)


def sweep(case, kernels, anchor, pulls):
    rows = np.stack([case.weights] if pulls is None else [case.weights, pulls])
    centre = np.empty(case.X.shape[1])
    found = kernels.sweep(case.X, rows, anchor, centre)
    expected = case.weights @ case.wide
    np.testing.assert_allclose(centre, expected, rtol=case.digits, atol=case.digits)
    origin = np.zeros(len(centre)) if anchor is None else anchor
    delta = expected - origin
    force = 0.0 if pulls is None else np.sum((pulls @ (case.wide - origin)) ** 2)
    return found, Products((case.wide - origin) @ delta, delta @ delta, force)


def first_sweep(case, kernels, place):
    """The squares and the products that kernels find one by one, in one reading."""
    centre = np.empty(case.X.shape[1])
    found = kernels.first_sweep(case.X, case.weights, place, centre)
    assert (found.squares.around is None) == (place is None)
    np.testing.assert_allclose(centre, case.weights @ case.wide, rtol=case.digits, atol=case.digits)
    residual = case.wide - (0 if place is None else place)
    delta = case.weights @ residual
    around = found.squares.own if place is None else found.squares.around
    return (found.squares.own, around, found.products.along, found.products.size), (
        (case.wide**2).sum(axis=1),
        (residual**2).sum(axis=1),
        residual @ delta,
        delta @ delta,
    )


def centre(case, kernels, anchor):
    found = np.empty(case.X.shape[1])
    kernels.centre(case.X, case.weights, anchor, found)
    return (found,), (case.weights @ case.wide,)


def squares(case, kernels):
    place = case.X[0].copy()
    found = kernels.squares(case.X, place)
    assert kernels.squares(case.X, None).around is None
    return (found.own, found.around), ((case.wide**2).sum(axis=1), ((case.wide - place) ** 2).sum(axis=1))


def residuals(case, kernels, origin):
    centre = np.empty(case.X.shape[1])
    weights = case.weights if origin is None else case.weights / 2
    found = kernels.residuals(case.X, weights, case.pulls, origin, centre)
    expected = weights @ case.wide + (0 if origin is None else origin / 2)
    np.testing.assert_allclose(centre, expected, rtol=case.digits, atol=case.digits)
    residual = case.wide - expected
    return (found.squares, found.force), ((residual**2).sum(axis=1), np.sum((case.pulls @ residual) ** 2))


def gram(case, kernels, place):
    found = kernels.gram(case.X, place)
    residual = case.wide - (0 if place is None else place)
    return (found.products, found.squares), (residual @ residual.T, (case.wide**2).sum(axis=1))


def residual_gram(case, kernels):
    place = case.X[len(case.X) // 2].copy()
    pulls = np.linspace(0.5, 1, len(case.X))
    found = kernels.residual_gram(case.X, place, pulls)
    residual = case.wide - place
    np.testing.assert_allclose(found.squares, (residual**2).sum(axis=1), rtol=case.digits / 100, atol=1e-30)
    force = pulls @ residual
    return (found.products, found.squares, found.force), (
        residual @ residual.T,
        (residual**2).sum(axis=1),
        force @ force,
    )


def mixed(case, kernels):
    """Far from 0, where sums of many rows in float32 would lose what the rows differ by."""
    rows = case.X.astype(np.float32) + np.float32(1000)
    found = kernels.mixed(case.mixture, rows, len(rows) // 2)
    assert found.dtype == np.float32
    middle = rows[len(rows) // 2].astype(np.float64)
    expected = case.mixture.astype(np.float64) @ (rows - middle) + middle
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-4)
    return (), ()


KERNELS = {
    "row_squares": lambda c, k: ((k.row_squares(c.X),), ((c.wide**2).sum(axis=1),)),
    "squares around a client": squares,
    "largest": lambda c, k: ((k.largest(c.X),), (np.abs(c.wide).max(axis=1),)),
    "products": lambda c, k: products(c, k, None),
    "products around an anchor": lambda c, k: products(c, k, c.place),
    "products in threads": lambda c, k: (k.products_in_threads(c.X, c.delta, c.place), products(c, k, c.place)[1]),
    "sweep": lambda c, k: sweep(c, k, None, None),
    "sweep around an anchor": lambda c, k: sweep(c, k, c.place, None),
    "sweep with pulls": lambda c, k: sweep(c, k, c.place, c.pulls),
    "first sweep": lambda c, k: first_sweep(c, k, None),
    "first sweep around a client": lambda c, k: first_sweep(c, k, c.X[0].copy()),
    "centre": lambda c, k: centre(c, k, None),
    "centre around an anchor": lambda c, k: centre(c, k, c.place),
    "images": lambda c, k: ((k.images(c.X, c.mixture),), (c.wide @ (c.mixture.astype(float) @ c.wide).T,)),
    "residuals": lambda c, k: residuals(c, k, None),
    "residuals with an origin": lambda c, k: residuals(c, k, c.place),
    "squared distances": lambda c, k: (
        (k.squared_distances(c.X, c.place),),
        (((c.wide - c.place) ** 2).sum(axis=1),),
    ),
    "gram": lambda c, k: gram(c, k, None),
    "gram around a client": lambda c, k: gram(c, k, c.X[0].copy()),
    "residual gram": residual_gram,
    "short sums": lambda c, k: (
        k.short_sums(c.X, c.pulls),
        ((c.wide**2).sum(axis=1), np.sum((c.pulls @ c.wide) ** 2)),
    ),
    "mixed": mixed,
    "median": lambda c, k: ((k.median(c.X),), (np.median(c.wide, axis=0),)),
    "trimmed mean": lambda c, k: (
        (k.trimmed_mean(c.X, (len(c.X) - 1) // 3),),
        (np.sort(c.wide, axis=0)[(len(c.X) - 1) // 3 : len(c.X) - (len(c.X) - 1) // 3].mean(axis=0),),
    ),
    "mean around the median": lambda c, k: (
        (k.mean_around_median(c.X, len(c.X)),),
        (c.wide.mean(axis=0),),
    ),
    "mean around the trimmed mean": lambda c, k: (
        (k.mean_around_trimmed_mean(c.X, (len(c.X) - 1) // 3),),
        (oracles.phocas(c.wide, (len(c.X) - 1) // 3),),
    ),
    "signs": lambda c, k: (k.signs(c.X), ((c.wide > 0).sum(axis=1), (c.wide < 0).sum(axis=1))),
}
"""kernel -> (what it finds, what its formula says in float64)."""


def numbers_of(found):
    return dataclasses.astuple(found) if dataclasses.is_dataclass(found) else found


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("kernel", KERNELS)
@settings(deadline=None, max_examples=30)
@given(case=cases())
def test_a_kernel_gives_what_its_formula_says(kernel, side, case):
    before = case.X.copy()
    found, expected = KERNELS[kernel](case, SIDES[side])
    for one, other in zip(numbers_of(found), numbers_of(expected), strict=True):
        scale = np.abs(np.asarray(other)).max(initial=0.0) + case.X.size
        np.testing.assert_allclose(one, other, rtol=case.digits, atol=case.digits * scale)
    np.testing.assert_array_equal(case.X, before)


ANYWHERE = {
    "squares": lambda k, X, c: k.squares(X, c.X[0]),
    "products": lambda k, X, c: k.products(X, c.delta, c.place),
    "sweep": lambda k, X, c: k.sweep(X, np.stack([c.weights, c.pulls]), c.place, None),
    "first sweep": lambda k, X, c: numbers_of(k.first_sweep(X, c.weights, None, np.empty(c.X.shape[1])).products),
    "images": lambda k, X, c: (k.images(X, c.mixture),),
    "gram": lambda k, X, c: k.gram(X, c.X[0].copy()),
    "residual gram": lambda k, X, c: k.residual_gram(X, c.X[0].copy(), c.pulls),
    "median": lambda k, X, _: (k.median(X),),
    "trimmed mean": lambda k, X, c: (k.trimmed_mean(X, (len(c.X) - 1) // 3),),
    "mean around the median": lambda k, X, c: (k.mean_around_median(X, (len(c.X) + 1) // 2),),
    "mean around the trimmed mean": lambda k, X, c: (k.mean_around_trimmed_mean(X, (len(c.X) - 1) // 3),),
}
"""The kernels whose portion says that rows may lie anywhere."""


@pytest.mark.parametrize("kernel", ANYWHERE)
@settings(deadline=None, max_examples=20)
@given(case=cases(), order=st.randoms(use_true_random=False))
def test_rows_anywhere_in_memory_are_a_block(kernel, case, order):
    """The same bits, whatever the order in which rows of arrays with gaps between them lie."""
    whole = np.ascontiguousarray(case.X)
    places = list(range(len(whole)))
    order.shuffle(places)
    wide = np.full((len(whole), whole.shape[1] + 7), np.nan, whole.dtype)
    for place, row in zip(places, whole, strict=True):
        wide[place, 3 : 3 + len(row)] = row
    rows = Rows.of([wide[place, 3 : 3 + whole.shape[1]] for place in places])
    for one, other in zip(*(numbers_of(ANYWHERE[kernel](SIDES["numba"], X, case)) for X in (rows, whole)), strict=True):
        np.testing.assert_array_equal(one, other)
    third = whole.shape[1] // 3
    np.testing.assert_array_equal(np.asarray(rows.part(third, 2 * third + 1)), whole[:, third : 2 * third + 1])
    for side in SIDES.values():
        found = side.columns(rows, slice(third, 2 * third + 1))
        np.testing.assert_array_equal(found, whole[:, third : 2 * third + 1])


def test_what_lies_askew_is_no_row():
    raw = np.zeros(41, np.uint8)
    assert Rows.of([raw[:40].view(np.float32), raw[1:41].view(np.float32)]) is None
    assert Rows.of([np.zeros(4, np.float32), np.zeros(4)]) is None
    assert Rows.of([np.zeros(8)[::2], np.zeros(4)]) is None


def test_some_rows_may_be_replaced_by_those_of_a_block():
    """Wherever the block lies: before the rows in memory, after them, or between."""
    memory = np.arange(90, dtype=np.float32)
    before, between, after = (memory[a : a + 10].reshape(2, 5) for a in (0, 40, 80))
    rows = Rows.of([memory[a : a + 5] for a in (60, 20, 30)])
    for block in (before, between, after):
        found = rows.replaced(np.array([0, 2]), block)
        np.testing.assert_array_equal(np.asarray(found), [block[0], memory[20:25], block[1]])
        np.testing.assert_array_equal(
            np.asarray(found.part(1, 4).taken(np.array([2, 1]))), [block[1, 1:4], memory[21:24]]
        )
        assert found.held is block


FLATTENED = (
    (70, 130, 3, 3),
    (3, 3, 70, 130),
    (1000, 77),
    (5, 4000),
    (20_000,),
    (1, 300, 1, 40),
    (2,) * 12,
    (17, 18, 19),
)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint16])
@pytest.mark.parametrize("shape", FLATTENED, ids=str)
@pytest.mark.parametrize("side", SIDES)
def test_arrays_of_any_layout_are_flattened_in_the_order_of_their_axes(side, shape, dtype):
    """Whole and in part, several at once, into some rows of a block."""
    X = (np.random.default_rng(0).standard_normal((2, *shape)) * 100).astype(np.int16).astype(dtype)
    axes = range(len(shape))
    orders = list(itertools.islice(itertools.permutations(axes), 24))
    views = [[np.ascontiguousarray(x.transpose(order)).transpose(np.argsort(order)) for x in X] for order in orders]
    views += [
        [np.repeat(x, 2, axis=-1)[..., ::2] for x in X],
        [np.repeat(x, 3, axis=0)[1::3] for x in X],
        [np.ascontiguousarray(x[::-1])[::-1] for x in X],
        list(np.moveaxis(np.ascontiguousarray(np.moveaxis(X, 0, -1)), -1, 0)),
    ]
    size = X[0].size
    for arrays in views:
        for start, stop in ((0, size), (1, size - 1), (size // 3, size // 2), (5, 6), (size // 3 + 7, size)):
            out = np.zeros((3, stop - start), dtype)
            SIDES[side].flattened(Strided.of(arrays), start, out, np.array([2, 0]))
            np.testing.assert_array_equal(out[[2, 0]], X.reshape(2, -1)[:, start:stop])
            assert not out[1].any()


def test_both_sides_have_one_interface():
    """The numba side overrides kernels of the NumPy side, with the same arguments, and adds none."""
    own = {name for name in vars(NumbaKernels) if not name.startswith("_")}
    assert own <= set(dir(NumpyKernels))


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
def test_what_is_not_finite_stays_so(side, value):
    X = np.ones((9, 2000), np.float32)
    X[4, 1500] = value
    with np.errstate(over="ignore", invalid="ignore"):
        swept = SIDES[side].first_sweep(X, np.full(9, 1 / 9), None, np.empty(2000))
        found = SIDES[side].row_squares(X), swept.squares.own
    for squares in found:
        assert not np.isfinite(squares[4])
        assert np.isfinite(np.delete(squares, 4)).all()


def test_a_centre_is_not_rounded_as_the_block_is():
    """Around an offset of 1000, float32 has steps of 6e-5; residuals are small, and their mean corrects the centre."""
    rng = np.random.default_rng(0)
    X = (1000 + 0.01 * rng.standard_normal((50, 300))).astype(np.float32)
    weights, centre = np.full(50, 1 / 50), np.empty(300)
    NUMPY.residuals(X, weights, np.zeros(50), None, centre)
    np.testing.assert_allclose(centre, X.astype(np.float64).mean(axis=0), rtol=0, atol=1e-6)


@pytest.mark.parametrize("m", [1, 2, 3, 8, 9, 50, 122, 123, 244, 245])
@pytest.mark.parametrize("around", [False, True])
def test_all_pairs_in_strips_of_rows(m, around):
    """From 123 rows on, strips are narrower, and from 245 on there is one; the last one may have fewer rows."""
    X = np.random.default_rng(m).standard_normal((m, 2500)).astype(np.float32)
    place = X[m // 2].copy() if around else None
    found, residual = NUMPY.gram(X, place), X.astype(np.float64) - (place if around else 0)
    np.testing.assert_allclose(found.products, residual @ residual.T, rtol=1e-5, atol=2e-3)
    np.testing.assert_allclose(found.squares, (X.astype(np.float64) ** 2).sum(axis=1), rtol=1e-5)
    if around:
        pairs = NUMPY.residual_gram(X, place, np.ones(m)).products
        np.testing.assert_allclose(pairs, residual @ residual.T, rtol=1e-5, atol=2e-3)


def test_sums_are_added_up_by_field():
    found = added(Products(np.ones(2), 2.0), Products(np.full(2, 3.0), 5.0, force=6.0))
    np.testing.assert_array_equal(found.along, [4, 4])
    assert (found.size, found.force) == (7, 6)


@pytest.mark.parametrize("side", SIDES)
def test_products_around_an_anchor_keep_the_digits_of_what_rows_differ_by(side):
    """Around an offset of 1000, float32 products of the rows themselves would be off by hundreds."""
    rng = np.random.default_rng(0)
    X = (1000 + 0.01 * rng.standard_normal((50, 3000))).astype(np.float32)
    weights, centre = np.full(50, 1 / 50), np.empty(3000)
    found = SIDES[side].sweep(X, weights[None], X[3].astype(np.float64), centre)
    residual = X.astype(np.float64) - X[3]
    np.testing.assert_allclose(centre, X.astype(np.float64).mean(axis=0), rtol=0, atol=1e-8)
    np.testing.assert_allclose(found.along, residual @ (weights @ residual), rtol=1e-4, atol=1e-6)


# The choice of a side


@pytest.mark.parametrize("rule", ["huber", "geometric_median", "krum", "median", "mean"])
def test_the_same_aggregate_on_both_sides(rule, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((50, 3000)).astype(np.float32)
    X[:10] += 2
    parameters = {"f": 10} if rule == "krum" else {}
    by_numpy = aggregate(X, rule, **parameters)
    monkeypatch.setattr(choice, "ENOUGH", 0)
    for threads in ("1", "3"):
        monkeypatch.setenv("FEDHOLD_THREADS", threads)
        by_numba = aggregate(X, rule, **parameters)
        np.testing.assert_allclose(by_numba.value, by_numpy.value, atol=2e-5)
        np.testing.assert_allclose(by_numba.clients.distances, by_numpy.clients.distances, rtol=1e-5)


@pytest.mark.parametrize("rule", ["huber", "krum(f=10)", "trimmed_mean(f=10)", "bulyan(f=10)"])
@pytest.mark.parametrize("enough", [0, sys.maxsize])
def test_several_threads_at_once(rule, enough, monkeypatch):
    """Each gets its own answer, the one it would get alone; settings of others stay as they were."""
    monkeypatch.setattr(choice, "ENOUGH", enough)
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


def test_without_numba_numpy_does_the_work():
    told = run_without_numba(
        "import numpy as np, fedhold",
        "X = np.random.default_rng(0).standard_normal((20, 300_000)).astype(np.float32)",
        "print(fedhold.aggregate(X).converged, 'fedhold.kernels.numba_side' in sys.modules)",
    )
    assert told == ["True", "False"]


def test_little_data_does_not_import_numba():
    script = (
        "import sys, numpy, fedhold; fedhold.aggregate(numpy.ones((9, 9)), 'median'); print('numba' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "False"


# The cache of compiled code


def compiled_functions():
    return {name: f for name, f in vars(numba_side).items() if isinstance(f, numba.core.dispatcher.Dispatcher)}


@pytest.mark.parametrize("name", compiled_functions())
def test_compiled_code_reads_no_constant_of_another_file(name):
    """Numba compiles anew when the file of a function has changed, and looks at no other file."""
    function = compiled_functions()[name].py_func
    own = Path(numba_side.__file__).read_text(encoding="utf-8")
    for word in function.__code__.co_names:
        if word in vars(numba_side) and not isinstance(vars(numba_side)[word], type(np)):
            assert f"\n{word} = " in own or f"\ndef {word}(" in own or f"\n{word}, " in own or f", {word} = " in own, (
                word
            )


KEPT = """
import os, resource, sys, warnings
import numpy as np
if "full" in sys.argv:
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))  # No file may grow beyond 200 bytes, as on a disk that is full.
X = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    from fedhold.kernels.numba_side import NumbaKernels
    for block in (X, X.astype(np.float64)):  # two entries of one index
        np.testing.assert_allclose(NumbaKernels().row_squares(block), np.square(X).sum(axis=1), rtol=1e-5)
print(len(told), *(str(one.message).replace(chr(10), " ") for one in told))
"""


def warnings_of_a_process(*arguments, announces=True, **environment):
    """How many warnings a new process gives that runs compiled code, and what they say; it logs a line where it compiles."""
    run = subprocess.run(
        [sys.executable, "-c", KEPT, *arguments],
        env={**os.environ, **environment},
        **{"capture_output": True, "text": True, "timeout": 300},
    )
    assert run.returncode == 0, run.stderr
    assert [line.partition(" for ")[0] for line in run.stderr.splitlines()] == ["compiling kernels"] * announces
    count, _, text = run.stdout.strip().partition(" ")
    return int(count), text


def damage(file, how):
    content = file.read_bytes()
    file.write_bytes({"truncated": content[: len(content) // 2], "empty": b"", "zeros": bytes(len(content))}[how])


@pytest.mark.parametrize(
    ("kind", "how"), [("nbi", "truncated"), ("nbc", "truncated"), ("nbi", "empty"), ("nbc", "zeros")]
)
def test_a_damaged_cache_costs_one_warning_and_is_repaired(tmp_path, kind, how, filled_cache):
    shutil.copytree(filled_cache, tmp_path / "cache")
    for file in (tmp_path / "cache").rglob(f"*.{kind}"):
        damage(file, how)
    count, told = warnings_of_a_process(NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert count == 1
    assert "is compiled in this process" in told
    assert warnings_of_a_process(NUMBA_CACHE_DIR=str(tmp_path / "cache"), announces=False) == (0, "")


@pytest.fixture(scope="module")
def filled_cache(tmp_path_factory):
    """The folder in which a process has kept its machine code."""
    folder = tmp_path_factory.mktemp("filled")
    assert warnings_of_a_process(NUMBA_CACHE_DIR=str(folder)) == (0, "")
    assert list(folder.rglob("*.nbc"))
    return folder


def test_a_full_disk_costs_one_warning(tmp_path):
    count, told = warnings_of_a_process("full", NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    assert count == 1
    assert "Free space, or set NUMBA_CACHE_DIR" in told
    assert not list((tmp_path / "cache").rglob("*.nbi"))  # An index would name code that is not there, or older code.


def test_a_cache_that_cannot_be_written_to_costs_one_warning(tmp_path):
    """Numba tries three places; a file stands in the way of each of them."""
    package = tmp_path / "fedhold"
    shutil.copytree(Path(fedhold.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    (package / "kernels" / "__pycache__").touch()
    (tmp_path / "file").touch()
    nowhere = str(tmp_path / "file" / "cache")
    count, told = warnings_of_a_process(
        PYTHONPATH=str(tmp_path), NUMBA_CACHE_DIR=nowhere, XDG_CACHE_HOME=nowhere, HOME=nowhere, announces=False
    )
    assert count == 1
    assert "no locator available" in told


def test_an_edited_constant_is_seen(tmp_path):
    """A copy of the package, its cache in place; then one constant of compiled code is edited."""
    package = tmp_path / "fedhold"
    shutil.copytree(Path(fedhold.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    script = (
        "import numpy as np\nfrom fedhold.kernels import numba_side\n"
        "keys = np.random.default_rng(0).standard_normal((500, numba_side.LANES))\n"
        "sample = np.sort(keys[:numba_side.SAMPLE], axis=0)\n"
        "print(numba_side._select(keys, sample, 250, np.empty(numba_side.LANES)))"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "NUMBA_CACHE_DIR": str(tmp_path / "cache")}

    def steps():
        run = subprocess.run(
            [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
        )
        return int(run.stdout)

    before = steps()
    assert before > 2
    file = package / "kernels" / "numba_side.py"
    source = file.read_text(encoding="utf-8")
    assert "\nSTEPS = 200 " in source
    file.write_text(source.replace("\nSTEPS = 200 ", "\nSTEPS = 2 "), encoding="utf-8")
    assert steps() == 2


@pytest.mark.parametrize("offset", [1.0, 100.0, 1000.0])
@pytest.mark.parametrize("rule", ["huber", "geometric_median", "mean", "median"])
def test_an_offset_costs_no_pass_by_subtraction(rule, offset, monkeypatch):
    """Model weights instead of differences: the passes stay compiled, and find what float64 finds."""
    rng = np.random.default_rng(0)
    X = (offset * rng.standard_normal(3000) + rng.standard_normal((60, 3000))).astype(np.float32)
    X[:12] += 2
    wide = aggregate(X.astype(np.float64), rule)
    monkeypatch.setattr(choice, "ENOUGH", 0)
    for slow in ("residuals", "squared_distances"):
        monkeypatch.setattr(NumpyKernels, slow, None)  # Calling it is an error.
    result = aggregate(X, rule)
    typical = np.median(wide.clients.distances)
    assert result.converged
    assert np.linalg.norm(result.value - wide.value) <= 1e-5 * typical + 1e-7 * np.linalg.norm(wide.value)
    np.testing.assert_allclose(result.clients.distances, wide.clients.distances, rtol=1e-4)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("far", [True, False])
def test_contiguous_columns_give_what_contiguous_rows_give(dtype, far):
    rng = np.random.default_rng(6)
    block = (rng.standard_normal((37, 2500)) + 5 * far).astype(dtype)
    place, rows, delta = (
        (block[3] if far else None),
        rng.dirichlet(np.ones(37), 2),
        rng.standard_normal(2500).astype(dtype),
    )
    side, found = NumbaKernels(), []
    for same in (block, np.asfortranarray(block)):
        centres = np.empty((3, 2500))
        swept, first = side.sweep(same, rows, place, centres[0]), side.first_sweep(same, rows[0], place, centres[1])
        side.centre(same, rows[0], place, centres[2])
        products = side.products(same, delta, place)
        sums = [swept.size, swept.force, first.products.size, products.size]
        around = [] if first.squares.around is None else [first.squares.around]
        found.append([*centres, swept.along, first.products.along, first.squares.own, *around, products.along, sums])
    for mine, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4 if dtype == np.float32 else 1e-11, atol=1e-5)
