"""Charts: what they show of their curves, that one drawing makes pages and files, and what a page shows without matplotlib."""

import io
import math
import re
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure as Paper
from PIL import Image

from fedhold.report import Axis, Cards, Chart, Section, Style, curve, page, plain_styles
from fedhold.report.charts import BAND_POINTS, MARKERS, MARKS, TABLE_ROWS
from fedhold.report.colours import COLOURS
from fedhold.report.colours import MARKERS as SHAPES

HOSTILE = "_$\\frac{1}{0}$ <script>alert(1)</script> &amp; ]]> #0072b2 \x1b[31m \u8a9e " + "x" * 99


def drawn(chart):
    """The axes and the legend of a chart, as matplotlib has them."""
    paper = Paper()
    chart.draw(paper)
    paper.draw_without_rendering()
    return paper.axes[0], [text.get_text() for text in paper.legends[0].get_texts()]


def lines_of(axes):
    """For each curve its line and its markers; between them are points without neighbours."""
    return list(zip(axes.lines[::3], axes.lines[2::3], strict=True))


def ticks(axis):
    """The labels inside the chart."""
    low, high = sorted(axis.get_view_interval())
    return [
        text.get_text()
        for at, text in zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
        if low <= at <= high
    ]


def test_a_curve_is_mean_min_and_max_over_seeds():
    line = curve("huber", (0, 1), [[1.0, 2.0, None], [3.0, 2.0, None]])
    np.testing.assert_array_equal(line.mean, [2, 2, np.nan])
    np.testing.assert_array_equal(line.low, [1, 2, np.nan])
    np.testing.assert_array_equal(line.high, [3, 2, np.nan])


def test_a_seed_that_diverged_is_not_averaged_away():
    line = curve("mean", (0, 1), [[1.0, 2.0], [1.0, None]])
    assert line.mean[1] == math.inf
    assert line.low[1] == 2
    chart = Chart("", "rmse", (line, curve("huber", (0, 1), [[1.0, 1.0]] * 2)))
    assert chart.notes == {"mean": "leaves the chart"}


@pytest.mark.parametrize("log", [False, True])
def test_one_runaway_does_not_flatten_the_others(log):
    lines = [curve(f"r{k}", (0,), [[3.0, 1.0 + k]]) for k in range(3)] + [curve("mean", (0,), [[3.0, 1e30]])]
    chart = Chart("", "rmse", tuple(lines), log)
    axes, legend = drawn(chart)
    assert axes.get_ylim() == pytest.approx(chart.range)
    assert chart.range[1] < 10
    assert legend[-1] == "mean (leaves the chart)"
    assert lines_of(axes)[-1][0].get_ydata()[1] > chart.range[1]


def test_a_log_scale_shows_zero_below_the_frame():
    chart = Chart("", "error", (curve("a", (0,), [[1.0, 0.0, 1e-3]]),), log=True)
    axes, _ = drawn(chart)
    assert 0 < lines_of(axes)[0][0].get_ydata()[1] < chart.range[0]
    assert chart.notes == {"a": "leaves the chart"}


@pytest.mark.parametrize(
    "rows",
    [[None], [0.0], [-1.0, -1.0], [1e308, -1e308], [1e-320, 0.0], [math.inf], [0.5, 0.5 + 1e-9], [9e299, -9e299]],
)
@pytest.mark.parametrize("log", [False, True])
def test_every_chart_can_be_drawn(tmp_path, rows, log):
    chart = Chart("t", "x", (curve("a", (0, 1), [rows] * 2),), log)
    assert not re.search(r"\b(nan|inf)", chart.svg)
    assert chart.svg.count("<text") >= 3  # both axes and the legend
    assert chart.table.texts is not None
    for name in ("a.png", "a.pdf"):
        chart.save(tmp_path / name)
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "a.pdf").read_bytes().startswith(b"%PDF")


@pytest.mark.parametrize(
    ("values", "log"),
    [([100.0001, 100.0002], False), ([1e-7, 3e-7], True), ([0.5, 2], True), ([1e-9, 1.0], True), ([1.0, 1.02], True)],
)
def test_neighbouring_ticks_never_read_the_same(values, log):
    axes, _ = drawn(Chart("", "x", (curve("a", (0,), [values]),), log))
    found = ticks(axes.yaxis)
    assert len(found) == len(set(found)) > 1
    assert not any("$" in text for text in found)


def test_a_covered_curve_is_seen_by_its_markers():
    """Two equal curves: the markers of each are on the line, at other places than those of the other, and above all lines."""
    rows = [[3.0, 2.0, 1.5, 1.2, 1.1]]
    for log in (False, True):
        axes, _ = drawn(Chart("", "x", (curve("a", (0,), rows), curve("b", (0,), rows)), log))
        (line, first), (_, second) = lines_of(axes)
        x, y = line.get_data()
        scale = np.log if log else np.asarray
        for marks in (first, second):
            assert marks.get_xdata().size == MARKS
            np.testing.assert_allclose(np.interp(marks.get_xdata(), x, scale(y)), scale(marks.get_ydata()))
            assert marks.get_zorder() > line.get_zorder()
        assert np.abs(first.get_xdata()[:, None] - second.get_xdata()).min() > 0.2


def test_a_single_point_has_one_marker():
    axes, _ = drawn(Chart("", "x", (curve("a", (0,), [[1.0]]),)))
    assert [marks.get_xdata().size for _, marks in lines_of(axes)] == [1]


@pytest.mark.parametrize("gaps", [False, True])
def test_a_round_without_a_number_interrupts_a_line_where_that_means_something(gaps):
    line = curve("a", (0,), [[1.0, 1.0, None, None, 0.0, 0.0, None, 1.0]])
    axes, _ = drawn(Chart("", "precision", (line,), gaps=gaps))
    shown, marks = lines_of(axes)[0]
    assert np.isnan(shown.get_ydata()).any() == gaps
    there = marks.get_xdata()[np.isfinite(marks.get_ydata())]
    assert ((there > 2) & (there < 5)).any() != gaps
    assert axes.lines[1].get_xdata().tolist() == ([8] if gaps else [])  # a point without neighbours


def test_a_chart_without_points_has_no_numbers():
    assert not Chart("", "x", (curve("a", (0,), [[None, None]]),)).has_numbers
    assert Chart("", "x", (curve("a", (0,), [[None, 1.0]]),)).has_numbers


def test_styles_are_those_of_the_rules():
    lines = (
        curve("a", (0, 1), [[1.0, 2.0, 4.0], [1.0, 3.0, None]]),
        curve("b <c>", (0,), [[5.0, 4.0, 3.0]]),
        curve("a run that ends", (0,), [[5.0, 4.0, None]]),
    )
    styles = {"a": Style(0), "b <c>": Style(1, "6 3", 2), "a run that ends": Style(2)}
    axes, legend = drawn(Chart("title", "rmse", lines, log=True, styles=styles))
    for (shown, marks), style in zip(lines_of(axes), styles.values(), strict=True):
        assert shown.get_color() == COLOURS[style.colour]
        assert marks.get_marker() == MARKERS[style.marker]
        assert (shown.get_linestyle() == "--") == bool(style.dashes)
    assert legend == ["a (leaves the chart)", "b <c>", "a run that ends (ends after round 2)"]
    assert len(axes.collections) == 1  # the band of the only curve with seeds
    assert len(set(MARKERS)) == SHAPES


def test_a_band_reaches_from_the_least_to_the_largest():
    rng = np.random.default_rng(0)
    rows = rng.random((3, 1000)).tolist()
    axes, _ = drawn(Chart("", "x", (curve("a", (0, 1, 2), rows),)))
    edge = axes.collections[0].get_paths()[0].vertices
    assert len(edge) < 2 * BAND_POINTS + 5
    assert edge[:, 1].max() == pytest.approx(np.max(rows))
    assert edge[:, 1].min() == pytest.approx(np.min(rows))


def test_a_parameter_on_the_horizontal_axis():
    axis = Axis("epsilon", (0.1, 1.0, 10.0), log=True, marked=0.75)
    lines = (curve("a", (0,), [[1.0, 2.0, 4.0]]), curve("b", (0,), [[1.0, 2.0, None]]))
    chart = Chart("t", "rmse", lines, axis=axis)
    axes, legend = drawn(chart)
    assert (axes.get_xlabel(), axes.get_xscale()) == ("epsilon (log scale)", "log")
    assert {"0.1", "1", "10"} <= set(ticks(axes.xaxis))
    assert axes.lines[0].get_xdata() == [0.75, 0.75]
    assert legend == ["a", "b (ends at 1)"]
    assert chart.table.header == ("epsilon", "a", "b")
    assert [row[0] for row in chart.table.rows] == ["0.1", "1", "10"]


def test_the_table_has_the_numbers_of_some_rounds():
    lines = (curve("a", (0,), [np.arange(100.0)]), curve("b", (0,), [[0.25] * 50]))
    table = Chart("t", "x", lines).table
    assert table.header == ("round", "a", "b")
    assert len(table.rows) == TABLE_ROWS
    assert table.texts[0] == ("1", "0", "0.25")
    assert table.texts[-1] == ("100", "99", "-")


def test_a_long_legend_does_not_flatten_the_plot(tmp_path):
    heights = []
    for count in (4, 20):
        lines = tuple(curve(f"rule {k}", (0,), [[1.0, 2.0]]) for k in range(count))
        Chart("t", "rmse", lines).save(tmp_path / "a.png")
        heights.append(size_of(tmp_path / "a.png")[1])
    assert heights[1] > heights[0] + 200


# Pages and files


def hostile():
    return Chart(
        HOSTILE,
        HOSTILE,
        (curve(HOSTILE, (0,), [[1.0, 2.0]]), curve("_", (0,), [[2.0, 1.0]])),
        axis=Axis(HOSTILE, (1, 2)),
    )


def test_texts_of_clients_are_shown_as_they_are(tmp_path):
    chart = hostile()
    axes, legend = drawn(chart)
    assert legend[0].startswith("_$\\frac{1}{0}$ <script>alert(1)</script> &amp; ]]> #0072b2")
    assert legend[1] == "_"
    assert max(map(len, legend)) < 70
    assert len(axes.get_ylabel()) < 70
    assert "<script" not in chart.svg
    assert "_$\\frac{1}{0}$ &lt;script&gt;alert(1)&lt;/script&gt; &amp;amp; ]]&gt; #0072b2" in chart.svg
    for name in ("a.png", "a.pdf"):
        chart.save(tmp_path / name)
    assert "<script" not in page("t", "s", [Section("Curves", [Cards([chart])])])


def test_an_element_of_a_page_holds_nothing_but_a_drawing():
    chart = hostile()
    assert set(re.findall(r"<(\w+)", chart.svg)) <= {"svg", "g", "defs", "clipPath", "path", "rect", "use", "text"}
    assert set(re.findall(r' (\w[\w-]*)="', chart.svg)) <= {
        *("class", "viewBox", "role", "aria-label", "id", "d", "style", "href", "x", "y", "width", "height"),
        *("transform", "clip-path"),
    }
    assert all(target.startswith("#") for target in re.findall(r'href="([^"]*)"', chart.svg))
    assert "http" not in chart.svg
    ids = re.findall(r' id="([^"]+)"', chart.svg)
    assert set(ids) == set(re.findall(r'(?:url\(|href=")#([^")]+)', chart.svg))
    assert "var(--c0)" in chart.svg
    assert "var(--ink)" in chart.svg
    assert not re.search(r'style="[^"]*#(?!fff)', chart.svg), "every colour follows the page"


def test_a_chart_is_small_and_the_same_every_time(tmp_path):
    rng = np.random.default_rng(0)
    lines = tuple(curve(f"r{k}", (0, 1), np.cumsum(rng.standard_normal((2, 500)), axis=1)) for k in range(7))
    first, second = (Chart("t", "x", lines) for _ in range(2))
    assert first.svg == second.svg
    assert len(first.svg) < 90_000
    for kind in ("png", "pdf"):
        for k, chart in enumerate((first, second)):
            chart.save(tmp_path / f"{k}.{kind}")
        assert (tmp_path / f"0.{kind}").read_bytes() == (tmp_path / f"1.{kind}").read_bytes()


def test_settings_of_the_caller_neither_count_nor_change():
    chart = Chart("t", "x", (curve("a", (0,), [[1.0, 2.0]]),))
    usual, before = chart.svg, dict(matplotlib.rcParams)
    with matplotlib.rc_context({"text.usetex": True, "font.size": 40, "axes.prop_cycle": "cycler('color', ['r'])"}):
        assert chart.svg == usual
        assert matplotlib.rcParams["font.size"] == 40
    assert dict(matplotlib.rcParams) == before


def size_of(path):
    return Image.open(io.BytesIO(path.read_bytes())).size


def test_a_file_has_the_title_and_a_page_has_it_as_text(tmp_path):
    chart = Chart("a title", "x", (curve("a", (0,), [[1.0, 2.0]]),))
    chart.save(tmp_path / "a.png")
    chart = Chart("a much longer title " * 9, "x", chart.curves)
    chart.save(tmp_path / "b.png")
    assert size_of(tmp_path / "b.png")[1] > size_of(tmp_path / "a.png")[1]
    html = Chart("a <title>", "x", chart.curves).__html__()
    assert "<figcaption>a &lt;title&gt;</figcaption>" in html
    assert ">a &lt;title&gt;</text>" not in html
    assert 'aria-label="a &lt;title&gt;: x against rounds"' in html


def test_without_matplotlib_a_page_shows_tables_and_says_once_what_draws(tmp_path, monkeypatch):
    chart = Chart("t", "x", (curve("a", (0,), [[1.0, 2.0]]),))
    sections = [Section("Curves", [Cards([chart, chart])])]
    assert "pip install" not in page("t", "s", sections)
    assert page("t", "s", sections).count("<details>") == 2
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    text = page("t", "s", sections)
    assert text.count("pip install &#39;.[report]&#39;") == 1
    assert text.count("<table>") == 2
    assert "<details>" not in text
    assert 'class="plot"' not in text
    assert "pip install" not in page("t", 'class="chart undrawn"', [Section("None", [Cards([])])])
    with pytest.raises(ImportError, match=r"a.png was not written.*pip install '\.\[report\]'"):
        chart.save(tmp_path / "a.png")


def test_styles_of_labels_are_plain_by_default():
    lines = (curve("a", (0,), [[1.0, 2.0]]), curve("b", (0,), [[1.0, 2.0]]))
    axes, _ = drawn(Chart("t", "x", lines))
    assert [line.get_color() for line, _ in lines_of(axes)] == [
        COLOURS[style.colour] for style in plain_styles("ab").values()
    ]
