"""How commands fail: in one line with a remedy, without a traceback, and without a character that a terminal acts on."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner

from fedhold import aggregate, open_update, save_update
from fedhold.cli.app import app

TITLE = "\x1b]0;owned\x07\x1b[31m\u202e[red]"  # sets the title of a terminal, its colour, and the direction of writing
SHOWN = r"\x1b]0;owned\x07\x1b[31m\u202e[red]"
GRID = 'data = "synthesized(samples=100, d=3)"\nrule = "{rule}"\nm = 20\nrounds = 2\n[options]\n{more}\n'


def run(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "300"}, prog_name="fedhold")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    assert not set(result.output) & set("\x1b\x07\u202e")
    return result


def process(*arguments, **more):
    """As `run`, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "fedhold", *map(str, arguments)], capture_output=True, text=True, timeout=120, **more
    )
    assert "Traceback" not in done.stderr
    return done


@pytest.fixture
def updates(tmp_path):
    """A directory with the updates of nine clients, whose names a terminal would act on; the last one is damaged."""
    for i in range(9):
        save_update(np.ones(4) + i, tmp_path / "in" / f"{TITLE}{i}.npy")
    (tmp_path / "in" / f"{TITLE}8.npy").write_bytes(b"damaged")
    return tmp_path / "in"


# Names of files and texts of others


def test_names_of_files_are_shown_and_not_sent_to_the_terminal(updates, tmp_path):
    told = run("aggregate", updates, "--out", tmp_path / f"{TITLE}.npy")
    assert told.exit_code == 0, told.output
    assert f"{SHOWN}8.npy" in told.output
    assert f"Result: {tmp_path}/{SHOWN}.npy" in told.output


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["aggregate", f"nowhere{TITLE}", "--out", "x.npy"], 2),
        (["aggregate", "in", "--out", "x.npy", "--samples", f"nowhere{TITLE}.json"], 2),
        (["aggregate", "in", "--out", f"in/{TITLE}.npy"], 2),
        (["aggregate", "in", "--out", "x.npy", "--rule", TITLE], 2),
        (["aggregate", "in", "--out", f"file/{TITLE}/x.npy"], 1),
        (["run", f"nowhere{TITLE}.toml"], 2),
        (["run", f"{TITLE}.toml"], 2),
        (["run", f"{TITLE}.toml", TITLE], 2),
        (["report", f"nowhere{TITLE}"], 2),
        (["report", f"{TITLE}.jsonl"], 2),
        (["watch", "--once", f"{TITLE}.jsonl"], 2),
        (["list", TITLE], 2),
        (["reproduce", TITLE], 2),
        ([TITLE], 2),
    ],
)
def test_no_error_sends_anything_to_the_terminal(updates, tmp_path, monkeypatch, arguments, code):
    assert updates.is_dir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / f"{TITLE}.toml").write_text("data = ")
    (tmp_path / f"{TITLE}.jsonl").write_text("no JSON\nno JSON\n")
    told = run(*arguments)
    assert told.exit_code == code
    assert SHOWN in told.output


def test_a_report_of_results_under_such_a_name(tmp_path):
    """The names of a config are checked, but rules may hold texts, and a folder may have any name."""
    (tmp_path / "grid.toml").write_text(GRID.format(rule="huber", more=""))
    out = tmp_path / TITLE
    told = run("run", tmp_path / "grid.toml", "--out", out, "--jobs", "1")
    assert told.exit_code == 0, told.output
    assert f"Report: {tmp_path}/{SHOWN}/report.html" in told.output
    assert run("report", out).exit_code == 0


# Mistakes in a call


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ("krum(f=1.5)", "f must be an integer, got 1.5. Pass a whole number"),
        ("krum(f=True)", "f must be an integer, got True"),
        ("krum(f='two')", "f must be an integer, got 'two'"),
        ("krum(f=-1)", "f must be at least 0, got -1"),
        ("clipping(radius='far') | mean", "radius must be a number, got 'far'. Pass a number"),
        ("huber(tol=[1])", "tol must be a number, got [1]"),
        ("huber(threshold='far')", "unknown threshold 'far'"),
        ("(" * 1000, "cannot read the rule"),
        ("krum(f=" + "-" * 5000 + "1)", "cannot read the rule"),
    ],
)
def test_a_wrong_parameter_of_a_rule_is_named_before_anything_is_read(updates, tmp_path, rule, told):
    aggregated = run("aggregate", updates, "--out", tmp_path / "x.npy", "--rule", rule)
    (tmp_path / "grid.toml").write_text(GRID.format(rule=rule, more=""))
    ran = run("run", tmp_path / "grid.toml", "--out", tmp_path / "runs")
    for result in (aggregated, ran):
        assert result.exit_code == 2, result.output
        assert told in result.output
    assert not (tmp_path / "x.npy").exists()


def test_an_experiment_that_a_bound_refuses_is_told_with_its_reason(tmp_path):
    (tmp_path / "grid.toml").write_text(GRID.format(rule="krum(f=15)", more=""))
    done = process("run", tmp_path / "grid.toml", "--out", tmp_path / "runs", "--jobs", "1")
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    told = " ".join(done.stdout.split())
    assert "infeasible" in told
    assert "krum needs m >= 2f + 3; met m = 20, f = 15." in told


# What the disk refuses


@pytest.mark.parametrize(("which", "written"), [("--out", False), ("--report", True)])
def test_what_was_written_is_said_as_it_is(tmp_path, which, written):
    """Files may not grow beyond 400 bytes here, as on a disk that is full: the result is smaller than the report."""
    for i in range(9):
        save_update(np.ones(100 if which == "--out" else 4) + i, tmp_path / "in" / f"{i}.npy")
    out, report = tmp_path / "out.npy", tmp_path / "report.json"
    code = "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (400, 400)); from fedhold.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, "aggregate", tmp_path / "in", "--out", out, "--report", report],
        **{"capture_output": True, "text": True, "timeout": 120},
    )
    assert done.returncode == 1
    said = f"The result is in {out}; no report was written." if written else f"Nothing was written to {out}."
    (line,) = done.stderr.splitlines()
    assert line.startswith("Error: File too large")
    assert line.endswith(said)
    assert sorted(path.name for path in tmp_path.iterdir()) == (["in", "out.npy"] if written else ["in"])


def test_nobody_reads_what_is_printed(updates, tmp_path):
    """The result is there, and nothing says that it is not."""
    script = f"{sys.executable} -m fedhold aggregate {updates} --out {tmp_path / 'x.npy'} | true"
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=120)
    assert done.stderr == ""
    assert (tmp_path / "x.npy").exists()


@pytest.mark.parametrize(
    ("option", "place", "told"),
    [
        (
            "--report",
            "in/0.npy",
            "in/0.npy lies among the updates, and would be one of them next time. Pass another --rep",
        ),
        ("--report", "out.npy", "out.npy cannot hold both the result and the report"),
        ("--report", ".", ". is a directory. Pass the name of a file to --report"),
        ("--out", "folder.npy", "folder.npy is a directory. Pass the name of a file to --out"),
    ],
)
def test_no_place_is_taken_that_holds_something_else(tmp_path, monkeypatch, option, place, told):
    for i in range(9):
        save_update(np.ones(4) + i, tmp_path / "in" / f"{i}.npy")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.npy").mkdir()
    result = run("aggregate", "in", *(["--out", "out.npy"] if option == "--report" else []), option, place)
    assert result.exit_code == 2
    assert told in result.output
    assert len(os.listdir("in")) == 9
    assert not (tmp_path / "out.npy").exists()


@pytest.mark.parametrize("command", ["run", "report"])
def test_a_directory_or_a_broken_file_where_a_file_is_meant(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    (tmp_path / "broken").write_bytes(b"\xff\x00[[[")
    for name in ("folder", "broken", "nowhere"):
        told = run(command, name)
        assert told.exit_code == 2
        assert name in told.output


def test_a_damaged_result_is_left_out_of_a_report_and_said_to_be(tmp_path, caplog):
    (tmp_path / "grid.toml").write_text(GRID.format(rule="huber", more="momentum = [0, 0.5]"))
    assert run("run", tmp_path / "grid.toml", "--out", tmp_path / "runs", "--jobs", "1").exit_code == 0
    file = sorted((tmp_path / "runs" / "results").glob("*.json"))[0]
    record = json.loads(file.read_text())
    record["series"]["rmse"][0] += 0.5
    file.write_text(json.dumps(record))
    assert run("report", tmp_path / "runs").exit_code == 0
    assert "holds 1 files that are damaged" in caplog.text


@pytest.mark.parametrize(
    "given", ['["x", 1, 2]', '{"0.npy": null, "1.npy": 1, "2.npy": 1}', "[true, 1, 2]", "[[1], 2, 3]"]
)
def test_samples_that_are_no_numbers_are_an_error(given, tmp_path):
    """The file is the operator's; a number that cannot be, such as -1, is the client's, who is rejected."""
    (tmp_path / "in").mkdir()
    for i in range(3):
        np.save(tmp_path / "in" / f"{i}.npy", np.arange(3.0) + i)
    call = ("aggregate", tmp_path / "in", "--out", tmp_path / "x.npy", "--samples", tmp_path / "n.json")
    (tmp_path / "n.json").write_text(given)
    told = run(*call)
    assert told.exit_code == 2
    assert "the n_i of 0.npy in" in told.output
    (tmp_path / "n.json").write_text("[-1, 1, 1]")
    assert "1 rejected" in run(*call).output


# Parts of a model


def test_groups_and_exclude(tmp_path):
    rng = np.random.default_rng(0)
    (tmp_path / "in").mkdir()
    for i in range(6):
        arrays = {"a.w": rng.standard_normal(3), "b.w": rng.standard_normal(2), "head": rng.standard_normal(2)}
        save_update(arrays, tmp_path / "in" / f"{i}.safetensors")
    save_update({name: np.zeros_like(array) for name, array in arrays.items()}, tmp_path / "model.safetensors")
    call = ["aggregate", tmp_path / "in", "--out", tmp_path / "new.safetensors", "--report", tmp_path / "report.json"]
    told = run(
        *call, "--groups", "a=a.*", "--groups", "b=b.*", "--exclude", "head", "--like", tmp_path / "model.safetensors"
    )
    assert told.exit_code == 0, told.output
    assert set(json.loads((tmp_path / "report.json").read_text())["clients"][0]["groups"]) == {"a", "b"}
    value = {name: np.asarray(array) for name, array in open_update(tmp_path / "new.safetensors").items()}
    assert not value["head"].any()
    expected = aggregate(tmp_path / "in", groups={"a": "a.*", "b": "b.*"}).value
    np.testing.assert_array_equal(value["a.w"], np.asarray(expected["a.w"]))
    for words in (["--groups", "adapter"], ["--groups", "a=a.*", "--groups", "b"], ["--exclude", "head"]):
        told = run(*call, *words)
        assert (told.exit_code, told.exception.__class__) == (2, SystemExit), told.output
