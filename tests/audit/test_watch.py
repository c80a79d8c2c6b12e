"""fedhold watch: a file that grows, is torn, cut short, replaced or not there; in a terminal, in a pipe, and once."""

import dataclasses
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time

import pytest
from click.testing import CliRunner
from rich.console import Console

from audits import ESCAPES, LIARS, METRIC, NODES, SCRIPT, record, records
from fedhold.audit.chain import append
from fedhold.audit.live import Follower, Scoreboard, round_line, sparkline
from fedhold.cli.app import app

COLOURS = re.compile(r"\x1b\[[\d;]*m")  # what the scoreboard itself may send to a terminal, beside moving the cursor


def audit(path, rounds):
    for each in rounds:
        append(path, each)
    return path


def printed(rounds, *, width=120, encoding="utf-8", colours=False, **more):
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="")
    system = "standard" if colours else None
    console = Console(file=file, width=width, force_terminal=colours, color_system=system, legacy_windows=False)
    console.print(Scoreboard(rounds, encoding=encoding, **more))
    file.flush()
    return file.buffer.getvalue().decode(encoding)


def run(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


# The file


def test_a_file_is_followed_through_all_its_changes(tmp_path):
    path = tmp_path / "audit.jsonl"
    follower = Follower(path)

    def rounds():
        return [each.round for each in follower.rounds]

    assert not follower.look()  # not there yet
    append(path, record(1))
    assert follower.look()
    assert rounds() == [1]
    assert not follower.look()
    whole = audit(tmp_path / "whole", [record(2)]).read_bytes()
    with path.open("ab") as file:
        file.write(whole[:100])
        file.flush()
        assert follower.look()
        assert rounds() == [1]
        assert "not written to its end" in follower.notes[0]
        file.write(whole[100:])
    assert follower.look()
    assert (rounds(), follower.notes) == ([1, 2], [])
    path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n")  # cut short
    assert follower.look()
    assert rounds() == [1]
    audit(tmp_path / "new", [record(k, run="another") for k in (1, 2, 3)]).replace(path)
    assert follower.look()
    assert ({each.run for each in follower.rounds}, rounds()) == ({"another"}, [1, 2, 3])
    path.write_text("no audit\n", encoding="utf-8")
    assert follower.look()
    assert "it is not JSON" in str(follower.problem)
    path.unlink()
    assert follower.look()
    assert (rounds(), follower.problem) == ([], None)


# What is shown


def test_the_scoreboard_tells_the_last_round_and_the_suspects():
    text = printed(records(), width=160)
    head, _, suspects = text.partition("Suspects: 3 of 12 nodes")
    near = "everyone else's Huber aggregate within 0.05, without any 2"
    told = ("Round 20", "huber(threshold=automatic)", "aggregated", near, "8.2 s (aggregation 0.02 s)")
    for words in (*told, "No new model in 2 of 20 rounds: 7-8", "evaluate accuracy 0.926", "▁"):
        assert words in head
    rows = {line.split()[0]: line for line in head.splitlines() if line.strip().startswith("..")}
    assert len(rows) == 12
    assert [line.split()[0] for line in suspects.splitlines() if line] == LIARS
    assert re.search(r"rejected +0\.00 +20 +20/20", rows[".." + NODES[1][-6:]])
    assert re.search(r"counted +0\.\d\d ██ +0 +0/20 ", rows[".." + NODES[3][-6:]])
    assert "not asked" in head


def test_a_kept_round_says_why():
    assert "no new model" in printed(records(7))
    assert "2 good replies, 4 needed" in printed(records(7))


@pytest.mark.parametrize("width", [80, 100, 160])
def test_a_node_takes_one_line_whatever_it_calls_itself(width):
    name = "clinic\x1b[2J" + 300 * "x"
    last = record(3)
    nodes = tuple(dataclasses.replace(row, name=name if row.node == NODES[4] else None) for row in last.nodes)
    lines = printed([dataclasses.replace(last, nodes=nodes)], width=width).splitlines()
    start, end = (next(k for k, line in enumerate(lines) if mark in line) for mark in ("─", "Suspects:"))
    assert end - start - 2 == len({row.node for row in nodes})
    assert any("clinic\\x1b[2Jxxxxxx"[:16] in line for line in lines)
    assert all(len(line) <= width for line in lines)


def test_rows_limit_the_nodes():
    text = printed(records(), rows=4)
    assert len(re.findall(r"(?m)^ \.\.\d+", text)) == 4
    assert "and 8 nodes more" in text


def test_of_a_thousand_nodes_the_suspects_come_first_and_the_rest_in_one_line():
    many = [str(10**18 + k) for k in range(1000)]
    lines = printed([record(k, many) for k in range(1, 4)]).splitlines()
    assert len(lines) < 90
    start = next(k for k, line in enumerate(lines) if "─" in line)
    assert all("rejected" in line or "held down" in line for line in lines[start + 1 : start + 4])
    assert any(re.match(r"and 940 nodes more: \d+ counted, \d+ not asked", line) for line in lines)


def test_json_has_the_rounds_or_the_standing_of_every_node(tmp_path):
    path = audit(tmp_path / "audit.jsonl", records())
    done = run("watch", path, "--once", "--json")
    assert done.output.isascii()
    state = json.loads(done.output)
    assert state["last"]["round"] == state["rounds"] == 20
    assert [one["node"] for one in state["nodes"] if one["suspect"]] == LIARS
    assert len(state["last"]["nodes"]) > 5
    page = json.loads(run("report", path, "--json").output)
    assert [one["node"] for one in page["suspects"]] == LIARS
    assert page["report"] == str(tmp_path / "report.html")
    assert run("report", tmp_path / "nothing", "--json").exit_code == 2


def test_json_of_an_audit_that_is_not_there_yet(tmp_path):
    assert json.loads(run("watch", tmp_path / "a.jsonl", "--once", "--json").output)["last"] is None


def test_two_audits_of_a_folder_have_a_page_each(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        audit(tmp_path / name, records(4))
    pages = [json.loads(run("report", tmp_path / name, "--json").output)["report"] for name in ("a.jsonl", "b.jsonl")]
    assert pages == [str(tmp_path / "a-report" / "report.html"), str(tmp_path / "b-report" / "report.html")]


@pytest.mark.parametrize("width", [60, 80, 120, 200])
def test_lines_fit(width):
    assert max(map(len, printed(records(), width=width).splitlines())) <= width


@pytest.mark.parametrize("colours", [False, True])
@pytest.mark.parametrize("k", [19, 20])
def test_hostile_texts_send_nothing_to_the_terminal(colours, k):
    metrics = {"train": {ESCAPES: 1.0, METRIC: 2.0}}
    rounds = [*records(k - 1), dataclasses.replace(record(k), metrics=metrics, note=ESCAPES, rule=ESCAPES)]
    text = printed(rounds, colours=colours)
    rest = COLOURS.sub("", text)
    assert (rest != text) == colours
    assert all(letter.isprintable() for letter in rest.replace("\n", ""))
    assert "\\x1b[31mred" in rest
    assert "[bold]markup[/bold]" in rest.replace("\n", "")
    assert round_line(rounds[-1]).isprintable()


def test_an_ascii_terminal_gets_ascii():
    text = printed([*records(3), dataclasses.replace(record(4), note="naïve 数")], encoding="ascii")
    assert text.isascii()
    assert "####" in text
    assert round_line(dataclasses.replace(record(7), note="数"), "ascii").isascii()


@pytest.mark.parametrize(("values", "shown"), [([1.0], "_"), ([2.0, 2.0], "__"), ([-1.7e308, 0.0, 1.7e308], "_-#")])
def test_sparklines(values, shown):
    assert sparkline(values, "_-#") == shown


# The command


def test_once(tmp_path):
    path = audit(tmp_path / "audit.jsonl", records())
    shown = run("watch", path, "--once")
    assert shown.exit_code == 0
    for told in ("Round 20", "Suspects: 3 of 12 nodes", *LIARS, SCRIPT):
        assert told in shown.output
    assert "\x1b" not in shown.output
    assert run("watch", tmp_path, "--once").output == shown.output


def test_once_before_there_is_anything(tmp_path):
    path = tmp_path / "audit.jsonl"
    waiting = run("watch", path, "--once")
    assert (waiting.exit_code, waiting.output.split()[-4:]) == (0, ["is", "not", "there", "yet."])
    path.write_bytes(audit(tmp_path / "whole", [record(1)]).read_bytes()[:-20])
    waiting = run("watch", path, "--once")
    assert (waiting.exit_code, "holds no finished round yet" in waiting.output) == (0, True)
    path.write_text("no\n" * 2, encoding="utf-8")
    assert run("watch", path, "--once").exit_code == 2


# A background job ignores Ctrl-C, and its children inherit that. It is undone in the process itself, not between fork and exec,
# where threads of other tests' libraries would be in the way.
HEARS_CTRL_C = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("fedhold", run_name="__main__", alter_sys=True)
"""
COMMAND = (sys.executable, "-c", HEARS_CTRL_C, "watch", "--every", "0.05")
PLAIN = {**os.environ, "COLUMNS": "100", "LINES": "40", "TERM": "xterm", "PYTHONIOENCODING": "utf-8"}


def lines_of(process):
    """Lines as they come, each within a time; None at the end."""
    watchdog = threading.Timer(60, process.kill)
    watchdog.start()
    try:
        yield from process.stdout
    finally:
        watchdog.cancel()


def test_a_pipe_gets_a_line_for_each_round_as_it_is_written(tmp_path):
    path = tmp_path / "audit.jsonl"
    pipe = subprocess.PIPE
    with subprocess.Popen([*COMMAND, str(path)], stdout=pipe, stderr=pipe, env=PLAIN) as process:
        lines = lines_of(process)
        append(path, record(1))
        assert next(lines).startswith(b"round 1  ")
        whole = audit(tmp_path / "whole", [record(2)]).read_bytes()
        with path.open("ab") as file:
            file.write(whole[:-30])
            file.flush()
            time.sleep(0.3)
            file.write(whole[-30:])
        second = next(lines).decode()
        assert second.startswith("round 2  ")
        assert f"..{NODES[1][-6:]} ({SCRIPT})" in second
        audit(tmp_path / "new", [record(1, run="another")]).replace(path)
        assert next(lines).startswith(b"round 1  ")
        process.send_signal(signal.SIGINT)
        assert list(lines) == []
        assert process.wait(timeout=60) == 0
        assert process.stderr.read() == b""


class Terminal:
    """A real terminal of 100 x 40 for a process, and all that the process wrote to it."""

    def __init__(self, command, place):
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=PLAIN,
            start_new_session=True,
            cwd=place,
        )
        os.close(slave)
        self.written = b""

    def until(self, wanted, seconds=60):
        """Read until the words are there, or the process has ended."""
        end = time.monotonic() + seconds
        while wanted not in self.written and time.monotonic() < end:
            if select.select([self.master], [], [], 0.1)[0]:
                try:
                    self.written += os.read(self.master, 65536)
                except OSError:  # how Linux tells that nobody is at the other end
                    return
        assert wanted in self.written, self.written[-2000:]

    def until_quiet(self):
        """Read until the process pauses: a signal before that would cut its screen off in the middle of a character."""
        while select.select([self.master], [], [], 0.3)[0]:
            self.written += os.read(self.master, 65536)


def test_a_terminal_gets_the_scoreboard_live_and_is_left_as_it_was(tmp_path):
    path = tmp_path / "audit.jsonl"
    terminal = Terminal([*COMMAND, path.name], tmp_path)  # a long name would not fit in a line
    try:
        terminal.until(b"is not there yet")
        audit(path, records(2))
        terminal.until(b"Round 2")
        append(path, record(3))
        terminal.until(b"Round 3")
        terminal.until_quiet()
        terminal.process.send_signal(signal.SIGINT)
        terminal.until(b"\x1b[?1049l")
        terminal.until(LIARS[2].encode() + b"  held down in 3 of 3 rounds")
        assert terminal.process.wait(timeout=60) == 0
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(terminal.master)
    sent = terminal.written.decode("utf-8")
    assert sent.count("\x1b[?1049h") == sent.count("\x1b[?1049l") == 1  # the other screen, and back
    assert sent.rindex("\x1b[?25h") > sent.rindex("\x1b[?25l")  # the cursor is there again
    assert "Traceback" not in sent
    own = r"\x1b\[(?:[\d;]*m|H|\?1049[hl]|\?25[hl])"
    assert all(letter.isprintable() for letter in re.sub(own, "", sent).replace("\r\n", ""))
    assert "\\x1b[31mred" in sent
