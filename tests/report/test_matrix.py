"""The matrix: in a real browser it sorts, filters and shows curves; what it is given cannot break out of it."""

import json
import re

import pytest

from browser import probe_page
from fedhold.report import Entry, Facet, Matrix, Section, page

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
  seen.lines = all(".matrix .behind path.line").length;
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


def test_a_cell_shows_the_curves_behind_it(seen):
    for found in seen.values():
        assert (
            found["told"] == "huber under alie, clothes, 20%: 0.30 (0.25 to 0.35 over seeds); accuracy 0.3 at the end"
        )
        assert found["lines"] == 4


def test_it_fits_every_screen_and_text_stays_text(seen):
    for found in seen.values():
        assert found["wide"]
        assert found["scripts"] == 0


def test_the_numbers_are_json_that_cannot_end_the_element():
    html = page("The arena", "", [Section("Matrix", [matrix()])])
    (numbers,) = re.findall(r'<script type="application/json" class="numbers">(.*?)</script>', html, re.DOTALL)
    assert json.loads(numbers)["rows"][3][0] == HOSTILE
    assert "<img" not in html
