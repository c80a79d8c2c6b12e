"""The n_i that clients claim: nonsense is rejected, excess is capped, and the round goes on."""

from functools import partial

import numpy as np
import pytest

from cases import (
    BY_EVERY_WAY,
    ROBUST,
    SMALL,
    F,
    M,
    assert_accounted,
    assert_held,
    assert_refused,
    error,
    honest_updates,
    parameters,
    with_liars,
)
from fedhold import aggregate

by_every_way = pytest.mark.parametrize("rule", BY_EVERY_WAY)


@by_every_way
@pytest.mark.parametrize("liars", [1, F])
@pytest.mark.parametrize("claim", [0, -1, -1e300, np.nan, np.inf, -np.inf])
def test_claims_that_are_no_positive_number_are_rejected(rule, liars, claim):
    honest = honest_updates(M - liars)
    samples = np.r_[[claim] * liars, [10.0] * (M - liars)]
    result = aggregate(with_liars(np.full((liars, 40), 50.0), honest), rule, samples=samples, **parameters(rule, F))
    assert_held(result, honest)
    assert result.clients.with_status("rejected") == list(range(liars))
    assert all(f"samples {claim:g}" in row.reason for row in result.clients[:liars])


@by_every_way
@pytest.mark.parametrize("lie", [1e20, 50.0, 3.0])
@pytest.mark.parametrize("claim", [1e9, 1e300, float(np.finfo(float).max), 10**18])
def test_liars_who_claim_very_many_samples_are_capped(rule, claim, lie):
    honest = honest_updates()
    samples = [claim] * F + [10] * (M - F)
    result = aggregate(with_liars(np.full((F, 40), lie), honest), rule, samples=samples, **parameters(rule, F))
    assert_accounted(result)
    assert all("capped at 30" in row.reason and row.samples == 30 for row in result.clients[:F])
    assert not any(row.reason for row in result.clients[F:])
    if rule in ROBUST:
        assert error(result.value, honest) <= SMALL


@by_every_way
@pytest.mark.parametrize("claim", [None, "many", 10**400, 10**20, 1j, [1, 2]], ids=lambda claim: str(claim)[:8])
def test_a_claim_that_is_no_number_costs_the_client_its_place_and_nobody_else(rule, claim):
    honest = honest_updates()
    samples = [claim] * F + [10] * (M - F)
    result = aggregate(with_liars(np.full((F, 40), 50.0), honest), rule, samples=samples, **parameters(rule, F))
    assert_accounted(result)
    assert all("samples" in row.reason for row in result.clients[:F])
    if rule in ROBUST:
        assert error(result.value, honest) <= SMALL


@by_every_way
@pytest.mark.parametrize("cap", [None, 3.0, np.inf, 1])
@pytest.mark.parametrize("claim", [1e-310, 1e-160, 1e160, 1e300, float(np.finfo(float).max)])
def test_the_scale_of_everybodys_samples_changes_nothing(rule, claim, cap):
    honest = honest_updates(M)
    result = aggregate(honest, rule, samples=np.full(M, claim), sample_cap=cap, **parameters(rule, F))
    assert_held(result, honest)
    np.testing.assert_allclose(result.value, aggregate(honest, rule, **parameters(rule, F)).value, rtol=1e-6)


@by_every_way
def test_trusted_claims_of_any_size_give_numbers(rule):
    samples = np.geomspace(1e-300, 1e300, M)
    result = aggregate(honest_updates(M), rule, samples=samples, sample_cap=None, **parameters(rule, F))
    assert_accounted(result)
    assert np.isfinite(result.value).all()


@by_every_way
@pytest.mark.parametrize(
    ("samples", "kind", "words"),
    [
        (np.ones(M - 1), ValueError, ["23", "22"]),
        (np.ones(M + 1), ValueError, ["23", "24"]),
        ([], ValueError, ["23", "0"]),
        (5, ValueError, ["23", "()"]),
        (np.ones((M, 1)), ValueError, ["(23, 1)"]),
        ("many", TypeError, []),
        ({"a": 1}, TypeError, []),
    ],
    ids=["fewer", "more", "none", "one", "a column", "text", "a dict"],
)
def test_samples_must_be_one_number_per_client(rule, samples, kind, words):
    call = partial(aggregate, honest_updates(M), rule, samples=samples, **parameters(rule, F))
    assert_refused(kind, "samples", *words, call=call)


@pytest.mark.parametrize("cap", [0, 0.5, -1, np.nan, -np.inf])
def test_a_cap_below_one_is_refused(cap):
    assert_refused(ValueError, "sample_cap", str(cap), call=partial(aggregate, honest_updates(M), sample_cap=cap))


@pytest.mark.parametrize("cap", ["3", True, [3], 3j])
def test_a_cap_that_is_no_number_is_refused(cap):
    assert_refused(TypeError, "sample_cap", repr(cap), call=partial(aggregate, honest_updates(M), sample_cap=cap))


@by_every_way
@pytest.mark.parametrize("liars", [1, 3])
def test_a_claim_of_nearly_nothing_counts_as_a_millionth_of_the_median(rule, liars):
    samples = np.full(M, 100.0)
    samples[:liars] = 5e-324 if liars == 1 else 1e-50
    honest = honest_updates(M)
    for cap in (3.0, None):
        result = aggregate(honest, rule, samples=samples, sample_cap=cap, **parameters(rule, F))
        assert_accounted(result)
        assert all(
            "raised to 0.0001" in row.reason and row.samples == pytest.approx(1e-4) for row in result.clients[:liars]
        )
        if result.certificate is not None:
            assert result.certificate.radius(1) > 0
