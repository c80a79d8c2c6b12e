"""Variances and scales: what no client's are, those of the new model are not."""

import tracemalloc

import numpy as np
import pytest

from fedhold import aggregate
from fedhold.positive import positive_after, stay_positive
from fedhold.updates import open_update, save_update

KEY = "running_var"
AVERAGING = [
    "mean",
    "huber",
    "spectral_huber",
    "median",
    "trimmed_mean(f=3)",
    "krum(f=2)",
    "clipping(radius=.1) | mean",
]


def replies(m=10, d=40, seed=0, spread=1.0):
    rng = np.random.default_rng(seed)
    return [{KEY: np.exp(spread * rng.standard_normal(d)).astype(np.float32)} for _ in range(m)]


def raised(values, new, weights=None, sent=None):
    """What becomes of one number."""
    found, count = stay_positive(
        {KEY: np.array([new])},
        [{KEY: np.array([value])} for value in values],
        np.ones(len(values)) if weights is None else weights,
        None if sent is None else {KEY: np.array([sent])},
    )
    return (found[KEY][0] if found else new), count


@pytest.mark.parametrize("spread", [0.1, 1.0, 4.0])
@pytest.mark.parametrize("rule", AVERAGING)
def test_honest_rounds_are_left_as_they_are(rule, spread):
    """A mean of numbers that are not negative is at least half of their median, whatever the weights."""
    for seed in range(5):
        sent, models = replies(1, seed=99 + seed)[0], replies(seed=seed, spread=spread)
        result = aggregate([{KEY: one[KEY] - sent[KEY]} for one in models], rule)
        new = {KEY: sent[KEY] + result.value[KEY]}
        assert positive_after(result, new, models, sent) == ({}, 0)


def test_numbers_that_are_too_low_become_the_median():
    honest = [0.2, 0.3, 0.4]
    assert raised([*honest, -9.0], -2.0) == (0.3, 1)
    assert raised([*honest, 1e-9], 0.0) == (0.3, 1)
    assert raised([*honest, -0.9], 1e-9) == (0.3, 1)  # a lie that ends just above 0
    assert raised(honest, 0.16) == (0.16, 0)
    assert raised([0.0, 0.0, 0.0, -1.0], -0.3) == (0.0, 1)  # a channel that never fires
    assert raised(honest, -1.0, weights=[0.98, 0.01, 0.01])[0] == 0.2


def test_half_of_the_clients_are_enough():
    assert raised([0.2, 0.2, -1.0, -1.0], -0.4) == (0.2, 1)
    assert raised([0.2, 0.2, -1.0, 1e-9], -0.4) == (0.2, 1)
    assert raised([0.2, -1.0, -1.0], -0.6) == (-0.6, 0)
    assert raised([0.2, 0.2, -1.0], -0.3, weights=[0.0, 0.0, 1.0]) == (0.2, 1)


def test_ordinary_weights_may_cross_0():
    models = [{KEY: np.array([0.1 + i, -1.0])} for i in range(4)]
    new = {KEY: np.array([-0.5, -1.0])}
    assert stay_positive(new, models, np.ones(4)) == ({}, 0)
    assert raised([0.1, 0.1, 0.1], -0.2, sent=-0.1) == (-0.2, 0)
    whole = {"n": np.array([-3]), "mask": np.array([True]), "none": np.ones((0, 2))}
    assert stay_positive(whole, [whole], [1.0], whole) == ({}, 0)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [1e-6, 1.0, 6e4])
def test_dtypes_shapes_and_what_was_passed_stay(dtype, value):
    new = {KEY: np.full((3, 2), -value, dtype, order="F"), "0-d": np.array(-1.0, dtype)}
    models = [{KEY: np.full((3, 2), value, dtype), "0-d": np.array(1.0, dtype)}] * 3
    found, count = stay_positive(new, models, np.ones(3))
    assert count == 7
    assert (found[KEY].dtype, found[KEY].shape, found["0-d"].shape) == (dtype, (3, 2), ())
    assert (found[KEY] > 0).all()
    assert (new[KEY] < 0).all()


@pytest.mark.parametrize("lie", [-1e38, -5e-324, 0.0, 5e-324, 1e38])
def test_one_lie_of_any_size(lie):
    assert raised([0.2, 0.2, 0.3, lie], (0.7 + lie) / 4)[0] >= 0.09


def test_in_groups():
    """Each group has weights of its own; excluded arrays are those of the model, and rejected clients are not read."""
    rng = np.random.default_rng(0)
    models = [{KEY: 0.01 + 0.001 * rng.random(4), "w": rng.standard_normal(50)} for _ in range(8)]
    models[0][KEY] = models[0][KEY] - 0.3
    sent = {KEY: np.full(4, 0.01), "w": np.zeros(50)}
    result = aggregate([*models, None], "mean", groups={"statistics": "running*"})
    new = result.value
    assert (new[KEY] < 0).all()
    found, count = positive_after(result, new, [*models, {"w": np.array([np.nan])}], sent)
    assert count == 4
    np.testing.assert_allclose(found[KEY], np.sort([m[KEY] for m in models[1:]], axis=0)[3], rtol=1e-6)
    result = aggregate(models, "mean", exclude="running*", like=sent)
    assert positive_after(result, result.value, models, sent) == ({}, 0)


def test_models_on_disk_are_read_in_parts(tmp_path):
    """The same numbers as in memory; weights are read up to their first negative number, and no array is whole in memory."""
    d, m, rng = 2**20, 10, np.random.default_rng(0)
    models = [
        {KEY: np.abs(rng.standard_normal((2, d // 2), np.float32)), "w": rng.standard_normal(d)} for _ in range(m)
    ]
    models[3][KEY] -= 9
    paths = [tmp_path / f"{i}.safetensors" for i in range(m)]
    for path, model in zip(paths, models, strict=True):
        save_update(model, path)
    result = aggregate(models, "mean")
    expected, count = positive_after(result, result.value, models)
    assert count > d // 2
    read: list[int] = []
    stored = [open_update(path, on_read=read.append) for path in paths]
    tracemalloc.start()
    try:
        found, same = positive_after(result, result.value, stored)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    np.testing.assert_array_equal(found[KEY], expected[KEY])
    assert (same, set(found)) == (count, {KEY})
    assert peak < 3 * 4 * d  # the array that is corrected, and parts
    assert sum(read) < 2.1 * m * 4 * d
