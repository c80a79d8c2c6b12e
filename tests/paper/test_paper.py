"""That every figure is what the paper says, and that the claims answer to made-up results as they should."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from fedhold import bounds
from fedhold.lab import Experiment, Result
from fedhold.lab.paper import CLAIMS, FIGURES, METHODS, Measurements, Plan, judge, reproduce, table1, theory
from fedhold.lab.paper.claims import first_runs
from fedhold.lab.paper.figures import (
    AUTOMATIC_T,
    BASELINES,
    PAPER_T,
    SUBFIGURES,
    attack_free,
    baseline_rules,
    experiments,
)
from fedhold.lab.paper.reproduction import PARTS, parts_named

PLAN = Plan()
ALL = [run for figure in FIGURES for run in experiments(figure, PLAN)]

# The figures


@pytest.mark.parametrize(
    ("figure", "panels", "seeds"), [("fig1", 4, 3), ("fig2", 4, 1), ("fig3", 4, 1), ("fig5", 2, 3)]
)
def test_so_many_runs(figure, panels, seeds):
    liars = [run for run in experiments(figure, PLAN) if run.attack is not None]
    assert len(FIGURES[figure]) == panels
    assert len(liars) == panels * 7 * seeds


def test_figure_4_has_one_panel_of_each_data():
    liars = Counter(run.data for run in experiments("fig4", PLAN) if run.attack is not None)
    assert liars == {"synthesized": 7 * 3, "mnist": 7 * 1}


def test_the_budget_counts_63_runs_on_mnist():
    assert len({run for run in ALL if run.data == "mnist" and run.attack is not None}) == 63


def test_regression_is_as_in_section_7_1():
    for run in (run for run in ALL if run.data != "mnist"):
        assert (run.m, run.rounds, run.step) == (500, 200, 0.02)
        assert (run.epsilon, run.liars) == ((0.2, 100) if run.attack else (0, 0))


def test_mnist_is_as_in_section_7_2():
    runs = [run for run in ALL if run.data == "mnist"]
    assert {run.m for run in runs} == {500}
    assert len({(run.rounds, run.step) for run in runs}) == 1, "one step for all methods"
    assert {run.liars for run in experiments("fig2", PLAN) if run.attack} == {100}
    assert {run.liars for run in experiments("fig3", PLAN) if run.attack} == {200}


@pytest.mark.parametrize(
    ("figure", "threshold"),
    [("fig1", "1"), ("fig2", "0.2"), ("fig3", "0.2"), ("fig4", "by_samples(0, 2)"), ("fig5", "1")],
)
def test_the_papers_threshold(figure, threshold):
    for subfigure in FIGURES[figure]:
        assert {run.rule for run in subfigure.curve(PAPER_T, PLAN)} == {f"huber(threshold={threshold})"}
        assert {run.rule for run in subfigure.curve(AUTOMATIC_T, PLAN)} == {"huber"}


def test_the_attacks_of_every_figure():
    four = ["sign_flip", "krum_attack", "trimmed_mean_attack", "huber_attack"]
    attacks = {figure: [subfigure.attack for subfigure in FIGURES[figure]] for figure in FIGURES}
    assert attacks["fig1"] == attacks["fig2"] == attacks["fig3"] == four
    assert attacks["fig4"] == ["huber_attack"] * 2
    assert attacks["fig5"] == ["krum_attack", "trimmed_mean_attack"]


def test_figure_4_is_unbalanced_and_the_rest_is_not():
    assert {s.partition for s in FIGURES["fig4"]} == {"random_cuts"}
    assert {s.partition for figure in FIGURES for s in FIGURES[figure] if figure != "fig4"} == {"balanced"}


def test_figure_5_reads_its_number_as_variance():
    assert {run.part("data").parameters["variance"] for run in experiments("fig5", PLAN) if run.attack} == {0.2}


def test_baselines_know_the_number_of_liars():
    rules = baseline_rules(200, 500)
    assert set(rules) == {"mean", *BASELINES}
    assert rules["krum"] == "krum(f=200)"
    assert rules["median_of_means"] == "median_of_means(f=200)"
    assert rules["trimmed_mean"] == "trimmed_mean(f=200)"
    with pytest.raises(ValueError, match="2q \\+ 3"):
        baseline_rules(250, 500)


def test_all_methods_but_the_automatic_huber_meet_the_same_huber_attack():
    for subfigure in (s for figure in FIGURES.values() for s in figure if s.attack == "huber_attack"):
        for label in ("mean", *BASELINES):
            meant = Experiment("mnist", "mean", f"huber_attack(threshold={subfigure.threshold})", 0.2, 0).attack
            assert {run.attack for run in subfigure.curve(label, PLAN)} == {meant}
        for label in (PAPER_T, AUTOMATIC_T):  # their own: the server's
            assert {run.attack for run in subfigure.curve(label, PLAN)} == {"huber_attack"}


@pytest.mark.parametrize("figure", FIGURES)
def test_one_run_of_a_figure_is_watched(figure):
    watched = [run for run in experiments(figure, PLAN) if "keep_weights" in dict(run.options)]
    assert len(watched) == 1
    assert watched[0].rule == "huber"
    assert watched[0].seed == 0
    assert dict(watched[0].options)["certify"] == watched[0].liars


def test_curves_of_a_seed_share_all_but_the_rule():
    for subfigure in (s for figure in FIGURES.values() for s in figure):
        for label in METHODS:
            for run in subfigure.curve(label, PLAN):
                same = {"rule": "mean", "attack": subfigure.attack, "options": ()}
                assert replace(run, **same) == replace(subfigure.curve("mean", PLAN)[run.seed], **same)


def test_quick_is_the_same_with_less():
    quick = Plan.of(quick=True)
    assert (quick.seeds, quick.mnist_seeds) == (1, 1)
    assert quick.mnist_rounds < PLAN.mnist_rounds
    assert (quick.most, quick.most_mnist) == (1, 1), "no seeds are added"
    assert Plan.of(2, 4, quick=True).seeds == 2
    assert Plan.of(2, 4).mnist_seeds == 4
    assert Plan.of(50, 1).most == 50
    with pytest.raises(ValueError, match="at least 1"):
        Plan.of(0)


# The claims

PERFECT = {"mean": 1.0, "krum": 0.2, "median_of_means": 0.85, "median": 0.9, "trimmed_mean": 0.88, PAPER_T: 0.97}
FREE = {"rmse": (7.0, 1.0), "accuracy": (0.1, 0.9)}  # start and end of the run without liars


def made_up(progress, plan=PLAN, noise=0.001, seeds=5):
    """Results whose runs make the given progress: a function of (name of the subfigure, label)."""
    table = {}
    rng = np.random.default_rng(0)
    plan = plan.with_seeds(seeds)
    for subfigure in SUBFIGURES.values():
        start, end = FREE[subfigure.metric]
        for run in attack_free(subfigure, plan):
            table[run] = _result(run, subfigure.metric, start, end)
        for label in METHODS:
            for run in subfigure.curve(label, plan):
                reached = progress(subfigure.name, label) + noise * rng.standard_normal()
                table[run] = _result(run, subfigure.metric, start, start + reached * (end - start))
    return table.get


def _result(run, metric, start, end):
    return Result(run, {metric: [start] + [end] * (run.rounds - 1)}, [], None, 0.0, {})


def verdicts(progress, plan=PLAN, seeds=5):
    of = Measurements(made_up(progress, plan, seeds=seeds), plan)
    return {claim.says: judge(claim, of) for claim in CLAIMS}


def find(told, start):
    return next(verdict for says, verdict in told.items() if says.startswith(start))


def test_progress_is_what_it_says():
    of = Measurements(made_up(lambda *_: 0.25, noise=0.0), PLAN)
    for name, most in (("fig1a", PLAN.most), ("fig2a", PLAN.most_mnist)):
        five_seeds = [0.25] * 5 + [np.nan] * (most - 5)
        assert of.progress(name, "median").tolist() == pytest.approx(five_seeds, nan_ok=True)
        assert of.lead(name, PAPER_T, "krum")[:5].tolist() == pytest.approx([0.0] * 5)
        (above,) = of.compare([name], "median", above="failed")
        assert above.values == pytest.approx([-0.25] * 5)


def test_a_run_that_left_the_numbers_has_lost():
    lost = SUBFIGURES["fig1a"].curve("mean", PLAN)[0]
    results = made_up(lambda *_: 0.5)
    gone = Result(lost, {"rmse": [7.0] + [None] * (lost.rounds - 1)}, [], None, 0.0, {})
    of = Measurements(lambda run: gone if run == lost else results(run), PLAN)
    assert of.progress("fig1a", "mean")[0] == -np.inf
    assert of.lead("fig1a", "mean", "mean")[:5].tolist() == [0.0] * 5


def test_a_world_like_the_papers_lets_its_sentences_hold():
    told = verdicts(lambda _, label: PERFECT[PAPER_T if label == AUTOMATIC_T else label])
    assert find(told, "Our new method works well").outcome == "holds"
    assert find(told, "The Krum aggregator fails").outcome == "holds"
    assert find(told, "Under TMA, GMM and CWTM").outcome == "holds"
    assert find(told, "Experiments on MNIST").outcome == "holds"
    assert find(told, "Huber with the automatic").outcome == "holds"
    assert find(told, "Krum works relatively well").outcome == "fails"
    assert find(told, "CWM and CWTM appear to be only slightly").outcome == "fails"  # 0.07 and 0.09 are not slight
    assert find(told, "[GMM's] disadvantage").outcome == "fails"  # as large at 0.4 as at 0.2


def test_one_method_better_in_one_panel_is_enough_to_fail():
    told = verdicts(
        lambda name, label: 1.0 if (name, label) == ("fig1b", "median_of_means") else PERFECT.get(label, 0.97)
    )
    verdict = find(told, "Similar to synthesized data")
    assert verdict.outcome == "fails"
    assert "fig1b krum_attack" in verdict.numbers
    assert find(told, "Experiments on MNIST").outcome == "holds"


def test_one_seed_leaves_all_measured_claims_undecided():
    told = verdicts(lambda _, label: PERFECT.get(label, 0.97), Plan.of(quick=True), seeds=1)
    exact = find(told, "The ratio of samples")
    assert exact.outcome == "fails"
    assert {verdict.outcome for verdict in told.values() if verdict is not exact} == {"undecided"}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda claim: claim.says)
def test_a_claim_needs_no_runs_but_those_of_its_figures(claim):
    results = made_up(lambda *_: 0.9)
    asked = []

    def recorded(run):
        asked.append(run)
        return results(run)

    judge(claim, Measurements(recorded, PLAN))
    assert set(asked) <= {run for figure in claim.needs for run in experiments(figure, PLAN.widest)}
    first = set(first_runs(claim, PLAN))
    assert first == {run for run in asked if run.seed in PLAN.seeds_for(run.data)}, "its curves are all it asks for"
    assert "7." in claim.where or "not in the paper" in claim.where


# Table 1 and the theory


def test_the_papers_table_has_its_six_rows():
    assert [row.split().count("yes") for _, row in table1.RULES.values()] == [0, 2, 3, 2, 1, 4, 4]
    assert all(len(row.split()) == len(table1.CRITERIA) for _, row in table1.RULES.values())


def test_a_rule_that_never_asks_cannot_be_misled():
    effort = table1.Effort(clients=60, draws=1, longest=0.0, largest=256)
    cells = {aspect: table1.measure("median", aspect, effort) for aspect in table1.CRITERIA}
    assert cells["epsilon-agnostic"].number == 1.0
    assert cells["epsilon-agnostic"].agrees


def test_the_worst_attack_on_an_error_of_mean_estimation():
    effort = table1.Effort(clients=60, draws=1)
    assert table1.worst_error("trimmed_mean", 0.2, effort, assumed=0.1) > table1.worst_error(
        "trimmed_mean", 0.2, effort
    )
    assert table1.excess("huber", 0.2, effort) < table1.worst_error("huber", 0.2, effort)


def test_a_cell_shows_the_papers_word_only_where_it_differs():
    assert str(table1.Cell("krum", "linear time", 2.0, "no", "no")) == "no (2.00)"
    assert str(table1.Cell("krum", "linear time", 1.0, "yes", "no")) == "yes (1.00), paper: no"


def test_no_bound_is_broken():
    rows = [theory.measure(case, theory.QUICK_DRAWS) for case in theory.CASES]
    assert len(rows) == len(set(theory.CASES))
    assert all(low > 1 for low, _ in theory.loosest(rows).values())
    assert all(row.automatic < row.bound for row in rows)
    first = rows[0]
    setting = bounds.Setting(sigma=1.0, d=5, N=first.case.n * first.case.m, m=first.case.m, delta=0.05)
    assert first.threshold == pytest.approx(bounds.threshold_theorem_1(setting))


# What is asked for


def test_parts_are_named_in_any_order():
    assert parts_named(["all"]) == list(PARTS)
    assert parts_named(["theory", "fig2", "fig2"]) == ["fig2", "theory"]
    with pytest.raises(ValueError, match="Did you mean 'fig1'"):
        parts_named(["fig11"])
    with pytest.raises(ValueError, match="nothing to reproduce"):
        parts_named([])


def test_reproduce_writes_a_report(tmp_path, capsys):
    path = reproduce(["theory"], quick=True, jobs=1, out=tmp_path)
    assert path.parent == tmp_path
    assert "bound / error" in path.read_text(encoding="utf-8")
    assert "theorem 3" in capsys.readouterr().out
