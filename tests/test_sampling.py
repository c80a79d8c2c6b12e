"""How likely a sample of nodes is captured: against counting every sample, and the numbers of published examples."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhold.sampling import asked_for, captured


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize(("nodes", "liars"), [(1, 0), (1, 1), (7, 3), (8, 2), (9, 9), (10, 0)])
def test_every_sample_counted(nodes, liars, ties):
    for asked in range(1, nodes + 1):
        samples = [sum(node < liars for node in sample) for sample in combinations(range(nodes), asked)]
        share = sum(2 * lying > asked or (ties and 2 * lying == asked) for lying in samples) / len(samples)
        assert captured(nodes, liars, asked, ties=ties) == pytest.approx(share, abs=1e-12)
        assert captured(nodes, liars, asked, 7, ties=ties) == pytest.approx(1 - (1 - share) ** 7, abs=1e-12)


def test_known_federations():
    assert captured(20, 5, 6) == pytest.approx(0.014, abs=5e-4)
    assert captured(20, 5, 6, rounds=50) == pytest.approx(0.50, abs=5e-3)
    assert captured(10, 3, 5, rounds=50) == pytest.approx(0.987, abs=5e-4)
    assert captured(8, 2, 4, ties=True) == pytest.approx(0.21, abs=5e-3)


@given(st.integers(1, 60), st.data())
def test_every_larger_sample_is_as_safe(nodes, data):
    liars = data.draw(st.integers(0, (nodes - 1) // 2))
    rounds, risk = data.draw(st.integers(1, 1000)), data.draw(st.floats(1e-9, 0.5))
    asked = asked_for(nodes, liars, rounds, risk)
    assert all(captured(nodes, liars, more, rounds) <= risk for more in range(asked, nodes + 1))
    assert asked == 1 or captured(nodes, liars, asked - 1, rounds) > risk


def test_many_nodes():
    assert 0 <= captured(10**9, 10**8, 1000, rounds=10**6) < 1e-3


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: captured(10, 11, 5), "at most nodes=10"),
        (lambda: captured(10, 2, 11), "at most nodes=10"),
        (lambda: captured(10, 2.5, 5), "whole number"),
        (lambda: asked_for(10, 5, 50), "fewer than half"),
        (lambda: asked_for(10, 2, 50, risk=0), "probability between 0 and 1"),
    ],
)
def test_mistakes(call, message):
    with pytest.raises((TypeError, ValueError), match=message):
        call()
