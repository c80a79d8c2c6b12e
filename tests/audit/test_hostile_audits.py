"""Audits that somebody damaged or made up: every command ends in a report or in one line that says what is wrong."""

import json
import random
import re
import resource
import time

import pytest
from click.testing import CliRunner

from audits import ESCAPES, NODES, records
from fedhold.audit.chain import append
from fedhold.cli.app import app

SECONDS, BYTES = 15.0, 2**29  # that a command may take beyond what it takes anyhow, on a busy machine
RAW = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]")

FIELDS = [  # where a value of a line stands
    *(
        (name,)
        for name in ("format", "run", "round", "time", "rule", "outcome", "nodes", "note", "converged", "iterations")
    ),
    *(
        (name,)
        for name in ("certificate", "seconds", "metrics", "averages", "quorum", "f", "validation", "model", "hash")
    ),
    *(
        ("nodes", 0, name)
        for name in ("node", "phase", "status", "reason", "distance", "threshold", "weight", "claimed")
    ),
    *(("nodes", 0, name) for name in ("samples", "name", "effect", "update")),
    *(("certificate", "f"), ("certificate", "radius"), ("seconds", "round"), ("metrics", "train"), ("metrics", "x")),
    *(("metrics", "train", "loss"), ("metrics", "train", ESCAPES), ("quorum", "asked"), ("nodes", 0), ("more",)),
]
VALUES = {
    "null": "null",
    "true": "true",
    "negative": "-1",
    "huge": "1000000000000000000",
    "beyond all floats": "1" + 400 * "0",
    "beyond all digits": "1" + 5000 * "0",
    "least": "5e-324",
    "large": "1.7e308",
    "infinite": "1e999",
    "NaN": "NaN",
    "text": json.dumps(ESCAPES),
    "surrogate": '"\\ud800"',
    "long": json.dumps("x" * 300_000),
    "list": "[[1], null]",
    "object": '{"a": {"b": []}}',
    "deep": 900 * "[" + 900 * "]",
    "deeper": 100_000 * "[" + 100_000 * "]",
}


@pytest.fixture(scope="module")
def lines(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "audit.jsonl"
    for each in records(3):
        append(path, each)
    return path.read_bytes().splitlines(keepends=True)


def put(line, field, text):
    """The line with another value at one place."""
    value = json.loads(line)
    part = value
    for step in field[:-1]:
        if not isinstance(part.get(step) if isinstance(part, dict) else part[step], dict | list):
            part[step] = {}
        part = part[step]
    part[field[-1]] = "PLACE"
    return json.dumps(value).replace('"PLACE"', text).encode() + b"\n"


def ends_well(tmp_path, data, commands):
    path = tmp_path / "audit.jsonl"
    path.write_bytes(data)
    codes = []
    for command in commands:
        began, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        done = CliRunner().invoke(app, [*command[:1], str(path), *command[1:]], env={"COLUMNS": "200", "NO_COLOR": "1"})
        assert done.exception is None or isinstance(done.exception, SystemExit), (command, done.exception)
        assert time.process_time() - began < SECONDS, command
        assert 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) < BYTES, command
        assert not RAW.search(done.output), command
        codes.append(done.exit_code)
        if done.exit_code == 2:
            assert "Error" in done.output
    for file in tmp_path.rglob("*.*"):
        if file != path:
            assert not RAW.search(file.read_text("utf-8")), file
    return codes


LOOKED_AT = (("watch", "--once"), ("verify",), ("receipt", "--node", NODES[5]))


@pytest.mark.parametrize("value", VALUES)
def test_any_value_anywhere_ends_in_an_answer(tmp_path, lines, value):
    for field in FIELDS:
        watch, verify, receipt = ends_well(
            tmp_path, lines[0] + put(lines[1], field, VALUES[value]) + lines[2], LOOKED_AT
        )
        assert watch in (0, 2)
        assert (verify, receipt) == (1, 2), field


@pytest.mark.parametrize("value", ["huge", "large", "least", "text", "null"])
def test_a_page_of_any_value_is_written_or_refused(tmp_path, lines, value):
    for number, field in enumerate(FIELDS):
        (tmp_path / str(number)).mkdir()
        good = ends_well(tmp_path / str(number), put(lines[0], field, VALUES[value]), [("watch", "--once")]) == [0]
        if good and number % 7 == len(value):  # a page takes a second
            assert ends_well(tmp_path / str(number), put(lines[0], field, VALUES[value]), [("report",)]) == [0]


def test_random_damage_ends_in_an_answer(tmp_path, lines):
    """Bits turned, pieces cut out, copied and swapped."""
    rng, whole = random.Random(0), b"".join(lines)
    for _ in range(150):
        data = bytearray(whole)
        start, end = sorted(rng.randrange(len(data)) for _ in range(2))
        kind = rng.randrange(4)
        if kind == 0:
            data[start] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del data[start:end]
        elif kind == 2:
            data[start:start] = data[end : end + 200]
        else:
            data[start:end] = data[start:end][::-1]
        assert ends_well(tmp_path, bytes(data), LOOKED_AT)[1] == (0 if data == whole else 1) or not data.strip()


def test_texts_of_the_whole_file_are_shown_as_escapes(tmp_path, lines):
    data = lines[0]
    for field in (
        ("run",),
        ("time",),
        ("rule",),
        ("note",),
        ("nodes", 0, "reason"),
        ("nodes", 0, "name"),
        ("nodes", 0, "node"),
    ):
        data = put(data, field, json.dumps(ESCAPES))
    data = put(data, ("metrics", "train", ESCAPES), "1")
    assert ends_well(tmp_path, data, [("watch", "--once"), ("report",)]) == [0, 0]


def test_a_crowd_in_one_line_is_a_report(tmp_path, lines):
    """Seconds of this process, and not of its neighbours."""
    row = json.loads(lines[0])["nodes"][0]
    crowd = json.dumps([{**row, "node": str(10**18 + k), "reason": f"r{k}"} for k in range(2_000)])
    metrics = json.dumps({f"m{k}": k for k in range(2_000)})
    data = put(put(lines[0], ("nodes",), crowd), ("metrics", "train"), metrics)
    assert ends_well(tmp_path, data, [("watch", "--once"), ("verify",), ("report",)]) == [0, 1, 0]
