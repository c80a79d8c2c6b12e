"""The default rule, spectral_huber: what it promises beyond the contract, by the Gram matrix and by passes."""

import inspect
from functools import partial

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings

import fedhold.geometry.geometry
import fedhold.plan
import fedhold.rules.spectral
import oracles
from fedhold import aggregate
from fedhold.cli.aggregate import aggregate as aggregate_files
from fedhold.flower import RobustStrategy
from fedhold.kernels import loops
from fedhold.nvflare import RobustAggregator
from fedhold.spec import DEFAULT
from fedhold.updates import Updates
from fedhold.updates.tiles import Source

RULE = "spectral_huber"
examples = settings(max_examples=25, deadline=None)
seeds = st.integers(0, 10**6)


@pytest.fixture
def passes(monkeypatch):
    """Directions are found by passes, as for many clients."""
    without_pairs(monkeypatch)


def without_pairs(monkeypatch):
    for module in (fedhold.geometry.geometry, fedhold.plan):
        monkeypatch.setattr(module, "SEVERAL", 0)


def colluding(m=60, d=300, f=20, *, at=0.5, seed=0):
    """Honest clients around 0 and f liars in one point, `at` typical distances away; and the liars' direction."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((m, d))
    way = rng.standard_normal(d) / np.sqrt(d)
    X[:f] = at * np.sqrt(d) * way
    return X, way


def distance(a, b):
    return float(np.linalg.norm(np.asarray(a, float) - b))


def test_it_is_the_default_everywhere():
    assert DEFAULT == RULE
    for function in (aggregate, RobustStrategy.__init__, RobustAggregator.__init__, aggregate_files):
        assert inspect.signature(function).parameters["rule"].default == DEFAULT


@pytest.mark.parametrize("at", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("f", [6, 12, 18, 24])
def test_liars_in_one_point_move_it_less_than_half_as_far_as_huber(f, at):
    X, _ = colluding(f=f, at=at)
    honest = X[f:].mean(axis=0)
    assert distance(aggregate(X).value, honest) < distance(aggregate(X, "huber").value, honest) / 2


@given(
    seed=seeds, exponent=st.floats(0, 300), apart=st.booleans(), m=st.integers(3, 41), claims=st.floats(1e-300, 1e300)
)
@examples
def test_less_than_half_of_the_clients_cannot_carry_it_away_whatever_they_claim(seed, exponent, apart, m, claims):
    """|c - mu| <= 7 R for m up to 41, R the radius of the honest, and the correction adds at most the median distance."""
    rng = np.random.default_rng(seed)
    f = (m - 1) // 2
    X, n = rng.standard_normal((m, 5)), np.exp(rng.standard_normal(m))
    honest = X[f:].mean(axis=0)
    radius = np.linalg.norm(X[f:] - honest, axis=1).max()
    X[:f] = 10.0**exponent * (rng.standard_normal((f, 5)) if apart else rng.standard_normal(5))
    n[:f] = claims
    for value in (aggregate(X).value, aggregate(X, samples=n, sample_cap=None).value):
        assert distance(value, honest) <= 7 * radius + 8 * radius


@pytest.mark.parametrize("cap", [None, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_twenty_of_41_clients_cannot_by_claiming_many_samples(seed, cap):
    """If claims had votes, they would have most of them, however the claims are capped: honest clients have unequal ones."""
    rng = np.random.default_rng(seed)
    X, n = rng.standard_normal((41, 5)), np.exp(rng.standard_normal(41))
    X[:20], n[:20] = 1e6 * rng.standard_normal(5), 1e9
    assert np.linalg.norm(aggregate(X, samples=n, sample_cap=cap).value) < 10


def test_half_of_the_clients_can():
    X, way = colluding(m=20, f=11, at=1e6)
    assert aggregate(X).value @ way > 1e6


@pytest.mark.parametrize("f", [6, 12, 18, 24])
def test_clients_far_away_count_for_nothing(f):
    """With 24 of 60, plain Huber is 0.2 median distances off: what they pull is bounded, but it is not nothing."""
    rng = np.random.default_rng(f)
    X = rng.standard_normal((60, 300))
    X[:f] = 20 * np.sqrt(300) * rng.standard_normal((f, 300))
    result = aggregate(X)
    assert not result.weights[:f].any()
    honest = X[f:].mean(axis=0)
    assert distance(result.value, honest) < 0.2 * np.linalg.norm(honest)


def test_a_client_at_four_median_distances_counts_and_one_beyond_does_not():
    X = np.concatenate([np.tile(np.eye(2), (10, 1)), np.tile(-np.eye(2), (10, 1)), [[3.9, 0.0]], [[-4.3, 0.0]]])
    weights = aggregate(X).weights
    assert weights[-2] > 0 == weights[-1]


@given(seed=seeds)
@settings(max_examples=50, deadline=None)
def test_it_stays_within_the_median_distance_of_huber(seed):
    """Skewed clients, liars of any length, claims of any size."""
    rng = np.random.default_rng(seed)
    m, d = int(rng.integers(4, 60)), int(rng.integers(1, 30))
    X = rng.standard_normal((m, d)) ** rng.integers(1, 4) * rng.exponential(size=d) ** 2
    X[: rng.integers(0, (m + 1) // 2)] += 10 ** rng.uniform(-2, 6) * rng.standard_normal(d)
    n = 10 ** rng.uniform(0, rng.choice([1e-9, 2.0]), m)
    plain = aggregate(X, "huber")
    assert distance(aggregate(X, samples=n).value, plain.value) <= np.median(plain.clients.distances) * (1 + 1e-5)


@pytest.mark.parametrize("seed", [1597, 2437, 2824])
def test_it_stays_there_also_where_the_correction_would_leave(seed, monkeypatch):
    """Groups in few dimensions, of sizes and lengths for which the correction alone is 1.3 to 6 median distances long.

    In thousands of draws it never was where clients beyond four median distances had no weight; so here they have some.
    """
    monkeypatch.setattr(fedhold.rules.spectral, "BEYOND", np.inf)
    rng = np.random.default_rng(seed)
    groups, d = int(rng.integers(2, 6)), int(rng.integers(2, 5))
    centres = rng.standard_normal((groups, d)) * 10 ** rng.uniform(-1, 1.5, (groups, 1))
    members = rng.choice(groups, 40, p=rng.dirichlet(np.ones(groups)))
    X = centres[members] + 10 ** rng.uniform(-2, 0) * rng.standard_normal((40, d))
    plain = aggregate(X, "huber")
    assert distance(aggregate(X).value, plain.value) == pytest.approx(np.median(plain.clients.distances), rel=1e-5)


@pytest.mark.parametrize("m", [1, 2, 3, 6, 7, 39, 40, 41])
@pytest.mark.parametrize("d", [1, 2, 50])
def test_any_number_of_clients_and_columns(m, d):
    X = np.random.default_rng(m + d).standard_normal((m, d))
    result = aggregate(X)
    assert result.converged
    assert distance(result.value, oracles.spectral_huber(X)) <= 1e-5 * np.sqrt(d)
    np.testing.assert_allclose(result.weights @ X, result.value, atol=1e-12)


def unequal(m, f, *, claims, seed=0, d=50):
    """Honest clients with very unequal samples, which their noise fits, and f liars in one point with these claims."""
    rng = np.random.default_rng(seed)
    n = np.exp(rng.standard_normal(m))
    X = rng.standard_normal((m, d)) / np.sqrt(n)[:, None]
    X[:f] = 2 * rng.standard_normal(d)
    n[:f] = claims
    return X, n


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("claims", [1.0, 3.0, 1e9])
def test_two_fifths_of_the_clients_cannot_carry_it_away_whatever_they_claim(claims, seed):
    """Counted up to the median, the large honest clients would not make up for the small ones: it would go to the liars."""
    X, n = unequal(25, 10, claims=claims, seed=seed)
    honest = X[10:]
    liars = distance(X[0], n[10:] @ honest / n[10:].sum())
    value = aggregate(X, samples=n, sample_cap=None).value
    assert distance(value, n[10:] @ honest / n[10:].sum()) < liars / 3


@pytest.mark.parametrize("m", [5, 25])
def test_where_nobody_lies_it_is_nearly_as_good_as_the_mean_by_samples(m):
    """Counts up to the median would cost 7 % for 5 clients, and 13 % for 25."""
    draws = [unequal(m, 0, claims=[], seed=seed) for seed in range(60)]
    errors, means = (
        np.sqrt(np.mean([np.sum(value**2) for value in values]))
        for values in zip(
            *((aggregate(X, samples=n, sample_cap=None).value, n @ X / n.sum()) for X, n in draws), strict=True
        )
    )
    assert errors < 1.04 * means


def test_a_claim_far_away_is_not_believed():
    """With few samples or many, a liar beyond the median distance weighs as much."""
    X, n = unequal(30, 3, claims=1.0)
    few = aggregate(X, samples=n).weights[:3]
    n[:3] = 1e9
    assert aggregate(X, samples=n, sample_cap=None).weights[:3] == pytest.approx(few, rel=0.2)


@pytest.mark.parametrize("m", [2, 4, 9, 41])
@pytest.mark.parametrize("f", [0, 1])
def test_samples_count_as_the_oracle_says(m, f):
    X, n = unequal(m, f, claims=20.0, seed=m, d=7)
    assert distance(aggregate(X, samples=n, sample_cap=None).value, oracles.spectral_huber(X, n)) <= 1e-3


def test_lines_that_two_groups_share_have_no_side():
    """With as many clients on either side, the sign that an eigenvector happens to have would decide."""
    X = np.concatenate([np.zeros((20, 3)), np.ones((20, 3))])
    X += 0.01 * np.random.default_rng(0).standard_normal((20, 3)).repeat(2, axis=0)[np.r_[0:40:2, 1:40:2]] * [1, 0, 0]
    np.testing.assert_allclose(aggregate(1 - X).value, 1 - aggregate(X).value, atol=1e-6)


# By passes


@pytest.mark.parametrize("f", [6, 12, 18, 24])
def test_passes_find_what_pairs_find(f, monkeypatch):
    X, _ = colluding(f=f, d=2000)
    exact = aggregate(X)
    without_pairs(monkeypatch)
    found = aggregate(X)
    assert distance(found.value, exact.value) <= 0.02 * np.sqrt(2000)
    assert distance(found.value, X[f:].mean(axis=0)) < distance(aggregate(X, "huber").value, X[f:].mean(axis=0)) / 2


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("attacked", [False, True])
def test_by_passes_it_matters_neither_who_stands_where_nor_how_the_axes_lie(attacked):
    rng = np.random.default_rng(3)
    X, _ = colluding(f=15 if attacked else 0)
    value = aggregate(X, tol=1e-9).value
    order = rng.permutation(len(X))
    axes = np.linalg.qr(rng.standard_normal((300, 300)))[0]
    away = 100 * rng.standard_normal(300)
    assert distance(aggregate(X[order], tol=1e-9).value, value) <= 1e-6
    assert distance(aggregate(X @ axes, tol=1e-9).value, value @ axes) <= 1e-6
    assert distance(aggregate(X + away, tol=1e-9).value, value + away) <= 1e-6
    assert distance(aggregate(X * 1e-90, tol=1e-9).value * 1e90, value) <= 1e-6


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("offset", [0.0, 10.0, 3000.0])
def test_by_passes_float32_and_an_offset_cost_no_more_than_their_rounding(offset):
    X, _ = colluding()
    single = (X + offset).astype(np.float32)
    expected = aggregate(single.astype(np.float64)).value
    assert distance(aggregate(single).value, expected) <= 1e-4 * np.sqrt(300) + 1e-7 * offset * np.sqrt(300)


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("rank", [1, 2, 5])
def test_by_passes_few_columns_are_exhausted(rank):
    X = np.random.default_rng(rank).standard_normal((50, rank))
    assert distance(aggregate(X).value, oracles.spectral_huber(X)) <= 1e-5


# The certificate


def test_the_certificate_is_hubers_and_the_distance_to_it():
    X, _ = colluding(f=8)
    corrected, plain = aggregate(X), aggregate(X, "huber")
    apart = distance(corrected.value, plain.value)
    assert apart > 0
    for f in (0, 3, 8):
        expected = plain.certificate.radius(f) + apart
        assert corrected.certificate.radius(f) == pytest.approx(expected, rel=1e-5)
    T = plain.clients.thresholds
    others = aggregate(X[8:], "huber", threshold=T[8:]).value
    assert distance(corrected.value, others) <= corrected.certificate.radius(8)


def test_the_certificate_is_that_of_equal_votes():
    X, _ = colluding(f=8)
    corrected, plain = aggregate(X, samples=np.linspace(10, 25, 60)), aggregate(X, "huber")
    expected = plain.certificate.radius(8) + distance(corrected.value, plain.value)
    assert corrected.certificate.radius(8) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_images_are_around_the_reference(offset):
    """In float32 the products of numbers near 10,000 would not show differences near 1."""
    rng = np.random.default_rng(0)
    X = (offset + rng.standard_normal((60, 300))).astype(np.float32)
    columns = rng.standard_normal((60, 4))
    near = X.astype(float) - X[0]
    expected = near @ (columns.T @ near).T
    found = Updates((Source.of(X, 300),), 60).sum(partial(loops.images, columns=columns), minus=0)
    np.testing.assert_allclose(found, expected, atol=1e-5 * np.abs(expected).max())
