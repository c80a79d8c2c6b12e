"""The sweep of docs/data.md, run, and what a reader sees of it."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from fedhold.cli.app import app
from fedhold.lab import Store, load, run

DOCUMENT = Path(__file__).parents[2] / "docs" / "data.md"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Where the results of the document's sweep are stored."""
    folder = tmp_path_factory.mktemp("sweep")
    (text,) = re.findall(r"^```toml\n(.*?)^```$", DOCUMENT.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    (folder / "sweep.toml").write_text(text)
    experiments, store = load(folder / "sweep.toml"), Store(folder / "results")
    for experiment in experiments:
        store.put(run(experiment))
    return folder, experiments, store


def test_every_combination_is_run_and_differs(sweep):
    _, experiments, store = sweep
    results = store.all()
    assert len(experiments) == len(results) == (1 + 3) * 2 * 2
    assert len({tuple(result.series["rmse"]) for result in results}) == 16
    assert {len(result.byzantine) for result in results} == {4}


def test_tables_and_report_show_what_differs(sweep):
    folder, _, _ = sweep
    done = CliRunner().invoke(app, ["report", str(folder)], catch_exceptions=False)
    assert done.exit_code == 0
    printed = " ".join(done.output.split())
    page = " ".join((folder / "report.html").read_text(encoding="utf-8").split())
    for shown in (printed, page):
        for words in ("step 0.1", "step 0.25", "momentum 0.9", *(f"trimmed_mean(f={f})" for f in (2, 4, 8))):
            assert words in shown, words
