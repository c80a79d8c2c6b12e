"""That sweeps run what they say, take the worst, leave out what is missing, and say what their numbers say."""

import math

import numpy as np
import pytest

from fedhold import bounds
from fedhold.lab import Result, run
from fedhold.lab.paper import sweeps, theory
from fedhold.lab.paper.reproduction import PARTS, parts_named
from fedhold.thresholds import KAPPA

TINY = sweeps.Effort(
    m=12,
    rounds=2,
    kappas=(0.1, KAPPA, 10.0),
    epsilons=(0.0, 0.2),
    image_m=12,
    image_rounds=1,
    image_epsilons=(0.0, 0.2),
    clients=(20, 40),
    samples=(400, 800),
    coordinates=(2, 4),
    draws=1,
)


def made_up(end):
    """Finds a result for every experiment, whose metric ends at a function of the experiment; "" where it is infeasible."""

    def find(one):
        last, metric = end(one), "rmse" if one.part("data").name == "synthesized" else "accuracy"
        if last == "":
            return Result(one, {}, [], None, 0.0, {}, infeasible="too many")
        return Result(one, {metric: [9.0, last]}, [], None, 0.0, {})

    return find


def named(figures):
    return {one.name: one for one in figures}


def curves(figure):
    return {line.label: line.mean for line in figure.chart.curves}


@pytest.fixture(scope="module")
def trained():
    """All runs on synthesized data, really made."""
    return {one: run(one) for one in sweeps.experiments(TINY) if one.part("data").name == "synthesized"}


def test_figures_without_all_their_runs_are_left_out(trained):
    names = [one.name for one in sweeps.illustrated(trained.get, TINY)]
    assert names == ["sweep-threshold", "sweep-epsilon", "sweep-epsilon-others", "sweep-default"]


def test_a_curve_is_the_worst_of_the_four_attacks(trained):
    figure = named(sweeps.illustrated(trained.get, TINY))["sweep-epsilon"]
    line = next(line for line in figure.chart.curves if line.label == "CWM (median)")
    ends = [
        [one.end for key, one in trained.items() if (key.rule, key.epsilon, key.seed) == ("median", epsilon, seed)]
        for seed in range(TINY.seeds)
        for epsilon in TINY.epsilons
    ]
    assert [len(some) for some in ends] == [1, 4, 1, 4]
    np.testing.assert_array_equal(line.values.ravel(), [max(some) for some in ends])


def test_every_rule_takes_part_and_is_told_the_number_of_liars():
    rules = {one.rule for one in sweeps.experiments(TINY) if one.epsilon and one.part("data").name == "synthesized"}
    assert {"krum(f=2)", "multi_krum(f=2)", "spectral_huber", "huber", "fools_gold"} <= rules
    assert not any(rule.startswith(sweeps.LEFT_OUT) for rule in rules)


def test_what_is_drawn_can_be_drawn(trained, tmp_path):
    figure = named(sweeps.illustrated(trained.get, TINY))["sweep-threshold"]
    figure.chart.save(tmp_path / "a.png")
    assert "T / spread (log scale)" in figure.chart.__html__()
    assert figure.chart.axis.marked == KAPPA
    assert set(figure.chart.styles) == {line.label for line in figure.chart.curves}
    assert [row[0] for row in figure.table.rows] == [0.1, KAPPA, 10.0]


def test_the_sentence_on_thresholds():
    ends = {0.1: 2.0, KAPPA: 1.1, 10.0: 3.0}

    def end(one):
        kappa = next((k for k in ends if one.rule == f"huber(threshold=automatic(kappa={k:g}))"), KAPPA)
        return 1.0 if one.attack == "krum_attack" and kappa == 10 else ends[kappa]

    said = named(sweeps.illustrated(made_up(end), TINY))["sweep-threshold"].sentence
    assert "at most 10.0% above the best T of the sweep (KA)" in said
    assert "0.75 (Sign-flip), 10 (KA)" in said
    assert "1.100 at the automatic T, 2.000 at 0.1 and 3.000 at 10 spreads" in said


def test_the_sentences_on_rules_rank_them_and_skip_the_infeasible():
    def end(one):
        if one.rule.startswith("krum"):
            return ""
        worse = 0.5 * (one.attack == "trimmed_mean_attack")
        return (0.3 if one.rule == "median" else 0.6) + worse * (1 if one.part("data").name == "synthesized" else -0.2)

    figures = named(sweeps.illustrated(made_up(end), TINY))
    assert figures["sweep-epsilon"].sentence.startswith("Worst case, the best rule first: at epsilon 0.2 median 0.8, ")
    assert "krum" not in figures["sweep-epsilon"].sentence
    assert np.isnan(curves(figures["sweep-epsilon"])["Krum (krum)"]).all()
    assert " ... median 0.2;" in figures["sweep-mnist"].sentence
    assert "rank correlation of 1.00" in figures["sweep-fashion-mnist"].sentence


def test_the_sentence_on_the_default_rule():
    ratios = {"krum_attack": 2.0, "trimmed_mean_attack": 0.5}
    find = made_up(lambda one: ratios.get(one.attack, 0.9) if one.rule == "spectral_huber" else 1.0)
    said = named(sweeps.illustrated(find, TINY))["sweep-default"].sentence
    assert "lower error than the paper's T in 3 of 4 settings" in said
    assert "0.5 times the error (TMA, epsilon 0.2) to 2 times the error (KA, epsilon 0.2)" in said


def test_a_run_that_diverged_is_the_worst():
    find = made_up(lambda one: None if (one.rule, one.attack) == ("median", "sign_flip") else 0.5)
    figures = named(sweeps.illustrated(find, TINY))
    assert (curves(figures["sweep-epsilon"])["CWM (median)"] == [0.5, math.inf]).all()


def test_the_end_is_the_mean_over_the_last_tenth_of_the_rounds():
    def find(one):
        rounds = [0.1] * 27 + [0.6, None, 0.8]
        return Result(
            one, {"rmse" if one.part("data").name == "synthesized" else "accuracy": rounds}, [], None, 0.0, {}
        )

    figures = named(sweeps.illustrated(find, TINY))
    np.testing.assert_allclose(curves(figures["sweep-mnist"])["CWM (median)"], [0.7, 0.7])


def test_bounds_and_rate_against_n():
    figure = named(sweeps.theorems(TINY))["sweep-n"]
    lines = curves(figure)
    setting = bounds.Setting(sigma=1.0, d=theory.D, N=80_000, m=100, delta=theory.DELTA)
    T = bounds.threshold_theorem_1(setting)
    assert lines["theorem 1, bound"][1] == pytest.approx(bounds.delta_a(setting, epsilon=0.2, T=T))
    assert (lines["theorem 1, measured"] < lines["theorem 1, bound"]).all()
    np.testing.assert_allclose(lines[sweeps.MINIMAX], [0.2 / n**0.5 + (5 / (100 * n)) ** 0.5 for n in (400, 800)])
    assert "minimax rate -0.50" in figure.sentence


def test_sweeps_are_no_part_of_all():
    assert parts_named(["all"]) == list(PARTS)
    assert parts_named(["sweeps", "fig1"]) == ["fig1", "sweeps"]
    assert parts_named(["sweeps", "all"]) == [*PARTS, "sweeps"]
