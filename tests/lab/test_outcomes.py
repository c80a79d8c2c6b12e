"""What came out: what sets experiments apart, what rules are called, and the matrix of rules by attacks."""

import math

import numpy as np
import pytest

from fedhold.lab import Experiment, Result, matrices
from fedhold.lab.outcomes import Differences, more_is_better, rule_labels, worst_cases


def experiment(rule="mean", attack="ipm", epsilon=0.2, seed=0, **more):
    usual = {"data": "synthesized", "m": 20, "rounds": 3}
    return Experiment(rule=rule, attack=attack, epsilon=epsilon if attack else 0.0, seed=seed, **{**usual, **more})


def result(end, of, metric="rmse"):
    """A run whose metric ends there; None for one that diverged, a text for one that a bound refuses."""
    refused = isinstance(end, str)
    series = {} if refused else {metric: [9.0, 5.0, end]}
    return Result(of, series, [], None, 0.1, {}, end if refused else "")


# What sets experiments apart


def options(**given):
    return {"options": tuple(given.items())}


@pytest.mark.parametrize(
    ("runs", "apart", "titles"),
    [
        ([experiment(), experiment("huber")], (), ["ipm", "ipm"]),
        ([experiment(step=0.1), experiment(step=0.2)], ("step",), ["step 0.1", "step 0.2"]),
        ([experiment(m=10), experiment(m=20)], ("clients",), ["10 clients", "20 clients"]),
        ([experiment(), experiment(**options(momentum=0.9))], ("momentum",), ["ipm", "momentum 0.9"]),
        ([experiment(attack=None), experiment()], ("attack",), ["no attack", "ipm"]),
        ([experiment(attack="alie(z=1)"), experiment(attack="alie(z=2)")], ("attack",), ["alie(z=1)", "alie(z=2)"]),
        (
            [experiment(epsilon=0.1), experiment(), experiment(attack=None)],
            ("attack", "epsilon"),
            ["ipm, epsilon 0.1", "ipm, epsilon 0.2", "no attack"],
        ),
        (
            [experiment(partition="random_cuts"), experiment(data="synthesized(d=5)")],
            ("data",),
            ["synthesized", "synthesized(d=5)"],
        ),
        ([experiment(**options(keep_weights=1)), experiment(**options(certify=3))], (), ["ipm", "ipm"]),
    ],
)
def test_titles_name_what_differs(runs, apart, titles):
    found = Differences.among(runs)
    assert found.apart == apart
    assert [found.title(run) for run in runs] == titles


def test_what_is_shared_is_said_once_with_where_it_applies():
    fast, slow = experiment(step=0.5, data="synthesized(d=5)"), experiment(step=0.1)
    found = Differences.among([fast, slow, experiment(attack=None, step=0.1)])
    assert found.apart == ("data", "attack")
    assert found.common == (
        *("balanced", "epsilon 0.2", "20 clients"),
        *("step 0.5 (synthesized(d=5))", "step 0.1 (synthesized)", "3 rounds"),
    )


def test_a_rule_that_is_told_the_true_f_has_one_name():
    runs = [experiment(f"krum(f={liars})", epsilon=liars / 20) for liars in (2, 4)]
    assert rule_labels(runs) == {"krum(f=2)": "krum, told f", "krum(f=4)": "krum, told f"}
    assert rule_labels([*runs, experiment("krum(f=4)", attack=None)]) == rule_labels(runs)
    assert rule_labels([*runs, experiment("krum(f=3)")]) == {}  # one was told wrong
    assert rule_labels([experiment("krum(f=4)")]) == {}


# The matrix


def cells(matrix):
    return {
        (matrix.rows[one.row][0], matrix.columns[one.column], one.facets): one.mark or round(one.value, 6)
        for one in matrix.entries
    }


def test_the_matrix_has_the_mean_over_seeds_and_marks():
    runs = [
        *(result(end, experiment(seed=seed)) for seed, end in enumerate((2.0, 4.0))),
        *(result(end, experiment("huber", seed=seed)) for seed, end in enumerate((1.5, None))),
        *(result("too few", experiment("krum(f=9)", seed=seed)) for seed in (0, 1)),
        *(result(1.0, experiment(rule, attack=None)) for rule in ("mean", "huber", "krum(f=9)")),
    ]
    (matrix,) = matrices(runs)
    assert matrix.columns == ["no attack", "ipm"]
    assert matrix.plain == 1
    found = cells(matrix)
    assert [found[rule, "ipm", ()] for rule in ("mean", "huber", "krum(f=9)")] == [3.0, "diverged", "infeasible"]
    assert [(one.low, one.high) for one in matrix.entries if one.value == 3.0] == [(2.0, 4.0)]
    assert [(rule, entry.mark) for rule, entry in worst_cases(matrix)] == [
        ("mean", ""),
        ("huber", "diverged"),
        ("krum(f=9)", "infeasible"),
    ]
    assert matrix.scale.best == 1.0
    assert matrix.scale.worst == 10.0
    assert matrix.entries[0].curve == (9.0, 5.0, 3.0)


def test_all_else_that_differs_is_a_filter():
    runs = [
        result(step + epsilon, experiment(rule, attack, epsilon, step=step))
        for rule in ("mean", "huber")
        for attack in (None, "ipm")
        for epsilon in (0.1, 0.2)
        for step in (1.0, 2.0)
    ]
    (matrix,) = matrices(runs)
    assert [(facet.name, list(facet.choices)) for facet in matrix.facets] == [
        ("epsilon", ["0.1", "0.2"]),
        ("step", ["1", "2"]),
    ]
    found = cells(matrix)
    assert len(found) == 2 * 2 * 4  # without an attack a run stands for both epsilons
    assert found["huber", "ipm", (1, 0)] == pytest.approx(1.2)


def test_without_an_attack_a_told_rule_stands_for_the_epsilon_of_its_f():
    runs = [result(f / 10, experiment(f"krum(f={f})", attack, f / 20)) for f in (2, 4) for attack in (None, "ipm")]
    (matrix,) = matrices(runs)
    assert cells(matrix) == {
        ("krum, told f", attack, (k,)): f / 10 for k, f in enumerate((2, 4)) for attack in ("no attack", "ipm")
    }


def test_a_rule_that_was_run_without_an_attack_only_is_there():
    runs = [result(1.0, experiment("mean", "ipm", epsilon)) for epsilon in (0.1, 0.2)]
    (matrix,) = matrices([*runs, result(2.0, experiment("huber", None))])
    assert cells(matrix) == {
        **{("mean", "ipm", (k,)): 1.0 for k in (0, 1)},
        **{("huber", "no attack", (k,)): 2.0 for k in (0, 1)},
    }


def test_an_attack_that_no_rule_could_be_tried_under_is_left_out():
    refused = [result("no classes", experiment(rule, "label_flip")) for rule in ("mean", "huber")]
    (matrix,) = matrices([*refused, result(1.0, experiment()), result(2.0, experiment("huber"))])
    assert set(cells(matrix)) == {("mean", "ipm", ()), ("huber", "ipm", ())}


def test_every_metric_has_a_matrix_of_its_own():
    other = Experiment("mnist", "mean", "ipm", 0.2, 0, m=20, rounds=3)
    first, second = matrices([result(1.0, experiment()), result(0.5, other, "accuracy"), result("too few", other)])
    assert "rmse at the end" in first.title
    assert "accuracy at the end, by rule and attack; more is better" in second.title
    assert (second.scale.worst, second.scale.best, second.scale.digits) == (0.0, 1.0, 3)


@pytest.mark.parametrize("ends", [(0.0, 0.0), (-1.0, 2.0), (1e30, 1.0), (None, None), ("refused", "refused")])
@pytest.mark.parametrize("metric", ["loss", "score"])
def test_every_matrix_has_a_scale(ends, metric):
    (matrix,) = matrices(
        [result(end, experiment(rule), metric) for end, rule in zip(ends, ("mean", "huber"), strict=True)]
    )
    scale = matrix.scale
    assert all(map(math.isfinite, (scale.worst, scale.best)))
    assert scale.best != scale.worst
    assert (scale.best > scale.worst) == (more_is_better(metric) if not isinstance(ends[0], str) else False)
    assert not scale.logarithmic or min(scale.worst, scale.best) > 0


def test_curves_are_short():
    long = Experiment("synthesized", "mean", "ipm", 0.2, 0, m=20, rounds=500)
    (matrix,) = matrices([Result(long, {"rmse": np.arange(500.0).tolist()}, [], None, 0.1, {})])
    ((_, rounds),) = matrix.axes
    assert len(rounds) == len(matrix.entries[0].curve) == 40
    assert (rounds[0], rounds[-1], matrix.entries[0].curve[-1]) == (1, 500, 499.0)
