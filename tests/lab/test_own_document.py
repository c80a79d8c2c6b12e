"""docs/own.md and examples/own-parts, done as a newcomer would do them."""

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fedhold.lab import Images, Samples, Store, datasets, load, run

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "own-parts"


def blocks(language):
    text = (ROOT / "docs" / "own.md").read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def test_the_document_does_what_it_says(tmp_path):
    (tmp_path / "mine.py").write_text(blocks("python")[0])
    (tmp_path / "own.toml").write_text(blocks("toml")[0])
    command = [sys.executable, "-m", "fedhold", "run", "own.toml", "--out", "out"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert done.returncode == 0, done.stderr
    for rule in ("huber", "krum(f=3)", "mine:nearest_half", "mine:middle(f=3)", "mine:sign_votes"):
        assert done.stdout.count(rule) == 4, done.stdout  # its worst case, and three attacks
    results = Store(tmp_path / "out" / "results").all()
    assert len(results) == 15
    assert all(result.series["loss"][-1] < result.series["loss"][0] for result in results)


def test_the_code_in_the_document_prints_what_it_shows(capsys):
    namespace = {}
    for body in blocks("python"):
        exec(compile(body, "own.md", "exec"), namespace)
    assert capsys.readouterr().out == blocks("text")[0]


@pytest.fixture
def clothes(monkeypatch):
    """Noise in place of Fashion-MNIST, with the true shapes."""
    rng = np.random.default_rng(0)
    train, test = (Samples(rng.random((n, 784), np.float32), rng.integers(0, 10, n)) for n in (300, 50))
    monkeypatch.setattr(datasets, "fashion_mnist", lambda: Images("fashion-mnist", train, test))
    monkeypatch.setattr("fedhold.lab.fashion_mnist", lambda: Images("fashion-mnist", train, test))
    yield
    sys.modules.pop("clothes", None)
    sys.path[:] = [place for place in sys.path if place != str(EXAMPLE)]


@pytest.mark.usefixtures("clothes")
def test_the_example_runs():
    from dataclasses import replace

    experiments = load(EXAMPLE / "grid.toml")
    assert len(experiments) == 6 * 3
    for experiment in experiments[-6::2]:
        result = run(replace(experiment.given("data", samples=200), rounds=2))
        assert not result.infeasible
        assert np.isfinite(result.series["error"]).all()
    built_in = replace(experiments[0], data="fashion_mnist(samples=200)", rounds=2, options=())
    assert run(built_in).series["loss"][-1] > 0
