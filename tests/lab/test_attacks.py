"""Attacks against literal transcriptions of section 7, and what every attack must keep to."""

import inspect
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oracles
from fedhold import aggregate
from fedhold.lab import (
    ATTACKS,
    Knowledge,
    Lies,
    alie,
    attacks,
    drift,
    duplicates,
    gaussian,
    huber_attack,
    inflated_samples,
    ipm,
    krum_attack,
    mimic,
    min_max,
    min_sum,
    non_finite,
    optimal_alie,
    optimal_ipm,
    sign_flip,
    trimmed_mean_attack,
    worst_case,
)
from fedhold.lab.knowledge import declares, poisons_data

ON_UPDATES = [name for name in ATTACKS if not declares(ATTACKS[name], poisons_data)]


def literal_mean(G):
    return sum(G) / len(G)


def literal_krum_attack(G, byzantine):
    """Set lambda = 1; halve until Krum selects an attacked sample or lambda < 1e-4."""
    g, liars = literal_mean(G), np.flatnonzero(byzantine)
    step = 1.0
    while True:
        X = G.copy()
        X[liars] = g - step * np.sign(g)
        if np.argmin(oracles.krum_scores(X, len(liars))) in liars or step < 1e-4:
            return X[liars]
        step /= 2


def literal_largest_krum_attack(G, byzantine):
    """The largest lambda that Krum follows: of 4,000 that grow by 1 % each, the last one before it stops following."""
    g, liars = literal_mean(G), np.flatnonzero(byzantine)
    largest = None
    for step in 1e-4 * 1.01 ** np.arange(4000):
        X = G.copy()
        X[liars] = g - step * np.sign(g)
        if np.argmin(oracles.krum_scores(X, len(liars))) not in liars:
            return largest
        largest = step
    return largest


def literal_trimmed_mean_attack(G, byzantine):
    s = np.sign(literal_mean(G))
    row = [max(G[:, j]) if s[j] == -1 else min(G[:, j]) if s[j] == 1 else 0.0 for j in range(G.shape[1])]
    return np.array([row for lies in byzantine if lies]).reshape(-1, G.shape[1])


def literal_huber_attack(G, byzantine, T):
    s, d = np.sign(literal_mean(G)), G.shape[1]
    rows = [[G[i, j] - s[j] * T[i] / np.sqrt(d) for j in range(d)] for i in range(len(G)) if byzantine[i]]
    return np.array(rows).reshape(-1, d)


@st.composite
def federations(draw):
    """G and the mask, from clients in tight agreement to ones that have nothing in common."""
    m, d = draw(st.integers(4, 14)), draw(st.integers(1, 9))
    f = draw(st.integers(1, m - 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    G = rng.standard_normal(d) * draw(st.sampled_from([0, 0.01, 1, 100]))
    G = G + rng.standard_normal((m, d)) * draw(st.sampled_from([1e-5, 1e-3, 0.1, 3]))
    G[:, rng.random(d) < 0.2] = 0  # as the dark border of every image
    return G, np.isin(np.arange(m), rng.choice(m, f, replace=False)), rng


@settings(deadline=None)
@given(federations())
def test_sign_flip_is_the_formula(federation):
    G, byzantine, rng = federation
    np.testing.assert_array_equal(sign_flip(Knowledge(G, byzantine, rng)), [-g for g in G[byzantine]])


@settings(deadline=None)
@given(federations())
def test_krum_attack_is_the_formula(federation):
    G, byzantine, rng = federation
    sent = krum_attack(Knowledge(G, byzantine, rng))
    np.testing.assert_allclose(sent, literal_krum_attack(G, byzantine), rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(federations())
def test_trimmed_mean_attack_is_the_formula(federation):
    G, byzantine, rng = federation
    sent = trimmed_mean_attack(Knowledge(G, byzantine, rng))
    np.testing.assert_array_equal(sent, literal_trimmed_mean_attack(G, byzantine))


@settings(deadline=None)
@given(federations())
def test_huber_attack_is_the_formula(federation):
    G, byzantine, rng = federation
    T = rng.uniform(0.1, 2, len(G))
    sent = huber_attack(Knowledge(G, byzantine, rng, T))
    np.testing.assert_allclose(sent, literal_huber_attack(G, byzantine, T), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("seed", range(12))
def test_krum_attack_finds_the_largest_step(seed):
    rng = np.random.default_rng(seed)
    G = rng.standard_normal(20) + rng.standard_normal((13, 20)) * 10.0 ** rng.uniform(-2, 0.5)
    byzantine = np.arange(13) < rng.integers(1, 6)
    knowledge = Knowledge(G, byzantine, rng)
    step = np.abs(krum_attack(knowledge, search="largest")[0] - knowledge.mean).max()
    assert step == pytest.approx(literal_largest_krum_attack(G, byzantine), rel=0.012)
    assert step >= np.abs(krum_attack(knowledge)[0] - knowledge.mean).max() * (1 - 1e-12)


def test_the_largest_step_is_sought_only_where_there_is_one():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="m >= 2f \\+ 2"):
        krum_attack(Knowledge(rng.standard_normal((9, 3)), np.arange(9) < 4, rng), search="largest")
    still = Knowledge(np.zeros((9, 3)), np.arange(9) < 2, rng)  # no sign to move against
    assert not krum_attack(still, search="largest").any()
    apart = Knowledge(1 + 1e-9 * rng.standard_normal((9, 3)), np.arange(9) < 2, rng)  # nobody follows above `stop`
    np.testing.assert_array_equal(krum_attack(apart, search="largest"), krum_attack(apart))


@settings(deadline=None)
@given(federations())
def test_huber_attack_from_the_mean_is_the_formula(federation):
    G, byzantine, rng = federation
    T, g, d = rng.uniform(0.1, 2, len(G)), literal_mean(G), G.shape[1]
    expected = [[g[j] - np.sign(g[j]) * T[i] / np.sqrt(d) for j in range(d)] for i in np.flatnonzero(byzantine)]
    sent = huber_attack(Knowledge(G, byzantine, rng, T), start="mean")
    np.testing.assert_allclose(sent, expected, rtol=1e-12, atol=1e-12)


@settings(deadline=None)
@given(federations())
def test_liars_that_know_their_own_gradients_alone(federation):
    """What the truthful would send changes no lie, but for the length that Krum allows."""
    G, byzantine, rng = federation
    T, own = rng.uniform(0.1, 2, len(G)), G[byzantine]
    everyone = np.full(len(own), True)
    knowledge = Knowledge(G, byzantine, rng, T)
    np.testing.assert_array_equal(
        trimmed_mean_attack(knowledge, knows="own"), literal_trimmed_mean_attack(own, everyone)
    )
    expected = literal_huber_attack(own, everyone, T[byzantine])
    np.testing.assert_allclose(huber_attack(knowledge, knows="own"), expected, rtol=1e-12, atol=1e-12)
    g = literal_mean(own)
    lie = krum_attack(knowledge, knows="own")[0]
    lengths = np.abs(lie - g)[g != 0]
    np.testing.assert_allclose(lengths, lengths[:1].repeat(len(lengths)), rtol=1e-6, atol=1e-9)
    assert (lie[g == 0] == 0).all()


@pytest.mark.parametrize(
    ("attack", "given"),
    [
        (krum_attack, {"search": "longest"}),
        (krum_attack, {"knows": "nothing"}),
        (trimmed_mean_attack, {"knows": "nothing"}),
        (huber_attack, {"start": "there"}),
    ],
)
def test_an_unknown_word_lists_the_known_ones(attack, given):
    knowledge = Knowledge(np.ones((6, 2)), np.arange(6) < 1, np.random.default_rng(0), np.ones(6))
    with pytest.raises(ValueError, match=r"unknown value for .* Known: "):
        attack(knowledge, **given)


def test_krum_attack_finds_every_step_length():
    """From step 1 at once to the last resort below 1e-4, so that no branch of the search goes untested."""
    steps = set()
    for seed in range(150):
        rng = np.random.default_rng(seed)
        G = rng.standard_normal(30) + rng.standard_normal((12, 30)) * 10.0 ** rng.uniform(-5.5, 0.5)
        byzantine = np.arange(12) < rng.integers(1, 6)
        knowledge = Knowledge(G, byzantine, rng)
        sent = krum_attack(knowledge)
        np.testing.assert_allclose(sent, literal_krum_attack(G, byzantine), rtol=1e-12)
        steps.add(round(float(-np.log2(np.abs(sent[0] - knowledge.mean).max()))))
    assert steps >= set(range(15))


@pytest.mark.parametrize("seed", range(40))
def test_krum_attack_over_blocks_of_columns(seed, monkeypatch):
    """Several blocks, the last not full; most of what clients differ by is in a few columns, or in none."""
    monkeypatch.setattr(attacks, "COLUMNS", 7)
    rng = np.random.default_rng(seed)
    m, d = int(rng.integers(6, 30)), int(rng.integers(5, 60))
    f = int(rng.integers(1, (m - 3) // 2 + 1))
    G = rng.standard_normal((m, d)) * rng.exponential(1, d) ** rng.integers(0, 4) * 10.0 ** rng.integers(-3, 1)
    byzantine = np.isin(np.arange(m), rng.permutation(m)[:f])
    sent = krum_attack(Knowledge(G, byzantine, rng))
    np.testing.assert_allclose(sent, literal_krum_attack(G, byzantine), rtol=1e-9, atol=1e-12)


def test_krum_attack_agrees_in_single_precision_far_from_zero():
    """Gradients of size 1000 that differ by 0.01: products before subtracting g_0 would be noise."""
    rng = np.random.default_rng(3)
    G = (1000 + 0.01 * rng.standard_normal((20, 400))).astype(np.float32)
    byzantine = np.arange(20) < 4
    sent = krum_attack(Knowledge(G, byzantine, rng))
    expected = literal_krum_attack(G.astype(np.float64), byzantine)
    assert sent.dtype == np.float32
    np.testing.assert_allclose(sent, expected, rtol=1e-6)


def test_krum_attack_survives_squares_beyond_single_precision():
    rng = np.random.default_rng(4)
    G = (1e25 * (1 + rng.standard_normal((9, 5)))).astype(np.float32)
    sent = krum_attack(Knowledge(G, np.arange(9) < 2, rng))
    np.testing.assert_allclose(sent, literal_krum_attack(G.astype(np.float64), np.arange(9) < 2), rtol=1e-6)


def test_a_zero_coordinate_of_the_mean_stays():
    """sign(0) = 0: KA and HLMA leave the coordinate, TMA sends 0."""
    G = np.array([[1.0, 3.0], [-1.0, 4.0], [2.0, 5.0], [-2.0, 6.0], [0.0, 7.0]])
    knowledge = Knowledge(G, np.arange(5) == 2, np.random.default_rng(0), np.full(5, 0.5))
    assert krum_attack(knowledge)[0, 0] == 0
    assert trimmed_mean_attack(knowledge).tolist() == [[0, 3]]
    np.testing.assert_allclose(huber_attack(knowledge), [[2, 5 - 0.5 / np.sqrt(2)]])


def test_the_mean_is_over_all_clients_and_exact_zeros_stay_zero():
    G = np.array([[1.0], [-3.0], [2.0]])
    knowledge = Knowledge(G, np.array([True, False, False]), np.random.default_rng(0))
    assert knowledge.mean.tolist() == [0.0]
    assert knowledge.sign.tolist() == [0.0]


def farthest(x, benign):
    """What Min-Max bounds: for a liar, and for the truthful among themselves."""
    return max(np.sum((x - g) ** 2) for g in benign)


def total(x, benign):
    """The same for Min-Sum."""
    return sum(np.sum((x - g) ** 2) for g in benign)


@pytest.mark.parametrize(("attack", "measure"), [(min_max, farthest), (min_sum, total)])
@settings(deadline=None)
@given(federation=federations())
def test_min_max_and_min_sum_go_to_the_edge_and_no_further(attack, measure, federation):
    G, byzantine, rng = federation
    benign = G[~byzantine]
    mean, std = benign.mean(axis=0), benign.std(axis=0)
    bound = max(measure(g, benign) for g in benign)
    sent = attack(Knowledge(G, byzantine, rng))[0]
    gamma = (mean - sent) @ std / (std @ std) if std.any() else 0.0
    np.testing.assert_allclose(sent, mean - gamma * std, rtol=1e-9, atol=1e-9 * np.abs(G).max())
    assert gamma >= 0
    assert measure(mean - gamma * (1 - 1e-6) * std, benign) <= bound
    assert measure(mean - gamma * (1 + 1e-6) * std, benign) >= bound


def test_min_max_where_the_truthful_agree():
    knowledge = Knowledge(np.ones((5, 2)), np.arange(5) < 1, np.random.default_rng(0))
    assert min_max(knowledge).tolist() == min_sum(knowledge).tolist() == [[1, 1]]


def test_alie_is_the_formula():
    """With m = 50 and f = 24, s = 2, so z = Phi^-1(24/26)."""
    rng = np.random.default_rng(0)
    G, byzantine = rng.standard_normal((50, 4)), np.arange(50) < 24
    sent = alie(Knowledge(G, byzantine, rng))
    np.testing.assert_allclose(sent[0], G[24:].mean(axis=0) - 1.4260768722728474 * G[24:].std(axis=0))
    np.testing.assert_allclose(
        alie(Knowledge(G, byzantine, rng), z=0.3)[5], G[24:].mean(axis=0) - 0.3 * G[24:].std(axis=0)
    )
    with pytest.raises(ValueError, match="f <= m/2"):
        alie(Knowledge(G, np.arange(50) < 26, rng))


def test_the_short_ones_are_their_formulas():
    rng = np.random.default_rng(0)
    G, byzantine = rng.standard_normal((6, 3)), np.array([True, False, True, False, False, False])
    knowledge = Knowledge(G, byzantine, np.random.default_rng(1))
    np.testing.assert_allclose(ipm(knowledge, scale=0.5), [-0.5 * sum(G[[1, 3, 4, 5]]) / 4] * 2)
    np.testing.assert_array_equal(mimic(knowledge, client=2), [G[4]] * 2)
    np.testing.assert_array_equal(gaussian(knowledge), 200 * np.random.default_rng(1).standard_normal((2, 3)))
    assert np.isnan(non_finite(knowledge)).all()
    assert (non_finite(knowledge, value=-np.inf) == -np.inf).all()
    with pytest.raises(ValueError, match="client < m - f"):
        mimic(knowledge, client=4)


DOCUMENT = (Path(__file__).parents[2] / "docs" / "attacks.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ATTACKS)
def test_the_document_has_a_row_with_the_same_source(name):
    found = [line.split("|")[1:-1] for line in DOCUMENT.splitlines() if line.startswith(f"| `{name}` |")]
    assert len(found) == 1, f"docs/attacks.md needs one row for {name}, has {len(found)}"
    source = found[0][-1]
    for year in re.findall(r"\d{4}", source):
        assert year in ATTACKS[name].__doc__ or "Zhao" in source, f"docs/attacks.md gives {name} the year {year}"


def rows(told):
    return told.updates if isinstance(told, Lies) else told


def middle(sent):
    """A server's rule."""
    return np.median(sent, axis=0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ON_UPDATES)
def test_contract(name, dtype):
    """(f, d) rows in the precision of the honest ones; nothing modified; same seed, same bits; one line of doc."""
    G = np.random.default_rng(1).standard_normal((11, 6)).astype(dtype)
    byzantine = np.arange(11) % 4 == 1
    before = G.copy()
    G.setflags(write=False)
    first, second = (
        rows(ATTACKS[name](Knowledge(G, byzantine, np.random.default_rng(2), np.full(11, 0.3), server=middle)))
        for _ in range(2)
    )
    assert first.shape == (3, 6)
    assert first.dtype == dtype
    np.testing.assert_array_equal(first, second)
    np.testing.assert_array_equal(G, before)
    assert ATTACKS[name].__name__ == name
    assert inspect.getdoc(ATTACKS[name])


@pytest.mark.parametrize("name", ON_UPDATES)
def test_nobody_lies(name):
    knowledge = Knowledge(np.ones((5, 3)), np.zeros(5, bool), np.random.default_rng(0), np.ones(5))
    assert rows(ATTACKS[name](knowledge)).shape == (0, 3)


@pytest.mark.parametrize("attack", [optimal_alie, optimal_ipm, worst_case])
def test_a_search_with_nobody_to_harm_sends_what_is_honest(attack):
    """It happens in rounds in which few clients are asked."""
    G = np.arange(6.0).reshape(3, 2)
    sent = attack(Knowledge(G, np.ones(3, bool), np.random.default_rng(0), server=middle))
    np.testing.assert_array_equal(sent, G)


@pytest.mark.parametrize("name", ON_UPDATES)
def test_everyone_agrees(name):
    """No direction is left in which the truthful vary, and their mean is 0."""
    with np.errstate(all="raise"):
        knowledge = Knowledge(np.zeros((9, 3)), np.arange(9) < 2, np.random.default_rng(0), np.ones(9), server=middle)
        assert rows(ATTACKS[name](knowledge)).shape == (2, 3)


def test_liars_who_claim_many_samples():
    rng = np.random.default_rng(0)
    G, byzantine = rng.standard_normal((6, 3)), np.array([True, False, True, False, False, False])
    told = inflated_samples(Knowledge(G, byzantine, rng, samples=np.array([9, 2, 3, 4, 5, 6])), factor=100)
    np.testing.assert_array_equal(told.updates, -G[byzantine])
    assert told.samples.tolist() == [900, 900]


def test_copies():
    rng = np.random.default_rng(0)
    G, byzantine = rng.standard_normal((6, 3)), np.array([False, False, True, True, False, True])
    np.testing.assert_array_equal(duplicates(Knowledge(G, byzantine, rng), scale=2.0), [-2 * G[2]] * 3)


def test_drift_goes_the_same_way_in_every_round():
    """It is `length` times as far as a typical client, whatever clients send."""
    ways = []
    for t in range(3):
        rng = np.random.default_rng(t)
        G = rng.normal(t, 10.0**t, (30, 5))
        away = drift(Knowledge(G, np.arange(30) < 3, rng), length=0.4)[1] - G[3:].mean(axis=0)
        typical = np.sqrt(np.mean([np.sum((g - G[3:].mean(axis=0)) ** 2) for g in G[3:]]))
        assert np.linalg.norm(away) == pytest.approx(0.4 * typical)
        ways.append(away / np.linalg.norm(away))
    np.testing.assert_allclose(ways[1:], [ways[0]] * 2, rtol=1e-9)
    other = drift(Knowledge(G, np.arange(30) < 3, rng), seed=1)[0] - G[3:].mean(axis=0)
    assert abs(other @ ways[0]) < 0.9 * np.linalg.norm(other)


RULES = [
    "huber",
    "median",
    "krum(f=5)",
    "trimmed_mean(f=5)",
    "spectral_filter(f=5)",
    "sign_guard",
    "bucketing | median",
]


def against(rule, seed=0):
    rng = np.random.default_rng(seed)
    G = rng.normal(1, 1, (20, 12))
    return Knowledge(
        G, np.arange(20) < 5, rng, np.full(20, 3.0), server=lambda sent: aggregate(sent, rule, rng=0).value
    )


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["alie", "ipm"])
def test_a_search_along_a_line_does_as_much_damage_as_any_point_of_it(rule, name):
    plain, searched = ((alie, "z"), optimal_alie) if name == "alie" else ((ipm, "scale"), optimal_ipm)
    known = against(rule)
    lies = searched(known, evaluations=40)
    sides = (1, -1) if name == "alie" else (1,)
    numbers = np.outer(sides, np.geomspace(0.125, 32, 40)).ravel().tolist()
    others = [known.damage(plain[0](known, **{plain[1]: number})) for number in numbers]
    assert known.damage(lies) >= 0.97 * max(others)
    start, step = (known.benign.mean(axis=0), -known.benign.std(axis=0)) if name == "alie" else (0, -known.truth)
    assert np.ptp((lies - start) / step) == pytest.approx(0, abs=1e-9)  # It is on the line.


@pytest.mark.parametrize("rule", RULES)
def test_the_worst_case_is_at_least_as_bad_as_every_other_attack(rule):
    known = against(rule)
    others = {
        name: known.damage(rows(ATTACKS[name](known)))
        for name in ON_UPDATES
        if name not in ("worst_case", "gaussian", "non_finite")
    }
    worst = known.damage(worst_case(known))
    assert worst >= 0.97 * max(others.values()), others
    assert worst >= known.damage(worst_case(against(rule), evaluations=64))


def test_a_search_tries_as_often_as_it_was_told():
    tried = []

    def server(sent):
        tried.append(sent)
        return middle(sent)

    rng = np.random.default_rng(0)
    known = Knowledge(rng.standard_normal((9, 4)), np.arange(9) < 2, rng, server=server)
    for attack, evaluations, expected in ((optimal_alie, 30, 30), (optimal_ipm, 10, 10), (worst_case, 90, 90)):
        tried.clear()
        attack(known, evaluations=evaluations)
        assert expected - 2 <= len(tried) <= expected
        assert all((sent[2:] == known.benign).all() for sent in tried)
    with pytest.raises(ValueError, match="evaluations must be at least 64"):
        worst_case(known, evaluations=63)
    with pytest.raises(ValueError, match="evaluations must be at least 20"):
        optimal_alie(known, evaluations=19)


def test_errors_name_the_bound_and_the_remedy():
    rng, G = np.random.default_rng(0), np.ones((5, 2))
    with pytest.raises(ValueError, match=r"m >= f \+ 3; met m = 5, f = 3.*fewer liars"):
        krum_attack(Knowledge(G, np.arange(5) < 3, rng))
    with pytest.raises(ValueError, match=r"thresholds=np\.full"):
        huber_attack(Knowledge(G, np.arange(5) < 1, rng))
    with pytest.raises(ValueError, match=r"np\.isin"):
        Knowledge(G, np.array([0, 3]), rng)
    with pytest.raises(ValueError, match=r"np\.stack"):
        Knowledge(np.ones(5), np.zeros(5, bool), rng)
    with pytest.raises(ValueError, match=r"np\.full\(m, T\)"):
        Knowledge(G, np.zeros(5, bool), rng, np.ones(1))
    for attack in (optimal_alie, optimal_ipm, worst_case):
        with pytest.raises(ValueError, match=r"Pass Knowledge\(\.\.\., server"):
            attack(Knowledge(G, np.arange(5) < 1, rng))
    with pytest.raises(ValueError, match="stop"):
        krum_attack(Knowledge(G, np.arange(5) < 1, rng), stop=0)
