"""A guard: samples of the server's own choose among the rule, Huber and nearly the mean, within a bound."""

import numpy as np
import pytest

from fedhold import aggregate
from fedhold.guard import ERRORS, STEPS, loosened
from fedhold.thresholds import automatic
from oracles import huber_automatic

M, MINORITY, D = 20, 5, 60


@pytest.fixture(name="updates")
def _updates():
    """Five of twenty honest clients know something that nobody else knows."""
    rng = np.random.default_rng(100)
    updates = rng.standard_normal((M, D))
    updates[:MINORITY, :10] += 8
    return updates


def guard_of(truth, samples=60, noise=0.5, seed=0):
    """Squared distances to noisy copies of the truth."""
    drawn = truth + noise * np.random.default_rng(seed).standard_normal((samples, len(truth)))
    return lambda value: np.square(drawn - value).sum(axis=1)


def centre_of(updates):
    """The Huber centre with equal votes, and the median distance to it."""
    centre = aggregate(updates, "huber", sample_cap=None)
    return centre.value, np.nanmedian(centre.clients.distances)  # NaN for those rejected


def test_an_honest_minority_is_followed(updates):
    truth = np.zeros(D)
    truth[:10] = 2  # the mean of all
    plain, result = aggregate(updates), aggregate(updates, guard=guard_of(truth))
    assert result.guard.taken == "near_mean"
    assert np.linalg.norm(result.value - truth) < 0.6 * np.linalg.norm(plain.value - truth)
    assert result.guard.gain == pytest.approx(result.guard.losses["rule"] - result.guard.losses["near_mean"])
    assert result.guard.gain > ERRORS * result.guard.error > 0
    np.testing.assert_allclose(result.weights @ updates, result.value)
    assert result.rule == plain.rule


def test_the_same_updates_from_liars_are_not(updates):
    plain, result = aggregate(updates), aggregate(updates, guard=guard_of(np.zeros(D)))
    assert result.guard.taken == "rule"
    np.testing.assert_array_equal(result.value, plain.value)
    assert (result.guard.gain, result.guard.error, result.guard.note) == (0.0, 0.0, "")


def test_the_paired_test_is_that_of_the_formula(updates):
    """Oracle: each candidate against the one taken so far."""
    for seed in range(20):
        truth = np.zeros(D)
        truth[:10] = np.random.default_rng(seed).uniform(0, 2)
        guard = guard_of(truth, samples=8, noise=2.0, seed=seed)
        values = [aggregate(updates).value] + [aggregate(updates, loosened, kappa=k).value for k in (0.75, 3.0)]
        taken = 0
        for k in (1, 2):
            gains = guard(values[taken]) - guard(values[k])
            if gains.mean() > 2 * gains.std(ddof=1) / np.sqrt(len(gains)):
                taken = k
        result = aggregate(updates, guard=guard)
        assert result.guard.taken == ("rule", "huber", "near_mean")[taken]
        np.testing.assert_array_equal(result.value, values[taken])


@pytest.mark.parametrize("kappa", [0.75, 3.0])
def test_candidates_are_huber_kept_within_s(updates, kappa):
    """Oracle: v = c + (x - c) min(1, s / |x - c|)."""
    claims = np.random.default_rng(1).integers(5, 500, M).astype(float)
    for far in (0.0, 30.0, 1e6):
        sent = updates.copy()
        sent[M - 6 :] += far
        c, _ = huber_automatic(sent, np.ones(M), 0.75)
        s = np.median(np.linalg.norm(sent - c, axis=1))
        # A wide threshold that follows the distances may have several fixed points: x is the one that huber finds.
        claimed = {"samples": claims, "sample_cap": None}
        x = aggregate(sent, "huber", threshold=automatic(kappa), max_iterations=STEPS, **claimed).value
        wanted = c + (x - c) * min(1, s / max(np.linalg.norm(x - c), 1e-300))
        found = aggregate(sent, loosened, kappa=kappa, **claimed)
        np.testing.assert_allclose(found.value, wanted, atol=2e-4 * s)


ATTACKS = {
    "far": lambda _, X: X + 1e6,
    "near": lambda rng, X: X.mean(axis=0) + 3 * rng.standard_normal(D),
    "zeros": lambda _, X: np.zeros_like(X),
    "huge": lambda rng, X: 1e38 * rng.standard_normal(X.shape),
    "tiny": lambda _, X: np.full_like(X, 5e-324),
    "copies": lambda _, X: np.tile(-8 * X[:1], (len(X), 1)),
}


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("liars", [2, 5, 9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_never_further_than_s_from_the_huber_centre_whatever_the_guard_says(updates, attack, liars, dtype):
    """The guard itself is bent: it likes what is farthest from the centre. Claims of samples are the liars', too."""
    sent, claims = updates.astype(dtype), np.ones(M)
    with np.errstate(over="ignore"):
        sent[:liars] = ATTACKS[attack](np.random.default_rng(0), sent[:liars])
    claims[:liars] = 1e9
    centre, s = centre_of(sent)
    for cap in (3.0, None):
        result = aggregate(
            sent,
            samples=claims,
            sample_cap=cap,
            guard=lambda value: -np.linalg.norm(np.float64(value) - centre) * np.ones(40),
        )
        assert result.guard.taken in ("huber", "near_mean", "rule")
        assert np.linalg.norm(np.float64(result.value) - centre) <= s * (1 + 1e-3)


def failing(_):
    raise RuntimeError("no data today")


BAD = {
    "raises": (failing, "RuntimeError: no data today"),
    "nan": (lambda _: np.full(30, np.nan), "not finite"),
    "inf": (lambda _: np.array([np.inf, 1.0]), "not finite"),
    "scalar": (lambda _: 0.5, "shape ()"),
    "one": (lambda _: [0.5], "shape (1,)"),
    "matrix": (lambda _: np.ones((3, 2)), "shape (3, 2)"),
    "text": (lambda _: "good", "ValueError"),
    "none": (lambda _: None, "shape ()"),
}


@pytest.mark.parametrize("bad", BAD)
def test_a_guard_that_fails_leaves_the_rule(updates, bad):
    guard, told = BAD[bad]
    plain, result = aggregate(updates), aggregate(updates, guard=guard)
    np.testing.assert_array_equal(result.value, plain.value)
    assert result.guard.taken == "rule"
    assert told in result.guard.note
    assert result.guard.losses == {}


def test_a_guard_that_fails_for_a_looser_candidate_leaves_the_rule(updates):
    calls = []

    def guard(value):
        calls.append(value)
        return np.ones(30 if len(calls) < 3 else 29) / len(calls)

    result = aggregate(updates, guard=guard)
    assert (result.guard.taken, len(calls)) == ("rule", 3)
    assert "near_mean" in result.guard.note
    assert "(30,)" in result.guard.note


def test_a_guard_may_write_into_what_it_gets(updates):
    truth = np.zeros(D)
    truth[:10] = 2

    def adding(value):
        value += 100  # as a caller would who adds the changes to the model, in place
        return guard_of(truth)(value - 100)

    for guard in (adding, guard_of(truth)):
        result = aggregate(updates, guard=guard)
        assert np.linalg.norm(result.value) < 20


def test_structures_groups_rejections_and_rules_that_draw(updates):
    dicts = [{"a": row[:30], "b.w": row[30:], "n": np.array([i])} for i, row in enumerate(updates)]
    dicts[7] = {"a": np.full(30, np.nan), "b.w": np.zeros(30), "n": np.array([7])}
    truth = np.zeros(D)
    truth[:10] = 2
    losses = guard_of(truth)

    def guard(value):
        return losses(np.concatenate([value["a"], value["b.w"]]))

    for more in ({}, {"groups": {"b": "b.*"}}, {"like": dicts[0], "exclude": "b.*"}):
        result = aggregate(dicts, guard=guard, **more)
        assert result.guard.taken == "near_mean"
        assert result.clients[7].status == "rejected"
    one, two = (aggregate(updates, "bucketing | median", rng=3, guard=guard_of(np.zeros(D))).value for _ in range(2))
    np.testing.assert_array_equal(one, two)


def test_it_is_certified(updates):
    truth = np.zeros(D)
    truth[:10] = 2
    result = aggregate(updates, guard=guard_of(truth))
    others = aggregate(updates[MINORITY:], "huber")
    assert np.linalg.norm(result.value - others.value) <= result.certificate.radius(MINORITY) < np.inf
