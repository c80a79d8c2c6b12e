"""What the caller passes beside the updates: a mistake is an error of ours, with the argument, the value and a remedy."""

import re
from concurrent.futures import Future
from functools import partial

import dask
import numpy as np
import pytest
import torch

from cases import (
    BOUNDS,
    REMEDY,
    F,
    M,
    assert_accounted,
    assert_held,
    assert_refused,
    error,
    honest_updates,
    parameters,
    takes,
    with_liars,
)
from fedhold import RULES, aggregate, thresholds

rules_with_f = pytest.mark.parametrize("rule", [rule for rule in RULES if takes(rule, "f")])
PLACES = [(rule, name) for rule in RULES for name in ("start", "root") if takes(rule, name)]
rules_with_a_place = pytest.mark.parametrize(("rule", "name"), PLACES)


@rules_with_f
@pytest.mark.parametrize("f", [-1, -(10**30)])
def test_f_below_zero_is_refused(rule, f):
    assert_refused(ValueError, "f must", str(f), call=partial(aggregate, honest_updates(M), rule, f=f))


@rules_with_f
@pytest.mark.parametrize("f", [2.0, True, "3", np.float64(2), np.nan, [1], 1j])
def test_f_that_is_no_integer_is_refused(rule, f):
    assert_refused(TypeError, "f must", repr(f), call=partial(aggregate, honest_updates(M), rule, f=f))


@rules_with_f
def test_a_rule_that_needs_f_says_so(rule):
    assert_refused(TypeError, rule, "f", call=partial(aggregate, honest_updates(M), rule))
    assert_refused(TypeError, "f", call=partial(aggregate, honest_updates(M), rule, f=None))


@rules_with_f
def test_f_is_accepted_up_to_its_bound_and_refused_beyond(rule):
    a, b = BOUNDS[rule]
    most = 5 if rule == "smea" else (M - b) // a  # C(23, 6) is more than a hundred thousand
    for f in (most, np.int64(most), np.uint8(most)):
        assert_accounted(aggregate(honest_updates(M), rule, f=f))
    for f in ((M - b) // a + 1, 10**6, 10**30):
        call = partial(aggregate, honest_updates(M), rule, f=f)
        assert_refused(ValueError, rule, "needs", f"m >= {a}f + {b}", f"m = {M}", f"f = {f}", call=call)


def test_smea_says_that_there_are_too_many_sets():
    call = partial(aggregate, honest_updates(M), "smea", f=6)
    assert_refused(
        ValueError, "smea needs C(m, f) <= 100,000", "m = 23, f = 6", "covariance_agnostic_filter", call=call
    )


@pytest.mark.parametrize("rule", [rule for rule in RULES if not takes(rule, "f")])
def test_a_rule_without_f_refuses_it(rule):
    assert_refused(TypeError, rule, "unknown parameter 'f'", call=partial(aggregate, honest_updates(M), rule, f=F))


# thresholds and radii


def at_threshold(T):
    return [
        {"rule": "huber", "threshold": T},
        {"rule": "huber", "threshold": [T] * M},
        {"rule": "huber", "threshold": np.full(M, T)},
        {"rule": f"huber(threshold={T if np.isfinite(T) else f'{T}'})"},
    ]


@pytest.mark.parametrize("spelling", [0, 1, 2, 3])
def test_thresholds_of_zero_and_infinity_are_the_geometric_median_and_the_mean(spelling):
    honest = honest_updates(M)
    at_zero, at_infinity = (aggregate(honest, **at_threshold(T)[spelling]) for T in (0.0, np.inf))
    assert at_zero.converged
    assert error(aggregate(honest, "geometric_median").value - at_zero.value + honest.mean(axis=0), honest) < 1e-5
    np.testing.assert_allclose(at_infinity.value, honest.mean(axis=0), rtol=1e-12)
    assert not at_infinity.clients.with_status("clipped")


@pytest.mark.parametrize("T", [-1.0, -1e-300, np.nan, -np.inf])
@pytest.mark.parametrize("spelling", [0, 1, 2])
def test_thresholds_below_zero_and_nan_are_refused(T, spelling):
    call = partial(aggregate, honest_updates(M), **at_threshold(T)[spelling])
    assert_refused(ValueError, "threshold", str(T), call=call)


@pytest.mark.parametrize(
    "make",
    [
        lambda T: thresholds.fixed(T),
        lambda T: thresholds.by_samples(T, 1.0),
        lambda T: thresholds.by_samples(1.0, T),
        lambda T: thresholds.automatic(T),
        lambda T: aggregate(honest_updates(M), f"huber(threshold=fixed({T}))"),
    ],
)
def test_threshold_functions_refuse_numbers_below_zero(make):
    assert_refused(ValueError, "-2", call=partial(make, -2.0))


@pytest.mark.parametrize("T", [5e-324, 1e-300, 1e-20, 1e20, 1e300, float(np.finfo(float).max)])
@pytest.mark.parametrize("d", [1, 2, 40])
def test_thresholds_of_any_size_give_numbers(T, d):
    honest = honest_updates(M, d)
    for spelling in (T, thresholds.by_samples(0, T)):
        result = aggregate(honest, "huber", threshold=spelling)
        assert error(result.value, honest) <= 1
        assert result.certificate.radius(1) >= 0


@pytest.mark.parametrize("T", ["0.5", "none", "", None, True, 1j, {}, [[1, 2], [3]], ["a"] * M])
def test_thresholds_that_are_no_numbers_are_refused(T):
    with pytest.raises((ValueError, TypeError), match="threshold") as problem:
        aggregate(honest_updates(M), "huber", threshold=T)
    assert REMEDY.search(str(problem.value)), str(problem.value)


@pytest.mark.parametrize("count", [0, 2, M - 1, M + 1])
def test_thresholds_must_be_one_or_one_per_client(count):
    assert_refused(
        ValueError,
        "threshold",
        str(count),
        call=partial(aggregate, honest_updates(M), "huber", threshold=[1.0] * count),
    )


def test_thresholds_given_per_client_outlast_a_rejection():
    """Or one client with a NaN would end the round of everyone."""
    honest = honest_updates()
    T = np.linspace(1, 3, M)
    result = aggregate(with_liars(np.full((F, 40), np.nan), honest), "huber", threshold=T)
    assert_held(result, honest)
    np.testing.assert_allclose(result.value, aggregate(honest, "huber", threshold=T[F:]).value, rtol=1e-12)
    assert [row.threshold for row in result.clients[F:]] == T[F:].tolist()


@pytest.mark.parametrize("gives", [-1.0, np.nan, "far", None, np.ones(3)], ids=str)
def test_a_threshold_function_that_gives_nonsense_is_refused(gives):
    call = partial(aggregate, honest_updates(M), "huber", threshold=lambda *_: gives)
    with pytest.raises((ValueError, TypeError), match="threshold function must give 23 numbers"):
        call()


@pytest.mark.parametrize("radius", [0, -1.0, np.nan, -np.inf])
def test_a_radius_that_is_not_above_zero_is_refused(radius):
    call = partial(aggregate, honest_updates(M), "centered_clipping", radius=radius)
    assert_refused(ValueError, "radius", str(radius), call=call)
    if np.isfinite(radius):  # a spec has no word for the others
        call = partial(aggregate, honest_updates(M), f"clipping(radius={radius}) | mean")
        assert_refused(ValueError, "radius", str(radius), call=call)


@pytest.mark.parametrize("radius", [5e-324, 1e-300, 1e300, np.inf])
def test_a_radius_of_any_size_gives_numbers(radius):
    honest = honest_updates(M)
    assert_held(aggregate(honest, "centered_clipping", radius=radius), honest)


@pytest.mark.parametrize(
    ("rule", "given", "kind"),
    [
        ("huber", {"tol": 0}, ValueError),
        ("huber", {"tol": -1e-6}, ValueError),
        ("huber", {"tol": np.nan}, ValueError),
        ("huber", {"tol": "small"}, TypeError),
        ("huber", {"max_iterations": 0}, ValueError),
        ("huber", {"max_iterations": 1e3}, TypeError),
        ("geometric_median", {"tol": np.inf}, ValueError),
        ("centered_clipping", {"iterations": 0}, ValueError),
        ("centered_clipping", {"iterations": 2.5}, TypeError),
        ("multi_krum", {"f": 2, "keep": 0}, ValueError),
        ("multi_krum", {"f": 2, "keep": 22}, ValueError),
        ("multi_krum", {"f": 2, "keep": 2.0}, TypeError),
        ("median_of_means", {"batches": 0}, ValueError),
        ("median_of_means", {"batches": M + 1}, ValueError),
        ("median_of_means", {"batches": 3.0}, TypeError),
        ("divide_and_conquer", {"f": 2, "iterations": 0}, ValueError),
        ("divide_and_conquer", {"f": 2, "iterations": 12}, ValueError),
        ("divide_and_conquer", {"f": 2, "sample": 0}, ValueError),
        ("divide_and_conquer", {"f": 2, "filter_fraction": 0}, ValueError),
        ("divide_and_conquer", {"f": 2, "filter_fraction": np.nan}, ValueError),
        ("divide_and_conquer", {"f": 2, "filter_fraction": 1e308}, ValueError),
        ("sign_guard", {"shortest": -1.0}, ValueError),
        ("sign_guard", {"longest": 1.5}, ValueError),
        ("sign_guard", {"quantile": 0}, ValueError),
        ("sign_guard", {"quantile": 1.5}, ValueError),
        ("fools_gold", {"confidence": 0}, ValueError),
        ("huber", {"treshold": 1}, TypeError),
    ],
    ids=str,
)
def test_other_parameters_out_of_range_are_refused(rule, given, kind):
    name, value = list(given.items())[-1]
    shown = name if name in ("treshold", "iterations", "filter_fraction") else str(value)
    assert_refused(kind, name, shown, call=partial(aggregate, honest_updates(M), rule, **given))


@pytest.mark.parametrize("rng", [-1, 1.5, "seed", True, np.nan])
def test_an_rng_that_is_neither_generator_nor_seed_is_refused(rng):
    with pytest.raises(TypeError, match=rf"rng must be a numpy.random.Generator, a seed.*, or None, got {rng!r}"):
        aggregate(honest_updates(M), rng=rng)


@pytest.mark.parametrize(
    ("rule", "kind"),
    [
        (None, TypeError),
        (5, TypeError),
        ("", ValueError),
        ("hubre", ValueError),
        ("huber(", ValueError),
        ("huber | ", ValueError),
        ("screen", ValueError),
        ("mean | huber", ValueError),
        ("huber(0.5)", ValueError),
        ("huber(threshold=median)", ValueError),
        ("huber(threshold={[]: 1})", ValueError),
        ("huber(threshold=by_samples(1))", TypeError),
        ("__import__('os')", ValueError),
        ("huber\0", ValueError),
        ("(" * 300 + "huber" + ")" * 300, ValueError),
    ],
    ids=lambda part: str(part)[:20],
)
def test_rules_that_cannot_be_read_are_refused(rule, kind):
    assert_refused(kind, call=partial(aggregate, honest_updates(M), rule))


@pytest.mark.parametrize(
    "gives", [np.ones(M), np.full(M, np.nan), np.ones(3) / 3, -np.ones(M) / M, None, "equal"], ids=str
)
def test_a_rule_of_the_callers_own_that_gives_no_weights_is_refused(gives):
    with pytest.raises(ValueError, match="mine must return 23 weights of at least 0 that sum to 1"):
        aggregate(honest_updates(M), mine(gives))


def mine(gives):
    def mine(geometry):  # noqa: ARG001
        return gives

    return mine


# start and like


@rules_with_a_place
@pytest.mark.parametrize(
    ("place", "words"),
    [
        (np.zeros(39), ["(39,)", "(40,)"]),
        (np.zeros((40, 1)), ["(40, 1)", "(40,)"]),
        ([np.zeros(40)], ["misses"]),
        (np.full(40, np.nan), ["not finite"]),
        (np.full(40, np.inf), ["not finite"]),
        (np.zeros(40, bool), ["bool"]),
        (np.zeros(40, complex), ["complex"]),
        (np.zeros(40, object), ["object"]),
        (np.zeros(40, str), ["U1"]),
        ("zero", ["str"]),
        (0.0, ["float"]),
        ([0.0] * 40, ["float"]),
    ],
    ids=[
        "shorter",
        "a column",
        "a list",
        "nan",
        "inf",
        "bools",
        "complex",
        "objects",
        "strings",
        "text",
        "a number",
        "numbers",
    ],
)
def test_a_start_or_root_that_is_no_update_is_refused(rule, name, place, words):
    with pytest.raises((ValueError, TypeError)) as problem:
        aggregate(honest_updates(M), rule, **{name: place}, **parameters(rule, F))
    for word in (name, *words):
        assert word in str(problem.value)
    assert REMEDY.search(str(problem.value)), str(problem.value)


@pytest.mark.parametrize("rule", [rule for rule in RULES if not takes(rule, "start")])
def test_a_rule_that_begins_nowhere_refuses_a_start(rule):
    call = partial(aggregate, honest_updates(M), rule, start=np.zeros(40), **parameters(rule, F))
    assert_refused(TypeError, rule, "start", call=call)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("place", [0.0, 1e-310, 1e6, 1e30, 1e38])
@pytest.mark.parametrize("rule", ["huber", "geometric_median"])
def test_a_start_anywhere_leads_to_the_same_place(rule, place, dtype):
    honest = honest_updates(dtype=dtype)
    updates = with_liars(np.full((F, 40), 1e20), honest)
    result = aggregate(updates, rule, start=np.full(40, place))
    assert_held(result, honest)
    assert np.linalg.norm(result.value - aggregate(updates, rule).value) < 1e-4 * np.linalg.norm(result.value)


@pytest.mark.parametrize("rule", [rule for rule in RULES if not takes(rule, "root")])
def test_a_rule_that_compares_with_no_root_refuses_it(rule):
    call = partial(aggregate, honest_updates(M), rule, root=np.zeros(40), **parameters(rule, F))
    assert_refused(TypeError, rule, "root", call=call)


@rules_with_a_place
@pytest.mark.parametrize("place", [1e38, 1e160, 1e300])
def test_a_start_or_root_far_away_gives_numbers_or_an_error_that_says_so(rule, name, place):
    call = partial(aggregate, honest_updates(), rule, **{name: np.full(40, place)}, **parameters(rule, F))
    try:
        result = call()
    except ValueError:
        assert_refused(ValueError, name, call=call)
        assert place > 1e38, "a start that float32 holds"
        return
    assert np.isfinite(result.value).all()
    assert all(np.isfinite(row.distance) for row in result.clients)


@pytest.mark.parametrize("like", ["model", 0.0, [0.0], np.zeros(40, complex), np.zeros(39), np.zeros(0), []], ids=str)
def test_a_like_that_is_no_update_is_refused(like):
    with pytest.raises((ValueError, TypeError), match="like") as problem:
        aggregate(honest_updates(M), like=like)
    assert REMEDY.search(str(problem.value)), str(problem.value)


MODELS = [torch.nn.Linear(2, 2) for _ in range(3)]


@pytest.mark.parametrize(
    ("updates", "remedy"),
    [
        (MODELS, "[model.state_dict() for model in updates]"),
        (MODELS[0], "state_dict() of every client's model"),
        ([model.parameters() for model in MODELS], "[list(update) for update in updates]"),
        ((row for row in np.ones((3, 2))), "list(updates)"),
        ([1.0, 2.0, 3.0], "numpy.reshape(updates, (-1, 1))"),
        ([[1.0, 2.0], [3.0, 4.0]], "numpy.array(updates)"),
        ([Future(), Future()], "[future.result() for future in updates]"),
        ([dask.delayed(np.ones)(3)] * 3, "dask.compute(*updates)"),
        ([type("ObjectRef", (), {"__module__": "ray._raylet"})()] * 2, "ray.get(updates)"),
        ([type("DataFrame", (), {"__module__": "pandas.core.frame"})()] * 2, "[frame.to_numpy() for frame in updates]"),
        ([(np.ones(3), 10), (np.ones(3), 20)], "as samples="),
        (["a.pt", "b.pt"], "torch.load(path, weights_only=True)"),
        ({"a": np.ones(3)}, "list(updates.values())"),
        (None, "an array or a list with one update per client"),
    ],
)
def test_what_is_no_update_is_told_the_line_to_write(updates, remedy):
    with pytest.raises(TypeError, match=re.escape(remedy)) as caught:
        aggregate(updates)
    assert "Keep the current model" not in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "remedy"),
    [
        ({"f": 2}, "leave it out"),
        ({"weights": [1, 2]}, "samples="),
        ({"num_examples": [1, 2]}, "samples="),
        ({"seed": 1}, "rng="),
    ],
)
def test_words_of_other_libraries_lead_to_ours(parameters, remedy):
    with pytest.raises(TypeError, match=remedy):
        aggregate(np.ones((5, 2)), **parameters)


def test_a_part_of_the_clients_is_no_f():
    with pytest.raises(TypeError, match=re.escape("f=int(0.2 * m)")):
        aggregate(np.ones((5, 2)), "krum", f=0.2)
