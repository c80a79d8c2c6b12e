"""The verdict on a claim: what the numbers of the seeds must be for it to hold, to fail, to stay open."""

import math

import numpy as np
import pytest

from fedhold.lab.paper import CLAIMS, Claim, Measurements, Plan, judge
from fedhold.lab.paper.claims import T_QUANTILES, Comparison, interval, outcome


def claim(*comparisons):
    return Claim("It is so.", "section 0", "As read", lambda _: list(comparisons))


def verdict(*comparisons):
    return judge(claim(*comparisons), Measurements(lambda _: None, Plan()))


CLEAR, AGAINST, UNSURE = (1.0, 1.1, 0.9), (-1.0, -1.1, -0.9), (-1.0, 1.0, 0.5)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([CLEAR], "holds"),
        ([CLEAR, CLEAR], "holds"),
        ([CLEAR, UNSURE], "undecided"),
        ([UNSURE], "undecided"),
        ([CLEAR, AGAINST], "fails"),
        ([UNSURE, AGAINST], "fails"),
    ],
)
def test_every_comparison_must_be_for_it_and_one_against_is_enough(values, expected):
    assert outcome([Comparison("a", v) for v in values]) == expected
    assert verdict(*(Comparison("a", v) for v in values)).outcome == expected


@pytest.mark.parametrize("value", [5.0, -5.0])
def test_one_seed_decides_nothing(value):
    told = verdict(Comparison("a difference", (value,)))
    assert told.outcome == "undecided"
    assert f"{value:+.3g} (one seed)" in told.numbers


def test_consistent_signs_are_not_enough():
    assert Comparison("a", (0.1, 1.0, 3.0)).side == "open"


def test_a_tie_is_open():
    assert Comparison("a", (0.0, 0.0, 0.0)).side == "open"


def test_what_follows_from_a_definition_needs_no_seeds():
    assert Comparison("a", (-0.1,), exact=True).side == "against"
    assert Comparison("a", (0.1,), exact=True).side == "for"


@pytest.mark.parametrize(
    ("values", "side"),
    [((math.inf, 1.0, 2.0), "for"), ((-math.inf, -1.0, -math.inf), "against"), ((math.inf, -1.0, 2.0), "open")],
)
def test_a_run_that_left_the_numbers_decides_only_where_all_seeds_agree(values, side):
    assert Comparison("a", values).side == side
    assert str(Comparison("a", values))


def test_a_difference_that_nobody_would_notice_is_level_and_fails_the_claim():
    small = (-0.001, 0.002, 0.001)
    assert Comparison("a", small).side == "open"
    assert Comparison("a", small, margin=0.01).side == "level"
    assert Comparison("a", small, margin=0.003).side == "open", "its interval is wider than the margin"
    assert Comparison("a", (0.001, 0.0011, 0.0012), margin=0.01).side == "level", (
        "every seed shows it, and it is nothing"
    )
    assert Comparison("a", (0.001, 0.0011, 0.0012)).side == "for", "a bar is a bar"
    assert Comparison("a", (-0.02, -0.021, -0.022), margin=0.01).side == "against"
    assert outcome([Comparison("a", CLEAR), Comparison("b", small, margin=0.01)]) == "fails"


def test_what_is_open_with_all_its_seeds_is_not_shown():
    assert outcome([Comparison("a", CLEAR), Comparison("b", UNSURE, most=9)]) == "undecided"
    assert outcome([Comparison("a", CLEAR), Comparison("b", UNSURE, most=3)]) == "fails"
    assert outcome([Comparison("b", (1.0,), most=1)]) == "undecided", "one seed decides nothing"


def test_what_the_best_seed_again_and_again_would_not_show_is_given_up():
    below = (-0.02, -0.01, -0.1)
    assert Comparison("a", below).side == "open"
    assert outcome([Comparison("a", CLEAR), Comparison("b", below, most=6)]) == "fails"
    assert outcome([Comparison("b", below[:1], most=6)]) == "undecided", "one seed is too few to give up"
    assert outcome([Comparison("b", below[:2], most=6)]) == "undecided", "and so are two"
    assert outcome([Comparison("b", below[:2], most=2)]) == "fails", "unless there may be no more"
    assert outcome([Comparison("b", (-0.02, 0.1, 0.1), most=6)]) == "undecided", "0.1 three times more would show it"
    assert outcome([Comparison("b", (-0.02, 0.1, 0.1), most=4)]) == "fails", "0.1 once more would not"


def test_the_quantiles_are_students():
    """The density of t with k degrees of freedom, summed up: 0.975 of it lies below the quantile."""
    for k, quantile in enumerate(T_QUANTILES, start=1):
        x = np.linspace(0, quantile, 200_001)
        scale = math.gamma((k + 1) / 2) / (math.sqrt(k * math.pi) * math.gamma(k / 2))
        assert np.trapezoid(scale * (1 + x**2 / k) ** (-(k + 1) / 2), x) == pytest.approx(0.475, abs=5e-5)


def test_the_interval_covers_as_often_as_it_says():
    rng = np.random.default_rng(0)
    inside = 0
    for _ in range(2000):
        low, high = interval(rng.normal(3.0, 2.0, 5).tolist())
        inside += low <= 3.0 <= high
    assert inside / 2000 == pytest.approx(0.95, abs=0.015)


def test_a_verdict_shows_the_reading_and_what_decided():
    many = [Comparison(f"fine {k}", CLEAR) for k in range(9)]
    told = verdict(*many, Comparison("the culprit", AGAINST))
    assert told.numbers.startswith("As read. 10 comparisons: 1 against, 9 for. the culprit: -1 +- 0.25 (3 seeds)")
    assert "fine" not in told.numbers
    told = verdict(*many, Comparison("narrow", (0.10, 0.11, 0.12)))
    assert "narrow: +0.11" in told.numbers


def test_a_result_that_is_missing_decides_nothing():
    told = judge(CLAIMS[0], Measurements(lambda _: None, Plan()))
    assert told.outcome == "undecided"
    assert "not run" in told.numbers
