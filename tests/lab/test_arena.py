"""The arena: its cells, its standings, and that neither kill -9 nor a cluster changes a number."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from distributed import LocalCluster

from fedhold.lab import ATTACKS, Arena, Experiment, Setting, Standings, Store, run_arena, write_arena
from fedhold.lab.arena import known_to
from fedhold.lab.leaderboard import Interval
from fedhold.lab.outcomes import without_f
from fedhold.lab.results import Result
from fedhold.spec import RULES

EASY = Setting("synthesized(d=4, samples=200)", "balanced", 10, 0.2)
SKEWED = Setting("synthesized(d=4, samples=200)", "random_cuts", 10, 0.2, skewed=True)
SMALL = Arena(
    settings=(EASY, SKEWED),
    rules=("mean", "huber", "trimmed_mean(f={f})", "bulyan(f={f})"),
    attacks=("sign_flip", "ipm(scale=5)"),
    epsilons=(0.1, 0.3),
    seeds=(0, 1),
    m=11,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = Store(tmp_path_factory.mktemp("arena"))
    assert run_arena(SMALL, made, jobs=2, progress=False) == {}
    return made


# The grid


@pytest.mark.parametrize("quick", [True, False])
def test_every_registered_rule_and_attack_takes_part(quick):
    arena = Arena.registered(quick=quick)
    names = {rule.partition("(")[0] for rule in arena.rules} | {name for name, _ in arena.left_out}
    assert set(RULES) <= names
    assert {attack.partition("(")[0] for attack in arena.attacks} <= set(ATTACKS)
    assert {attack.partition("(")[0] for attack in arena.attacks} >= {"sign_flip", "alie", "worst_case"}
    assert any(setting.skewed for setting in arena.settings)


def test_a_rule_that_is_registered_later_takes_part(monkeypatch):
    def needs_more(geometry, *, oracle, f): ...

    def new_rule(geometry, *, f): ...

    monkeypatch.setitem(RULES, "new_rule", new_rule)
    monkeypatch.setitem(RULES, "needs_more", needs_more)
    arena = Arena.registered(quick=True)
    assert "new_rule(f={f})" in arena.rules
    assert ("needs_more", "needs oracle") in arena.left_out


def test_the_full_grid_is_the_one_that_was_asked_for():
    arena = Arena.registered()
    assert {setting.data.partition("(")[0] for setting in arena.settings} == {
        *("synthesized", "heterogeneous", "mnist", "fashion_mnist", "heart_disease"),
    }
    partitions = {"balanced", "random_cuts", "dirichlet(alpha=0.1)", "dirichlet(alpha=1)"}
    assert partitions <= {setting.partition for setting in arena.settings if setting.data.startswith("mnist")}
    assert arena.epsilons == (0.1, 0.2, 0.3, 0.4)
    assert {setting.partition for setting in arena.settings if setting.skewed} == {
        *("dirichlet(alpha=0.1)", "dirichlet(alpha=1)", "by_class(shards=2)"),
    }


def test_rules_that_need_f_are_told_the_truth():
    runs = SMALL.experiments()
    assert len(runs) == len(set(runs)) == 2 * 2 * (1 + 4 + 2 * 2 * 4)
    assert {run.rule for run in runs if run.epsilon == 0.3} == {"mean", "huber", "trimmed_mean(f=3)", "bulyan(f=3)"}
    assert {run.rule for run in runs if run.epsilon == 0} == {"mean", "huber", "trimmed_mean(f=0)", "bulyan(f=0)"}
    assert [known_to(rule) for rule in SMALL.rules] == ["", "", "told f", "told f"]
    assert without_f("nearest_neighbour_mixing(f={f}) | krum(f={f})") == "nearest_neighbour_mixing | krum"


def test_only_what_is_named():
    few = SMALL.narrowed(["huber", "ipm"])
    assert (few.rules, few.attacks, few.settings) == (("huber",), ("ipm(scale=5)",), SMALL.settings)
    with pytest.raises(ValueError, match="nothing in the arena has 'hubber' in its name"):
        SMALL.narrowed(["hubber"])
    with pytest.raises(ValueError, match=r"unknown key 'rules'. Did you mean 'rule'"):
        SMALL.joined({"rules": "mean"})


# Standings


def test_standings_by_hand(tmp_path):
    """Two rules, one attack: kept = (end - before) / (best - before), the worst over cells, ranks in each cell."""
    arena = replace(SMALL, rules=("mean", "median"), attacks=("ipm",), epsilons=(0.1, 0.3), settings=(EASY,))
    store = Store(tmp_path)
    ends = {("mean", 0.0): 2.0, ("median", 0.0): 3.0, ("mean", 0.1): 6.0, ("median", 0.1): 4.0}
    ends |= {("mean", 0.3): None, ("median", 0.3): 4.0}
    for seed in arena.seeds:
        store.put(_result(arena.still(EASY, seed), 10.0))
        for (rule, epsilon), end in ends.items():
            store.put(_result(arena.experiment(EASY, rule, "ipm" if epsilon else None, epsilon, seed), end))
    first, second = Standings(arena, store).places(skewed=False)
    assert (first.rule, first.worst, first.rank) == ("median", Interval(0.75, 0.75, 0.75), Interval(1.0, 1.0, 1.0))
    assert first.unharmed.mean == pytest.approx(7 / 8)
    assert (second.rule, second.worst.mean, second.rank.mean) == ("mean", 0.0, 2.0)
    assert second.by_liars == (0.5, 0.0)
    assert (first.attacked.mean, second.attacked.mean) == (0.75, 0.25)
    assert second.mean.mean == 0.25
    assert Standings(arena, store).places(skewed=True) == []


def test_one_answer_for_everything_keeps_nothing(tmp_path):
    """The first model is right in 0.4 of the cases, and the most frequent class in 0.6: only what is beyond that counts."""
    arena = replace(SMALL, rules=("mean", "median"), attacks=("ipm",), epsilons=(0.3,), settings=(EASY,), seeds=(0,))
    store = Store(tmp_path)

    def put(run, accuracy):
        series = {"accuracy": [None] * (run.rounds - 1) + [accuracy]}
        store.put(Result(run, series, [], None, 0.0, {}, constant=0.6))

    put(arena.still(EASY, 0), 0.4)
    for rule, attacked in (("mean", 0.6), ("median", 0.7)):
        put(arena.experiment(EASY, rule, None, 0.0, 0), 0.8)
        put(arena.experiment(EASY, rule, "ipm", 0.3, 0), attacked)
    first, second = Standings(arena, store).places(skewed=False)
    assert (first.rule, second.rule) == ("median", "mean")
    assert (first.worst.mean, second.worst.mean) == (pytest.approx(0.5), 0.0)


def _result(run, end, **more):
    series = {"rmse": [None] * (run.rounds - 1) + [end], "loss": [1.0] * run.rounds}
    series |= {name: [None] * (run.rounds - 1) + [value] for name, value in more.items()}
    return Result(run, series, [], None, 0.0, {})


def _standings(folder, arena, ends, **more):
    """Standings in which rules keep these shares of 10 under ipm; ends is rule -> one number per seed."""
    store = Store(folder)
    for k, seed in enumerate(arena.seeds):
        store.put(_result(arena.still(EASY, seed), 10.0))
        for rule in arena.rules:
            store.put(_result(arena.experiment(EASY, rule, None, 0.0, seed), 0.0))
            attacked = arena.experiment(EASY, rule, "ipm", 0.3, seed)
            store.put(_result(attacked, 10 - 10 * ends[rule][k], **{name: v[rule] for name, v in more.items()}))
    return Standings(arena, store)


RANKED = replace(
    SMALL, rules=("mean", "huber", "median", "geometric_median"), attacks=("ipm",), epsilons=(0.3,), settings=(EASY,)
)


def test_rules_that_differ_by_less_than_a_hundredth_share_a_rank(tmp_path):
    """Pair by pair: 0.895 is as good as 0.9 and as 0.888, which differ."""
    ends = {"mean": [0.9], "huber": [0.895], "median": [0.888], "geometric_median": [0.5]}
    ranks = _standings(tmp_path, replace(RANKED, seeds=(0,)), ends).ranks[:, 0, 1, 0, 0]
    assert ranks.tolist() == [1.5, 2.0, 2.5, 4.0]


def test_rules_that_seeds_turn_around_share_a_rank(tmp_path):
    """What all rules gain with a seed is no noise; one rule that breaks with a seed is none, either."""
    two = replace(RANKED, seeds=(0, 1))
    ends = {"mean": [0.90, 0.80], "huber": [0.85, 0.85], "median": [0.86, 0.84], "geometric_median": [0.3, 0.3]}
    noisy = _standings(tmp_path / "noisy", two, ends)
    assert noisy.noise[0, 1, 0, 0] > 0.02
    assert noisy.ranks[:3, 0, 1, 0].mean(axis=-1) == pytest.approx([2.0, 2.0, 2.0], abs=0.5)
    ends = {"mean": [0.90, 0.80], "huber": [0.85, 0.75], "median": [0.80, 0.70], "geometric_median": [0.3, 0.2]}
    alike = _standings(tmp_path / "alike", two, ends)
    assert alike.noise[0, 1, 0, 0] == 0.01
    assert alike.ranks[:, 0, 1, 0].tolist() == [[1, 1], [2, 2], [3, 3], [4, 4]]


def test_one_seed_alone_says_nothing_of_chance(tmp_path):
    """A cell that only one of two seeds has is judged as if there were no other."""
    two = replace(RANKED, seeds=(0, 1))
    ends = {"mean": [0.9, 0.1], "huber": [0.8, 0.2], "median": [0.6, 0.3], "geometric_median": [0.3, 0.4]}
    assert _standings(tmp_path, two, ends).noise[0, 1, 0, 0] > 0.4
    store = Store(tmp_path)
    store.path(two.experiment(EASY, "huber", "ipm", 0.3, 1)).unlink()
    alone = Standings(two, store)
    assert alone.noise[0, 1, 0, 0] == 0.01
    assert alone.ranks[:, 0, 1, 0, 0].tolist() == [1, 2, 3, 4]


def test_backdoors_are_beside_the_accuracy(tmp_path):
    ends = {rule: [0.9, 0.9] for rule in RANKED.rules}
    success = {"mean": 0.8, "huber": 0.1, "median": None, "geometric_median": 0.0}
    standings = _standings(tmp_path, RANKED, ends, backdoor=success)
    places = {place.rule: place.backdoor.mean for place in standings.places(skewed=False)}
    assert (places["mean"], places["huber"], places["geometric_median"]) == (0.8, 0.1, 0.0)
    assert np.isnan(places["median"])  # It diverged.
    page = write_arena(tmp_path, standings).read_text()
    assert "Backdoors" in page
    assert 'mean,,"synthesized, balanced",30%,1,0.8' in (tmp_path / "numbers" / "backdoors.csv").read_text()
    board = (tmp_path / "numbers" / "leaderboard-without-label-skew.csv").read_text().splitlines()
    assert dict(zip(board[0].split(","), board[-1].split(","), strict=True))["backdoor"] in ("0.80", "0.10", "0.00", "")


def test_attacks_that_search_are_run_where_the_setting_says(tmp_path):
    arena = replace(RANKED, settings=(EASY, replace(SKEWED, searched=False)), attacks=("ipm", "worst_case"), seeds=(0,))
    runs = [(run.partition, run.attack) for run in arena.experiments() if run.attack and run.rule == "mean"]
    assert runs == [("balanced", "ipm"), ("random_cuts", "ipm"), ("balanced", "worst_case")]
    assert Standings(arena, Store(tmp_path)).columns == 2 + 3


def test_the_quick_arena_has_short_searches_on_some_settings():
    quick = Arena.registered(quick=True)
    searches = [
        attack for attack in quick.attacks if attack.partition("(")[0] in ("optimal_alie", "optimal_ipm", "worst_case")
    ]
    assert len(searches) == 3
    assert all("evaluations=" in attack for attack in searches)
    assert {setting.searched for setting in quick.settings} == {True, False}

    def rounds(arena):
        """Of one rule under one attack, on everything."""
        return sum(setting.rounds for setting in arena.settings) * len(arena.epsilons) * len(arena.seeds)

    assert rounds(quick) < rounds(Arena.registered()) / 20


def test_refused_cells_keep_nothing_and_are_counted(store):
    standings = Standings(SMALL, store)
    places = {place.rule: place for place in standings.places(skewed=False)}
    assert places["bulyan"].refused == (4, 8)  # m = 11 < 4f + 3 at 30 %, for two attacks and two seeds
    assert places["bulyan"].worst.mean == 0
    assert places["bulyan"].by_liars[0] > 0.5
    assert places["huber"].worst.mean > places["mean"].worst.mean
    assert places["mean"].unharmed == Interval(1.0, 1.0, 1.0)
    assert {rule: place.knows for rule, place in places.items()} == {
        **{"mean": "", "huber": "", "trimmed_mean": "told f", "bulyan": "told f"},
    }
    reasons = standings.reasons().rows
    assert [(row[0], row[1]) for row in reasons] == [("bulyan", "refused")]
    assert "m >= 4f + 3" in reasons[0][2]


def test_rules_are_compared_only_where_all_were_run(store, tmp_path):
    some = Store(tmp_path)
    for result in store.all():
        if (result.experiment.rule, result.experiment.attack, result.experiment.seed) != ("huber", "ipm(scale=5)", 1):
            some.put(result)
    standings = Standings(SMALL, some)
    assert standings.complete.sum() == Standings(SMALL, store).complete.sum() - 2 * 2
    assert len(standings.places(skewed=False)) == 4


def test_a_failed_run_keeps_nothing(store, tmp_path):
    failing = SMALL.experiment(EASY, "huber", "sign_flip", 0.1, 0)
    some = Store(tmp_path)
    for result in store.all():
        if result.experiment != failing:
            some.put(result)
    standings = Standings(SMALL, some, {failing: "Traceback\nKeyError: 'mine'"})
    assert standings.complete.all()
    assert ("huber", "failed", "KeyError: 'mine'", 1) in standings.reasons().rows
    assert min(place.worst.low for place in standings.places(skewed=False) if place.rule == "huber") == 0


def test_an_attack_that_nothing_can_be_tried_under_is_left_out(store, tmp_path):
    some = Store(tmp_path)
    for result in store.all():
        lost = result.experiment.attack == "ipm(scale=5)"
        some.put(replace(result, series={}, infeasible="ipm needs classes") if lost else result)
    standings = Standings(SMALL, some)
    assert standings.columns == standings.complete.sum() == 2 * 2 * 2 * 2
    without = {place.rule: place.worst for place in standings.places(skewed=False)}
    few = Standings(replace(SMALL, attacks=("sign_flip",)), store)
    assert without == {place.rule: place.worst for place in few.places(skewed=False)}


def test_an_attack_is_finished_on_all_settings_before_the_next_one():
    attacks = [run.attack for run in SMALL.experiments() if run.seed == 0]
    assert attacks == sorted(attacks, key=[None, "sign_flip", "ipm(scale=5)"].index)


def test_the_page_and_its_numbers(store, tmp_path):
    page = write_arena(tmp_path, Standings(SMALL, store)).read_text()
    for word in ("Leaderboard", "label skew", "told f", "refused", "m &gt;= 4f + 3", "ipm(scale=5)"):
        assert word in page
    cells = (tmp_path / "numbers" / "cells.csv").read_text().splitlines()
    assert len(cells) == 1 + 2 * 4 * (1 + 2 * 2)
    assert any(line.endswith("refused") for line in cells)


# Resumed, killed, and on a cluster


KILLED = Arena(
    settings=(Setting("synthesized(d=4, samples=200)", "balanced", 20, 0.2),),
    rules=("mean", "huber"),
    attacks=("ipm",),
    epsilons=(0.2,),
    seeds=tuple(range(8)),
    m=10,
)
SCRIPT = f"""
import sys
from pathlib import Path
from fedhold.lab import Arena, Setting, Store, run_arena
if __name__ == "__main__":
    run_arena({KILLED!r}, Store(Path(sys.argv[1])), jobs=2)
"""


def test_kill_9_loses_nothing_that_was_stored(tmp_path):
    script, folder = tmp_path / "script.py", tmp_path / "results"
    script.write_text(SCRIPT)
    process = subprocess.Popen(
        [sys.executable, str(script), str(folder)], stderr=subprocess.PIPE, start_new_session=True
    )
    deadline = time.monotonic() + 300
    while len(list(folder.glob("*.json"))) < 5:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    process.stderr.close()
    store = Store(folder)
    runs = KILLED.experiments()
    there = [run for run in runs if store.has(run)]
    assert 5 <= len(there) < len(runs)
    assert len(there) == len(list(folder.glob("*.json")))  # every file is whole
    kept = {run: store.path(run).stat().st_mtime_ns for run in there}
    time.sleep(1.0)  # the workers notice that they are alone, and end
    assert run_arena(KILLED, store, jobs=1, progress=False) == {}
    assert all(store.has(run) for run in runs)
    assert all(store.path(run).stat().st_mtime_ns == when for run, when in kept.items())
    assert run_arena(KILLED, Store(tmp_path / "again"), jobs=2, progress=False) == {}
    for run in runs:
        assert store.get(run).series == Store(tmp_path / "again").get(run).series


def test_a_deadline_stops_and_the_next_call_goes_on(tmp_path):
    store = Store(tmp_path)
    run_arena(KILLED, store, jobs=1, seconds=1e-9, progress=False)
    done = sum(store.has(run) for run in KILLED.experiments())
    assert 0 < done < len(KILLED.experiments())
    assert run_arena(KILLED, store, seconds=0) == {}
    assert sum(store.has(run) for run in KILLED.experiments()) == done


def test_a_cluster_gives_the_same_results(store, tmp_path):
    few = replace(SMALL, settings=(EASY,), seeds=(0,), epsilons=(0.3,))
    with LocalCluster(n_workers=2, processes=True, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster:
        there = Store(tmp_path)
        assert run_arena(few, there, cluster=cluster.scheduler_address, progress=False) == {}
        for run in few.experiments():
            assert_alike(there.get(run), store.get(run))
            assert there.get(run).infeasible == store.get(run).infeasible
        bad = replace(few, rules=("mean", "statistics:fmean"), attacks=("gaussian",))  # a function, but no rule
        failures = run_arena(bad, there, cluster=cluster.scheduler_address, progress=False)
        assert [one.rule for one in failures] == ["statistics:fmean"] * 2
        assert failures == run_arena(bad, Store(tmp_path / "here"), progress=False)  # as from processes of this machine
        assert there.has(bad.experiment(EASY, "mean", "gaussian", 0.3, 0))


def assert_alike(mine, other):
    """Equal up to the order of additions: the cluster's workers may have other threads."""
    assert mine.series.keys() == other.series.keys()
    for name, values in other.series.items():
        np.testing.assert_allclose(np.array(mine.series[name], float), np.array(values, float), rtol=1e-9, atol=1e-12)


def test_a_cluster_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.setattr("fedhold.lab.runner.CONNECT", 1.0)
    with pytest.raises(RuntimeError, match=r"no Dask scheduler answers at 'tcp://127.0.0.1:9' within 1 s"):
        run_arena(SMALL, Store(tmp_path), cluster="tcp://127.0.0.1:9", progress=False)


def test_the_command(tmp_path):
    command = [sys.executable, "-m", "fedhold", "arena", "--quick", "--jobs", "1", "--out", str(tmp_path)]
    named = ["mean", "ipm", "synthesized"]
    only = [word for name in named for word in ("--only", name)]
    done = subprocess.run([*command, *only, "--minutes", "10"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "Without label skew" in done.stdout
    assert (tmp_path / "arena.html").is_file()
    again = subprocess.run([*command, *only, "--minutes", "0"], capture_output=True, text=True, timeout=600)
    assert again.stdout == done.stdout
    (tmp_path / "mine.py").write_text("def even(geometry):\n    return geometry.samples / geometry.samples.sum()\n")
    own = [*command, *only, "--only", "even", "--rule", "mine:even", "--minutes", "10"]
    joined = subprocess.run(own, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert joined.returncode == 0, joined.stderr
    assert "mine:even" in joined.stdout
    wrong = subprocess.run([*command, "--attack", "imp"], capture_output=True, text=True, timeout=600)
    assert wrong.returncode == 2
    assert "unknown attack 'imp'. Did you mean 'ipm'?" in wrong.stderr


def test_the_experiment_of_a_cell_can_be_written_down():
    run = SMALL.experiment(EASY, "trimmed_mean(f={f})", "ipm(scale=5)", 0.3, 1)
    assert isinstance(run, Experiment)
    assert str(run).startswith(
        "trimmed_mean(f=3) on synthesized(d=4, samples=200), 11 clients, balanced; ipm(scale=5), epsilon 0.3"
    )
