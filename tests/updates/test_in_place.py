"""Lists and dicts of arrays, read where they lie: the same aggregate as of one matrix, with clients left out or not."""

import numpy as np
import pytest

from fedhold import aggregate
from fedhold.kernels import Portion, choice
from fedhold.kernels.numba_side import NumbaKernels
from fedhold.updates import admit

M, D = 12, 60_000  # so many numbers that two arrays of three are read where they lie, each in several parts
RULES = {"mean": {}, "huber": {}, "spectral_huber": {}, "median": {}, "trimmed_mean": {"f": 2}, "krum": {"f": 2}}


@pytest.fixture(autouse=True)
def large(monkeypatch):
    """All that is done for data of many millions of numbers, done for less."""
    monkeypatch.setattr(choice, "ENOUGH", 0)
    monkeypatch.setattr("fedhold.updates.admission.LITTLE", 0)
    monkeypatch.setattr("fedhold.updates.matrix.TILE", 2**16)
    monkeypatch.setattr("fedhold.kernels.numba_side.TILE", 2**12)
    monkeypatch.setattr(NumbaKernels, "sweeping", lambda _: Portion(2**16, parallel=True, anywhere=True))


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


def test_one_client_in_another_layout_changes_nothing():
    X = (np.random.default_rng(1).standard_normal((M, D)) + 3).astype(np.float32)
    plain, odd = as_dicts(X), as_dicts(X)
    odd[3]["a"], odd[5]["b"] = np.asfortranarray(odd[3]["a"]), odd[5]["b"].astype(np.float64)
    for key in ("a", "b", "c"):
        np.testing.assert_allclose(aggregate(odd).value[key], aggregate(plain).value[key], atol=2e-6)


def test_small_arrays_among_large_ones_are_copied_to_one(monkeypatch):
    monkeypatch.setattr("fedhold.updates.admission.TILE", M * 100)
    X = (np.random.default_rng(2).standard_normal((M, D)) + 3).astype(np.float32)
    ends = {"a": 60, "b": 90, "c": D - 50, "d": D}  # a and b are small, c is large, d is small
    starts = dict(zip(ends, [0, *ends.values()], strict=False))
    given = [{key: x[starts[key] : end].copy() for key, end in ends.items()} for x in X]
    admission = admit(given, None, None, None, lambda *_: None)
    assert [source.size for source in admission.updates.sources] == [90, D - 140, 50]
    for rule, parameters in RULES.items():
        found, whole = aggregate(given, rule, **parameters), aggregate(X, rule, **parameters)
        np.testing.assert_allclose(np.concatenate(list(found.value.values())), whole.value, atol=2e-6)
        np.testing.assert_allclose(found.clients.distances, whole.clients.distances, rtol=1e-5)
    near = aggregate(given, "huber", start=dict(found.value))
    np.testing.assert_allclose(near.value["d"], aggregate(X, "huber").value[D - 50 :], atol=1e-5)
