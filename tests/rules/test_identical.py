"""Honest clients that agree, exactly or up to rounding, and far liars: every rule and mixing returns what they agree on."""

import inspect

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import assume, example, given, settings

from cases import FRAGILE, FROM_ZERO, takes
from fedhold import MIXINGS, RULES, aggregate
from fedhold.rules import declaration_of

# In front of these, a mixing must leave honest rows that agree. `clipping` and `adaptive_clipping` shorten liars to the length
# of the honest, so that a rule has to do the rest.
AFTER_MIXINGS = ("huber", "krum", "median", "spectral_huber", "covariance_agnostic_filter")
TOLD = {"radius": 1.0}


def most_liars(function, m):
    """How many liars a rule or mixing allows among m clients; less than half where it is not told."""
    bound = declaration_of(function).bound
    assume(bound is None or m >= bound.more)
    return (m - 1) // 2 if bound is None else bound.most_liars(m)


@st.composite
def rounds(draw, most):
    """Clients that agree on a row of length 1, and liars in front of them, as many as `most` allows."""
    m, d = draw(st.integers(3, 13)), draw(st.sampled_from([1, 2, 5]))
    f = draw(st.integers(0, most(m)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    agreed = rng.normal(size=d)
    agreed /= np.linalg.norm(agreed)
    rows = np.tile(agreed, (m, 1))
    if draw(st.booleans()):  # equal up to rounding
        rows = np.nextafter(rows, rows + rng.choice([-1, 1], (m, d)))
    far = 10.0 ** draw(st.sampled_from([1, 3, 9, 30]))
    together = draw(st.booleans())
    directions = rng.normal(size=(1 if together else f, d))
    directions /= np.maximum(np.linalg.norm(directions, axis=1, keepdims=True), 1e-9)
    rows[:f] = agreed + far * directions
    return rows, f, agreed


def told(function, f):
    names = inspect.signature(function).parameters
    required = [name for name in names if names[name].default is inspect.Parameter.empty]
    return {
        name: value for name, value in {"f": f, **TOLD}.items() if name in required or (name == "f" and "f" in names)
    }


def assert_agreed(rows, spec, agreed, *, within=1e-6, **known):
    result = aggregate(rows, spec, rng=0, **known)
    assert np.linalg.norm(result.value - agreed) <= within


@pytest.mark.parametrize("rule", [rule for rule in RULES if rule not in FRAGILE])
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_rule_returns_what_all_but_the_liars_agree_on(rule, data):
    rows, f, agreed = data.draw(rounds(lambda m: most_liars(RULES[rule], m)))
    root = {"root": agreed} if takes(rule, "root") else {}
    # Rules that look from 0 keep liars who are as long as the honest, or point where they do: they are bounded by a length.
    assert_agreed(rows, rule, agreed, within=1.01 if rule in FROM_ZERO else 1e-6, **told(RULES[rule], f), **root)


@pytest.mark.parametrize("mixing", MIXINGS)
@pytest.mark.parametrize("rule", AFTER_MIXINGS)
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_every_mixing_leaves_what_all_but_the_liars_agree_on(mixing, rule, data):
    def most(m):
        rows = declaration_of(MIXINGS[mixing]).rows(m, **told(MIXINGS[mixing], 0))
        return min(most_liars(MIXINGS[mixing], m), most_liars(RULES[rule], rows))

    rows, f, agreed = data.draw(rounds(most))
    written = ", ".join(f"{name}={value}" for name, value in told(MIXINGS[mixing], f).items())
    assert_agreed(rows, f"{mixing}({written}) | {rule}", agreed, **told(RULES[rule], f))


@given(st.sampled_from([1.0, 0.1, 1 / 3]))
@example(1.0)
def test_the_filter_that_is_told_no_covariance(agreed):
    """The step in which all that are left are alike is the best of all, and the last."""
    rows = np.full((7, 1), agreed)
    rows[0] = 1e30
    assert aggregate(rows, "covariance_agnostic_filter", f=1).value == pytest.approx(agreed, rel=1e-12)
