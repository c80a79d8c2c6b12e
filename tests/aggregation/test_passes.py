"""How often a call reads the data: passes are what a call costs."""

import numpy as np
import pytest

from fedhold import aggregate
from fedhold.updates import Updates


@pytest.fixture
def passes(monkeypatch):
    """A list that gets an entry for every pass."""
    made = []

    def counted(original):
        def run(self, kernel, portion):
            made.append(kernel)
            return original(self, kernel, portion)

        return run

    monkeypatch.setattr(Updates, "sum", counted(Updates.sum))
    monkeypatch.setattr(Updates, "run", counted(Updates.run))
    return made


def updates(m=100, d=3000, offset=0.0):
    return (offset + np.random.default_rng(0).standard_normal((m, d))).astype(np.float32)


@pytest.mark.parametrize(("rule", "most"), [("mean", 1), ("huber", 3), ("geometric_median", 3)])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_the_first_pass_checks_the_numbers_and_measures_a_centre(rule, most, offset, passes):
    result = aggregate(updates(offset=offset), rule)
    assert len(passes) <= most
    assert result.converged


@pytest.mark.parametrize("rule", ["mean", "huber", "spectral_huber"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_centre_with_a_client_that_is_then_rejected_counts_for_nothing(rule, value):
    X = updates(m=150)
    X[7, 2999] = value
    result, expected = aggregate(X, rule), aggregate(np.delete(X, 7, axis=0), rule)
    assert result.clients[7].status == "rejected"
    np.testing.assert_allclose(result.value, expected.value, atol=1e-5)
    np.testing.assert_allclose(np.delete(result.clients.distances, 7), expected.clients.distances, rtol=1e-5)


@pytest.mark.parametrize("rule", ["mean", "huber", "spectral_huber"])
def test_a_centre_that_float32_cannot_measure_counts_for_nothing(rule):
    X = updates(m=150)
    X[7, 2999] = 1e30
    expected = aggregate(X.astype(np.float64), rule).value
    np.testing.assert_allclose(aggregate(X, rule).value, expected, rtol=1e-3, atol=1e-4)


def test_samples_count_in_the_first_pass(passes):
    """Capped, where claims are beyond the cap."""
    X, samples = updates(), np.ones(100)
    samples[:30], samples[0] = 2.0, 1e9
    result = aggregate(X, "mean", samples=samples)
    assert len(passes) == 1
    used = np.minimum(samples, 3 * np.median(samples))
    np.testing.assert_allclose(result.value, used @ X.astype(np.float64) / used.sum(), atol=1e-6)
