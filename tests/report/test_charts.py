"""Charts: what they show of their curves, how they are drawn, and that the page and the PNG file show the same."""

import math
import re
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from fedhold.report import save_png
from fedhold.report.charts import MARKS, SHAPES, Axis, Chart, curve, draw, frame, labelled_rounds, round_numbers
from fedhold.report.colours import COLOURS, MARKERS, Style, plain_styles
from fedhold.report.figures import MARKERS as DRAWN


def svg(chart):
    return draw(chart, plain_styles(line.label for line in chart.curves)).__html__()


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
    assert dict(frame(chart).notes) == {"mean": "leaves the chart"}


@pytest.mark.parametrize("log", [False, True])
def test_one_runaway_does_not_flatten_the_others(log):
    lines = [curve(f"r{k}", (0,), [[3.0, 1.0 + k]]) for k in range(3)] + [curve("mean", (0,), [[3.0, 1e30]])]
    view = frame(Chart("", "rmse", tuple(lines), log))
    assert view.top < 10
    assert dict(view.notes) == {"mean": "leaves the chart"}
    assert view.share(lines[-1].mean)[1] > 1


def test_a_log_scale_shows_zero_below_the_frame():
    view = frame(Chart("", "error", (curve("a", (0,), [[1.0, 0.0, 1e-3]]),), log=True))
    assert view.share(np.array([0.0]))[0] < 0
    assert view.bottom > 0
    assert view.notes == {"a": "leaves the chart"}


@pytest.mark.parametrize(
    "rows", [[None], [0.0], [-1.0, -1.0], [1e308, -1e308], [1e-320, 0.0], [math.inf], [0.5, 0.5 + 1e-9]]
)
@pytest.mark.parametrize("log", [False, True])
def test_every_chart_can_be_drawn(rows, log):
    chart = Chart("t", "x", (curve("a", (0, 1), [rows] * 2),), log)
    drawn = svg(chart)
    assert (
        drawn.count("<path") == 1 + 1 + 1 + 2 + 1 + 2
    )  # grid, axis, band, line and markers, cursor, swatch with its marker
    assert "nan" not in drawn
    assert "inf" not in drawn


@pytest.mark.parametrize(("low", "high"), [(0, 1), (-3, 7), (1e-9, 3e-9), (99.5, 100.5), (0, 1e20)])
def test_round_numbers_are_few_and_inside(low, high):
    ticks = round_numbers(low, high, 5)
    assert 3 <= len(ticks) <= 7
    slack = 1e-6 * (high - low)
    assert low - slack <= min(ticks) < max(ticks) <= high + slack


def test_neighbouring_ticks_never_read_the_same():
    drawn = svg(Chart("", "x", (curve("a", (0,), [[100.0001, 100.0002]]),)))
    ticks = re.findall(r'text-anchor="end">([^<]+)<', drawn)
    assert len(ticks) == len(set(ticks)) > 2


def test_a_covered_curve_is_seen_by_its_markers():
    """Two equal curves: the markers of each are on the line, at other places than those of the other."""
    rows = [[3.0, 2.0, 1.5, 1.2, 1.1]]
    drawing = draw(Chart("", "x", (curve("a", (0,), rows), curve("b", (0,), rows))), plain_styles("ab"))
    first, second = (line.marks for line in drawing.lines)
    assert len(first) == len(second) == MARKS
    assert np.abs(first[:, None, 0] - second[None, :, 0]).min() > 0.05
    for line in drawing.lines:
        np.testing.assert_allclose(np.interp(line.marks[:, 0], line.x, line.mean), line.marks[:, 1])
    html = drawing.__html__()
    assert html.rindex('class="line', 0, html.index("cursor")) < html.index('class="mark')  # above every line


def test_markers_stay_inside_the_frame():
    lines = [curve(f"r{k}", (0,), [[3.0, 1.0 + k]]) for k in range(3)] + [curve("away", (0,), [[3.0, 1e30]])]
    drawing = draw(Chart("", "rmse", tuple(lines)), plain_styles(line.label for line in lines))
    assert all(((line.marks >= 0) & (line.marks <= 1)).all() for line in drawing.lines)
    assert len(drawing.lines[-1].marks) < MARKS
    one = draw(Chart("", "x", (curve("a", (0,), [[1.0]]),)), plain_styles("a"))
    assert len(one.lines[0].marks) == 1


def test_every_marker_has_a_shape():
    assert len(set(SHAPES)) == len(set(DRAWN)) == MARKERS


def test_the_legend_has_equal_decimals():
    lines = (curve("a", (0,), [[1.0, 0.1234]]), curve("b", (0,), [[1.0, 12.0]]), curve("c", (0,), [[1.0, 2e9]]))
    drawing = draw(Chart("", "x", lines), plain_styles("abc"))
    assert [line.values for line in drawing.lines] == [("1.000", "0.123"), ("1.000", "12.000"), ("1.000", "2e9")]


@pytest.mark.parametrize(("gaps", "pieces"), [(False, 1), (True, 2)])
def test_a_round_without_a_number_interrupts_a_line_where_that_means_something(gaps, pieces):
    line = curve("a", (0,), [[1.0, 1.0, None, None, 0.0, 0.0]])
    drawing = draw(Chart("", "precision", (line,), gaps=gaps), plain_styles("a"))
    assert drawing.lines[0].path.count("M") == pieces
    assert drawing.rounds == (1, 2, 5, 6)
    assert not gaps or not ((drawing.lines[0].marks[:, 0] > 0.2) & (drawing.lines[0].marks[:, 0] < 0.8)).any()


def test_a_chart_without_points_has_no_numbers():
    assert not Chart("", "x", (curve("a", (0,), [[None, None]]),)).has_numbers
    assert Chart("", "x", (curve("a", (0,), [[None, 1.0]]),)).has_numbers


def test_thinning_keeps_the_shape():
    t = np.arange(500)
    rows = (np.exp(-t / 50) + (t == 250)).tolist()  # a spike of one round must stay
    drawn = svg(Chart("", "x", (curve("a", (0,), [rows]),)))
    path = re.search(r'class="line c0" d="M(\d+) (\d+)l([^"]+)"', drawn)
    steps = np.array(re.findall(r"-?\d+", path[3]), int).reshape(-1, 2)
    points = np.cumsum([[int(path[1]), int(path[2])], *steps], axis=0)
    assert len(points) < 60
    assert np.ptp(points[:, 1]) > 1800  # of the 1980 that the plot is high
    heights = np.interp(t / 499 * points[-1, 0], points[:, 0], points[:, 1])
    meant = points[:, 1].max() - (np.array(rows) - min(rows)) / np.ptp(rows) * np.ptp(points[:, 1])
    np.testing.assert_allclose(np.delete(heights, [249, 250, 251]), np.delete(meant, [249, 250, 251]), atol=4)


def test_labelled_rounds_begin_with_the_first_and_do_not_touch():
    assert labelled_rounds(1) == [1]
    assert labelled_rounds(20) == [1, 5, 10, 15, 20]
    for last in range(2, 700):
        rounds = labelled_rounds(last)
        assert rounds[0] == 1
        assert rounds[-1] <= last
        assert (np.diff(rounds) * 13 > last).all()


def test_the_file_shows_what_the_page_shows(tmp_path, monkeypatch):
    papers = []
    monkeypatch.setattr(Figure, "savefig", lambda paper, *_, **__: papers.append(paper))
    lines = (
        curve("a", (0, 1), [[1.0, 2.0, 4.0], [1.0, 3.0, None]]),
        curve("b <c>", (0,), [[5.0, 4.0, 3.0]]),
        curve("a run that ends", (0,), [[5.0, 4.0, None]]),
    )
    styles = {"a": Style(0), "b <c>": Style(1, "6 3", 2), "a run that ends": Style(2)}
    drawing = draw(Chart("title", "rmse", lines, log=True), styles)
    save_png(drawing, tmp_path / "a.png")
    (axes,) = papers[0].axes
    assert [text.get_text() for text in axes.get_xticklabels()] == [tick.label for tick in drawing.x_ticks]
    assert [text.get_text() for text in axes.get_yticklabels()] == [tick.label for tick in drawing.y_ticks]
    for shown, marks, line in zip(axes.lines[::2], axes.lines[1::2], drawing.lines, strict=True):
        np.testing.assert_array_equal(shown.get_xydata(), np.stack([line.x, line.mean], axis=1))
        np.testing.assert_array_equal(marks.get_xydata(), line.marks)
        assert shown.get_color() == marks.get_color() == COLOURS[line.style.colour]
        assert marks.get_marker() == DRAWN[line.style.marker]
        assert (shown.get_linestyle() == "--") == bool(line.style.dashes)
    assert [line.note for line in drawing.lines] == ["leaves the chart", "", "ends after round 2"]
    assert [text.get_text() for text in papers[0].legends[0].get_texts()] == [
        "a (leaves the chart)",
        "b <c>",
        "a run that ends (ends after round 2)",
    ]
    assert len(axes.collections) == sum(line.has_band for line in drawing.lines) == 1


def test_png_files_need_matplotlib(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install '\.\[report\]'"):
        save_png(draw(Chart("t", "x", (curve("a", (0,), [[1.0]]),)), plain_styles("a")), tmp_path / "a.png")


def test_a_parameter_on_the_horizontal_axis():
    axis = Axis("epsilon", (0.0, 0.1, 0.4), marked=0.2)
    lines = (curve("a", (0,), [[1.0, 2.0, 4.0]]), curve("b", (0,), [[1.0, 2.0, None]]))
    drawing = draw(Chart("t", "rmse", lines, axis=axis), plain_styles("ab"))
    np.testing.assert_allclose(drawing.lines[0].x, [0, 0.25, 1])
    assert [(tick.at, tick.label) for tick in drawing.x_ticks] == [(0, "0"), (0.25, "0.1"), (1, "0.4")]
    assert drawing.lines[1].note == "ends at 0.1"
    assert drawing.marked == 0.5
    html = drawing.__html__()
    assert "rmse against epsilon" in html
    assert 'epsilon <span class="round">0.4</span>' in html
    assert "ound" not in re.sub(r"data-rounds|class=\"round\"", "", html)


def test_values_without_room_have_no_label():
    axis = Axis("T", (1.0, 1.01, 10.0, 100.0), log=True)
    assert [tick.label for tick in axis.ticks()] == ["1", "10", "100"]
    assert axis.share([10.0])[0] == pytest.approx(0.5)


def test_a_long_legend_does_not_flatten_the_plot(tmp_path):
    heights = []
    for count in (4, 20):
        lines = tuple(curve(f"rule {k}", (0,), [[1.0, 2.0]]) for k in range(count))
        save_png(draw(Chart("t", "rmse", lines), plain_styles(line.label for line in lines)), tmp_path / "a.png")
        heights.append(imread(tmp_path / "a.png").shape[0])
    assert heights[0] == 572
    assert heights[1] > 650
