"""The OpenMetrics file: what a reader of the format finds in it, with names that hostile clients would choose."""

import dataclasses
import json
import re
from pathlib import Path

import pytest

from audits import ESCAPES, SCRIPT, record
from fedhold.audit import NodeRecord, OpenMetrics

BOARD = Path(__file__).parents[2] / "examples" / "grafana" / "board.json"
LINE = re.compile(r'(fedhold_[a-z_]+)(\{((?:[a-z]+="(?:[^"\\\n]|\\["\\n])*",?)*)\})? (-?[\d.]+(?:e[+-]\d+)?)')
NAME = 'x"} 1\nfedhold_round 99\\'


def written(tmp_path, one):
    OpenMetrics(tmp_path / "folder" / "m.prom")(one)
    text = (tmp_path / "folder" / "m.prom").read_text(encoding="utf-8")
    assert text.endswith("# EOF\n")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["m.prom"]
    return text


def test_every_line_is_of_the_format_whatever_clients_call_themselves(tmp_path):
    one = record(3)
    nodes = tuple(dataclasses.replace(row, name=(NAME, SCRIPT, ESCAPES)[k % 3]) for k, row in enumerate(one.nodes))
    metrics = {
        "train": {
            NAME: 1.0,
            ESCAPES: float("nan"),
            "huge": 10**400,
            "list": [1, 2],
            "loss": 0.25,
            "x" * 90: 1.0,
            "x" * 91: 2.0,
        }
    }
    text = written(tmp_path, dataclasses.replace(one, nodes=nodes, metrics=metrics))
    lines = [line for line in text.splitlines() if not line.startswith("# ")]
    assert all(LINE.fullmatch(line) for line in lines)
    assert 'fedhold_metric{phase="train",metric="loss"} 0.25' in lines
    assert sum(line.startswith("fedhold_round") for line in lines) == 1
    assert len({line.rpartition(" ")[0] for line in lines}) == len(lines)  # The format allows no series twice.


def test_clients_do_not_grow_it_without_limit(tmp_path):
    one = record(3)
    nodes = tuple(NodeRecord(str(k), "train", "kept", weight=1.0, samples=1, name="n" * 10**4) for k in range(3000))
    metrics = {"train": {f"m{k}": 1.0 for k in range(5000)}}
    assert len(written(tmp_path, dataclasses.replace(one, nodes=nodes, metrics=metrics))) < 10**6


def test_the_board_asks_for_what_is_written(tmp_path):
    names = {line.split("{")[0].split(" ")[0] for line in written(tmp_path, record(3)).splitlines()} | {
        "fedhold_quorum"
    }
    asked = re.findall(
        r"fedhold_[a-z_]+",
        " ".join(
            target["expr"]
            for panel in json.loads(BOARD.read_text(encoding="utf-8"))["panels"]
            for target in panel["targets"]
        ),
    )
    assert set(asked) <= names


@pytest.mark.parametrize("path", ["m.prom", Path("m.prom")])
def test_a_job_can_be_written_from_it(path):
    assert OpenMetrics(path).path == "m.prom"
