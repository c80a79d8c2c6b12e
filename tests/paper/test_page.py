"""That docs/reproduce.md says what the runs kept beside it say, and that these can be gone on from."""

import importlib.util
from pathlib import Path

import pytest

from fedhold.lab import Store

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("reproduce_page", ROOT / "benchmarks" / "reproduce_page.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_has_the_verdicts_of_the_runs_behind_it(script):
    kept = {run.experiment: run for run in script.kept_runs()}
    page = (ROOT / "docs" / "reproduce.md").read_text(encoding="utf-8")
    for name, made in script.verdicts(kept.get).items():
        assert f"<!-- {name} -->\n\n{made}\n\n<!-- end -->" in page, "make it anew: reproduce_page.py RUNS"


def test_what_is_kept_can_be_put_back(script, tmp_path, monkeypatch):
    runs = script.kept_runs()[:3]
    store = Store(tmp_path / "results")
    store.put(runs[0])
    monkeypatch.setattr(script, "kept_runs", lambda: runs)
    script.restore(store)
    assert {run.experiment for run in store.all()} == {run.experiment for run in runs}
    monkeypatch.setattr(script, "KEPT", tmp_path / "kept.json")
    script.keep(store)
    monkeypatch.undo()
    monkeypatch.setattr(script, "KEPT", tmp_path / "kept.json")
    assert [vars(run) for run in script.kept_runs()] == [vars(run) for run in runs]
