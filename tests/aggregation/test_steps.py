"""Updates of clients that made unequal numbers of local steps, and a scale that remembers earlier rounds."""

import inspect

import numpy as np
import pytest

from fedhold import RULES, aggregate
from fedhold.thresholds import DECAY, MOST

M, D = 11, 40
RNG = np.random.default_rng(0)
UPDATES = RNG.standard_normal((M, D)) + 1
STEPS = np.array([10.0] * 8 + [20, 5, 100])
FACTORS = np.array([1.0] * 8 + [1 / 2, 2, 1 / 3])  # median / steps, at least 1/3 and at most 3


def told(rule):
    """What a rule must be told besides the updates."""
    accepted = inspect.signature(RULES[rule]).parameters
    needs_f = rule == "median_of_means" or ("f" in accepted and accepted["f"].default is accepted["f"].empty)
    return ({"f": 2} if needs_f else {}) | ({"root": np.ones(D)} if "root" in accepted else {}) | {"rng": 0}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_sees_the_updates_divided_by_their_steps(rule, dtype):
    result = aggregate(UPDATES.astype(dtype), rule, steps=STEPS, **told(rule))
    literal = aggregate((FACTORS[:, None] * UPDATES).astype(dtype), rule, **told(rule))
    np.testing.assert_allclose(result.value, literal.value, atol=1e-5)
    assert (result.clients.statuses == literal.clients.statuses).all()
    if result.weights is not None:
        np.testing.assert_allclose(result.weights @ UPDATES, result.value, rtol=1e-5, atol=1e-5)


def test_equal_steps_change_no_bit():
    assert (aggregate(UPDATES, steps=np.full(M, 7)).value == aggregate(UPDATES).value).all()


def test_structures_and_mixings_take_steps():
    dicts = [{"a": row[:30], "count": np.array(3), "b": row[30:]} for row in UPDATES]
    result = aggregate(dicts, "nearest_neighbour_mixing(f=2) | trimmed_mean(f=2)", steps=STEPS)
    literal = aggregate(FACTORS[:, None] * UPDATES, "nearest_neighbour_mixing(f=2) | trimmed_mean(f=2)")
    np.testing.assert_allclose(np.concatenate([result.value["a"], result.value["b"]]), literal.value)
    assert result.value["count"] == 3
    grouped = aggregate(dicts, "huber", steps=STEPS, groups={"a": "a"}).value["a"]
    np.testing.assert_allclose(grouped, aggregate((FACTORS[:, None] * UPDATES)[:, :30], "huber").value, atol=1e-5)


def test_steps_are_claims():
    claims = [*STEPS[:-4], np.nan, 0, "many", 1e308]
    clients = aggregate(UPDATES, steps=claims).clients
    assert clients.with_status("rejected") == [7, 8, 9]
    assert clients[8].reason == "steps 0: not a positive number"
    assert clients[10].reason == "steps 1e+308 counted as 30"
    few = aggregate(UPDATES, steps=[5e-324, *STEPS[1:]], samples=[90] + [10] * 10).clients[0].reason
    assert few == "samples 90 capped at 30; steps 4.94066e-324 counted as 3.33333"


def test_steps_of_another_number_are_an_error_that_names_them():
    with pytest.raises(
        ValueError, match=r"steps have shape \(2,\) for 11 clients. Pass 11 numbers, one number of local"
    ):
        aggregate(UPDATES, steps=[1, 2])


@pytest.mark.parametrize("claim", [1e-3, 1, 5, 20, 100, 1e9])
@pytest.mark.parametrize("rule", ["huber", "spectral_huber", "trimmed_mean(f=3)"])
def test_a_liar_gains_nothing_by_his_claim_of_steps(rule, claim):
    """Whatever he claims, he could have sent the multiple of his update itself."""
    steps, honest = np.full(M, 10.0), np.full(M, 10.0)
    steps[:3] = claim
    lied = UPDATES.copy()
    lied[:3] *= -2
    multiple = lied.copy()
    multiple[:3] *= np.clip(10 / claim, 1 / 3, 3)
    with_claims = aggregate(lied, rule, steps=steps)
    with_multiples = aggregate(multiple, rule, steps=honest)
    np.testing.assert_allclose(with_claims.value, with_multiples.value, atol=1e-5)


# A scale that remembers.


def literal_huber(updates, scale):
    """The fixed point with T = kappa min(max(s, DECAY S), MOST s), by plain steps."""
    centre = np.median(updates, axis=0)
    for _ in range(5000):
        distances = np.linalg.norm(updates - centre, axis=1)
        s = np.median(distances)
        remembered = min(max(s, DECAY * scale), MOST * s)
        pulls = np.minimum(1, 0.75 * remembered / distances)
        centre = pulls @ updates / pulls.sum()
    return centre, remembered


@pytest.mark.parametrize("times", [0.0, 0.5, 1.0, 1.5, 3.0, 50.0, 1e200])
def test_a_remembered_scale_is_as_its_formula(times):
    far = np.concatenate([UPDATES, UPDATES[:2] + 20])
    scale = times * aggregate(far, "huber").scale
    result = aggregate(far, "huber", scale=scale, tol=1e-10)
    value, remembered = literal_huber(far, scale)
    np.testing.assert_allclose(result.value, value, atol=1e-7)
    assert result.scale == pytest.approx(remembered, rel=1e-7)


@pytest.mark.parametrize("rule", ["huber", "spectral_huber"])
def test_a_scale_is_in_the_units_of_the_updates(rule):
    first, huge = aggregate(UPDATES, rule), aggregate(UPDATES * 1e200, rule)
    assert huge.scale == pytest.approx(first.scale * 1e200)
    small = aggregate(UPDATES * 1e-170, rule, scale=2 * first.scale * 1e-170)
    np.testing.assert_allclose(small.value * 1e170, aggregate(UPDATES, rule, scale=2 * first.scale).value, rtol=1e-6)
    assert aggregate(UPDATES, rule, samples=np.full(M, 50.0)).scale == pytest.approx(first.scale)


def test_a_small_scale_of_before_changes_nothing():
    first = aggregate(UPDATES)
    assert (aggregate(UPDATES, scale=first.scale / 2).value == first.value).all()


def test_clients_that_agree_have_the_scale_0():
    same = np.ones((5, 3))
    assert aggregate(same, "huber", scale=3.0).scale == 0
    assert (aggregate(same, scale=3.0).value == 1).all()


def test_far_liars_gain_little_by_a_scale_of_any_length():
    lied = np.concatenate([UPDATES, np.full((4, D), 1e6)])
    assert np.linalg.norm(aggregate(lied, scale=1e300).value - 1) < 2 * np.sqrt(D)


@pytest.mark.parametrize("rule", ["median", "centered_clipping", "geometric_median", "huber(threshold=2)"])
def test_other_rules_remember_no_scale(rule):
    assert aggregate(UPDATES, rule).scale is None
    with pytest.raises(TypeError, match="Leave"):
        aggregate(UPDATES, rule, scale=1.0)


@pytest.mark.parametrize("scale", [np.nan, -1.0, np.inf])
def test_a_scale_is_a_number(scale):
    with pytest.raises(ValueError, match="scale must be a number of at least 0 and finite"):
        aggregate(UPDATES, scale=scale)
