"""Updates full of bad numbers: every rule gives a sound aggregate, and says whom it left out."""

import numpy as np
import pytest

import oracles
from cases import (
    FROM_ZERO,
    RESCALING,
    ROBUST,
    SMALL,
    F,
    M,
    assert_accounted,
    assert_held,
    error,
    honest_updates,
    parameters,
    smallest,
    with_liars,
)
from fedhold import RULES, aggregate
from fedhold.sizes import TILE
from fedhold.updates import Updates
from fedhold.updates.first import SAMPLED
from fedhold.updates.tiles import Source

SINGLE, DOUBLE = np.finfo(np.float32), np.finfo(np.float64)
every_rule = pytest.mark.parametrize("rule", RULES)
robust_rules = pytest.mark.parametrize("rule", ROBUST)


def everywhere(number):
    return lambda liars, d: np.full((liars, d), number)


def in_turn(*numbers):
    """The numbers along the columns, shifted from liar to liar."""
    return lambda liars, d: np.array(numbers)[np.add.outer(np.arange(liars), np.arange(d)) % len(numbers)]


def at_one_place(number):
    def lies(liars, d):
        out = np.ones((liars, d))
        out[np.arange(liars), np.arange(liars) % d] = number
        return out

    return lies


def one_each(*numbers):
    return lambda liars, d: np.resize(numbers, (liars, 1)) * np.ones(d)


NOT_FINITE = {
    "nan": everywhere(np.nan),
    "one nan": at_one_place(np.nan),
    "inf": everywhere(np.inf),
    "one inf": at_one_place(-np.inf),
    "mixed inf": in_turn(np.inf, -np.inf),
    "nan and inf": in_turn(np.nan, 1.0, np.inf, 1e38, -np.inf),
}
FINITE = {
    "1e38": (np.float32, everywhere(1e38)),
    "1e20": (np.float32, everywhere(1e20)),
    "1e10": (np.float32, everywhere(1e10)),
    "mixed 1e38": (np.float32, in_turn(1e38, -1e38)),
    "one 1e38": (np.float32, at_one_place(1e38)),
    "one 1e20": (np.float32, at_one_place(-1e20)),
    "largest float32": (np.float32, everywhere(float(SINGLE.max))),
    "all sizes, float32": (np.float32, one_each(1e38, -1e20, 1e-40, 1e5)),
    "1e-40": (np.float32, everywhere(1e-40)),
    "smallest float32": (np.float32, in_turn(float(SINGLE.smallest_subnormal), -1e-40)),
    "1e300": (np.float64, everywhere(1e300)),
    "1e160": (np.float64, everywhere(1e160)),
    "1e154": (np.float64, everywhere(1e154)),  # its square is a number, the sum of a few is not
    "mixed 1e300": (np.float64, in_turn(1e300, -1e300)),
    "one 1e300": (np.float64, at_one_place(1e300)),
    "largest float64": (np.float64, everywhere(float(DOUBLE.max))),
    "all sizes, float64": (np.float64, one_each(1e300, -1e20, 1e-310, 1e150)),
    "1e-310": (np.float64, everywhere(1e-310)),
    "smallest float64": (np.float64, in_turn(float(DOUBLE.smallest_subnormal), -1e-310)),
}


@every_rule
@pytest.mark.parametrize("liars", [1, F])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("lie", NOT_FINITE)
def test_who_sends_numbers_that_are_not_finite_is_rejected(rule, liars, dtype, lie):
    honest = honest_updates(M - liars, dtype=dtype)
    result = aggregate(with_liars(NOT_FINITE[lie](liars, 40), honest), rule, **parameters(rule, F))
    assert_held(result, honest)
    assert result.clients.with_status("rejected") == list(range(liars))
    assert all("not finite" in row.reason for row in result.clients[:liars])


@every_rule
@pytest.mark.parametrize(("liars", "d"), [(1, 40), (F, 40), (F, 1)])
@pytest.mark.parametrize("lie", FINITE)
def test_numbers_at_the_ends_of_the_range_move_little(rule, liars, d, lie):
    dtype, lies = FINITE[lie]
    honest = honest_updates(M - liars, d, dtype=dtype)
    assert_held(aggregate(with_liars(lies(liars, d), honest), rule, **parameters(rule, F)), honest)


@pytest.mark.parametrize("lie", [*NOT_FINITE, *FINITE])
def test_the_certificate_is_a_number_whatever_was_sent(lie):
    dtype, lies = FINITE.get(lie) or (np.float64, NOT_FINITE[lie])
    result = aggregate(with_liars(lies(F, 40), honest_updates(dtype=dtype)))
    assert result.certificate.radius(1) >= 0
    assert result.certificate.radius(F) >= result.certificate.radius(1)


@every_rule
@pytest.mark.parametrize("lie", ["nan", "mixed inf", "all sizes, float32"])
def test_a_list_of_arrays_fares_as_the_stacked_array(rule, lie):
    dtype, lies = FINITE.get(lie) or (np.float32, NOT_FINITE[lie])
    updates = with_liars(lies(F, 40), honest_updates(dtype=dtype))
    stacked, listed = (aggregate(form, rule, **parameters(rule, F)) for form in (updates, list(updates)))
    np.testing.assert_array_equal(stacked.value, listed.value)
    assert stacked.clients == listed.clients


@robust_rules
@pytest.mark.parametrize("lie", ["nan and inf", "all sizes, float32"])
def test_large_models_are_read_by_threads_and_no_less_safe(rule, lie):
    dtype, lies = FINITE.get(lie) or (np.float32, NOT_FINITE[lie])
    honest = honest_updates(d=60_000, dtype=dtype)
    updates = with_liars(lies(F, 60_000), honest)
    assert updates.size > TILE, "this is read in one go"
    assert_held(aggregate(updates, rule, **parameters(rule, F)), honest)


MIXED = [
    "nearest_neighbour_mixing(f=4) | trimmed_mean(f=4)",
    "nearest_neighbour_mixing(f=4) | huber",
    "bucketing(size=2) | huber",
    "bucketing(size=2) | median",
    "clipping(radius=8) | huber",
    "clipping(radius=8) | median",
    "adaptive_clipping(f=4) | huber",
    "adaptive_clipping(f=4) | fl_trust",
    "nearest_neighbour_mixing(f=4) | sign_guard",
    "screen | mean",
    "screen | huber",
    "screen | krum(f=2)",
]


@pytest.mark.parametrize("rule", MIXED)
@pytest.mark.parametrize("lie", ["nan and inf", *FINITE])
def test_what_goes_before_a_rule_is_no_less_safe(rule, lie):
    dtype, lies = FINITE.get(lie) or (np.float64, NOT_FINITE[lie])
    honest = honest_updates(dtype=dtype)
    result = aggregate(with_liars(lies(F, 40), honest), rule)
    assert np.isfinite(result.value).all()
    assert error(result.value, honest) <= SMALL
    assert all(row.reason for row in result.clients if row.status == "rejected")
    assert all(np.isfinite(row.distance) for row in result.clients if row.status != "rejected")


SCALES = [(np.float32, s) for s in (1e-40, 1e-20, 1e20, 1e37)]
SCALES += [(np.float64, s) for s in (1e-310, 1e-160, 1e-130, 1e130, 1e160, 1e307)]


@every_rule
@pytest.mark.parametrize("d", [2, 40])
@pytest.mark.parametrize(("dtype", "scale"), SCALES)
def test_the_scale_of_everybodys_data_changes_nothing_else(rule, d, dtype, scale):
    ordinary = honest_updates(M, d)
    tiny_or_huge = (ordinary * scale).astype(dtype)
    result = aggregate(tiny_or_huge, rule, **parameters(rule, F))
    assert_held(result, tiny_or_huge)
    same = aggregate((tiny_or_huge / dtype(scale)).astype(np.float64), rule, **parameters(rule, F))
    assert error(result.value, tiny_or_huge) == pytest.approx(error(same.value, ordinary), abs=1e-3)
    assert result.clients.with_status("dropped") == same.clients.with_status("dropped")


@robust_rules
@pytest.mark.parametrize("lie", [0.0, 1.0, -1e20, "largest"])
@pytest.mark.parametrize(("dtype", "scale"), SCALES)
def test_liars_gain_nothing_from_the_scale_of_everybodys_data(rule, dtype, scale, lie):
    honest = (honest_updates() * scale).astype(dtype)
    lies = np.full((F, 40), np.finfo(dtype).max if lie == "largest" else lie)
    assert_held(aggregate(with_liars(lies, honest), rule, **parameters(rule, F)), honest)


@every_rule
@pytest.mark.parametrize("m", [3, M])
@pytest.mark.parametrize("number", [0.0, 0.1, 1e-310, 1e300, float(DOUBLE.max)])
def test_identical_clients_are_their_own_aggregate(rule, m, number):
    result = aggregate(np.full((m, 5), number), rule, **parameters(rule, F if m == M else 0))
    assert_accounted(result)
    np.testing.assert_allclose(result.value, np.full(5, number), rtol=1e-14, atol=2 * float(DOUBLE.smallest_subnormal))
    assert not result.clients.with_status("clipped")


@every_rule
@pytest.mark.parametrize("d", [1, 7])
@pytest.mark.parametrize("m", [1, 2, 3])
def test_few_clients_give_a_value_among_them_or_an_error_that_says_how_many_it_takes(rule, m, d):
    updates = honest_updates(m, d)
    if m < smallest(rule, 0):
        with pytest.raises(ValueError, match=rf"{rule} needs m >= .*m = {m}.*gather more clients"):
            aggregate(updates, rule, **parameters(rule, 0))
        return
    result = aggregate(updates, rule, **parameters(rule, 0))
    assert_accounted(result)
    if rule in RESCALING:
        assert np.linalg.norm(result.value) <= np.linalg.norm(updates, axis=1).max() + 1e-12
    else:
        assert (result.value >= updates.min(axis=0) - 1e-12).all()
        assert (result.value <= updates.max(axis=0) + 1e-12).all()


@every_rule
def test_when_everyone_is_rejected_the_error_says_why(rule):
    with pytest.raises(ValueError, match=r"all 23 clients were rejected.*not finite.*Keep the current model"):
        aggregate(np.full((M, 3), np.nan), rule, **parameters(rule, F))


def hidden(m, liars, d, place):
    """Updates of m clients alike but for one coordinate of the first few, and those of the honest alone."""
    updates = honest_updates(m, d, dtype=np.float32)
    updates[:liars, place] = 1e30
    return updates, updates[liars:]


def between_the_samples(updates):
    """The same updates, sign-flipped wherever the start of the solvers does not look: liars can read, too."""
    columns = np.arange(updates.shape[1], dtype=np.float64)[None]
    seen = Updates((Source.of(columns, columns.size),), 1).sample(SAMPLED).astype(int)
    flipped = -updates
    flipped[:, seen] = updates[:, seen]
    return flipped


@robust_rules
@pytest.mark.parametrize("place", [0, 100, 9_999, 19_900])
def test_one_huge_coordinate_cannot_hide_among_many(rule, place):
    """The solvers start from a sample of the columns; most of these places are not in it."""
    updates, honest = hidden(M, F, 20_000, place)
    assert_held(aggregate(updates, rule, **parameters(rule, F)), honest)


@pytest.mark.parametrize("rule", sorted(set(ROBUST) - set(FROM_ZERO)))
def test_model_weights_flipped_where_no_sample_looks(rule):
    """No number stands out by its size here, and the flip is ten thousand spreads."""
    honest = (1 + 1e-4 * honest_updates(d=20_000)).astype(np.float32)
    updates = with_liars(between_the_samples(honest[:F]), honest)
    assert_held(aggregate(updates, rule, **parameters(rule, F)), honest)


@pytest.mark.parametrize("place", [0, 100, 9_999, "between"])
def test_krum_measures_the_honest_finely_beside_liars_it_did_not_see_coming(place):
    """A reference that the liars have dragged away leaves no digit of the distances between the honest."""
    if place == "between":
        honest = (1 + 1e-4 * honest_updates(d=20_000)).astype(np.float32)
        updates = with_liars(between_the_samples(honest[:F]), honest)
    else:
        updates, _ = hidden(M, F, 20_000, place)
    expected = int(np.argmin(oracles.krum_scores(updates.astype(np.float64), F)))
    assert aggregate(updates, "krum", f=F).weights.argmax() == expected


@pytest.mark.parametrize("rule", ["huber", "geometric_median", "median"])
@pytest.mark.parametrize("d", [1, 40, 20_000])
@pytest.mark.parametrize("hide", [False, True])
def test_almost_half_of_the_clients_far_away(rule, d, hide):
    """45 % pull as one: at breakdown 1/2 the bias grows as f / (m - 2f) = 4.5, and Huber's by the clipped share of it."""
    updates, honest = hidden(100, 45, d, 100 % d if hide else slice(None))
    result = aggregate(updates, rule)
    assert_accounted(result)
    assert error(result.value, honest) <= 2 * SMALL


@pytest.mark.parametrize("rule", ["huber", "median", "trimmed_mean"])
@pytest.mark.parametrize("lie", [np.nan, 1e30])
def test_very_many_clients_with_few_numbers_each(rule, lie):
    liars = 4_000
    honest = honest_updates(16_000, 3)
    result = aggregate(with_liars(np.full((liars, 3), lie), honest), rule, **parameters(rule, liars))
    assert_held(result, honest)


def test_krum_selects_on_model_weights_in_float32_whom_it_selects_in_float64():
    for seed in range(60):
        rng = np.random.default_rng(seed)
        weights = (1 + 1e-4 * rng.normal(size=(30, 500))).astype(np.float32)
        expected = int(np.argmin(oracles.krum_scores(weights.astype(np.float64), 5)))
        assert aggregate(weights, "krum", f=5).weights.argmax() == expected
        assert aggregate(weights.astype(np.float64), "krum", f=5).weights.argmax() == expected


@pytest.mark.parametrize("m", [10, 60])
@pytest.mark.parametrize("rule", ["huber", "geometric_median"])
def test_huber_on_model_weights_in_float32_agrees_with_float64(rule, m):
    for seed in range(10):
        rng = np.random.default_rng(seed)
        weights = (1 + 1e-4 * rng.normal(size=(m, 2_000))).astype(np.float32)
        single, double = (aggregate(weights.astype(dtype), rule) for dtype in (np.float32, np.float64))
        spread = np.median(np.linalg.norm(weights - weights.mean(axis=0, dtype=np.float64), axis=1))
        assert np.linalg.norm(single.value.astype(np.float64) - double.value) <= 1e-3 * spread


@pytest.mark.parametrize("rule", ["huber", "median", "bulyan(f=1)", "sign_guard", "monna(f=1)"])
def test_clients_that_are_shortened_to_nothing_count_as_others_do(rule):
    """Where most clients send nothing but zeros, the longest one left has no length."""
    X = np.zeros((9, 5))
    X[:3] = np.eye(3, 5)
    result = aggregate(X, f"adaptive_clipping(f=4) | {rule}", samples=np.arange(1.0, 10))
    np.testing.assert_array_equal(result.value, np.zeros(5))
