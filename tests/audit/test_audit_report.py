"""The report of an audit: whom it suspects, what its files hold, that hostile texts do nothing, and what a browser shows."""

import csv
import dataclasses
import re

import numpy as np
import pytest
from click.testing import CliRunner

from audits import CAPPED, ESCAPES, LIARS, METRIC, NODES, SCRIPT, record, records
from browser import probe_page
from fedhold.audit.chain import append
from fedhold.audit.page import (
    EVALUATION,
    MARKS,
    QUARANTINED,
    REJECTED,
    UNWEIGHED,
    WEIGHED,
    node_map,
    report_audit,
    write_audit,
)
from fedhold.audit.records import NodeRecord, metric_series, number_of
from fedhold.audit.suspects import FAR, Tally, judge_round, standings
from fedhold.cli.app import app


def audit(folder, rounds=None, name="audit.jsonl"):
    folder.mkdir(parents=True, exist_ok=True)
    for each in records() if rounds is None else rounds:
        append(folder / name, each)
    return folder / name


def one_round(*rows, k=1):
    return dataclasses.replace(record(k), nodes=rows)


def node(name, weight, samples=100, status="kept", phase="train"):
    return NodeRecord(name, phase, status, weight=weight, samples=samples)


def held(*rows):
    return {name for name, seen in judge_round(one_round(*rows)).items() if seen.held}


# Suspects


def test_the_suspects_are_those_who_misbehaved():
    ranked = standings(records())
    assert [one.node for one in ranked if one.is_suspect] == LIARS
    flipper, broken, evaluator = ranked[:3]
    assert (flipper.asked, flipper.held, flipper.rejected) == (20, 20, 0)
    assert flipper.reasons == ((FAR, 20),)
    assert flipper.share < 0.05
    assert (broken.rejected, broken.share, broken.last_asked, broken.last_used) == (20, 0.0, 20, None)
    assert broken.reasons == ((ESCAPES, 10), (SCRIPT, 10))
    assert (evaluator.asked, evaluator.quarantined, evaluator.bad_evaluations, evaluator.rejected) == (15, 5, 15, 0)
    assert ranked[3].suspicion == 0


def test_few_or_many_samples_are_no_reason():
    by_samples = [node("small", 0.02, 20), node("large", 0.58, 580), *(node(str(k), 0.1) for k in range(4))]
    assert held(*by_samples) == set()
    alike = [node("small", 0.2, 20), node("large", 0.2, 1000), *(node(str(k), 0.2) for k in range(3))]
    assert held(*alike) == set()
    assert held(*by_samples[1:], node("liar", 0.001, 20)) == {"liar"}


def test_a_rule_that_picks_one_or_weighs_nobody_holds_nobody_down():
    assert held(node("a", 1.0), *(node(str(k), 0.0, status="dropped") for k in range(5))) == set()
    assert held(*(node(str(k), None, None) for k in range(5))) == set()


def test_many_rejected_nodes_do_not_hide_the_held_down():
    rejected = [node(f"r{k}", 0.0, None, "rejected") for k in range(9)]
    assert held(*rejected, node("a", 0.5), node("b", 0.49), node("far", 0.01)) == {"far", *(f"r{k}" for k in range(9))}


def test_an_evaluation_counts_also_without_training():
    seen = judge_round(one_round(node("a", 0.5), node("b", None, None, "rejected", "evaluate")))["b"]
    assert (seen.held, seen.status, seen.share) == (True, "not asked", None)


@pytest.mark.parametrize(("times", "of", "suspect"), [(1, 1, True), (1, 2, False), (2, 3, True), (5, 10, False)])
def test_suspects_are_held_down_in_more_than_half_of_their_rounds(times, of, suspect):
    bad = [one_round(node("n", 0.0, None, "rejected"), k=k) for k in range(1, times + 1)]
    good = [one_round(node("n", 1.0), k=k) for k in range(times + 1, of + 1)]
    (one,) = standings([*bad, *good])
    assert one.is_suspect == suspect
    assert one.suspicion == times / (of + 1)


def test_of_two_who_were_always_rejected_the_one_asked_more_comes_first():
    rounds = [one_round(node("old", 0, None, "rejected"), k=k) for k in range(1, 5)]
    rounds.append(one_round(node("new", 0, None, "rejected"), node("old", 0, None, "rejected"), k=5))
    assert [one.node for one in standings(rounds)] == ["old", "new"]


# Texts of clients


@pytest.mark.parametrize(
    ("value", "number"), [(1, 1.0), (True, None), ("1", None), ([1.0], None), (float("nan"), None)]
)
def test_only_numbers_are_curves(value, number):
    assert number_of(value) == number
    assert number_of(-(10**400)) == -1.7976931348623157e308
    series = metric_series([dataclasses.replace(record(1), metrics={"train": {"x": value}})])
    assert series == ({} if number is None else {"x": {"train": {1: number}}})


def test_hostile_texts_are_text(tmp_path):
    page = write_audit(tmp_path, records(), title=SCRIPT, notes=[SCRIPT])
    text = page.read_text(encoding="utf-8")
    assert "<script" not in text
    assert "<img" not in text
    assert "<b>\\x1b" not in text
    assert "&lt;script&gt;console.error(&#39;reason&#39;)&lt;/script&gt;" in text
    assert "&lt;img src=x onerror=console.error(&#39;metric&#39;)&gt;" in text
    for file in [page, *(tmp_path / "numbers").iterdir()]:
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", file.read_text(encoding="utf-8")), file
    assert not re.search(r"(?m)(^|,)[=+@]", "".join(p.read_text("utf-8") for p in (tmp_path / "numbers").iterdir()))


def test_a_flood_of_metrics_does_not_fill_the_page(tmp_path):
    flood = {f"metric {k}": 1.0 for k in range(500)}
    page = write_audit(tmp_path, [dataclasses.replace(record(1), metrics={"train": flood})], title="t")
    assert page.read_text(encoding="utf-8").count('class="chart"') == 12 + 2
    assert len(read(tmp_path / "numbers" / "metrics.csv")) == 500


# Files


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_files_hold_the_numbers(tmp_path):
    page, suspects = report_audit(audit(tmp_path / "run"), tmp_path / "out")
    assert page == tmp_path / "out" / "report.html"
    assert [one.node for one in suspects] == LIARS
    folder = page.parent / "numbers"
    assert {path.stem for path in folder.iterdir()} == {"rounds", "nodes", "suspects", "metrics", "claims"}
    rounds, rows = read(folder / "rounds.csv"), read(folder / "nodes.csv")
    assert [int(row["round"]) for row in rounds] == list(range(1, 21))
    assert [row["round"] for row in rounds if row["outcome"] == "kept"] == ["7", "8"]
    assert [row["certificate radius"] for row in rounds[:3]] == ["", "", "0.33333333"]
    assert len(rows) == sum(len(each.nodes) for each in records())
    assert sum(float(row["weight"]) for row in rows if row["round"] == "5" and row["weight"]) == pytest.approx(1)
    assert [row["node"] for row in read(folder / "suspects.csv") if row["suspect"] == "True"] == LIARS
    claims = {row["node"]: row for row in read(folder / "claims.csv")}
    assert set(claims) == {NODES[1], CAPPED}
    assert (claims[CAPPED]["rounds"], claims[CAPPED]["counted as"]) == ("20", "300")
    assert float(claims[CAPPED]["largest or strangest claim"]) == 1e9
    loss = [row for row in read(folder / "metrics.csv") if (row["phase"], row["metric"]) == ("evaluate", "loss")]
    assert float(loss[4]["value"]) == pytest.approx(2.1 * np.exp(-5 / 8))


def test_the_page_tells_the_run(tmp_path):
    text = write_audit(tmp_path, records(), title="t").read_text(encoding="utf-8")
    assert "only rejections count" not in text
    for told in (
        "huber(threshold=automatic)",
        "rounds without a new model",
        "Radius for f = 2",
        "Proven in 18 of 20 rounds",
    ):
        assert told in text
    assert re.search(r"<td[^>]*>7-8</td><td[^>]*>2 good replies, 4 needed", text)
    assert set(re.findall(r'(?:href|src)="([^"#]{0,10})', text)) == {"data:,", "data:image", ""}
    assert not re.search(r"https?://|@import|url\((?!#)", text)
    assert re.search(r"rounds without a new model</td><td[^>]*>7-8<", text)
    fine = write_audit(tmp_path, records(5), title="t").read_text(encoding="utf-8")
    assert re.search(r"rounds without a new model</td><td[^>]*>none<", fine)
    assert "clipped" not in fine  # every honest node of a healthy run is
    assert "last good" not in fine


def named(rounds, name="<b>clinic</b>\x1b[31m"):
    """The rounds, in which the first node calls itself something."""
    return [
        dataclasses.replace(
            each,
            nodes=tuple(dataclasses.replace(row, name=name if row.node == NODES[0] else None) for row in each.nodes),
        )
        for each in rounds
    ]


def test_names_are_shown_beside_ids_as_text(tmp_path):
    page = write_audit(tmp_path, named(records()), title="t")
    text = page.read_text(encoding="utf-8")
    assert "<b>clinic" not in text
    assert f"&lt;b&gt;clinic&lt;/b&gt;\\x1b[31m ({NODES[0]})" in text
    rows = read(tmp_path / "numbers" / "nodes.csv")
    assert {row["name"] for row in rows if row["node"] == NODES[0]} == {"<b>clinic</b>\\x1b[31m"}
    assert {row["name"] for row in rows if row["node"] != NODES[0]} == {""}
    assert read(tmp_path / "numbers" / "suspects.csv")[0]["name"].startswith("<b>clinic")
    unnamed = write_audit(tmp_path / "unnamed", records(), title="t")
    assert ">name<" in text
    assert ">name<" not in unnamed.read_text(encoding="utf-8")
    assert "name" not in read(tmp_path / "unnamed" / "numbers" / "suspects.csv")[0]


def test_measured_effects_are_in_the_tables(tmp_path):
    rounds = [
        dataclasses.replace(
            each,
            nodes=tuple(dataclasses.replace(row, effect=0.5 if row.node == NODES[0] else None) for row in each.nodes),
        )
        for each in records(3)
    ]
    text = write_audit(tmp_path, rounds, title="t").read_text(encoding="utf-8")
    assert "effect on loss" in text
    assert read(tmp_path / "numbers" / "suspects.csv")[0]["effect on loss"] == "0.5"


def test_the_tally_agrees_with_the_standings():
    tally = Tally()
    for each in records():
        tally = tally.after(judge_round(each).values())
    assert tally.suspects() == [one.node for one in standings(records()) if one.is_suspect] == LIARS


def test_another_run_stands_beside_this_one(tmp_path):
    """Its curve is in the chart of the same metric, also where it went on for longer, and under no other."""
    rounds = [dataclasses.replace(record(k), metrics={"server": {"accuracy": 0.5, "loss": 2.0}}) for k in (1, 2)]
    alone = write_audit(tmp_path, rounds, title="t").read_text(encoding="utf-8")
    beside = {"accuracy": {"FedAvg": {1: 0.1, 3: 0.2}}, "unknown": {"FedAvg": {1: 1.0}}}
    both = write_audit(tmp_path, rounds, title="t", beside=beside).read_text(encoding="utf-8")
    assert "FedAvg" not in alone
    assert "FedAvg" in both
    assert both.count('class="chart"') == alone.count('class="chart"')


def test_a_rule_without_weights_or_proof_has_a_page(tmp_path):
    rows = [NodeRecord(name, "train", "kept") for name in NODES]
    rounds = [dataclasses.replace(each, nodes=tuple(rows), certificate=None, metrics={}) for each in records(3)]
    text = write_audit(tmp_path, rounds, title="t").read_text(encoding="utf-8")
    assert "This rule proves no radius" in text
    assert "took part, without a weight" in text
    assert "only rejections count" in text
    assert "Nobody." in text


def test_rounds_in_which_nobody_answered_are_a_page(tmp_path):
    page = write_audit(tmp_path, [one_round()], title="t")
    assert "0 nodes. Suspects: nobody." in page.read_text(encoding="utf-8")


def test_a_crowd_of_suspects_is_cut_short_on_the_screen(tmp_path):
    rows = [node(str(10**18 + k), 0.0, None, "rejected") for k in range(30)]
    done = run("report", audit(tmp_path, [one_round(*rows)]))
    assert done.output.count("Suspect: node") == 10
    assert "And 20 suspects more." in done.output
    assert f"{10**18 + 4} and 25 more." in (tmp_path / "report.html").read_text(encoding="utf-8")


# The map


def test_what_became_of_nodes_by_round():
    rounds = [*records(20), one_round(node(NODES[5], None), k=21)]
    ranked = standings(rounds)
    found = node_map(rounds, ranked)
    row = {one.node: k for k, one in enumerate(ranked)}
    codes, shares = (values[[row[name] for name in NODES]] for values in (found.codes, found.shares))
    assert (codes[0, :20] == WEIGHED).all()
    assert (codes[1, :20] == REJECTED).all()
    assert (codes[2, :20] == [QUARANTINED if 9 <= k <= 13 else EVALUATION for k in range(1, 21)]).all()
    assert codes[5, 20] == UNWEIGHED
    blank = (codes[:, 20] == 0) & np.isnan(shares[:, 20])
    assert blank.sum() == len(NODES) - 1
    there = np.isin(codes[:, :20], (WEIGHED, EVALUATION)) & ~np.isnan(shares[:, :20])
    samples = np.where(np.array(NODES) == CAPPED, 300, 100)[:, None] * there
    weighed = np.where(there, shares[:, :20], 0)
    np.testing.assert_allclose((weighed * samples).sum(axis=0) / samples.sum(axis=0), 1)
    assert found.rows[:3] == ("..000000", "..777777", "..555554")
    assert found.groups == (("suspects", 3), ("others", 9))
    assert np.flatnonzero(found.flagged).tolist() == [6, 7]
    assert [found.rounds[0], found.rounds[-1]] == [1, 21]


def test_an_equal_share_per_sample_is_1():
    seen = judge_round(one_round(node("a", 0.1, 100), node("b", 0.2, 200), node("c", 0.7, 700)))
    assert [one.share for one in seen.values()] == pytest.approx([1, 1, 1])
    assert {one.word for one in seen.values()} == {"counted"}
    seen = judge_round(one_round(*(node(str(k), 0.33, 100, "clipped") for k in range(3)), node("far", 0.01, 100)))
    assert [one.word for one in seen.values()] == ["counted", "counted", "counted", "held down"]
    assert seen["far"].share == pytest.approx(0.04)


def test_a_map_is_read_without_eyes():
    """The table behind it has the words of what became of a node."""
    rows = {row[0]: row[2:] for row in node_map(records(10), standings(records(10))).table.rows}
    assert rows["..777777"] == ("reply rejected",) * 10
    assert rows["..555554"] == (MARKS[1].words,) * 8 + ("in quarantine",) * 2


def test_a_large_map_stays_small():
    many = [str(10**18 + k) for k in range(510)]
    rounds = [record(k, many) for k in range(1, 11)]
    rounds = [dataclasses.replace(rounds[k % 10], round=k + 1) for k in range(410)]
    drawn = node_map(rounds, standings(rounds)).__html__()
    assert (
        "510 nodes, 3 of them suspects; 410 rounds. Neighbours are drawn together: 510 x 410 cells as 200 x 200."
        in drawn
    )
    assert len(drawn) < 150_000


# The command


def run(*arguments):
    result = CliRunner().invoke(app, list(map(str, arguments)), env={"COLUMNS": "200", "NO_COLOR": "1"})
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


@pytest.mark.parametrize("named", ["file", "folder"])
def test_report_knows_an_audit(tmp_path, named):
    path = audit(tmp_path / "run")
    done = run("report", path if named == "file" else path.parent)
    assert done.exit_code == 0, done.output
    assert f"Report: {path.parent / 'report.html'}" in done.output
    assert all(f"Suspect: node {name}, held down" in done.output for name in LIARS)
    assert "\x1b" not in done.output
    again = run("report", path, "--out", tmp_path / "elsewhere")
    assert again.exit_code == 0, again.output
    assert (tmp_path / "elsewhere" / "report.html").read_bytes() == (path.parent / "report.html").read_bytes()


def test_a_line_that_is_not_whole_is_said(tmp_path):
    path = audit(tmp_path, records(4))
    path.write_bytes(path.read_bytes()[:-50])
    assert run("report", path).exit_code == 0
    text = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "line 4 was not written to its end" in text
    assert "3 rounds" in text


def words(result):
    return " ".join(re.sub(r"[│╭╮╰╯─|]", " ", result.output).split())


def test_what_is_no_audit_is_an_error(tmp_path):
    (tmp_path / "no.jsonl").write_text("not this\n", encoding="utf-8")
    (tmp_path / "empty.jsonl").write_text("", encoding="utf-8")
    for name, told in {
        "no.jsonl": "line 1, is no round of an audit: it is not JSON.",
        "empty.jsonl": "holds no finished round yet",
        "nowhere.jsonl": "does not exist. A strategy writes it",
        "": "holds 2 audits: empty.jsonl, no.jsonl. Name one of them.",
    }.items():
        done = run("report", tmp_path / name)
        assert done.exit_code == 2
        assert told in words(done)


# A real browser

LOOK = """
const look = frame => {
  const page = frame.contentDocument, box = part => part.getBoundingClientRect();
  const all = (part, name) => [...part.querySelectorAll(name)], image = page.querySelector(".map image");
  const pen = Object.assign(document.createElement("canvas"), {width: 20, height: 12}).getContext("2d");
  pen.imageSmoothingEnabled = false;
  pen.drawImage(image, 0, 0, 20, 12);
  const pixels = pen.getImageData(0, 0, 20, 12).data, inside = box(image);
  const [suspects] = all(page, "section").filter(part => part.querySelector("#suspects"));
  return {
    width: page.documentElement.scrollWidth,
    scripts: all(page, "script").length,
    images: all(page, "img").length,
    cells: Array.from({length: 240}, (_, k) => pixels[4 * k + 3] === 255),
    names: all(page, ".map text").filter(text => text.textContent.startsWith(".."))
      .map(text => [text.textContent, (box(text).top + box(text).bottom) / 2]),
    top: inside.top, rowHeight: inside.height / 12,
    suspects: all(suspects.querySelector(".scroll"), "tbody tr").map(row => row.innerText),
    captions: all(page, ".chart figcaption").map(caption => caption.textContent),
    lines: all(page, ".chart").map(chart => all(chart, "path[style*='stroke-width: 1.7']").map(path => path.getTotalLength())),
    tables: all(page, ".chart details table").length,
    outside: all(page, ".plot text, h1, h2, figcaption")
      .filter(text => box(text).left < 0 || box(text).right > frame.clientWidth).map(text => text.textContent),
  };
};
"""


def test_a_browser_shows_the_audit(tmp_path):
    page = write_audit(tmp_path, records(), title="An <audit>")
    ranked = standings(records())
    found = node_map(records(), ranked)
    cells = ((found.codes > 0) | ~np.isnan(found.shares)).ravel().tolist()
    for width, seen in probe_page(page, LOOK).items():
        assert seen["width"] <= width
        assert (seen["scripts"], seen["images"]) == (0, 0)
        assert seen["cells"] == cells
        assert [name for name, _ in seen["names"]] == list(found.rows)
        for row, (_, middle) in enumerate(seen["names"]):
            assert middle == pytest.approx(seen["top"] + (row + 0.5) * seen["rowHeight"], abs=3)
        assert len(seen["suspects"]) == 3
        for name, told, text in zip(LIARS, (FAR, SCRIPT, "a metric that is not finite"), seen["suspects"], strict=True):
            assert name in text
            assert told in text
        assert seen["captions"] == ["loss", METRIC, "accuracy", "Radius for f = 2", "Seconds per round"]
        assert [len(lengths) for lengths in seen["lines"]] == [4, 2, 2, 2, 4]  # each in the plot and in the legend
        assert min(map(max, seen["lines"])) > 150
        assert seen["tables"] == 5
        assert seen["outside"] == []
