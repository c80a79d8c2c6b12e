"""How likely a sample of nodes is captured: against counting every sample, and the numbers of published examples."""

import re
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhold.sampling import asked_for, captured, told_risk


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


def test_what_is_said_of_a_sample_and_when_it_is_a_warning():
    line, warned = told_risk(nodes=20, liars=5, asked=6, rounds=50)
    assert line.startswith(
        "6 of 20 nodes asked, 5 of them liars: in 50 rounds half or more of a sample lie with a probability of "
    )
    assert line.endswith(". From 11 on it is at most 0.001.")
    assert warned
    assert not told_risk(nodes=20, liars=5, asked=11, rounds=50)[1]
    assert told_risk(nodes=10, liars=5, asked=10, rounds=1) == (
        "10 of 10 nodes asked, 5 of them liars: in 1 rounds half or more of a sample lie with a probability of 1. "
        "Let more nodes take part, or trust fewer of them to lie.",
        True,
    )
    assert told_risk(nodes=3, liars=9, asked=5, rounds=1)[1]


def test_readme_documents_and_examples_ask_enough_nodes():
    """With a fifth of six nodes or more lying, the samples that they draw can never be captured."""
    root = Path(__file__).parents[1]
    files = [root / "README.md", *(root / "docs").glob("*.md"), *(root / "examples").rglob("*.toml")]
    asked = {
        float(f) for file in files for f in re.findall(r"fraction[-_]train ?= ?([0-9.]+)", file.read_text("utf-8"))
    }
    assert asked >= {0.5, 1.0}
    for fraction in asked:
        for nodes in range(6, 200):
            assert captured(nodes, nodes // 5, max(int(fraction * nodes), 2), rounds=100, ties=True) == 0, (
                fraction,
                nodes,
            )
