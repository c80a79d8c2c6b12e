"""Heat maps: the colours of cells, the groups of rows, and large maps that stay small."""

import base64
import io
import re

import numpy as np
import pytest
from matplotlib.figure import Figure as Paper
from PIL import Image

from fedhold.report import HeatMap, Mark, weight_map
from fedhold.report.charts import stretches
from fedhold.report.colours import SCALE
from fedhold.report.heatmap import NAMED_ROWS

NAN = np.nan
MARKS = (Mark("rejected", "#d95f02"), Mark("away", "#b9c0c8"))


def heat(shares, codes, groups=(("suspects", 1), ("others", 1)), flagged=None):
    shares = np.array(shares, float)
    rows, columns = shares.shape
    names, rounds = tuple(f"node {k}" for k in range(rows)), tuple(range(3, 3 + columns))
    flags = np.zeros(columns, bool) if flagged is None else np.array(flagged)
    return HeatMap("t", f"{rows} nodes", shares, np.array(codes, np.int8), MARKS, names, rounds, groups, flags)


def pixels(figure):
    """The picture in the page, RGBA."""
    data = re.search(r'data:image/png;base64,([^"]+)', figure.svg)[1]
    return np.array(Image.open(io.BytesIO(base64.b64decode(data))).convert("RGBA"))


def drawn(figure):
    paper = Paper()
    figure.draw(paper)
    paper.draw_without_rendering()
    return paper


def words(paper, axis):
    return [text.get_text() for text in getattr(paper.axes[0], f"get_{axis}ticklabels")()]


def test_a_cell_is_a_pixel_in_the_colour_of_its_weight_or_mark():
    found = pixels(heat([[2, 5, 1], [0, NAN, NAN]], [[0, 0, 0], [0, 1, 0]]))
    top, dark, middle = ([*SCALE[level], 255] for level in (14, 0, 7))
    assert found.tolist() == [[top, top, middle], [dark, [0xD9, 0x5F, 0x02, 255], found[1, 2].tolist()]]
    assert found[1, 2, 3] == 0  # blank


def test_liars_are_on_top():
    weights = np.array([[2, 0, 1], [2, NAN, 1]], np.float16)  # rounds x clients
    figure = weight_map("t", weights, np.array([False, True, False]))
    assert figure.rows == ("client 1", "client 0", "client 2")
    assert figure.groups == (("liars", 1), ("honest", 2))
    np.testing.assert_array_equal(figure.shares, [[0, NAN], [2, 2], [1, 1]])


@pytest.mark.parametrize(("liars", "there"), [(0, ["honest"]), (30, ["liars", "honest"]), (90, ["liars"])])
def test_a_large_map_names_its_groups(liars, there):
    figure = weight_map("a <title>", np.ones((4, 90)), np.arange(90) < liars)
    assert words(drawn(figure), "y") == there
    html = figure.__html__()
    assert f"90 clients, {liars} of them liars" in html
    assert "a &lt;title&gt;" in html


def test_a_small_map_names_its_rows_and_the_key_what_occurs():
    paper = drawn(heat([[1, NAN], [1, 1]], [[0, 2], [0, 0]], flagged=[False, True]))
    assert words(paper, "y") == ["node 0", "node 1"]
    assert words(paper, "x") == ["3", "4"]
    assert [text.get_text() for text in paper.legends[0].get_texts()] == ["suspects", "no new model", "away"]
    assert words(
        drawn(heat(np.ones((NAMED_ROWS + 1, 2)), np.zeros((NAMED_ROWS + 1, 2)), (("a", 1), ("b", NAMED_ROWS)))), "y"
    ) == ["a", "b"]


def test_a_map_without_weights_has_no_scale():
    assert [axes.get_visible() for axes in drawn(heat([[NAN], [NAN]], [[1], [2]])).axes] == [True, False]


def test_neighbours_are_drawn_together_and_the_groups_stay_apart():
    shares = [[0, 0, NAN], [1, 2, 3], [1, NAN, NAN], [NAN, NAN, NAN]]
    codes = [[0, 0, 0], [0, 0, 0], [0, 1, 1], [0, 1, 0]]
    small = heat(shares, codes, (("suspects", 1), ("others", 3)), [False, True, False]).condensed(3, 2)
    assert small.rows == ("node 0", "node 1", "node 2 to node 3")
    assert small.groups == (("suspects", 1), ("others", 2))
    assert small.rounds == (3, 4)
    np.testing.assert_array_equal(small.codes, [[0, 0], [0, 0], [0, 1]])
    np.testing.assert_array_equal(small.shares, [[0, 0], [1, 2.5], [1, NAN]])
    assert small.flagged.tolist() == [False, True]
    assert heat(shares, codes, (("suspects", 1), ("others", 3))).condensed(4, 3).rows == (
        "node 0",
        "node 1",
        "node 2",
        "node 3",
    )


def test_the_first_group_is_not_lost_among_many():
    small = weight_map("t", np.ones((9, 5000)), np.arange(5000) < 3).condensed(200, 200)
    assert small.groups == (("liars", 3), ("honest", 197))
    assert small.rows[0] == "client 0"


def test_the_table_has_weights_and_words():
    table = heat([[1, NAN], [0.5, 1]], [[0, 1], [0, 0]]).table
    assert table.header == ("", "", "3", "4")
    assert table.rows == [("node 0", "suspects", "1.00", "rejected"), ("node 1", "others", "0.50", "1.00")]
    large = weight_map("t", np.ones((100, 300)), np.arange(300) < 100).table
    assert len(large.rows) == 60
    assert large.header[:3] == ("", "", "1-10")
    assert large.rows[0][:3] == ("client 0 to client 4", "liars", "1.00")


def test_a_large_map_stays_small():
    rng = np.random.default_rng(0)
    noise = weight_map("t", rng.random((400, 500)) * 2, rng.random(500) < 0.2)  # what compresses worst
    assert pixels(noise).shape == (200, 200, 4)
    assert len(noise.__html__()) < 150_000
    assert "Neighbours are drawn together: 500 x 400 cells as 200 x 200." in noise.__html__()
    assert (noise.condensed(10, 10).shares.round() == 1).all()


def test_stretches_have_about_the_same_length():
    assert stretches(5, 3).tolist() == [0, 1, 3]
    assert stretches(2, 3).tolist() == [0, 1]
    assert stretches(0, 3).tolist() == []


def test_it_is_a_file_too(tmp_path):
    figure = weight_map("t", np.ones((4, 9)), np.arange(9) < 2)
    for kind, start in {"png": b"\x89PNG", "pdf": b"%PDF"}.items():
        figure.save(tmp_path / f"a.{kind}")
        assert (tmp_path / f"a.{kind}").read_bytes().startswith(start)
