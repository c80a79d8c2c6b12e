"""How often a call reads the data: passes are what a call costs."""

import numpy as np
import pytest

from fedhold import aggregate
from fedhold.geometry import geometry
from fedhold.updates import Updates
from fedhold.updates.first import SAMPLED
from fedhold.updates.tiles import Source


@pytest.fixture
def passes(monkeypatch):
    """A list that gets an entry for every pass."""
    made = []

    read = Updates.read

    def counted(self, loop, *vectors, **how):
        made.append(loop)
        return read(self, loop, *vectors, **how)

    monkeypatch.setattr(Updates, "read", counted)
    return made


def updates(m=100, d=3000, offset=0.0):
    return (offset + np.random.default_rng(0).standard_normal((m, d))).astype(np.float32)


@pytest.mark.parametrize(("rule", "most"), [("mean", 1), ("huber", 3), ("geometric_median", 3)])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_the_first_pass_checks_the_numbers_and_measures_a_centre(rule, most, offset, passes):
    result = aggregate(updates(offset=offset), rule)
    assert len(passes) <= most
    assert result.converged


@pytest.mark.parametrize(("m", "most"), [(20, 2), (100, 6)])
def test_centered_clipping_from_zero_reads_the_data_once_per_step(m, most, passes):
    """Few clients have a Gram matrix, from which all steps follow; the last pass makes the value."""
    aggregate(updates(m), "centered_clipping", start=np.zeros(3000), radius=50.0)
    assert len(passes) == most


@pytest.mark.parametrize("m", [20, 100])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_clipping_and_the_mean_take_two_passes(m, offset, passes):
    """One for the lengths, which the first look finds beside those around a client; one for the value and the distances."""
    aggregate(updates(m, offset=offset), "clipping(radius=50) | mean")
    assert len(passes) == 2


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


def in_groups(m=70, d=70_000):
    """Clients in three groups, so that angles between them are far from right ones."""
    rng = np.random.default_rng(0)
    groups = rng.standard_normal((3, d))
    return (rng.standard_normal((m, d)) + 2 * groups[rng.integers(3, size=m)]).astype(np.float32)


@pytest.mark.parametrize("rule", ["huber", "geometric_median"])
def test_steps_are_foretold(rule, passes, monkeypatch):
    X = in_groups()
    assert aggregate(X, rule).converged
    foretold = len(passes)
    monkeypatch.setattr(geometry, "LARGE", np.inf)
    aggregate(X, rule)
    assert foretold <= len(passes) - foretold


@pytest.mark.parametrize("rule", ["huber", "geometric_median"])
def test_a_sample_that_misleads_costs_passes_and_nothing_else(rule):
    """Liars who know the columns of the sample show other angles there than elsewhere."""
    X = in_groups()
    m, d = X.shape
    seen = Updates((Source.of(np.arange(d, dtype=np.float64)[None], d),), 1).sample(SAMPLED)[0].astype(int)
    X[:18] *= -1
    X[:18, seen] = 10 * X[20, seen]
    result, wide = aggregate(X, rule), X.astype(np.float64)
    assert result.converged
    away = wide - result.value
    distances = np.linalg.norm(away, axis=1)
    thresholds = result.clients.thresholds if rule == "huber" else np.full(m, 1e-6 * np.median(distances))
    pulls = np.minimum(1, thresholds / distances)
    assert np.linalg.norm(pulls @ away) <= 3e-6 * np.minimum(thresholds, distances).sum()


@pytest.mark.parametrize("far", [2.0, 1e6])
def test_very_many_clients_have_a_sample_of_few_columns_that_is_enough_to_begin_with(far, passes):
    X = updates(m=9000, d=300, offset=1.0)
    X[:1800] += np.float32(far)
    result = aggregate(X, "huber")
    assert len(passes) <= 5
    assert result.converged
    away = X.astype(np.float64) - result.value
    distances = np.linalg.norm(away, axis=1)
    thresholds = 0.75 * np.median(distances)
    np.testing.assert_allclose(result.clients.thresholds, thresholds, rtol=1e-5)
    pulls = np.minimum(1, thresholds / distances)
    assert np.linalg.norm(pulls @ away) <= 3e-6 * np.minimum(thresholds, distances).sum()
