"""Samples read without their zeros against the plain products, taken literally; and who is read so."""

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cases import run_without_numba
from fedhold.kernels import native
from fedhold.lab import first_layer
from fedhold.lab.compiled_sparse import LANES, TILE
from fedhold.lab.datasets import Samples
from fedhold.lab.first_layer import Dense, Sparse, sparse
from fedhold.lab.tasks import Mlp, shard


@pytest.fixture(autouse=True)
def small_data_too(monkeypatch):
    monkeypatch.setattr(native, "ENOUGH", 0)
    monkeypatch.setattr(first_layer, "SHARED", 0)


def pixels(n, columns, filled, seed=0):
    rng = np.random.default_rng(seed)
    return np.where(rng.random((n, columns)) < filled, rng.integers(1, 256, (n, columns)), 0).astype(np.uint8)


def parts_of(sizes):
    return np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6),
    columns=st.integers(1, 3 * TILE + 1),
    chunks=st.integers(1, 3),
    filled=st.sampled_from([0.0, 0.02, 0.2, 1.0]),
    seed=st.integers(0, 99),
)
@example(sizes=[3], columns=TILE, chunks=1, filled=0.2, seed=0)
@example(sizes=[1, 1], columns=2 * TILE, chunks=2, filled=1.0, seed=0)
def test_both_products_are_the_plain_ones(sizes, columns, chunks, filled, seed):
    rng = np.random.default_rng(seed)
    x, hidden = pixels(sum(sizes), columns, filled, seed), chunks * LANES
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    W = rng.standard_normal((hidden, columns)).astype(np.float32)
    back = rng.standard_normal((len(x), hidden)).astype(np.float32)
    layer = Sparse(x, offsets)
    beside = 7  # columns of other layers, which are not to be touched
    for first in range(len(sizes)):  # whoever is asked for
        clients, rows = slice(first, len(sizes)), slice(int(offsets[first]), len(x))
        part, out = layer.part(clients, rows), np.full((len(sizes) - first, hidden * columns + beside), np.float32(3))
        exact = x[rows].astype(float)
        np.testing.assert_allclose(part.forward(layer.weights(W)), exact @ W.T, rtol=1e-5, atol=1e-3)
        part.backward(back[rows], out)
        for i in range(first, len(sizes)):
            own = slice(offsets[i], offsets[i + 1])
            found = out[i - first, : hidden * columns].reshape(hidden, columns)
            np.testing.assert_allclose(found, back[own].T.astype(float) @ x[own], rtol=1e-5, atol=1e-3)
        assert (out[:, -beside:] == 3).all()


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("sizes", [[12] * 5, [1, 40, 3, 9, 7]], ids=["equal", "unequal"])
@pytest.mark.parametrize("block", [1, 16, 512])
def test_gradients_and_losses_with_and_without_zeros(sizes, workers, block, monkeypatch):
    monkeypatch.setenv("FEDHOLD_THREADS", str(workers))
    monkeypatch.setattr(Sparse, "block", block)
    rng = np.random.default_rng(1)
    data = Samples(pixels(60, 50, 0.2), rng.integers(0, 10, 60))
    floats = Samples((data.inputs / 255).astype(np.float32), data.targets)
    task, plain = Mlp(data, hidden=LANES), Mlp(floats, hidden=LANES)
    shards, w = shard(data, parts_of(sizes)), task.initial(rng)
    assert isinstance(shards.layer(LANES), Sparse)
    found, expected = task.gradients(w, shards), plain.gradients(w, shard(floats, parts_of(sizes)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(task.gradients(w, shards), found)
    assert task.evaluate(w) == pytest.approx(plain.evaluate(w), rel=1e-5)
    assert task.loss(w, data) == pytest.approx(plain.loss(w, floats), rel=1e-5)


def test_into_columns_that_lie_apart():
    data = Samples(pixels(30, 20, 0.2), np.arange(30) % 10)
    task, shards = Mlp(data, hidden=LANES), shard(data, parts_of([10, 20]))
    w = task.initial(np.random.default_rng(0))
    apart = np.zeros((2, 2 * task.d), np.float32)[:, ::2]
    assert task.gradients(w, shards, out=apart) is apart
    np.testing.assert_array_equal(apart, task.gradients(w, shards))


def test_who_is_read_without_zeros(monkeypatch):
    few, many = pixels(64, 20, 0.2), pixels(64, 20, 0.6)
    offsets = np.array([0, 32, 64])
    assert isinstance(sparse(few, offsets), Sparse)
    assert sparse(many, offsets) is None
    assert sparse(few.astype(np.float32), offsets) is None
    targets = np.zeros(64, np.int64)
    lasting = shard(Samples(few, targets), parts_of([32, 32]))
    assert isinstance(lasting.layer(2 * LANES), Sparse)
    assert isinstance(lasting.layer(LANES + 1), Dense)
    assert isinstance(lasting.batch(8, np.random.default_rng(0)).layer(LANES), Dense)
    monkeypatch.setattr(first_layer, "SHORT", 21)
    assert isinstance(sparse(few[:40], np.array([0, 20, 40])), Sparse)
    assert sparse(few, offsets) is None
    assert sparse(pixels(64, 21, 0.2), np.array([0, 20, 40, 60, 64])) is None
    monkeypatch.setattr(first_layer, "SHORT", 2**16)
    monkeypatch.setattr(first_layer, "SHARED", 33)
    assert sparse(few, offsets) is None
    monkeypatch.setattr(first_layer, "SHARED", 32)
    monkeypatch.setattr(native, "ENOUGH", few.size + 1)
    assert sparse(few, offsets) is None


@pytest.mark.parametrize("offsets", [[0, 32, 65], [0, 32, 60], [1, 64], [0, 40, 30, 64], [0, 0, 64]])
def test_only_whole_shards_reach_compiled_code(offsets):
    assert sparse(pixels(64, 20, 0.2), np.array(offsets)) is None


def test_samples_of_another_width_are_an_error():
    wide, narrow = (Samples(pixels(40, columns, 0.2), np.arange(40) % 10) for columns in (21, 20))
    task, shards = Mlp(wide), shard(narrow, parts_of([20, 20]))
    with pytest.raises(ValueError, match=r"21 columns.*columns = 20"):
        task.gradients(task.initial(np.random.default_rng(0)), shards)


def test_without_numba_blas_does_it():
    told = run_without_numba(
        "import numpy as np",
        "from fedhold import native",
        "from fedhold.lab.datasets import Samples",
        "from fedhold.lab.tasks import Mlp, shard",
        "native.ENOUGH = 0",
        "data = Samples(np.eye(40, dtype=np.uint8), np.arange(40) % 10)",
        "task, shards = Mlp(data), shard(data, [np.arange(40)])",
        "found = task.gradients(task.initial(np.random.default_rng(0)), shards)",
        "print(type(shards.layer(32)).__name__, np.isfinite(found).all())",
    )
    assert told == ["Dense", "True"]
