"""That an arena can go on from kept ends of runs, and that docs/choose.md says what those in docs/arena.json say."""

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fedhold.lab import Arena, Setting, Standings, Store, run_arena

ROOT = Path(__file__).parents[2]
SMALL = Arena(
    settings=(Setting("synthesized(d=4, samples=200)", "balanced", 10, 0.2),),
    rules=("mean", "huber", "bulyan(f={f})"),
    attacks=("sign_flip",),
    epsilons=(0.2, 0.4),
    seeds=(0,),
    m=7,
)


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("arena_grid", ROOT / "benchmarks" / "arena_grid.py")
    module = sys.modules["arena_grid"] = importlib.util.module_from_spec(spec)  # where its dataclass looks for names
    spec.loader.exec_module(module)
    return module


def test_what_is_kept_can_be_put_back(script, tmp_path):
    store, again, path = Store(tmp_path / "runs"), Store(tmp_path / "again"), tmp_path / "arena.json"
    assert run_arena(SMALL, store, jobs=1, progress=False) == {}
    script.keep(SMALL, store, path)
    script.restore(SMALL, again, path)
    before, after = Standings(SMALL, store), Standings(SMALL, again)
    np.testing.assert_array_equal(after.kept, before.kept)
    assert after.refused.any()  # the bound of bulyan, for 2 of 7 clients
    np.testing.assert_array_equal(after.refused, before.refused)
    assert run_arena(SMALL, again, jobs=1, seconds=0, progress=False) == {}  # nothing is missing


def test_columns_that_some_rule_has_not_run_are_not_kept(script, tmp_path):
    store, path = Store(tmp_path / "runs"), tmp_path / "arena.json"
    assert run_arena(SMALL, store, jobs=1, progress=False) == {}
    store.path(SMALL.experiment(SMALL.settings[0], "huber", "sign_flip", 0.2, 0)).unlink()
    script.keep(SMALL, store, path)
    kept = script.kept(SMALL, path)
    assert {run.epsilon for run in kept} == {0.0, 0.4}
    assert sum(run.epsilon == 0.4 for run in kept) == 3


class Kept:
    """A store of what docs/arena.json keeps."""

    def __init__(self, runs):
        self.find = runs.get


def test_the_page_says_what_the_runs_kept_beside_it_say(script):
    whole = Arena.registered()
    usual = replace(whole, settings=tuple(setting for setting in whole.settings if not setting.skewed))
    runs = script.kept(usual)
    ran = {(run.data, run.partition) for run in runs}
    seeds = tuple(sorted({run.seed for run in runs}))
    there = tuple(setting for setting in usual.settings if (setting.data, setting.partition) in ran)
    table = Standings(replace(usual, settings=there, seeds=seeds), Kept(runs)).table(skewed=False)
    page = (ROOT / "docs" / "choose.md").read_text(encoding="utf-8").replace("\\|", "|").replace("**", "")
    remedy = "make it anew: arena_grid.py WHOLE --keep, choose.py"
    for row in table.rows:
        assert f"| `{row[0]}` | " + " | ".join(map(str, row[1:])) in page, remedy
