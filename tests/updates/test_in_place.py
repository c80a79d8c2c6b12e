"""Lists and dicts of arrays, read where they lie: the same aggregate as of one matrix, with clients left out or not."""

import numpy as np
import pytest

from fedhold import aggregate
from fedhold.updates import gather, tiles

M, D = 12, 60_000  # so many numbers that two arrays of three are read where they lie, each in several parts
RULES = {"mean": {}, "huber": {}, "spectral_huber": {}, "median": {}, "trimmed_mean": {"f": 2}, "krum": {"f": 2}}


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """All that is done for data of many millions of numbers, done for less."""
    monkeypatch.setattr("fedhold.updates.admission.LITTLE", 0)
    monkeypatch.setattr(tiles, "TILE", 2**16)
    monkeypatch.setattr(tiles, "SMALL", 2**16)


def as_dicts(X):
    return [{"a": x[:40_000].reshape(200, 200).copy(), "b": x[40_000:59_990].copy(), "c": x[59_990:].copy()} for x in X]


@pytest.mark.parametrize("rejected", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_lists_and_dicts_give_what_a_matrix_gives(rule, rejected):
    X = (np.random.default_rng(0).standard_normal((M, D)) + 3).astype(np.float32)
    if rejected:
        X[4, 17] = np.nan
    whole = aggregate(X, rule, **RULES[rule])
    for given in ([x.copy() for x in X], as_dicts(X)):
        found = aggregate(given, rule, **RULES[rule])
        value = found.value
        if isinstance(value, dict):
            value = np.concatenate([value[key].ravel() for key in ("a", "b", "c")])
        np.testing.assert_allclose(value, whole.value, atol=2e-6)
        assert found.clients.with_status("rejected") == [4] * rejected
        np.testing.assert_allclose(found.clients.distances, whole.clients.distances, rtol=1e-5)


@pytest.mark.parametrize("rule", RULES)
def test_clients_too_large_to_be_squared_are_measured(rule):
    X = (np.random.default_rng(0).standard_normal((M, D)) + 3).astype(np.float32)
    X[:2] *= 1e30
    whole = aggregate(X, rule, **RULES[rule])
    for given in ([x.copy() for x in X], as_dicts(X)):
        found = aggregate(given, rule, **RULES[rule])
        np.testing.assert_allclose(found.clients.distances, whole.clients.distances, rtol=1e-5)


def test_what_looks_at_blocks_itself_gets_arrays():
    X = (np.random.default_rng(0).standard_normal((M, D)) + 3).astype(np.float32)

    def most_above_zero(geometry):
        votes = geometry.sum_over_columns(lambda block, _: (block > 0).sum(axis=1))
        return (np.arange(geometry.m) == votes.argmax()) * 1.0

    for rule in ("sign_guard", most_above_zero):
        expected = aggregate(X, rule)
        for given in ([x.copy() for x in X], as_dicts(X)):
            np.testing.assert_allclose(aggregate(given, rule).weights, expected.weights, atol=1e-6)


def test_one_client_in_another_layout_changes_nothing():
    X = (np.random.default_rng(1).standard_normal((M, D)) + 3).astype(np.float32)
    plain, odd = as_dicts(X), as_dicts(X)
    odd[3]["a"], odd[5]["b"] = np.asfortranarray(odd[3]["a"]), odd[5]["b"].astype(np.float64)
    for key in ("a", "b", "c"):
        np.testing.assert_allclose(aggregate(odd).value[key], aggregate(plain).value[key], atol=2e-6)


def turned(x):
    return np.asfortranarray(x)


def last(x):
    """The layout of torch's channels_last."""
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)


def apart(x):
    return np.repeat(x, 2, axis=-1)[..., ::2]


LAYOUTS = {
    "all in Fortran order": lambda X: [turned(x) for x in X],
    "one in Fortran order": lambda X: [turned(X[0]), *X[1:]],
    "most in Fortran order": lambda X: [turned(x) if i % 3 else x for i, x in enumerate(X)],
    "channels last": lambda X: [last(x) for x in X],
    "one with channels last": lambda X: [*X[:-1], last(X[-1])],
    "three layouts": lambda X: [(x.copy, lambda x=x: turned(x), lambda x=x: last(x))[i % 3]() for i, x in enumerate(X)],
    "numbers apart": lambda X: [apart(x) for x in X],
    "backwards": lambda X: [np.ascontiguousarray(x[::-1])[::-1] for x in X],
    "part of a larger array": lambda X: [np.pad(x, ((0, 0), (1, 2), (0, 0), (0, 0)))[:, 1:-2] for x in X],
    "a stack in Fortran order": np.asfortranarray,
    "a stack with clients last": lambda X: np.moveaxis(np.ascontiguousarray(np.moveaxis(X, 0, -1)), -1, 0),
    "a matrix in Fortran order": lambda X: np.asfortranarray(X.reshape(M, -1)),
    "a matrix with numbers apart": lambda X: apart(X.reshape(M, -1)),
    "columns of a matrix": lambda X: list(np.asfortranarray(X.reshape(M, -1))),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_no_layout_changes_the_aggregate(layout, dtype):
    """With a client left out, too; and the value has the order of the axes, whatever that of the memory is."""
    X = (np.random.default_rng(3).standard_normal((M, 40, 50, 3, 3)) + 3).astype(dtype)
    X[4, 1, 2, 1, 0] = np.nan
    given = LAYOUTS[layout](X)
    before = [np.array(x) for x in given]
    for rule in ("mean", "huber", "median"):
        whole, found = aggregate(X.reshape(M, -1), rule), aggregate(given, rule)
        assert found.value.shape == given[0].shape
        assert found.value.flags.c_contiguous
        np.testing.assert_allclose(found.value.reshape(-1), whole.value, rtol=2**-10 if dtype == np.float16 else 2e-6)
        np.testing.assert_allclose(found.clients.distances, whole.clients.distances, rtol=1e-5)
        assert found.clients.with_status("rejected") == [4]
    again = aggregate(given, "huber", start=found.value)  # It is read in the order in which the clients are.
    np.testing.assert_allclose(again.value, aggregate(given, "huber").value, rtol=2**-9)
    assert all(np.array_equal(x, y, equal_nan=True) for x, y in zip(given, before, strict=True))


def test_odd_layouts_are_copied_a_part_at_a_time(monkeypatch):
    """Of an array in another layout than most have, some columns at a time are copied."""
    copied, between = [], tiles.between

    def counted(array, start, stop):
        copied.append(stop - start)
        return between(array, start, stop)

    monkeypatch.setattr(tiles, "between", counted)
    X = np.random.default_rng(4).standard_normal((M, 2000, 300)).astype(np.float32)
    aggregate([*X[:-2], turned(X[-2]), turned(X[-1])], "mean")
    assert sum(copied) >= 2 * X[0].size
    assert max(copied) < X[0].size // 2


def test_small_arrays_among_large_ones_are_copied_to_one(monkeypatch):
    monkeypatch.setattr("fedhold.updates.admission.SMALL", M * 100)
    X = (np.random.default_rng(2).standard_normal((M, D)) + 3).astype(np.float32)
    ends = {"a": 60, "b": 90, "c": D - 50, "d": D}  # a and b are small, c is large, d is small
    starts = dict(zip(ends, [0, *ends.values()], strict=False))
    given = [{key: x[starts[key] : end].copy() for key, end in ends.items()} for x in X]
    assert [source.size for source in gather(given, None, None, None).updates.sources] == [90, D - 140, 50]
    for rule, parameters in RULES.items():
        found, whole = aggregate(given, rule, **parameters), aggregate(X, rule, **parameters)
        np.testing.assert_allclose(np.concatenate(list(found.value.values())), whole.value, atol=2e-6)
        np.testing.assert_allclose(found.clients.distances, whole.clients.distances, rtol=1e-5)
    near = aggregate(given, "huber", start=dict(found.value))
    np.testing.assert_allclose(near.value["d"], aggregate(X, "huber").value[D - 50 :], atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("m", [20, 70])
@pytest.mark.parametrize("offset", [0, 100])
def test_a_matrix_with_contiguous_columns_gives_what_one_with_contiguous_rows_gives(m, offset, dtype):
    rng = np.random.default_rng(5)
    X = (rng.standard_normal((m, 3001)) + offset * rng.standard_normal(3001)).astype(dtype)
    wide = np.asfortranarray(np.concatenate([X, X]))
    for rule in ("mean", "huber", "spectral_huber", "centered_clipping", "median", "krum(f=3)", "fl_trust"):
        expected = aggregate(X, rule)
        for given in (np.asfortranarray(X), wide[:m], np.asfortranarray(X)[:, 1:-1]):
            theirs = expected if given.shape == X.shape else aggregate(X[:, 1:-1], rule)
            found = aggregate(given, rule)
            np.testing.assert_allclose(found.value, theirs.value, rtol=2e-5, atol=2e-5 * max(offset, 1))
            np.testing.assert_allclose(found.clients.distances, theirs.clients.distances, rtol=2e-5)


@pytest.mark.parametrize("rule", ["mean", "median", "krum(f=2)", "huber", "spectral_huber", "geometric_median"])
def test_a_counter_between_layers_keeps_its_digits(rule):
    """The value is float32 in the columns of the layers, and float64 in that of the counter."""
    rng, count = np.random.default_rng(0), 2**24 + 1  # the first integer that float32 cannot hold
    layers = rng.standard_normal((9, 2, 500, 500)).astype(np.float32)
    sent = [{"a": a, "b": np.array(count), "c": c, "d": np.empty(0)} for a, c in layers]
    result = aggregate(sent, rule)
    exact = aggregate([{name: part.astype(np.float64) for name, part in update.items()} for update in sent], rule)
    assert result.value["b"] == count
    assert result.value["b"].dtype == np.int64
    for name in "ac":
        assert result.value[name].dtype == np.float32
        np.testing.assert_allclose(result.value[name], exact.value[name], rtol=0, atol=1e-5)
    if result.certificate is not None:
        radius = result.certificate.radius(2)
        again = aggregate(sent, rule)
        again.value["a"][:] += 1  # It is the caller's, and the proof knows what was there before.
        assert again.certificate.radius(2) == pytest.approx(radius + 500, rel=0.01)
        assert radius == pytest.approx(exact.certificate.radius(2), rel=5e-3)  # Each has room for its own rounding.
