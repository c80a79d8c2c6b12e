"""The benchmark of our own rules: tables and JSON agree, trouble is reported, the reference is right."""

import doctest
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner
from rich.console import Console

import bench.machine
import bench.round
import bench.tables
import bench.timing
from bench import (
    OURS,
    OWN,
    SHAPES,
    YARDSTICK,
    Contender,
    Peers,
    Plan,
    cell,
    first_call_cells,
    input_cells,
    inputs,
    last_slope,
    libraries_of,
    measure_all,
    print_results,
    read_results,
    write_results,
)
from bench.__main__ import app
from bench.inputs import Case, measure_inputs
from bench.reference import PULLS, gram, off_by, solve
from bench.round import RoundPeer, measure_round, timed
from bench.timing import GROWTH_RULES, clients, liars, measure, measure_growth, slope
from fedhold import aggregate
from fedhold.lab import DataError, Scenario

SMALL = ["23x200", "30x300"]
OFF = (
    2e-6  # typical distances. The tolerance of 1e-6 bounds the force that is left, which the distance follows roughly.
)


def quiet(_):
    """Nobody watches."""


def peer(rule="median", library="ByzFL", call=lambda X: np.median(X, axis=0), memory=1.0):
    return Contender(rule, library, lambda X, f: lambda: lambda: call(X), lambda m, f: memory)  # noqa: ARG005


def row_of(rows, rule, library):
    (row,) = [row for row in rows if (row["rule"], row["library"]) == (rule, library)]
    return row


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A whole run of small shapes with two rules of another library: what it printed, and the JSON it wrote."""
    path = tmp_path_factory.mktemp("bench") / "results" / "all.json"
    console = Console(record=True, width=200)
    rules = [peer(), peer("geometric_median", call=lambda X: X.mean(axis=0))]
    plan = replace(Plan.of(SMALL, "", 2, 5.0), peers=Peers(rules))
    results = measure_all(plan, console, quiet)
    print_results(console, results)
    write_results(path, results)
    return console.export_text(), path


def test_table_and_json_agree(run):
    printed, path = run
    results = json.loads(path.read_text(encoding="utf-8"))
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


def test_unconverged_results_are_seen(run):
    printed, path = run
    for shape in read_results(path)["shapes"]:
        for rule in PULLS:
            assert row_of(shape["rows"], rule, OURS)["off"] < OFF
        lazy = row_of(shape["rows"], "geometric_median", "ByzFL")["off"]
        assert lazy > 1e-2
        assert f"ByzFL, geometric_median: {lazy:.1e}" in printed


def test_an_earlier_run_is_shown_again(run):
    printed, path = run
    shown = CliRunner().invoke(app, ["--from", str(path)], env={"COLUMNS": "200"})
    assert shown.exit_code == 0, shown.output
    assert shown.output.split() == printed.split()


def test_results_are_kept_after_each_part(monkeypatch):
    monkeypatch.setattr(bench.round, "prepare", nowhere)
    kept = []
    plan = replace(Plan.of(SMALL, "mean", 1, 5.0), round=True)
    measure_all(plan, Console(quiet=True), lambda results: kept.append((len(results["shapes"]), "round" in results)))
    assert kept == [(1, False), (2, False), (2, True)]


def nowhere(*_):
    raise DataError("no source has MNIST")


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


def test_a_bound_that_does_not_hold_is_said_in_its_row_where_code_is_compiled_ahead_too():
    """Ten clients, two of them liars: bulyan needs eleven. There are as many numbers as order statistics are compiled for."""
    rows = measure(clients(10, 2**15, 0), ["bulyan"], [], repeat=1, budget=5.0, watch=quiet, reference=False)
    row = row_of(rows, "bulyan", OURS)
    assert row["status"] == "failed"
    assert "bulyan needs m >= 4f + 3" in row["reason"]


def test_a_slow_peer_is_run_once(monkeypatch):
    ticks = iter(np.arange(0, 1000, 7.0))
    monkeypatch.setattr(bench.timing.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(bench.timing.time, "sleep", quiet)
    rows = measure(clients(23, 200, 0), ["median"], [peer()], repeat=3, budget=5.0, watch=quiet)
    for row in rows:
        assert (row["status"], row["seconds"]) == ("once", [7.0])
    assert cell(rows[-1]) == "1.0 (once)"


def test_repeats_end_when_the_time_is_up(monkeypatch):
    ticks = iter(np.arange(0, 1000, 3.0))
    monkeypatch.setattr(bench.timing.time, "perf_counter", lambda: next(ticks))
    monkeypatch.setattr(bench.timing.time, "sleep", quiet)
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
    assert bench.machine.available_memory() > 2**20
    assert [bench.machine.readable(n) for n in (12, 3_400, 5.6e6, 7.8e9)] == ["12 B", "3 kB", "6 MB", "7.8 GB"]


def test_figures_from_a_busy_machine_say_so(run):
    results = read_results(run[1])
    for load, warned in ((None, False), (0.1, False), (7.5, True)):
        results["settings"]["load before"] = load
        console = Console(record=True, width=200)
        print_results(console, results)
        assert ("busy with other work (a load of 7.5" in console.export_text()) is warned


def test_what_was_left_out_is_said():
    plan = replace(Plan.of(SMALL[:1], "mean", 1, 5.0), peers=Peers(left_out={"byzfl": "needs torch"}))
    console = Console(record=True, width=200)
    print_results(console, measure_all(plan, console, quiet))
    assert "byzfl was left out: needs torch" in console.export_text()


# The mathematics


@pytest.mark.parametrize("rule", PULLS)
@pytest.mark.parametrize(("m", "d"), [(23, 5000), (200, 40)])
def test_reference_agrees_with_the_library(rule, m, d):
    X = clients(m, d, 1).astype(np.float64)
    reference = solve(gram(X), rule)
    assert reference.weights.sum() == pytest.approx(1)
    ours = aggregate(X, rule).value
    assert off_by(X, reference, [ours, ours + reference.typical / math.sqrt(d)]) == pytest.approx([0, 1], abs=OFF)


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
    rows = measure_growth(
        repeat=1, budget=1.0, seed=0, watch=quiet, over_clients=(10, 20), over_columns=(100, 200, 400)
    )
    assert [(row["rule"], row["axis"]) for row in rows] == [
        (rule, axis) for axis in ("clients", "columns") for rule in (YARDSTICK, *GROWTH_RULES)
    ]
    assert all(len(row["seconds"]) == len(row["sizes"]) and math.isfinite(row["slope"]) for row in rows)


def test_the_last_step_has_a_slope_of_its_own():
    row = {
        "rule": "huber",
        "axis": "clients",
        "sizes": [1, 10, 100],
        "fixed": 1,
        "seconds": [1.0, 10.0, 1000.0],
        "slope": 1.5,
    }
    assert last_slope(row) == 2


# What people send


def few_clients():
    X = np.random.default_rng(0).standard_normal((5, 40), np.float32)
    yield Case("a matrix", X, lambda: X.mean(0), ("mean", "krum"))
    yield Case("a list", list(X), lambda: X.mean(0), ("median",))


def test_what_people_send_is_timed_beside_its_mean():
    rows = measure_inputs(repeat=2, budget=0.001, watch=quiet, groups={"few": few_clients})
    assert [(row["group"], row["name"], list(row["multiples"])) for row in rows] == [
        ("few", "a matrix", ["mean", "krum"]),
        ("few", "a list", ["median"]),
    ]
    assert all(row["seconds"] > 0 and min(row["multiples"].values()) > 0 for row in rows)


def test_dicts_have_the_layers_of_resnet_18():
    """11,689,512 parameters, two running statistics for each of its 4,800 channels, and a counter in each of 20 norms."""
    shapes = inputs._layers()
    assert sum(map(math.prod, shapes.values())) == 11_689_512 + 2 * 4800 + 20
    (update,) = inputs._dicts(1, shapes)
    assert sum(part.dtype == np.int64 for part in update.values()) == 20


def test_first_calls():
    (row,) = inputs.measure_first_calls(watch=quiet, rules=("mean",))
    assert (row["rule"], row["dtype"]) == ("mean", "float32")
    assert row["seconds"] > 0


def test_tables_of_what_people_send():
    rows = [
        {"group": "few", "name": "a matrix", "seconds": 0.0123, "multiples": {"mean": 1.26, "krum": 123.4}},
        {"group": "few", "name": "a list", "seconds": 0.002, "multiples": {"mean": 7.0}},
    ]
    assert input_cells(rows) == (
        ["sent", "ms of the mean", "mean", "krum"],
        [["a matrix", "12.3", "1.3", "123"], ["a list", "2", "7.0", "-"]],
    )
    calls = [{"rule": "huber", "dtype": "float32", "seconds": 0.251}]
    assert first_call_cells(calls)[1] == [["huber, float32", "0.25"]]


# One round


def test_a_round_without_data_says_so(monkeypatch):
    monkeypatch.setattr(bench.round, "prepare", nowhere)
    assert measure_round(None, repeat=1, seed=0, watch=quiet) == {"failed": "no source has MNIST"}


def test_a_round_has_parts_and_a_witness_that_no_attack_changes():
    gradients = np.ones((3, 2))

    def attack(updates):
        updates[:] = 0
        return updates

    played = timed(lambda: gradients, attack, lambda sent: sent.sum())
    np.testing.assert_array_equal(played.witness, [1, 1])
    assert list(played.seconds) == ["gradients", "attack", "aggregation"]
    assert min(played.seconds.values()) >= 0


class Shards:
    m, counts = 500, np.ones(500)


class Task:
    d = 3

    def initial(self, rng):  # noqa: ARG002
        return np.zeros(3, np.float32)

    def gradients(self, w, shards, out):  # noqa: ARG002
        out[:] = 1
        return out


@pytest.fixture
def tiny_round(monkeypatch):
    """A round whose gradients are all ones."""
    scenario = Scenario(Task(), Shards())
    monkeypatch.setattr(bench.round, "prepare", lambda *_: scenario)


@pytest.mark.usefixtures("tiny_round")
def test_another_round_is_timed_beside_ours(monkeypatch):
    ticks = iter(np.arange(0, 1000, 1.0))
    monkeypatch.setattr(bench.round.time, "perf_counter", lambda: next(ticks))
    twice = RoundPeer("twice", lambda *_: lambda: timed(lambda: 2 * np.ones((500, 3)), quiet, quiet))
    found = measure_round(twice, repeat=2, seed=0, watch=quiet)
    assert (found["clients"], found["liars"], found["missing"]) == (500, 100, "")
    assert found["best"] == {name: {"gradients": 1, "attack": 1, "aggregation": 1} for name in (OURS, "twice")}
    assert found["seconds"] == {OURS: [3, 3], "twice": [3, 3]}
    assert (found["faster"], found["gradients apart"]) == pytest.approx((1, 1))


@pytest.mark.usefixtures("tiny_round")
def test_another_round_may_be_missing():
    def missing(*_):
        raise ModuleNotFoundError("No module named 'torch'")

    found = measure_round(RoundPeer("torch", missing), repeat=1, seed=0, watch=quiet)
    assert (list(found["best"]), found["missing"]) == ([OURS], "No module named 'torch'")
    assert "faster" not in found


# The command


def test_help_tells_the_options():
    told = CliRunner().invoke(app, ["--help"])
    assert told.exit_code == 0
    for option in ("shape", "rules", "repeat", "seconds", "json", "inputs", "round", "scaling", "from"):
        assert f"--{option}" in told.output
    assert "python benchmarks/peers" in " ".join(told.output.split())


def test_the_command_measures(tmp_path):
    out = tmp_path / "few.json"
    words = ["--shape", "10x50", "--rules", "median, huber", "--repeat", "1", "--json", str(out)]
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
        (["--from", "nowhere.json"], "python benchmarks/bench --json"),
        (["--peers"], "No such option"),
    ],
)
def test_a_bad_call_says_what_to_do(words, remedy):
    told = CliRunner().invoke(app, words)
    assert told.exit_code == 2
    assert remedy in " ".join(told.output.split())


def test_shapes_of_the_default_table_are_read():
    assert [m * d for m, d in Plan.of([], "", 1, 1.0).shapes] == [
        math.prod(map(int, shape.split("x"))) for shape in SHAPES
    ]


@pytest.mark.parametrize("module", [bench.tables, bench.timing])
def test_docstring_examples_run(module):
    told = doctest.testmod(module)
    assert told.attempted > 0
    assert told.failed == 0
