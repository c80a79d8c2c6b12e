"""The report of experiments: its numbers, that its files hold them, and that a real browser shows the page as meant."""

import csv
import re
import sys
from dataclasses import replace
from xml.etree import ElementTree

import numpy as np
import pytest

from browser import probe_page
from fedhold.lab import Experiment, Result, Verdict
from fedhold.lab.report import ANSWER, NAMED, PROVEN, Panel, panels_of, write_report
from fedhold.report import Heading, Paragraph, Source, Table, rule_style

M, ROUNDS, LIARS = 40, 30, 8
LABELS = {"mean": "mean", "krum": "krum(f=8)", "huber": "huber(threshold=0.2)", "huber automatic": "huber"}
VERDICTS = [
    Verdict("Huber is best under <sign flips>.", "section 7.1", "holds", "0.10 against 0.19 & more"),
    Verdict("Krum fails under its own attack.", "section 7.2", "fails", "a long row of numbers, " * 20),
    Verdict("The mean of everything is no better.", "ours", "undecided", "0.00 +- 0.02", quoted=False),
]
WIDE = tuple(f"a wide column {k}" for k in range(8))
TABLES = [Table("Table 1, measured", ("rule", *WIDE), [("krum", *[1 / 3] * 8), ("huber", *[None] * 8)])]


def result(rule="huber", seed=0, *, level=0.2, attack="sign_flip", watched=False, series=None, rounds=ROUNDS):
    """A made-up run: an rmse that falls to `level`; liars that lose their weight; a radius from the third round on."""
    rng = np.random.default_rng([seed, round(level * 1000)])
    t = np.arange(1, rounds + 1)
    rmse = level + (3 - level) * np.exp(-t / 8) + 0.02 * rng.random(rounds)
    byzantine = sorted(rng.permutation(M)[:LIARS].tolist())
    weights = np.clip(rng.normal(1.2, 0.1, (rounds, M)), 0, None)
    weights[:, byzantine] = np.exp(-t / 5)[:, None]
    radius = [None, None, *(1 + np.exp(-t[2:] / 8)).tolist()] if watched else [None] * rounds
    options = (("keep_weights", 1), ("certify", LIARS)) if watched else ()
    experiment = Experiment("synthesized", rule, attack, 0.2, seed, m=M, rounds=rounds, options=options)
    kept = weights.astype(np.float16) if watched else None
    numbers = series or {"rmse": rmse.tolist(), "error": [0.1] * rounds, "radius": radius}
    return Result(experiment, numbers, byzantine, kept, 1.5, {"python": "3.11"})


def panel(attack="sign_flip", log=False):
    series = {
        label: [
            result(rule, seed, level=0.1 * k, attack=attack, watched=label == "huber automatic") for seed in range(3)
        ]
        for k, (label, rule) in enumerate(LABELS.items(), start=1)
    }
    return Panel(f"fig1: {attack}", "rmse", series, log)


def report(directory, **more):
    panels = [panel(), panel("krum_attack", log=True)]
    results = [run for each in panels for line in each.series.values() for run in line]
    return write_report(directory, results, title="A <report>", verdicts=VERDICTS, tables=TABLES, panels=panels, **more)


# Files


def read(path):
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_page_quotes_a_source_and_says_how_to_read_it(tmp_path):
    about = [Source("A paper,", "doi:10.1/x", "https://doi.org/10.1/x")]
    page = report(tmp_path, figures=False, about=about, reading=[Paragraph("How to read it.")]).read_text(
        encoding="utf-8"
    )
    assert '<a href="https://doi.org/10.1/x">doi:10.1/x</a>' in page
    assert "<q>Krum fails under its own attack.</q>" in page
    assert "<q>The mean of everything" not in page  # a sentence of our own
    assert page.index("doi.org") < page.index("How to read it.") < page.index("Krum fails under")


def test_the_files_hold_the_numbers(tmp_path):
    path = report(tmp_path / "new" / "folder", figures=False)
    assert path == tmp_path / "new" / "folder" / "report.html"
    folder = path.parent / "numbers"
    assert not (path.parent / "figures").exists()
    rows = read(folder / "fig1-sign-flip.csv")
    assert len(rows) == len(LABELS) * ROUNDS
    for row in (rows[0], rows[-1]):
        seeds = [float(row[f"seed {k}"]) for k in range(3)]
        assert [float(row[k]) for k in ("mean", "low", "high")] == pytest.approx(
            [np.mean(seeds), min(seeds), max(seeds)]
        )
    assert float(rows[0]["seed 1"]) == pytest.approx(panel().series["mean"][1].series["rmse"][0], rel=1e-7)
    assert [row["outcome"] for row in read(folder / "claims.csv")] == ["holds", "fails", "undecided"]
    assert read(folder / "table-1-measured.csv")[1] == {"rule": "huber", **dict.fromkeys(WIDE, "")}
    names = sorted(p.name for p in folder.iterdir())
    watched = "{}-huber-automatic"  # what differs, and the rule
    for attack in ("sign-flip", "krum-attack"):
        assert f"detection-{watched.format(attack)}.csv" in names
        assert f"weights-{watched.format(attack)}-seed-0.csv" in names
        assert f"radius-for-f-8-{attack}.csv" in names
    assert len(names) == 3 + 2 * 4
    weights = read(folder / f"weights-{watched.format('sign-flip')}-seed-0.csv")
    assert [int(row["client"]) for row in weights if row["liar"] == "1"] == panel().series["huber automatic"][
        0
    ].byzantine


def test_a_report_is_the_same_every_time(tmp_path):
    first, second = report(tmp_path / "a", figures=False), report(tmp_path / "b", figures=False)
    assert first.read_bytes() == second.read_bytes()


def test_figures_are_drawn_where_matplotlib_is(tmp_path):
    path = report(tmp_path)
    for kind, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF")):
        drawn = list((tmp_path / "figures").glob(f"*{kind}"))
        told = {p.stem for p in (tmp_path / "numbers").iterdir()} - {"claims", "runs", "table-1-measured"}
        assert {p.stem for p in drawn} == told
        assert all(p.read_bytes().startswith(start) for p in drawn)
    assert "figures/*.png" in path.read_text(encoding="utf-8")


def test_without_matplotlib_the_page_is_written_and_says_so(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    page = report(tmp_path).read_text(encoding="utf-8")
    assert "pip install &#39;.[report]&#39;" in page
    assert page.count("<figure") == 2 + 2 * 3
    assert 'class="plot"' not in page
    assert ">huber automatic</th>" in page
    assert not (tmp_path / "figures").exists()


def test_titles_met_twice_get_files_of_their_own(tmp_path):
    same = [Table("Same title", ("a",), [(k,)]) for k in range(3)]
    write_report(tmp_path, [], title="t", tables=same, figures=False)
    files = [tmp_path / "numbers" / f"same-title{end}.csv" for end in ("", "-again-1", "-again-2")]
    assert [read(file) for file in files] == [[{"a": str(k)}] for k in range(3)]


def test_the_page_needs_no_network(tmp_path):
    page = report(tmp_path, figures=False).read_text(encoding="utf-8")
    assert set(re.findall(r'(?:href|src)="([^"#]{0,10})', page)) == {"data:,", "data:image", ""}
    assert not re.search(r"https?://|@import|url\((?!#)", page)
    assert "prefers-color-scheme: dark" in page
    assert "<sign flips>" not in page


def test_a_method_has_one_colour_in_all_charts(tmp_path):
    page = report(tmp_path, figures=False).read_text(encoding="utf-8")
    legend = []
    for drawing in re.findall(r'<svg class="plot".*?</svg>', page, re.DOTALL):
        parts = list(ElementTree.fromstring(drawing).iter())
        for k, part in enumerate(parts):
            if part.tag == "text" and part.text in LABELS:
                line = next(one for one in reversed(parts[:k]) if "stroke-width: 1.7" in one.get("style", ""))
                mark = next(one for one in reversed(parts[:k]) if one.tag == "use")
                legend.append((re.search(r"--(c\d)", line.get("style"))[1], mark.get("href"), part.text))
    assert len(legend) > 2 * len(LABELS)
    colours = {(colour, label) for colour, _, label in legend}
    assert len(colours) == len({label for _, label in colours})
    marks = {label: mark for _, mark, label in legend[: len(LABELS)]}
    assert {(f"c{rule_style('huber').colour}", label) for label in ("huber", "huber automatic")} <= colours
    assert marks["huber"] != marks["huber automatic"]


def test_a_certificate_that_proved_nothing_is_said(tmp_path):
    run = result(watched=True)
    nothing = result(watched=True, series={"rmse": run.series["rmse"], "radius": [None] * ROUNDS})
    page = write_report(tmp_path, [nothing], title="t", figures=False).read_text(encoding="utf-8")
    assert "Asked for, but proven in no round: sign_flip, huber." in page


def test_the_answer_comes_first(tmp_path):
    runs = [
        result(rule, seed, attack=attack) for rule in LABELS.values() for seed in (0, 1) for attack in ("ipm", "alie")
    ]
    opening = {name: [Heading(f"of {name}")] for name in (ANSWER, NAMED, PROVEN)}
    page = write_report(tmp_path, runs, title="t", opening=opening, figures=False).read_text(encoding="utf-8")
    places = [
        page.index(text)
        for text in ("of What came out", 'class="matrix"', ">Curves</h2>", "of Who is", "of What is", ">Runs</h2>")
    ]
    assert places == sorted(places)
    assert "16 runs. All of them: synthesized, balanced, epsilon 0.2, 40 clients, step 0.02, 30 rounds." in page
    assert re.findall("<figcaption>([^<]+)<", page)[1:] == ["ipm", "alie"]
    rows = read(tmp_path / "numbers" / "matrix-rmse.csv")
    assert len(rows) == 2 * len(LABELS)
    ends = [run.end for run in runs if run.experiment.rule == "mean" and run.experiment.attack == "alie"]
    (cell,) = [row for row in rows if (row["rule"], row["attack"]) == ("mean", "alie")]
    assert float(cell["rmse"]) == pytest.approx(np.mean(ends), rel=1e-6)
    assert [float(cell["low"]), float(cell["high"])] == pytest.approx([min(ends), max(ends)], rel=1e-6)


def test_with_claims_these_are_the_answer(tmp_path):
    assert 'class="matrix"' not in report(tmp_path, figures=False).read_text(encoding="utf-8")


def test_a_panel_without_a_point_is_left_out(tmp_path):
    nothing = {"rmse": [None] * ROUNDS}
    runs = [result("mean", series=nothing, attack="ipm"), result("mean"), result("huber")]
    page = write_report(tmp_path, runs, title="t", figures=False).read_text(encoding="utf-8")
    assert re.findall('class="chart"[^>]*><figcaption>([^<]+)<', page) == ["sign_flip"]
    assert [row["mark"] for row in read(tmp_path / "numbers" / "matrix-rmse.csv")] == ["diverged", "", ""]


def test_detection_is_left_out_where_a_rule_does_not_weigh(tmp_path):
    watched = result("huber", watched=True)
    alike = replace(result("mean", watched=True), weights=np.ones((ROUNDS, M), np.float16))
    page = write_report(tmp_path, [watched, alike], title="t", figures=False).read_text(encoding="utf-8")
    assert page.count('<figure class="map"') == 1
    assert "Left out, because the rule gives every client the same weight per sample" in page
    assert "sign_flip, mean." in page


def test_detection_is_judged_by_weight_per_sample(tmp_path):
    run = result("huber", watched=True)
    weights = run.weights.copy()
    few = next(k for k in range(M) if k not in run.byzantine)
    weights[:, few] = 0.1  # an honest client with few samples
    samples = [100] * M
    samples[few] = 8
    for name, counts, expected in (("blind", None, 8 / 9), ("judged", samples, 1.0)):
        write_report(tmp_path / name, [replace(run, weights=weights, samples=counts)], title="t", figures=False)
        rows = read(tmp_path / name / "numbers" / "detection-sign-flip-huber.csv")
        last = [row["mean"] for row in rows if row["label"] == "precision"][-1]
        assert float(last) == pytest.approx(expected)


def test_panels_are_titled_by_what_sets_them_apart():
    runs = [replace_experiment(result(rule), step=step) for rule in ("mean", "huber") for step in (0.1, 0.2)]
    panels = panels_of(runs)
    assert [(panel.title, list(panel.series)) for panel in panels] == [
        ("step 0.1", ["mean", "huber"]),
        ("step 0.2", ["mean", "huber"]),
    ]


def replace_experiment(run, **changes):
    return replace(run, experiment=replace(run.experiment, **changes))


def test_an_empty_report_is_a_page(tmp_path):
    assert "Nothing yet" in write_report(tmp_path, [], title="Nothing yet", figures=False).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("series", "metric", "message"),
    [
        ({}, "rmse", "has no curves"),
        ({"huber": []}, "rmse", "'huber' of panel 'p' has no results. Run"),
        ({"huber": [result()]}, "acuracy", "unknown metric 'acuracy'.*Known: error, radius, rmse"),
        ({"huber": [result(), result(seed=1, rounds=7)]}, "rmse", r"rounds = \[7, 30\]"),
        ({"huber": [result(), result(attack="krum_attack")]}, "rmse", r"every seed once; met seeds = \[0, 0\]"),
    ],
)
def test_a_panel_without_its_numbers_is_an_error(tmp_path, series, metric, message):
    with pytest.raises(ValueError, match=message):
        write_report(tmp_path, [], title="t", panels=[Panel("p", metric, series)], figures=False)
    assert not (tmp_path / "report.html").exists()


# A real browser

LOOK = """
const box = text => text.getBoundingClientRect();
const touch = (a, b) => a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 1 && b.top < a.bottom - 1;
const look = frame => {
  const page = frame.contentDocument, charts = [...page.querySelectorAll(".chart")], first = charts[0];
  const texts = plot => [...plot.querySelectorAll("text")];
  first.querySelector("details").open = true;
  return {
    width: page.documentElement.scrollWidth,
    lines: charts.map(chart => [...chart.querySelectorAll("path[style*='stroke-width: 1.7']")]
      .map(path => path.getTotalLength())),
    pictures: page.querySelectorAll(".map image").length,
    numbers: [...first.querySelectorAll("tr")].map(row => [...row.cells].map(cell => cell.textContent)),
    claims: [...page.querySelectorAll(".claims tbody tr")].map(row => row.innerText),
    outcomes: [...page.querySelectorAll(".outcome")].map(word => getComputedStyle(word).color),
    outside: [...page.querySelectorAll(".plot text, h1, h2, figcaption")]
      .filter(text => box(text).left < 0 || box(text).right > frame.clientWidth).map(text => text.textContent),
    overlaps: [...page.querySelectorAll(".plot")].flatMap(plot => texts(plot).flatMap((a, i) => texts(plot).slice(i + 1)
      .filter(b => touch(box(a), box(b))).map(b => a.textContent + " / " + b.textContent))),
  };
};
"""


def test_a_browser_shows_the_report(tmp_path):
    seen = probe_page(report(tmp_path, figures=False), LOOK)
    for width, probe in seen.items():
        assert probe["width"] <= width
        # Panels, detection, radius; each curve in the plot and in the legend.
        assert [len(lengths) for lengths in probe["lines"]] == [8] * 2 + [4] * 2 + [2] * 2
        assert min(map(max, probe["lines"])) > 150
        assert probe["pictures"] == 2
        for verdict, text in zip(VERDICTS, probe["claims"], strict=True):
            assert all(part.strip() in text for part in (verdict.says, verdict.outcome, verdict.numbers, verdict.where))
        assert len(set(probe["outcomes"])) == 3
        assert probe["outside"] == []
        assert probe["overlaps"] == []
        series = panel().series
        first, *_, last = probe["numbers"][1:]
        assert probe["numbers"][0] == ["round", *series]
        for k, row in ((0, first), (-1, last)):
            assert row[1:] == [f"{np.mean([run.series['rmse'][k] for run in line]):.3f}" for line in series.values()]
        assert (first[0], last[0]) == ("1", str(ROUNDS))
