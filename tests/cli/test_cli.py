"""The command line: what it prints, and how it fails."""

import ast
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import fedhold
from fedhold import MIXINGS, RULES, __version__, aggregate
from fedhold.cli.app import COMMANDS as CALLED
from fedhold.cli.app import app
from fedhold.cli.demo import LIES, TURNS, apply_rules, make_round
from fedhold.cli.parameters import Option
from fedhold.lab import ATTACKS, DATA, MODELS, PARTITIONS, load
from fedhold.report import held_down
from fedhold.spec import THRESHOLDS


def run(*arguments):
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"}, prog_name="fedhold")
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def words(result):
    """The output on one line, without the rules of tables, which are as long as what stands in them."""
    return " ".join(result.output.replace("─", " ").split())


def test_round_in_a_process_of_its_own():
    done = subprocess.run(
        [sys.executable, "-m", "fedhold", "round"], capture_output=True, text=True, encoding="utf-8", timeout=120
    )
    assert done.returncode == 0, done.stderr
    # Where the kernels of the median are not compiled yet, one line says that they are now.
    assert [line for line in done.stderr.splitlines() if not line.startswith("compiling kernels")] == []
    for told in ("mean", "median", "krum", "huber", "rejected", "clipped", "recall", "Proven"):
        assert told in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_round_prints_in_ascii_where_it_must():
    done = subprocess.run(
        [sys.executable, "-m", "fedhold", "round", "--clients", "10", "--liars", "2"],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii"},
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()


def test_same_seed_same_words():
    first, again, other = (
        re.sub(r"[\d.]+ ms", "", words(run("round", "--clients", "20", "--liars", "4", "--seed", seed)))
        for seed in "112"
    )
    assert first == again
    assert first != other


@pytest.mark.parametrize(("clients", "liars"), [(3, 0), (3, 1), (5, 2), (21, 10), (60, 20)])
def test_round_of_any_size(clients, liars):
    result = run("round", "--clients", str(clients), "--liars", str(liars))
    assert result.exit_code == 0
    assert ("refused: krum needs m >= 2f + 3" in result.output) == (clients < 2 * liars + 3 + rejected(liars))


def rejected(liars):
    return sum(TURNS[turn % len(TURNS)] in ("nan", "shape") for turn in range(liars))


def test_what_the_example_shows():
    example = make_round()
    mean, median, krum, huber, default = apply_rules(example)
    assert len(example.liars) == 20
    assert set(example.lies) == {"", *LIES}
    assert example.off(mean.result.value) > 1e6
    assert krum.liars_weight(example) == 1.0  # it follows the colluders
    assert example.off(huber.result.value) < example.off(median.result.value) < example.off(krum.result.value)
    assert example.off(default.result.value) < example.off(huber.result.value)
    low = np.flatnonzero(held_down(default.result.clients.shares))
    assert low.tolist() == example.liars.tolist()  # those who collude among them
    assert example.moved(default.result) < default.result.certificate.radius(20) / example.spread
    assert default.result.clients == aggregate(example.updates, samples=example.samples).clients


def test_moved_is_measured_from_the_huber_aggregate_that_the_proof_is_about():
    """With no liar the Huber aggregate of the honest is the rule's own centre: nobody is left out, and radius(0) holds."""
    example = make_round(liars=0)
    (default,) = apply_rules(example, ("spectral_huber",))
    assert example.moved(default.result) <= default.result.certificate.radius(0) / example.spread * (1 + 1e-6)


COMMANDS = "aggregate, arena, demo, init, list, receipt, report, reproduce, round, run, verify, watch"
LISTED_NAMES = (*RULES, *MIXINGS, *THRESHOLDS, *ATTACKS, *DATA, *MODELS, *PARTITIONS)


def test_list():
    printed = run("list").output
    assert not [name for name in LISTED_NAMES if name not in printed]
    assert "Keep the client closest to its neighbours." in printed
    assert "threshold='automatic'" in printed
    assert "start=1.0, stop=0.0001" in printed
    assert "alpha=0.5" in printed


@pytest.mark.parametrize("name", LISTED_NAMES)
def test_list_one(name):
    result = run("list", name)
    assert result.exit_code == 0
    assert result.output.startswith(f"{name}(")
    assert not [ours for ours in ("geometry", "knowledge", "labels", "rng") if ours in result.output.splitlines()[0]]


def test_version():
    assert run("--version").output == f"fedhold {__version__}\n"


@pytest.mark.parametrize("arguments", [(), ("--help",)])
def test_help_names_the_commands(arguments):
    printed = run(*arguments).output
    assert "round" in printed
    assert "list" in printed


def process(*arguments, **environment):
    """What a command prints, in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "fedhold", *arguments],
        env={**os.environ, "COLUMNS": "80", **environment},
        **{"capture_output": True, "text": True, "encoding": "utf-8", "timeout": 120, "check": True},
    ).stdout


@pytest.mark.parametrize("name", COMMANDS.split(", "))
def test_help_is_whole(name):
    """Every parameter with what is declared about it, its default, and whether it is required; nothing cut or escaped."""
    printed = process(name, "--help")
    told = " ".join(printed.split())
    assert max(map(len, printed.splitlines())) <= 80
    assert "\\" not in printed
    for parameter in inspect.signature(CALLED[name], eval_str=True).parameters.values():
        declared = parameter.annotation.__metadata__[0]
        line = declared.help
        if isinstance(declared, Option):
            line = f"{declared.name or '--' + parameter.name.replace('_', '-')}".removesuffix("-")
            assert line in told
            required = parameter.default is parameter.empty
            default = "[required]" if required else f"[default: {parameter.default}"
            line = f"{declared.help} {default}" if parameter.default not in (None, "", False) else declared.help
        assert line in told
    summary = " ".join(inspect.getdoc(CALLED[name]).partition("\n\n")[0].split())
    assert summary in told
    assert summary in " ".join(process("--help").split())


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("fedhold re", ["receipt", "report", "reproduce"]),
        ("fedhold aggregate --s", ["--samples", "--seed"]),
        ("fedhold list tri", ["trimmed_mean", "trimmed_mean_attack"]),
        ("fedhold run examples/gr", ["file", "examples/gr"]),
    ],
)
def test_shells_complete(line, completed):
    words = line.split()
    printed = process(
        _FEDHOLD_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1)
    )  # what bash calls
    assert sorted(re.split(r"[,\n]", printed.replace("plain,", "").strip())) == sorted(completed)
    assert "complete -o nosort -F _fedhold_completion fedhold" in process(_FEDHOLD_COMPLETE="bash_source")


def test_help_loads_no_laboratory_and_no_audit():
    code = (
        "import sys; from fedhold.cli import main; sys.argv[1:] = ['--help']\n"
        "try: main()\n"
        "except SystemExit: print(*(name for name in ('fedhold.lab', 'fedhold.audit') if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[0] == "Usage: fedhold [OPTIONS] COMMAND [ARGS]..."
    assert done.stdout.splitlines()[-1] == ""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["dmeo"], f"unknown command 'dmeo'. Did you mean 'demo'? Known: {COMMANDS}."),
        (["frobnicate"], f"unknown command 'frobnicate'. Known: {COMMANDS}."),
        (["list", "krumm"], "unknown name 'krumm'. Did you mean 'krum'?"),
        (["round", "--client", "3"], "--clients"),
        (["round", "--liars", "50"], "met clients = 100, liars = 50. Lower liars to 49, or raise clients to 101."),
        (["round", "--clients", "2"], "clients must be at least 3, got 2."),
        (["round", "--seed", "-1"], "seed must be at least 0, got -1."),
        (["round", "--liars", "many"], "--liars"),
    ],
)  # fmt: skip
def test_errors_say_what_to_do(arguments, told):
    result = run(*arguments)
    assert result.exit_code == 2
    assert told in words(result)
    assert "Traceback" not in result.output


GRID = """
data = "synthesized(samples=200, d=5)"
rule = ["mean", "huber"]
attack = "sign_flip"
epsilon = 0.2
m = 20
rounds = 3
"""


def test_run_then_report(tmp_path):
    (tmp_path / "grid.toml").write_text(GRID)
    ran = run("run", str(tmp_path / "grid.toml"), "--out", str(tmp_path / "out"), "--jobs", "1")
    assert ran.exit_code == 0, ran.output
    assert "sign_flip, epsilon 0.2" in words(ran)
    assert (tmp_path / "out" / "report.html").is_file()
    (tmp_path / "out" / "report.html").unlink()
    again = run("report", str(tmp_path / "out"))
    assert again.exit_code == 0, again.output
    assert (tmp_path / "out" / "report.html").is_file()


def test_demo_trains_and_reports(tmp_path, monkeypatch):
    import fedhold.cli.demo

    monkeypatch.setattr(fedhold.cli.demo, "ROUNDS", 2)
    shown = run("demo", "--out", str(tmp_path), "--jobs", "1")
    assert shown.exit_code == 0, shown.output
    for told in ("ONE ROUND", "2 ROUNDS", "trimmed_mean_attack", "spectral_huber held down", "report.html"):
        assert told in shown.output
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    story = (
        "what liars do to the mean",
        "What the rules made of it",
        "Held down by spectral_huber",
        "Proven: leave out any f",
    )
    places = [page.index(told) for told in story]
    assert places == sorted(places)
    assert "capped at 189" in page  # the round that the terminal shows
    assert "capped at 189" in shown.output


def test_the_demo_says_where_the_mean_is_ahead_and_why():
    import fedhold.cli.demo as shown
    from fedhold.lab import Result

    planned = shown._experiments(0)

    def found(ends):
        return {
            (rule, attack): Result(run, {"rmse": [ends[rule]], "error": [1.5]}, [], None, 0.1, {})
            for (rule, attack), run in planned.items()
        }

    robust = dict.fromkeys(shown.RULES, 1.0)
    assert shown._ahead(found({**robust, "mean": 9.0})) == []
    (said,) = shown._ahead(found({**robust, "mean": 1.1, "median": 1.2}))
    assert "the mean is ahead of some of the robust rules (median)" in said.text
    assert "move the mean by only 1.5" in said.text


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["reproduce", "fig7"], "unknown part of the paper 'fig7'"),
        (["run", "nowhere.toml"], "nowhere.toml does not exist. `fedhold init` writes one to start from."),
        (["report", "nowhere"], "no results in nowhere"),
        (["report", "nowhere.jsonl"], "nowhere.jsonl does not exist. A strategy writes it"),
    ],
)
def test_errors_of_the_experiments(arguments, told):
    result = run(*arguments)
    assert result.exit_code == 2
    assert told in words(result)


# Configurations


def test_init_writes_a_configuration_that_can_be_loaded(tmp_path):
    path = tmp_path / "mine.toml"
    assert run("init", str(path)).exit_code == 0
    assert len(load(path)) == 18
    again = run("init", str(path))
    assert again.exit_code == 2
    assert "is there already" in words(again)


def test_what_is_no_configuration_is_an_error_in_one_line(tmp_path):
    (tmp_path / "bytes.toml").write_bytes(bytes(range(256)))
    for command in ("run", "arena"):
        for path, told in ((tmp_path, "is a directory"), (tmp_path / "bytes.toml", "is not TOML")):
            result = run(command, str(path))
            assert result.exit_code == 2
            assert told in words(result)
            assert "Traceback" not in result.output


def test_no_message_points_to_a_file_outside_the_package():
    package = Path(fedhold.__file__).parent
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Raise):
                assert "examples/" not in ast.unparse(node), path
    for name in CALLED:
        assert "examples/" not in run(name, "--help").output
