"""Our rules beside those of other libraries: the adapters, their environment, the document and its chart."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import fedhold
from bench import OURS, OWN, Contender, best_of, cell
from peers import __main__ as command
from peers import environment
from peers.libraries import LIBRARIES, PACKAGES, PEERS

ROOT = Path(__file__).parents[2]


def compare(*words):
    return CliRunner().invoke(command.app, list(map(str, words)))


def row_of(rows, rule, library):
    (row,) = [row for row in rows if (row["rule"], row["library"]) == (rule, library)]
    return row


@pytest.fixture
def alone(monkeypatch, tmp_path):
    """The environment, as if this process ran in it; and two rules of a library that is always there."""

    def peer(rule, function):
        return Contender(rule, "ByzFL", lambda X, _: lambda: lambda: function(X), lambda *_: 1.0)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(environment, "inside", lambda _: True)
    lazy = peer("geometric_median", lambda X: X.mean(axis=0))
    monkeypatch.setattr(command, "PEERS", (peer("median", lambda X: np.median(X, axis=0)), lazy))


@pytest.mark.usefixtures("alone")
def test_json_chart_and_document_agree(tmp_path):
    out, chart, docs = tmp_path / "all.json", tmp_path / "charts" / "all.png", tmp_path / "docs.md"
    sizes = ["--shape", "23x200", "--shape", "30x300", "--repeat", "2"]
    done = compare(*sizes, "--json", out, "--chart", chart, "--docs", docs)
    assert done.exit_code == 0, done.output
    results, document = json.loads(out.read_text(encoding="utf-8")), docs.read_text(encoding="utf-8")
    assert "numpy" in results["environment"]["versions"]
    for shape in results["shapes"]:
        fastest = best_of(shape, "median")
        cells = [(name, cell(row_of(shape["rows"], "median", name))) for name in (OURS, "ByzFL")]
        bold = [f"**{text}**" if name == fastest else text for name, text in cells]
        assert f"| median | {' | '.join(bold)} |" in document
        assert f"{row_of(shape['rows'], 'geometric_median', 'ByzFL')['off']:.1e}" in document
    assert "](figures/docs.png)" in document
    for path in (chart, tmp_path / "figures" / "docs.png"):
        assert path.read_bytes().startswith(b"\x89PNG")

    again = tmp_path / "again.md"
    done = compare("--from", out, "--docs", again)
    assert done.exit_code == 0, done.output
    assert again.read_text(encoding="utf-8").replace("again.png", "docs.png") == document


def test_the_document_of_a_busy_machine_says_so(tmp_path):
    results = json.loads((ROOT / "docs" / "performance.json").read_text(encoding="utf-8"))
    del results["shapes"][1:]  # one panel in the chart is enough
    for load, warned in ((None, False), (0.1, False), (7.5, True)):
        results["settings"]["load before"] = load
        (tmp_path / "busy.json").write_text(json.dumps(results), encoding="utf-8")
        assert compare("--from", tmp_path / "busy.json", "--docs", tmp_path / "busy.md").exit_code == 0
        text = (tmp_path / "busy.md").read_text(encoding="utf-8")
        assert ("busy with other work (a load of 7.5" in text) is warned


def test_the_document_leads_with_what_people_send_and_says_who_is_ahead(tmp_path):
    results = json.loads((ROOT / "docs" / "performance.json").read_text(encoding="utf-8"))
    del results["shapes"][1:]
    results["inputs"] = [{"group": "little data", "name": "3 x 10", "seconds": 1e-5, "multiples": {"huber": 49.4}}]
    results["first calls"] = [{"rule": "huber", "dtype": "float32", "seconds": 0.03}]
    for row in results["shapes"][0]["rows"]:
        row["multiple"] = 1.5 if (row["rule"], row["library"]) == ("krum", "ByzFL") else 2.5
    (tmp_path / "sent.json").write_text(json.dumps(results), encoding="utf-8")
    assert compare("--from", tmp_path / "sent.json", "--docs", tmp_path / "sent.md").exit_code == 0
    text = (tmp_path / "sent.md").read_text(encoding="utf-8")
    assert "| 3 x 10 | 0.01 | 49.4 |" in text
    assert "| huber, float32 | 0.03 |" in text
    assert text.index("What people send") < text.index("Beside other libraries")
    assert "- 50 x 7,850, krum: ByzFL 1.5, fedhold 2.5\n" in text
    assert "ByzFL's krum, ByzFL torch's krum, ByzFL's multi_krum" in text
    assert "| geometric_median | ByzFL | 3 steps from 0 | 2.5, " in text


def test_the_document_is_what_its_json_says(tmp_path):
    docs, again = ROOT / "docs", tmp_path / "performance.md"
    done = compare("--from", docs / "performance.json", "--docs", again)
    assert done.exit_code == 0, done.output
    remedy = "write it again: python benchmarks/peers --from docs/performance.json --docs docs/performance.md"
    assert again.read_text(encoding="utf-8") == (docs / "performance.md").read_text(encoding="utf-8"), remedy


def test_the_command_runs_as_a_script():
    words = [sys.executable, ROOT / "benchmarks" / "peers", "--help"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    for option in (
        "shape",
        "rules",
        "repeat",
        "seconds",
        "json",
        "inputs",
        "chart",
        "round",
        "scaling",
        "docs",
        "from",
    ):
        assert f"--{option}" in done.stdout
    assert "python benchmarks/bench" in done.stdout


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--shape", "500"], "--shape 500x25450"),
        (["--rules", "medain"], "median"),
        (["--from", "nowhere.json"], "python benchmarks/bench --json"),
    ],
)
def test_a_bad_call_says_what_to_do(words, remedy):
    done = compare(*words)
    assert done.exit_code == 2
    assert remedy in " ".join(done.output.split())


# The libraries


def test_the_environment_installs_what_is_measured():
    assert set(PACKAGES) == {"torch", *environment.PEERS}


def test_peers_are_of_rules_we_have_and_libraries_we_show():
    assert {one.rule for one in PEERS} <= set(OWN)
    assert {one.library for one in PEERS} == set(LIBRARIES)
    assert len({(one.rule, one.library) for one in PEERS}) == len(PEERS)


def test_peers_run_in_an_environment_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert tmp_path in environment.folder().parents
    assert not environment.inside(environment.folder())
    asked = []
    monkeypatch.setattr(environment, "prepare", lambda place, _: asked.append(place))
    monkeypatch.setattr(environment, "run_inside", lambda place, words: asked.append((place, words)) or 3)
    monkeypatch.setattr(sys, "argv", ["peers", "--round"])
    assert compare("--round").exit_code == 3
    assert asked == [environment.folder(), (environment.folder(), ["--round"])]


def test_the_environment_runs_the_fedhold_of_this_process(monkeypatch, tmp_path):
    ran = []

    def run(words, env):
        ran.append((words, env))
        return subprocess.CompletedProcess(words, 4)

    monkeypatch.setenv("PYTHONPATH", "elsewhere")
    monkeypatch.setattr(subprocess, "run", run)
    assert environment.run_inside(tmp_path, ["--round"]) == 4
    ((words, env),) = ran
    assert words == [environment._python(tmp_path), str(ROOT / "benchmarks" / "peers"), "--round"]
    assert "PYTHONPATH" not in env
    (copy,) = tmp_path.rglob("fedhold")
    ours = Path(fedhold.__file__).parent
    there, here = ({path.relative_to(top) for path in top.rglob("*.py")} for top in (copy, ours))
    assert there == here


def test_what_cannot_be_installed_is_noted_and_left_out(monkeypatch, tmp_path):
    def pip(python, *words):  # noqa: ARG001
        fails = any("torch" in word for word in words)
        return subprocess.CompletedProcess(words, int(fails), "[]", "ERROR: no such thing\n" if fails else "")

    monkeypatch.setattr(environment, "_pip", pip)
    monkeypatch.setattr(environment, "_python", lambda place: place)
    console = Console(record=True, width=200)
    environment.prepare(tmp_path, console)
    left = environment.left_out(tmp_path)
    assert left["torch"] == "ERROR: no such thing"
    assert left["byzfl"] == "needs torch"
    assert "flwr" not in left
    assert "torch is left out: ERROR: no such thing" in console.export_text()


def test_builds_for_graphics_cards_are_refused(monkeypatch, tmp_path):
    planned = json.dumps({"install": [{"metadata": {"name": name}} for name in ("torch", "nvidia-cublas")]})

    def pip(python, *words):  # noqa: ARG001
        return subprocess.CompletedProcess(words, 0, planned if "--dry-run" in words else "[]", "")

    monkeypatch.setattr(environment, "_pip", pip)
    monkeypatch.setattr(environment, "_python", lambda place: place)
    environment.prepare(tmp_path, Console(quiet=True))
    assert "gigabytes" in environment.left_out(tmp_path)["torch"]
