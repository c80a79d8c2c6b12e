"""The benchmark: tables, JSON, chart and document agree; trouble is reported; the reference is right."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

import fedhold.bench.environment as environment
from fedhold import aggregate
from fedhold.bench import machine as bench_machine
from fedhold.bench import measure as bench_measure
from fedhold.bench import round as bench_round
from fedhold.bench.measure import OURS, OWN, YARDSTICK, clients, liars, measure
from fedhold.bench.peers import LIBRARIES, PEERS, Peer
from fedhold.bench.reference import PULLS, gram, off_by, solve
from fedhold.bench.round import one_round
from fedhold.bench.run import SHAPES, Outputs, Plan, bench, measure_all, tell
from fedhold.bench.scaling import RULES, scaling, slope
from fedhold.bench.show import best_of, cell, libraries_of
from fedhold.cli.app import app
from fedhold.lab.datasets import DataError

SMALL = ["23x200", "30x300"]


def quiet(_):
    """Nobody watches."""


def peer(rule="median", library="ByzFL", call=lambda X: np.median(X, axis=0), memory=1.0):
    return Peer(rule, library, lambda X, f: lambda: lambda: call(X), lambda m, f: memory)  # noqa: ARG005


def row_of(rows, rule, library):
    (row,) = [row for row in rows if (row["rule"], row["library"]) == (rule, library)]
    return row


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A whole run of small shapes with one peer: what it printed, and the files it wrote."""
    folder = tmp_path_factory.mktemp("bench")
    outputs = Outputs(folder / "all.json", folder / "charts" / "all.png", folder / "docs.md")
    console = Console(record=True, width=200)
    plan = replace(Plan.of(SMALL, "", 2, 5.0), peers=[peer(), peer("geometric_median", call=lambda X: X.mean(axis=0))])
    tell(measure_all(plan, console, quiet), outputs, console)
    return console.export_text(), outputs


def test_table_json_and_document_agree(run):
    printed, outputs = run
    results = json.loads(outputs.json.read_text(encoding="utf-8"))
    document = outputs.docs.read_text(encoding="utf-8")
    assert [(shape["m"], shape["d"], shape["f"]) for shape in results["shapes"]] == [(23, 200, 4), (30, 300, 6)]
    for shape in results["shapes"]:
        assert {row["rule"] for row in shape["rows"]} == {YARDSTICK, *OWN}
        mean = row_of(shape["rows"], YARDSTICK, "NumPy")
        for row in shape["rows"]:
            assert row["status"] == "measured", row
            assert len(row["seconds"]) == 2
            assert row["best"] == min(row["seconds"])
            assert row["multiple"] == pytest.approx(row["best"] / mean["best"])
        line = [cell(row_of(shape["rows"], "median", name)) for name in (OURS, "ByzFL")]
        assert f"median {' '.join(line)}" in " ".join(printed.split())
        fastest = best_of(shape, "median")
        pairs = zip((OURS, "ByzFL"), line, strict=True)
        bold = [f"**{text}**" if name == fastest else text for name, text in pairs]
        assert f"| median | {' | '.join(bold)} |" in document


def test_unconverged_results_are_seen(run):
    printed, outputs = run
    for shape in json.loads(outputs.json.read_text(encoding="utf-8"))["shapes"]:
        for rule in PULLS:
            assert row_of(shape["rows"], rule, OURS)["off"] < 1e-6
        lazy = row_of(shape["rows"], "geometric_median", "ByzFL")["off"]
        assert lazy > 1e-2
        assert f"ByzFL, geometric_median: {lazy:.1e}" in printed
        assert f"{lazy:.1e}" in outputs.docs.read_text(encoding="utf-8")


def test_charts_are_pictures(run):
    _, outputs = run
    beside = outputs.docs.parent / "figures" / "docs.png"
    for path in (outputs.chart, beside):
        assert path.read_bytes().startswith(b"\x89PNG")
    assert "](figures/docs.png)" in outputs.docs.read_text(encoding="utf-8")


def test_an_earlier_run_is_told_again(run, tmp_path):
    _, outputs = run
    again = tmp_path / "again.md"
    told = CliRunner().invoke(app, ["bench", "--from", str(outputs.json), "--docs", str(again)])
    assert told.exit_code == 0, told.output
    assert again.read_text(encoding="utf-8").replace("again.png", "docs.png") == outputs.docs.read_text(
        encoding="utf-8"
    )


# Trouble


def trouble(one, **settings):
    X = clients(23, 200, 0)
    settings = {"repeat": 3, "budget": 5.0, "watch": quiet} | settings
    rows = measure(X, ["median"], [one], **settings)
    assert row_of(rows, "median", OURS)["status"] == "measured"
    return row_of(rows, "median", "ByzFL")


def test_a_peer_that_raises_is_shown_with_its_error():
    def broken(X):
        raise ArithmeticError(f"cannot divide {len(X)} clients")

    row = trouble(peer(call=broken))
    assert (row["status"], row["reason"]) == ("failed", "ArithmeticError: cannot divide 23 clients")
    assert cell(row) == "failed"


def test_a_slow_peer_is_run_once(monkeypatch):
    ticks = iter(np.arange(0, 1000, 7.0))
    monkeypatch.setattr(bench_measure.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(bench_measure.time, "sleep", quiet)
    rows = measure(clients(23, 200, 0), ["median"], [peer()], repeat=3, budget=5.0, watch=quiet)
    for row in rows:
        assert (row["status"], row["seconds"]) == ("once", [7.0])
    assert cell(rows[-1]) == "1.0 (once)"


def test_repeats_end_when_the_time_is_up(monkeypatch):
    ticks = iter(np.arange(0, 1000, 3.0))
    monkeypatch.setattr(bench_measure.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(bench_measure.time, "sleep", quiet)
    row = measure(clients(23, 200, 0), ["median"], [peer()], repeat=9, budget=5.0, watch=quiet)[-1]
    assert (row["status"], row["seconds"]) == ("measured", [3.0, 3.0])


def test_a_peer_too_large_for_memory_is_not_run():
    row = trouble(peer(call=lambda _: pytest.fail("ran"), memory=1e12))
    assert row["status"] == "too large"
    assert "needs about" in row["reason"]
    assert (row["seconds"], cell(row)) == ([], "memory")


def test_a_peer_that_is_not_there_has_no_column():
    def missing(_):
        raise ModuleNotFoundError("No module named 'byzfl'")

    row = trouble(peer(call=missing))
    assert (row["status"], cell(row)) == ("not installed", "-")
    assert libraries_of({"rows": [row]}) == []


def test_memory_is_known():
    assert bench_machine.available_memory() > 2**20
    assert [bench_machine.readable(n) for n in (12, 3_400, 5.6e6, 7.8e9)] == ["12 B", "3 kB", "6 MB", "7.8 GB"]


def test_figures_from_a_busy_machine_say_so(run, tmp_path):
    _, outputs = run
    results = json.loads(outputs.json.read_text(encoding="utf-8"))
    for load, warned in ((None, False), (0.1, False), (7.5, True)):
        results["settings"]["load before"] = load
        console = Console(record=True, width=200)
        tell(results, Outputs(docs=tmp_path / "busy.md"), console)
        for text in (console.export_text(), (tmp_path / "busy.md").read_text(encoding="utf-8")):
            assert ("busy with other work (a load of 7.5" in text) is warned


# The mathematics


@pytest.mark.parametrize("rule", PULLS)
@pytest.mark.parametrize(("m", "d"), [(23, 5000), (200, 40)])
def test_reference_agrees_with_the_library(rule, m, d):
    X = clients(m, d, 1).astype(np.float64)
    reference = solve(gram(X), rule)
    assert reference.weights.sum() == pytest.approx(1)
    ours = aggregate(X, rule).value
    assert off_by(X, reference, [ours, ours + reference.typical / math.sqrt(d)]) == pytest.approx([0, 1], abs=1e-6)


def test_reference_is_the_minimiser():
    X = clients(30, 20, 2).astype(np.float64)
    centre = solve(gram(X), "geometric_median").weights @ X

    def cost(s):
        return np.linalg.norm(X - s, axis=1).sum()

    rng = np.random.default_rng(0)
    assert all(cost(centre) < cost(centre + 1e-4 * rng.standard_normal(20)) for _ in range(50))


def test_clients_are_as_said():
    X = clients(50, 4000, 3)
    assert X.dtype == np.float32
    np.testing.assert_array_equal(X, clients(50, 4000, 3))
    honest = X[liars(50) :] - X[liars(50) :].mean(axis=0)
    assert honest.std() == pytest.approx(1, abs=0.03)
    assert (X[: liars(50)] - X[liars(50) :].mean(axis=0)).mean() == pytest.approx(2, abs=0.02)


def test_growth():
    assert slope([1, 10, 100], [3.0, 300.0, 30000.0]) == 2
    rows = scaling(repeat=1, budget=1.0, seed=0, watch=quiet, over_clients=(10, 20), over_columns=(100, 200, 400))
    assert [(row["rule"], row["axis"]) for row in rows] == [
        (rule, axis) for axis in ("clients", "columns") for rule in (YARDSTICK, *RULES)
    ]
    assert all(len(row["seconds"]) == len(row["sizes"]) and math.isfinite(row["slope"]) for row in rows)


def test_a_round_without_data_says_so(monkeypatch):
    def nowhere(*_):
        raise DataError("no source has MNIST")

    monkeypatch.setattr(bench_round, "prepare", nowhere)
    assert one_round(peers=False, repeat=1, seed=0, watch=quiet) == {"failed": "no source has MNIST"}


# The other libraries


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
    monkeypatch.setattr(sys, "argv", ["fedhold", "bench", "--peers"])
    assert bench(Plan.of([], "", 1, 1.0), Outputs(), Console(), peers=True) == 3
    assert asked == [environment.folder(), (environment.folder(), ["bench", "--peers"])]


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


# The command


def test_help_tells_the_options():
    told = CliRunner().invoke(app, ["bench", "--help"])
    assert told.exit_code == 0
    for option in ("shape", "rules", "repeat", "seconds", "peers", "json", "chart", "round", "scaling", "docs", "from"):
        assert f"--{option}" in told.output


def test_the_command_measures(tmp_path):
    out = tmp_path / "few.json"
    words = ["bench", "--shape", "10x50", "--rules", "median, huber", "--repeat", "1", "--json", str(out)]
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 0, told.output
    assert "10 clients x 50 numbers" in told.output
    results = json.loads(out.read_text(encoding="utf-8"))
    assert [row["rule"] for row in results["shapes"][0]["rows"]] == [YARDSTICK, "median", "huber"]
    assert results["environment"]["threads"]


@pytest.mark.parametrize(
    ("words", "remedy"),
    [
        (["--shape", "500"], "--shape 500x25450"),
        (["--shape", "3x10"], "at least 5 clients"),
        (["--rules", "medain"], "median"),
        (["--repeat", "0"], "repeat"),
        (["--seconds", "-1"], "seconds"),
        (["--from", "nowhere.json"], "fedhold bench --json"),
    ],
)
def test_a_bad_call_says_what_to_do(words, remedy):
    told = CliRunner().invoke(app, ["bench", *words])
    assert told.exit_code == 2
    assert remedy in " ".join(told.output.split())


def test_shapes_of_the_default_table_are_read():
    assert [m * d for m, d in Plan.of([], "", 1, 1.0).shapes] == [
        math.prod(map(int, shape.split("x"))) for shape in SHAPES
    ]


def test_the_document_is_what_its_json_says(tmp_path):
    docs = Path(__file__).parents[2] / "docs"
    again = tmp_path / "performance.md"
    told = CliRunner().invoke(app, ["bench", "--from", str(docs / "performance.json"), "--docs", str(again)])
    assert told.exit_code == 0, told.output
    remedy = "write it again: fedhold bench --from docs/performance.json --docs docs/performance.md"
    assert again.read_text(encoding="utf-8") == (docs / "performance.md").read_text(encoding="utf-8"), remedy
