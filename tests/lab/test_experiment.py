"""Experiments: keys, options, the store, and that neither a kill nor the number of processes changes a bit."""

import base64
import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
import zlib
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

from fedhold.lab import (
    DATA,
    Experiment,
    MissingResult,
    Result,
    Store,
    federate,
    liars,
    prepare,
    run,
    run_all,
)
from fedhold.lab.results import _checksum
from fedhold.report import ProgressLines

SMALL = Experiment("synthesized(d=5, samples=200)", "huber", "sign_flip", 0.2, 0, m=20, rounds=6, step=0.05)


def same(a: Result, b: Result):
    """All but the time it took, and where."""
    assert a.experiment == b.experiment
    assert json.dumps(a.series) == json.dumps(b.series)
    assert a.byzantine == b.byzantine
    assert (a.weights is None) == (b.weights is None)
    if a.weights is not None:
        assert a.weights.tobytes() == b.weights.tobytes()


# What an experiment is


def test_the_key_is_the_same_on_every_machine():
    """Should this fail because the key has changed on purpose, raise FORMAT: old results must not be taken for new ones."""
    assert Experiment("mnist", "krum(f=100)", "krum_attack", 0.2, 3).key() == "c4a08daa2df852e86436"


def test_equal_experiments_have_equal_keys():
    again = replace(SMALL, epsilon=np.float64(0.2), data="synthesized(samples=200.0, d=5)", options=())
    assert again == SMALL
    assert again.key() == SMALL.key()


@pytest.mark.parametrize(
    "change",
    [
        *({"data": "heterogeneous"}, {"rule": "mean"}, {"attack": "ipm"}, {"epsilon": 0.25}, {"seed": 1}, {"m": 21}),
        *(
            {"partition": "random_cuts"},
            {"rounds": 7},
            {"step": 0.06},
            {"options": (("batch", 3),)},
            {"data": "synthesized"},
        ),
    ],
)
def test_every_field_is_in_the_key(change):
    other = replace(SMALL, **change)
    assert other.key() != SMALL.key()
    assert other != SMALL


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "mnits"}, "unknown data 'mnits'. Did you mean 'mnist'?"),
        ({"rule": "hubr"}, "unknown rule 'hubr'. Did you mean 'huber'?"),
        ({"rule": "krum"}, "krum needs f"),
        ({"rule": "rsa"}, "rsa needs penalty"),
        ({"attack": "sign_flop"}, "unknown attack 'sign_flop'. Did you mean 'sign_flip'?"),
        ({"partition": "balance"}, "unknown partition 'balance'. Did you mean 'balanced'?"),
        ({"options": (("momentm", 0.9),)}, "unknown option 'momentm'. Did you mean 'momentum'?"),
        ({"options": (("batch", 1), ("batch", 2))}, "each name once; met twice = batch"),
        ({"options": (("samples", 3),)}, "go behind their names"),
        ({"data": "synthesized(variance=0.1)"}, "synthesized: unknown parameter 'variance'"),
        ({"attack": "sign_flip(threshold=1)"}, "sign_flip: unknown parameter 'threshold'"),
        (
            {"attack": "huber_attack(threshold=by_sample(0, 2))"},
            "cannot read 'by_sample(0, 2)'",
        ),
        ({"rule": "rsa(penalty=1)", "options": (("momentum", 0.9),)}, "unknown option 'momentum'"),
        ({"attack": None}, "no attack needs epsilon = 0; met epsilon = 0.2"),
        ({"epsilon": 1.0}, "epsilon < 1"),
        ({"rounds": 0}, "rounds must be at least 1"),
    ],
)
def test_what_nobody_knows_is_refused_at_once(change, message):
    with pytest.raises((ValueError, TypeError)) as caught:
        replace(SMALL, **change)
    assert message in str(caught.value)


def test_the_number_of_liars_is_the_floor_and_no_victim_of_rounding():
    assert [liars(epsilon, 100) for epsilon in (0.29, 0.2, 0.205, 0.0)] == [29, 20, 20, 0]
    assert all(liars(q / 500, 500) == q for q in range(500))


# What a run does


def test_a_run_is_federate_on_the_scenario_it_names():
    experiment = replace(SMALL, options=(("momentum", 0.5), ("batch", 3), ("keep_weights", 1)))
    result = run(experiment)
    scenario = prepare(experiment.data, "balanced", 20, 0)
    mask = np.isin(np.arange(20), result.byzantine)
    learnt = federate(
        scenario.task,
        scenario.shards,
        **{"rule": "huber", "attack": "sign_flip", "byzantine": mask, "rounds": 6, "step": 0.05},
        **{"momentum": 0.5, "batch": 3, "seed": 0},
    )
    assert result.series["rmse"] == [row.metrics["rmse"] for row in learnt.history]
    assert result.series["error"] == [row.error for row in learnt.history]
    assert result.weights.dtype == np.float16
    np.testing.assert_array_equal(result.weights, learnt.weights.astype(np.float16))
    assert len(result.byzantine) == 4
    assert {"python", "numpy", "fedhold", "platform", "blas_threads"} <= set(result.environment)


def test_rules_and_attacks_of_one_seed_meet_the_same_data_and_liars():
    first, second = (
        run(replace(SMALL, rule=rule, attack=attack)) for rule, attack in (("mean", "ipm"), ("median", "alie"))
    )
    assert first.byzantine == second.byzantine
    assert run(replace(SMALL, seed=1)).byzantine != first.byzantine


def test_series_say_none_where_there_is_nothing():
    result = run(replace(SMALL, rule="median", options=(("evaluate_every", 2),)))
    assert [value is None for value in result.series["rmse"]] == [True, False] * 3
    assert result.series["liar_weight"] == result.series["radius"] == [None] * 6
    assert result.weights is None


@pytest.mark.parametrize(
    "change",
    [
        {"data": "heterogeneous(d=5, samples=200, variance=0.5)"},
        {"partition": "random_cuts", "rule": "huber(threshold=by_samples(0, 2))", "attack": "huber_attack"},
        {
            "rule": "krum(f=4)",
            "attack": "huber_attack(threshold=by_samples(0, 2))",
        },
        {"rule": "rsa(penalty=0.01)", "options": (("batch", 5),)},
        {"rule": "geometric_median", "options": (("local_steps", 2), ("participation", 0.5))},
        {"attack": "ipm(scale=2)", "options": (("certify", 4),)},
        {"attack": None, "epsilon": 0},
    ],
)
def test_the_grid_is_wide(change):
    result = run(replace(SMALL, **change))
    assert set(result.series) == {"rmse", "loss", "error", "clipped", "rejected", "liar_weight", "radius"}
    assert all(len(values) == 6 for values in result.series.values())
    assert result.series["rmse"][-1] < result.series["rmse"][0]


def test_images_in_every_partition(monkeypatch):
    from fedhold.lab import Images, Samples, scenarios

    rng = np.random.default_rng(0)
    digits = Samples(rng.random((80, 9)).astype(np.float32), rng.integers(0, 10, 80))
    scenarios._images.cache_clear()
    monkeypatch.setattr(scenarios, "_images", lambda _: Images("mnist", digits, digits))
    for partition in ("balanced", "random_cuts", "dirichlet(alpha=0.1)", "by_class(shards=1)"):
        scenarios._prepare.cache_clear()
        result = run(
            Experiment(
                "mnist(hidden=4, samples=60)",
                "median",
                "sign_flip",
                0.2,
                0,
                10,
                partition,
                3,
                0.1,
            )
        )
        assert set(result.series) >= {"accuracy", "loss"}
        assert result.constant == np.bincount(digits.targets).max() / 80
    scenarios._prepare.cache_clear()


def test_every_data_has_a_line():
    assert all(make.__doc__ for make in DATA.values())


# The store


def test_what_is_stored_comes_back(tmp_path):
    store = Store(tmp_path / "deep" / "down")
    result = run(replace(SMALL, options=(("keep_weights", 1),)))
    assert not store.has(result.experiment)
    store.put(result)
    assert store.has(result.experiment)
    back = store.get(result.experiment)
    same(back, result)
    assert back.constant is None, "a regression has no classes"
    store.put(replace(result, constant=0.25))
    assert store.get(result.experiment).constant == 0.25
    store.put(result)
    assert (back.seconds, back.environment) == (result.seconds, result.environment)
    assert [path.name for path in store.root.iterdir()] == [f"{result.experiment.key()}.json"]


def test_a_missing_result_names_the_experiment_and_the_command(tmp_path):
    with pytest.raises(MissingResult) as caught:
        Store(tmp_path).get(SMALL)
    assert str(SMALL) in str(caught.value)
    assert f"fedhold reproduce all --out {tmp_path}" in str(caught.value)
    with pytest.raises(KeyError, match=r"fedhold run grid\.toml"):
        Store(tmp_path, "fedhold run grid.toml").get(SMALL)


def test_a_file_that_is_not_whole_never_counts(tmp_path):
    store = Store(tmp_path)
    store.put(run(SMALL))
    path = store.path(SMALL)
    whole = path.read_bytes()
    for length in (0, 1, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert not store.has(SMALL)
        with pytest.raises(MissingResult, match="damaged"):
            store.get(SMALL)
    path.write_bytes(bytes(len(whole)))  # what a power failure may leave
    assert not store.has(SMALL)
    path.write_bytes(whole)
    assert store.has(SMALL)


def test_no_changed_number_goes_unnoticed(tmp_path):
    """The file has a checksum: every digit counts, wherever it stands."""
    store = Store(tmp_path)
    store.put(run(SMALL))
    path = store.path(SMALL)
    whole = path.read_text()
    digits = [at for at, letter in enumerate(whole) if letter.isdigit()]
    for at in random.Random(0).sample(digits, 200):
        changed = f"{whole[:at]}{(int(whole[at]) + 1) % 10}{whole[at + 1 :]}"
        path.write_text(changed)
        same_number = json.loads(changed) == json.loads(whole)  # The 17th digit of a float may not count.
        assert store.has(SMALL) == same_number, whole[at - 20 : at + 20]
    path.write_text(whole)
    assert store.has(SMALL)


def test_weights_are_kept_with_the_samples_they_are_judged_by(tmp_path):
    store = Store(tmp_path)
    watched = replace(SMALL, partition="random_cuts", options=(("keep_weights", 1),))
    store.put(run(watched))
    found = store.get(watched)
    assert sum(found.samples) == 200
    assert len(set(found.samples)) > 1
    assert run(SMALL).samples is None


def test_a_result_without_a_checksum_does_not_count(tmp_path):
    store = Store(tmp_path)
    store.put(run(SMALL))
    record = json.loads(store.path(SMALL).read_text())
    del record["sha256"]
    store.path(SMALL).write_text(json.dumps(record))
    assert not store.has(SMALL)
    assert store.all() == []


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"series": []},
            {"series": {"rmse": "012345"}},
            {"series": {"rmse": ["1"] * 6}},
            {"series": {"rmse": [[]] * 6}},
        ),
        *({"constant": "x"}, {"constant": -1.0}, {"constant": [0.5]}),
        *({"weights": 3}, {"weights": "x"}, {"experiment": []}, {"experiment": {"rule": 3}}, {"format": []}),
        {"weights": base64.b64encode(zlib.compress(bytes(10**8))).decode()},
    ],
)
def test_a_result_with_a_true_checksum_and_anything_in_it(tmp_path, change):
    store = Store(tmp_path)
    store.put(run(SMALL))
    record = {**json.loads(store.path(SMALL).read_text()), **change}
    del record["sha256"]
    for text in (json.dumps(record), json.dumps({**record, "sha256": _checksum(record)})):
        store.path(SMALL).write_text(text)
        assert store.all() == []
        assert not store.has(SMALL)
    for text in ("[" * 10_000, "3", "[]", "null", '{"experiment": {"data": 3, "options": [[1, 2, 3]]}}'):
        store.path(SMALL).write_text(text)
        assert store.all() == []
    store.path(SMALL).unlink()
    store.path(SMALL).mkdir()
    assert store.all() == []
    assert not store.has(SMALL)


def test_a_result_of_another_experiment_does_not_count(tmp_path):
    store, other = Store(tmp_path), replace(SMALL, seed=1)
    store.put(run(SMALL))
    store.path(SMALL).rename(store.path(other))
    assert not store.has(other)


# Many runs


def test_the_number_of_processes_changes_no_bit(tmp_path):
    experiments = [replace(SMALL, rule=rule, seed=seed) for rule in ("huber", "krum(f=4)") for seed in (0, 1)]
    before = dict(os.environ)
    one = run_all(experiments, Store(tmp_path / "one"), jobs=1, progress=False)
    two = run_all(experiments, Store(tmp_path / "two"), jobs=2, progress=False)
    assert dict(os.environ) == before
    for a, b, experiment in zip(one, two, experiments, strict=True):
        assert a.experiment == experiment
        same(a, b)
        assert a.environment["blas_threads"] == "1"
    assert not list(tmp_path.glob("*/*.ckpt"))


def test_what_is_stored_is_not_run_again(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.put(run(SMALL))
    monkeypatch.setattr("fedhold.lab.runner.run_tasks", lambda _, tasks, **__: (one for one in tasks))
    assert [result.experiment for result in run_all([SMALL, SMALL], store, progress=False)] == [SMALL, SMALL]


def test_a_failure_loses_nobody_elses_work_and_progress_is_told(tmp_path, capsys, monkeypatch):
    """Where nobody looks at a terminal, as here, by lines on standard error."""
    monkeypatch.setattr("fedhold.lab.runner.ProgressLines", lambda: ProgressLines(every=0))
    store, bad = Store(tmp_path), replace(SMALL, rule="statistics:fmean")  # a function, but no rule
    with pytest.raises(RuntimeError, match=r"1 of 2 experiments failed\. The first, statistics:fmean"):
        run_all([bad, SMALL], store, jobs=1)
    assert store.has(SMALL)
    told = capsys.readouterr()
    assert re.search(r"^[01] of 2 runs, \d+%; about \d+ min left$", told.err, re.MULTILINE)
    assert told.out == ""


def test_the_cost_of_a_run_is_that_of_its_rounds_on_its_data():
    plain = Experiment("synthesized", "mean", None, 0.0, 0, rounds=100)
    assert plain.cost == 100
    assert replace(plain, data="heterogeneous").cost == 100
    assert replace(plain, data="mnist").cost == replace(plain, data="fashion_mnist").cost == 1500
    assert replace(plain, options=(("local_steps", 3), ("participation", 0.5))).cost == 150


def test_the_cost_of_a_run_knows_what_its_attack_tries_and_its_model():
    searched = Experiment("synthesized", "mean", "worst_case(evaluations=100)", 0.2, 0, rounds=100)
    assert searched.cost == 100 * (1 + 50)
    assert replace(searched, attack="optimal_ipm").cost == 100 * (1 + 10)
    assert replace(searched, attack="ipm").cost == 100
    large = Experiment("mnist", "mean", None, 0.0, 0, rounds=100, model="cnn")
    assert large.cost > 100 * replace(large, model="mlp").cost


# Kills

LONG = [replace(SMALL, rounds=600, rule=rule, options=(("keep_weights", 1),)) for rule in ("huber", "median")]
SCRIPT = """
import json, sys
from pathlib import Path
from fedhold.lab import Experiment, Store, run_all

if __name__ == "__main__":
    root, jobs, *experiments = json.loads(sys.argv[1])
    made = [Experiment(**{**e, "options": tuple(map(tuple, e["options"]))}) for e in experiments]
    run_all(made, Store(Path(root)), jobs=jobs, progress=False)
"""


def start(folder: Path, jobs: int, experiments):
    script = folder.parent / "script.py"
    script.write_text(SCRIPT)
    told = json.dumps([str(folder), jobs, *map(asdict, experiments)])
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    return subprocess.Popen([sys.executable, str(script), told], start_new_session=True, **quiet)


def state(folder: Path):
    return sorted((path.name, path.stat().st_mtime_ns) for path in folder.glob("*.ckpt"))


def wait_for_change(folder: Path, process, before):
    deadline = time.monotonic() + 60
    while process.poll() is None and state(folder) == before:
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_kills_at_any_moment_change_no_bit(tmp_path):
    folder, chance = tmp_path / "killed", random.Random(0)
    folder.mkdir()
    kills = 0
    for sent in (signal.SIGKILL, signal.SIGKILL, signal.SIGINT, signal.SIGKILL, signal.SIGTERM):
        process = start(folder, 2, LONG)
        wait_for_change(folder, process, state(folder))
        time.sleep(chance.uniform(0, 0.1))
        with contextlib.suppress(ProcessLookupError):  # it may have ended by itself
            os.killpg(process.pid, sent)
            kills += 1
        process.wait(timeout=30)
    assert kills >= 3
    finished = start(folder, 2, LONG)
    assert finished.wait(timeout=120) == 0
    for experiment in LONG:
        same(Store(folder).get(experiment), run_all([experiment], Store(tmp_path / "whole"), jobs=1, progress=False)[0])
    assert not list(folder.glob("*.ckpt"))


def test_workers_end_with_the_process_that_started_them(tmp_path):
    folder = tmp_path / "orphans"
    folder.mkdir()
    endless = replace(SMALL, rounds=1_000_000, rule="mean")
    process = start(folder, 1, [endless])
    wait_for_change(folder, process, [])
    process.kill()
    process.wait(timeout=30)
    before, deadline = None, time.monotonic() + 30
    while (now := state(folder)) != before:
        assert time.monotonic() < deadline
        before = now
        time.sleep(0.5)
