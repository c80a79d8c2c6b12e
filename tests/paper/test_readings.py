"""That a reading is one departure from the main one, and that verdicts over readings are what they say."""

from dataclasses import replace
from pathlib import Path

import pytest

from fedhold.lab import Result, Verdict
from fedhold.lab.paper import CHOICES, CLAIMS, READINGS, Measurements, Plan, reproduce
from fedhold.lab.paper.claims import (
    WORDS,
    Judged,
    by_reading,
    by_words,
    go_on,
    hangs_on,
    judged,
    next_runs,
    outcome,
)
from fedhold.lab.paper.figures import METHODS, SUBFIGURES, attack_free, experiments
from fedhold.lab.paper.readings import FAIR, MAIN, readings_table
from fedhold.spec import Part

PLAN = Plan()


def under(name):
    return replace(PLAN, reading=READINGS[name])


def changed(name):
    """(main run, run under the reading) wherever they differ, over all figures."""
    pairs = []
    for subfigure in SUBFIGURES.values():
        for label in METHODS:
            pairs += zip(subfigure.curve(label, PLAN), subfigure.curve(label, under(name)), strict=True)
        pairs += zip(attack_free(subfigure, PLAN), attack_free(subfigure, under(name)), strict=True)
    return [(one, other) for one, other in pairs if one != other]


def parameters(run, part):
    return {name: str(Part(name, {name: value})) for name, value in run.part(part).parameters.items()}


def test_readings_have_names_of_their_own():
    assert len(READINGS) == sum(len(choice.others) for choice in CHOICES)
    assert MAIN.name not in READINGS
    assert set(FAIR) < set(READINGS)
    assert all(choice.quote and choice.where and choice.main and choice.others for choice in CHOICES)


@pytest.mark.parametrize(
    ("name", "data", "attacks", "differs"),
    [
        (
            "longer",
            {"mnist"},
            {None, "sign_flip", "krum_attack", "trimmed_mean_attack", "huber_attack"},
            {"step", "rounds"},
        ),
        ("largest lambda", {"synthesized", "heterogeneous", "mnist"}, {"krum_attack"}, {"attack search"}),
        ("HLMA from g_0", {"synthesized", "mnist"}, {"huber_attack"}, {"attack start"}),
        (
            "loss without 1/2",
            {"synthesized", "heterogeneous"},
            {None, "sign_flip", "krum_attack", "trimmed_mean_attack", "huber_attack"},
            {"data factor"},
        ),
        ("deviation .2", {"heterogeneous"}, {None, "krum_attack", "trimmed_mean_attack"}, {"data variance"}),
        (
            "liars know their own",
            {"synthesized", "heterogeneous", "mnist"},
            {"krum_attack", "trimmed_mean_attack", "huber_attack"},
            {"attack knows"},
        ),
        (
            "told a fifth more",
            {"synthesized", "heterogeneous", "mnist"},
            {"sign_flip", "krum_attack", "trimmed_mean_attack", "huber_attack"},
            {"rule"},
        ),
        (
            "1,000 rounds",
            {"synthesized", "heterogeneous"},
            {None, "sign_flip", "krum_attack", "trimmed_mean_attack", "huber_attack"},
            {"rounds"},
        ),
    ],
)
def test_a_reading_changes_these_runs_and_this_of_them(name, data, attacks, differs):
    pairs = changed(name)
    assert {run.part("data").name for run, _ in pairs} == data
    assert {run.attack and run.part("attack").name for run, _ in pairs} == attacks
    found = set()
    for one, other in pairs:
        fields = ("rule", "epsilon", "seed", "m", "partition", "rounds", "step", "options")
        found |= {field for field in fields if getattr(one, field) != getattr(other, field)}
        for part in ("data", "attack") if one.attack else ("data",):
            before, after = parameters(one, part), parameters(other, part)
            found |= {f"{part} {name}" for name in {**before, **after} if before.get(name) != after.get(name)}
    assert found == differs


def test_baselines_told_a_fifth_more_and_nobody_else():
    pairs = changed("told a fifth more")
    assert {(one.rule, other.rule) for one, other in pairs if one.liars == 200} == {
        ("krum(f=200)", "krum(f=240)"),
        ("median_of_means(f=200)", "median_of_means(f=240)"),
        ("trimmed_mean(f=200)", "trimmed_mean(f=240)"),
    }


def test_until_90_is_the_same_runs_cut_short():
    assert not changed("until .90")
    run = attack_free(SUBFIGURES["fig2a"], PLAN)[0]
    accuracy = [k / 1000 for k in range(run.rounds)]
    results = {one: Result(one, {"accuracy": accuracy}, [], None, 0.0, {}) for one in experiments("fig2", PLAN)}
    whole = Measurements(results.get, PLAN).ends("fig2a", "krum")[0]
    cut = Measurements(results.get, under("until .90")).ends("fig2a", "krum")[0]
    assert whole == pytest.approx(sum(accuracy[180:]) / 20)
    assert cut == pytest.approx(sum(accuracy[117:130]) / 13)


def nothing(_):
    return None


@pytest.mark.parametrize("name", READINGS)
def test_nothing_is_run_that_no_claim_needs(name):
    plan = under(name)
    touched = [claim for claim in CLAIMS if hangs_on(claim, plan)]
    assert touched, f"no claim hangs on {name}"
    runs = go_on(touched[:3], nothing, plan)
    assert runs
    assert not any(run.rule == "mean" and run.attack == "sign_flip" for run in runs), "no claim is about it"
    assert go_on([claim for claim in CLAIMS if claim not in touched], nothing, plan) == []


def test_a_claim_that_fails_by_what_is_there_needs_no_runs_of_another_reading():
    claim = next(claim for claim in CLAIMS if claim.says.startswith("Our new method works well"))
    plan = under("largest lambda")  # changes figure 1 (b) alone
    main = set(go_on([claim], nothing, plan)) & set(experiments("fig1", PLAN))

    def results(progress):
        return lambda run: made(run, progress + 0.001 * run.seed) if run in main else None

    attacks = {run.attack for run in go_on([claim], results(0.95), plan)}
    assert attacks == {"krum_attack(search='largest')", None}
    assert go_on([claim], results(0.5), plan) == []


def test_which_claims_hang_on_what():
    def names(start):
        claim = next(claim for claim in CLAIMS if claim.says.startswith(start))
        return {name for name in READINGS if hangs_on(claim, under(name))}

    assert names("The Krum aggregator fails under KA") == {
        *("largest lambda", "loss without 1/2", "liars know their own", "told a fifth more", "1,000 rounds")
    }
    assert names("Krum is still highly susceptible") == {
        *("until .90", "longer", "largest lambda", "liars know their own", "told a fifth more")
    }
    assert names("The ratio of samples") == set()


def made(run, progress):
    start, end = (7.0, 1.0) if run.data != "mnist" else (0.1, 0.9)
    metric = "accuracy" if run.data == "mnist" else "rmse"
    reached = start + (progress if run.attack else 1.0) * (end - start)
    return Result(run, {metric: [start] + [reached] * (run.rounds - 1)}, [], None, 0.0, {})


def krum_under_ka(main, largest):
    """The claim that Krum fails, with this progress of Krum in the main reading and with the largest lambda."""
    claim = next(claim for claim in CLAIMS if claim.says.startswith("The Krum aggregator fails"))

    def results(run):
        if run.seed > 4:
            return None
        largest_run = run.attack == "krum_attack(search='largest')"
        return made(run, (largest if largest_run else main) + 0.001 * run.seed)

    return judged(claim, results, PLAN, [READINGS["largest lambda"], READINGS["until .90"], READINGS["1,000 rounds"]])


def test_a_claim_depends_where_fair_readings_disagree():
    told = krum_under_ka(main=0.7, largest=0.2)
    assert (told.main.outcome, told.others["largest lambda"], told.outcome) == ("fails", "holds", "depends")
    assert told.others["until .90"] == "", "that is about MNIST"
    assert told.verdict.outcome == "depends"
    assert "Under 'largest lambda' it holds: fig1b krum_attack (krum 5.788)" in told.verdict.numbers
    assert krum_under_ka(0.7, 0.7).outcome == "fails"
    assert krum_under_ka(0.2, 0.2).outcome == "holds"
    assert "largest" not in krum_under_ka(0.2, 0.2).verdict.numbers


def test_a_reading_against_the_letter_makes_nothing_depend():
    claim, main = CLAIMS[0], Verdict("a", "b", "fails", "c")
    assert Judged(claim, main, {"1,000 rounds": "holds"}, {}).outcome == "fails"
    assert Judged(claim, main, {"longer": "holds"}, {}).outcome == "depends"
    assert Judged(claim, main, {"longer": "not run"}, {}).outcome == "fails"
    assert Judged(claim, main, {"longer": "undecided"}, {}).outcome == "fails"
    assert Judged(claim, replace(main, outcome="undecided"), {"longer": "holds"}, {}).outcome == "undecided"


def wobbling(count, wide, middle=0.85):
    """Results of so many seeds in which every run makes the same progress, but wobbles under one attack."""

    def results(run):
        wobble = 0.1 * (-1) ** run.seed if run.attack == wide else 0.001 * run.seed
        return None if run.seed >= count else made(run, middle + wobble)

    return results


def attacks_of_next(claim, results, plan=PLAN):
    """The attacks under which more runs are asked for."""
    more = next_runs(claim, Measurements(results, plan), Measurements(results, PLAN))
    return {run.part("attack").name for run in more if run.attack is not None}


RELATIVELY_WELL = next(claim for claim in CLAIMS if claim.says.startswith("Krum works relatively well"))


def test_seeds_are_spent_where_a_comparison_is_open():
    of = Measurements(wobbling(2, "trimmed_mean_attack"), PLAN)
    more = next_runs(RELATIVELY_WELL, of, of)
    assert {run.attack for run in more} == {"trimmed_mean_attack", None}
    assert {run.seed for run in more} == {0, 1, 2}
    assert attacks_of_next(RELATIVELY_WELL, wobbling(2, None)) == set(), "decided"
    spent = wobbling(PLAN.most_mnist, "trimmed_mean_attack")
    assert attacks_of_next(RELATIVELY_WELL, spent) == set(), "all spent"


def test_what_leans_most_against_a_claim_gets_its_seeds_first():
    results = wobbling(1, None)
    assert attacks_of_next(RELATIVELY_WELL, results) == {"sign_flip", "trimmed_mean_attack", "huber_attack"}
    low = {"sign_flip": 0.7, "huber_attack": 0.75}

    def leaning(run):
        return made(run, low[run.attack]) if run.attack in low and run.seed == 0 else results(run)

    assert attacks_of_next(RELATIVELY_WELL, leaning) == {"sign_flip"}


def test_the_main_reading_tells_what_leans_where_another_has_no_runs():
    low = {"sign_flip": 0.75, "trimmed_mean_attack": 0.7}

    def main_alone(run):
        return made(run, low.get(run.attack, 0.9) + 0.001 * run.seed) if run.rounds == PLAN.mnist_rounds else None

    assert attacks_of_next(RELATIVELY_WELL, main_alone, under("longer")) == {"trimmed_mean_attack"}


@pytest.mark.parametrize("plan", [PLAN, under("longer")], ids=["main", "longer"])
def test_nothing_is_undecided_when_no_more_runs_are_asked_for(plan):
    claims = [claim for claim in CLAIMS if claim.says.startswith("Krum")]
    there = {}
    while more := [run for run in go_on(claims, there.get, plan) if run not in there]:
        there |= {run: wobbling(99, "trimmed_mean_attack")(run) for run in more}
    assert {outcome(claim.test(Measurements(there.get, plan))) for claim in claims} == {"fails"}
    assert {run.seed for run in there} == {0, 1, 2, 3}, "the one that wobbles is hopeless then"


def test_the_tables_have_a_row_for_every_claim():
    def results(run):
        return made(run, 0.5 + 0.001 * run.seed) if run.seed < 3 else None

    one = CLAIMS[:2]
    words = by_words(one, results, PLAN)
    assert [row[0] for row in words.rows] == [claim.says for claim in one]
    assert words.rows[1][words.header.index("failed 0.75")] == "holds", "progress of 0.5 is below 0.75"
    assert len(words.header) == 2 + 2 * len(WORDS), "every word, moved to two other values"
    table = by_reading([judged(claim, results, PLAN, READINGS.values()) for claim in one])
    assert table.header == ("claim", "together", "main", *READINGS)
    assert len(table.rows) == 2
    assert [row[0] for row in readings_table().rows] == [choice.name for choice in CHOICES]


def test_the_page_has_the_table_that_the_code_has():
    page = (Path(__file__).parents[2] / "docs" / "reproduce.md").read_text(encoding="utf-8")
    for row in readings_table().rows:
        assert "| " + " | ".join(row) + " |" in page, "make it anew: python benchmarks/reproduce_page.py RUNS"
    assert all(f"| {claim.says} |" in page for claim in CLAIMS)


def test_quick_has_no_readings(tmp_path):
    with pytest.raises(ValueError, match="Leave out --quick or --readings"):
        reproduce(["fig1"], quick=True, readings=True, out=tmp_path)
