"""The matrix: in a real browser it sorts, filters and shows what is behind a cell; no text breaks out of it."""

import json
import math
import re

import pytest

from browser import probe_page
from fedhold.report import Entry, Facet, Matrix, Scale, Section, page, rule_style
from fedhold.report.colours import SCALE

HOSTILE = "</script><img src=x onerror=alert(1)>"
ROWS = [("mean", ""), ("krum", "told f"), ("huber", ""), (HOSTILE, "")]
VALUES = {  # row -> (no attack, alie) in setting 0 and setting 1
    0: ((1.0, 0.1), (1.0, 0.9)),
    1: ((0.8, 0.5), (0.7, 0.6)),
    2: ((0.95, 0.7), (0.9, 0.3)),
    3: ((0.5, 0.2), (0.5, 0.2)),
}


def matrix():
    entries = [
        Entry(row, column, (setting, 0), kept, kept - 0.05, kept + 0.05, end=kept, curve=(0.1, kept / 2, kept))
        for row, settings in VALUES.items()
        for setting, columns in enumerate(settings)
        for column, kept in enumerate(columns)
    ]
    entries.append(Entry(1, 2, (0, 0), 0.0, 0.0, 0.0, mark="refused"))
    settings = Facet("setting", ["digits", "clothes"], {"usual": [0], "label skew": [1]})
    axes = [("accuracy", [1, 5, 10])] * 2
    return Matrix(
        "Rules x attacks", ROWS, ["no attack", "alie", "ipm"], [settings, Facet("liars", ["20%"], {})], axes, entries
    )


LOOK = """
const look = frame => {
  const page = frame.contentDocument, all = selector => [...page.querySelectorAll(selector)];
  const rules = () => all(".matrix tbody tr").map(row => row.dataset.rule);
  const row = rule => all(".matrix tbody tr").find(one => one.dataset.rule === rule);
  const texts = rule => [...row(rule).cells].slice(1).map(cell => cell.textContent);
  const press = element => element.dispatchEvent(new frame.contentWindow.MouseEvent("click", {bubbles: true}));
  const pick = (select, value) => { select.value = value; select.dispatchEvent(new frame.contentWindow.Event("change")); };
  const seen = {first: rules(), huber: texts("huber"), krum: texts("krum"), scripts: all("img").length};
  const plain = button => button.textContent.replaceAll("\\u200b", "");
  const head = name => all(".matrix thead button").find(button => plain(button).startsWith(name));
  press(head("no attack")); seen.sorted = rules();
  press(head("no attack")); seen.turned = rules();
  press(head("rule")); seen.named = rules();
  const [setting, liars, how] = all(".matrix select");
  pick(setting, "1"); seen.filtered = texts("huber");
  pick(setting, "0 1"); pick(how, "mean"); seen.mean = texts("huber");
  pick(how, "worst"); seen.worst = texts("huber");
  const boxes = all(".matrix input"); boxes[1].checked = true; boxes[1].dispatchEvent(new frame.contentWindow.Event("change"));
  seen.told_nothing = rules();
  boxes[0].value = "hub"; boxes[0].dispatchEvent(new frame.contentWindow.Event("input")); seen.searched = rules();
  press(all(".matrix tbody td button")[1]);
  seen.told = page.querySelector(".matrix .told").textContent;
  seen.rounds = all(".matrix .behind tr").map(row => [...row.cells].map(cell => cell.textContent));
  seen.styles = all(".matrix .behind path.line").length;
  seen.wide = page.documentElement.scrollWidth <= frame.contentWindow.innerWidth;
  return seen;
};
"""


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    path = tmp_path_factory.mktemp("matrix") / "page.html"
    path.write_text(page("The arena", "Four rules.", [Section("Matrix", [matrix()])]), encoding="utf-8")
    return probe_page(path, LOOK)


def test_it_can_be_read_sorted_and_filtered(seen):
    for found in seen.values():
        assert found["first"] == ["huber", HOSTILE, "mean", "krum"]  # by the worst of attacks, in the first group
        assert found["huber"] == ["0.70", "0.95", "0.70", ""]
        assert found["krum"] == ["0.00", "0.80", "0.50", "refused"]
        assert found["sorted"] == ["mean", "huber", "krum", HOSTILE]
        assert found["turned"] == [HOSTILE, "krum", "huber", "mean"]
        assert found["named"] == sorted(row for row, _ in ROWS)
        assert found["filtered"][1:3] == ["0.90", "0.30"]
        assert found["mean"][1:3] == ["0.93", "0.50"]
        assert found["worst"][1:3] == ["0.90", "0.30"]
        assert "krum" not in found["told_nothing"]
        assert found["searched"] == ["huber"]


def test_a_cell_shows_the_rounds_behind_it(seen):
    for found in seen.values():
        assert found["told"] == "huber, alie, clothes: 0.30 (0.25 to 0.35 over seeds); accuracy 0.3 at the end"
        assert found["rounds"] == [
            ["accuracy", "round 1", "round 5", "round 10"],
            ["huber", "0.1", "0.15", "0.3"],
            ["mean", "0.1", "0.45", "0.9"],
            ["krum", "0.1", "0.3", "0.6"],
            [HOSTILE, "0.1", "0.1", "0.2"],
        ]
        assert found["styles"] == 4


def test_it_fits_every_screen_and_text_stays_text(seen):
    for found in seen.values():
        assert found["wide"]
        assert found["scripts"] == 0


def metric_matrix():
    """Less is better; one rule diverged under alie and one is infeasible, and the facet has a single choice."""
    values = {0: (1.04, 2.5), 1: (1.1, None), 2: (1.02, 1.03456), 3: (None, None)}
    marks = {(1, 1): "diverged", (3, 0): "infeasible", (3, 1): "infeasible"}
    entries = [
        Entry(
            row,
            column,
            (0,),
            *[math.nan if value is None else value] * 3,
            mark=marks.get((row, column), ""),
            curve=(9.0, value),
        )
        for row, columns in values.items()
        for column, value in enumerate(columns)
    ]
    scale = Scale(10.2, 1.02, "ten times", "the best", logarithmic=True, digits=3)
    rules = [(rule, "") for rule in ("mean", "krum", "huber", "parts:mine")]
    step = Facet("step", ["0.1"], {})
    return Matrix("rmse", rules, ["no attack", "alie"], [step], [("rmse", [1, 2])], entries, scale)


LOOK_METRIC = """
const look = frame => {
  const page = frame.contentDocument, all = selector => [...page.querySelectorAll(selector)];
  const press = element => element.dispatchEvent(new frame.contentWindow.MouseEvent("click", {bubbles: true}));
  const rules = () => all(".matrix tbody tr").map(row => row.dataset.rule);
  const texts = row => [...row.cells].slice(1).map(cell => cell.textContent);
  const seen = {first: rules(), cells: Object.fromEntries(all(".matrix tbody tr").map(row => [row.dataset.rule, texts(row)]))};
  seen.classes = all(".matrix tbody td").map(cell => cell.className).filter(Boolean);
  seen.backs = all(".matrix tbody tr:first-child td").map(cell => cell.style.background);
  seen.shown = all(".matrix .filters label").filter(label => label.offsetParent).map(label => label.textContent.split(" ")[0]);
  seen.lines = all(".matrix tbody th path").map(path => [path.getAttribute("class"), path.getAttribute("stroke-dasharray")]);
  press(all(".matrix thead button")[2]); press(all(".matrix thead button")[2]); seen.turned = rules();
  press(all(".matrix tbody td button")[0]); seen.behind = all(".matrix .behind tbody tr").map(row => row.lastChild.textContent);
  return seen;
};
"""


def test_less_can_be_better_and_what_has_no_number_is_last(tmp_path):
    path = tmp_path / "page.html"
    path.write_text(page("Results", "", [Section("What came out", [metric_matrix()])]), encoding="utf-8")
    for found in probe_page(path, LOOK_METRIC).values():
        assert found["first"] == ["huber", "mean", "krum", "parts:mine"]
        assert found["cells"] == {
            "huber": ["1.035", "1.020", "1.035"],
            "mean": ["2.500", "1.040", "2.500"],
            "krum": ["diverged", "1.100", "diverged"],
            "parts:mine": ["infeasible"] * 3,
        }
        assert {"whole diverged", "diverged", "whole refused", "refused"} <= set(found["classes"])
        assert found["backs"][1] == "rgb({}, {}, {})".format(*SCALE[-1])  # the best is the brightest
        assert found["shown"] == ["show", "rules"]  # no filter with a single choice, nobody is told anything
        styles = [rule_style(rule) for rule in found["first"]]
        assert found["lines"] == [[f"line c{style.colour}", style.dashes] for style in styles]
        assert found["turned"] == ["parts:mine", "krum", "mean", "huber"]
        assert found["behind"] == ["diverged", "1.04", "1.1", "1.02"]


def test_the_numbers_are_json_that_cannot_end_the_element():
    html = page("The arena", "", [Section("Matrix", [matrix()])])
    (numbers,) = re.findall(r'<script type="application/json" class="numbers">(.*?)</script>', html, re.DOTALL)
    assert json.loads(numbers)["rows"][3][0] == HOSTILE
    assert "<img" not in html
