"""f counts the liars among all clients that sent something: those rejected are some of them, and never make an error."""

import json

import hypothesis.strategies as st
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings

from cases import BOUNDS, F, assert_accounted, assert_refused, honest_updates, parameters, smallest, takes
from fedhold import MIXINGS, RULES, aggregate, save_update
from fedhold.cli.app import app
from fedhold.rules import declaration_of, declares
from fedhold.updates import Columnwise

every_rule = pytest.mark.parametrize("rule", sorted(RULES))
rules_with_f = pytest.mark.parametrize("rule", [rule for rule in sorted(RULES) if takes(rule, "f")])
SPECS = [
    *("nearest_neighbour_mixing(f={f}) | median", "nearest_neighbour_mixing(f={f}) | trimmed_mean(f={f})"),
    *("bucketing(size=1) | krum(f={f})", "clipping(radius=2) | multi_krum(f={f})", "screen | bulyan(f={f})"),
]

# What a liar sends in place of an update and of its n_i; each of these is rejected.
REJECTED = {
    "NaN": (np.full(5, np.nan), 1.0),
    "inf": (np.array([1, 2, 3, 4, np.inf]), 1.0),
    "shape": (np.ones(6), 1.0),
    "integers": (np.ones(5, int), 1.0),
    "words": ("words", 1.0),
    "nothing": (None, 1.0),
    "no samples": (np.ones(5), 0.0),
    "NaN samples": (np.ones(5), np.nan),
}
ANYTHING = {**REJECTED, "huge": (np.full(5, 1e30), 1.0), "huge claim": (np.ones(5), 1e300)}


def sent(m, liars, seed=0):
    """Updates and samples of m clients, of whom liars (client -> what it does) do something else."""
    updates, samples = list(honest_updates(m, 5, seed=seed)), [1.0] * m
    for client, name in liars.items():
        updates[client], samples[client] = ANYTHING[name]
    return updates, samples


@every_rule
@given(f=st.integers(0, 4), data=st.data())
@settings(max_examples=25, deadline=None)
def test_no_f_clients_make_an_error_of_a_valid_call(rule, f, data):
    m = max(smallest(rule, f), 2 * f + 1) + data.draw(st.integers(0, 2))
    liars = data.draw(st.dictionaries(st.integers(0, m - 1), st.sampled_from(sorted(ANYTHING)), max_size=f))
    updates, samples = sent(m, liars)
    result = aggregate(updates, rule, samples=samples, **parameters(rule, f))
    assert_accounted(result)
    rejected = len(result.clients.with_status("rejected"))
    assert result.f == (f - rejected if takes(rule, "f") else None)


@every_rule
@pytest.mark.parametrize("liars", range(1, 9))
def test_more_than_f_rejected_are_no_error_either(rule, liars):
    f, m = 1, smallest(rule, 1) + 5
    names = sorted(REJECTED)
    updates, samples = sent(m, {i: names[i % len(names)] for i in range(min(liars, m - 1))})
    like = honest_updates(1, 5)[0]
    result = aggregate(updates, rule, samples=samples, like=like, **parameters(rule, f))
    assert_accounted(result)
    assert result.f in (None, 0)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("rejected", range(5))
def test_every_stage_is_told_of_the_rejected(spec, rejected):
    names = sorted(REJECTED)
    updates, samples = sent(19, {i: names[i % len(names)] for i in range(rejected)})
    result = aggregate(updates, spec.format(f=4), samples=samples, rng=0)
    others = aggregate(updates[rejected:], spec.format(f=4 - rejected), rng=0)
    assert result.f == others.f == 4 - rejected
    assert result.rule == spec.format(f=4)
    np.testing.assert_allclose(result.value, others.value, rtol=1e-12)


@rules_with_f
def test_the_rejected_are_some_of_the_f(rule):
    """In particular bulyan with 4 of 20 rejected: with f = 4, the other sixteen would be too few."""
    m = smallest(rule, F) + 1
    updates, samples = sent(m, dict.fromkeys(range(F), "NaN"))
    result = aggregate(updates, rule, samples=samples, f=F, rng=0)
    assert result.clients.with_status("rejected") == list(range(F))
    assert result.f == 0
    assert "; f=0;" in repr(result)
    np.testing.assert_allclose(result.value, aggregate(updates[F:], rule, f=0, rng=0).value, rtol=1e-12)


@rules_with_f
@pytest.mark.parametrize("rejected", [0, 1, 3])
def test_a_call_that_was_never_valid_is_refused_whatever_clients_send(rule, rejected):
    (a, b), m = BOUNDS[rule], smallest(rule, F) - 1
    updates, _ = sent(m, dict.fromkeys(range(rejected), "NaN"))
    met = (rule, f"m >= {a}f + {b}", f"m = {m}", f"f = {F}")
    assert_refused(ValueError, *met, call=lambda: aggregate(updates, rule, f=F))


@pytest.mark.parametrize("name", [*RULES, *MIXINGS])
def test_the_bound_is_declared(name):
    declared = declaration_of({**RULES, **MIXINGS}[name]).bound
    if name not in BOUNDS:
        assert declared is None
        return
    a, b = BOUNDS[name]
    assert (declared.per_liar, declared.more) == (a, b)
    assert all(declared.most_liars(a * f + b) == f for f in range(9))
    assert declared.most_liars(0) == 0


def test_buckets_count_and_not_the_clients_in_them():
    updates, _ = sent(23, dict.fromkeys(range(4), "NaN"))
    assert aggregate(updates, "bucketing(size=2) | krum(f=4)", rng=0).f == 0
    refused = lambda: aggregate(updates, "bucketing(size=4) | krum(f=4)", rng=0)  # noqa: E731
    assert_refused(ValueError, "m = 6", "f = 4", call=refused)


def test_a_screen_that_drops_clients_is_no_error_for_the_rule_after_it():
    updates = honest_updates(23, 5)
    updates[:6] += 1e6
    result = aggregate(updates, "screen | krum(f=10)")
    assert len(result.clients.with_status("dropped")) >= 6
    assert result.f == 7  # Of seventeen clients, Krum withstands as many.


@pytest.mark.parametrize(
    ("rule", "more"),
    [
        ("median_of_means", {"batches": 11}),
        ("multi_krum", {"f": 4, "keep": 7}),
        ("divide_and_conquer", {"f": 5, "iterations": 5, "filter_fraction": 0.5}),
    ],
)
@pytest.mark.parametrize("rejected", range(11))
def test_what_fitted_all_clients_fits_those_left(rule, more, rejected):
    updates, _ = sent(11, dict.fromkeys(range(rejected), "NaN"))
    assert_accounted(aggregate(updates, rule, rng=0, **more))


def test_a_rule_of_ones_own_gets_the_f_that_is_left():
    def own(geometry, *, f):
        met.append((geometry.m, f))
        return np.full(geometry.m, 1 / geometry.m)

    def by_default(geometry, f=3):
        return own(geometry, f=f)

    def of_any(geometry, **options):
        return own(geometry, **options)

    def other_f(geometry, *, f):
        return own(geometry, f=f)

    met = []
    updates, _ = sent(9, dict.fromkeys(range(2), "NaN"))
    assert aggregate(updates, own, f=3).f == 1
    assert aggregate(updates, own, f=np.uint8(1)).f == 0
    assert aggregate(updates, by_default).f == 1
    assert aggregate(updates, of_any, f=3).f == 1
    assert aggregate(updates, other_f, f=0.25).f is None  # It is no count of liars, so it is passed on as it is.
    assert met == [(7, 1), (7, 0), (7, 1), (7, 1), (7, 0.25)]


def test_a_column_rule_that_draws_does_not_draw_ahead():
    """The first look would make its row with chance of its own, and not with the caller's."""

    @declares()
    def any_row(geometry, *, rng):
        row = int(rng.integers(geometry.m))
        return Columnwise(lambda block: block[row].astype(np.float64))

    updates = honest_updates(23, 5)
    for seed in range(5):
        np.testing.assert_array_equal(
            aggregate(updates, any_row, rng=seed).value, updates[np.random.default_rng(seed).integers(23)]
        )


def test_the_report_of_the_command_line_tells_f(tmp_path):
    for i, row in enumerate(honest_updates(9, 5)):
        save_update(np.full(5, np.nan) if i < 2 else row, tmp_path / "updates" / f"{i}.npy")
    told = tmp_path / "report.json"
    words = ["aggregate", str(tmp_path / "updates"), "--out", str(tmp_path / "out.npy"), "--rule", "krum(f=3)"]
    done = CliRunner().invoke(app, [*words, "--report", str(told)])
    assert done.exit_code == 0, done.output
    assert json.loads(told.read_text())["f"] == 1
    assert "f=1" in done.output


@pytest.mark.parametrize(("tiny", "zeros"), [(4, 1), (4, 3), (3, 2)])
def test_tiny_numbers_beside_zeros_reject_nobody(tiny, zeros):
    others = [1.0, 1.1, 0.9, 1.05, 0.95][: 9 - tiny - zeros]
    updates = np.array([5e-324] * tiny + [0.0] * zeros + others)[:, None]
    result = aggregate(updates)
    assert not result.clients.with_status("rejected")
    assert 0 <= result.value[0] <= 1.1
    mirrored = aggregate(np.array([1e300] * tiny + [0.0] * zeros + others)[:, None])
    assert mirrored.clients.with_status("rejected") == list(range(tiny))
