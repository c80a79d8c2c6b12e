"""Weights: who is held down, how well that finds liars, and the heat map of clients x rounds."""

import io
import re

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from fedhold.report import save_png
from fedhold.report.colours import SCALE
from fedhold.report.heatmap import column_ticks, group_means, groups, picture, weight_map
from fedhold.report.weights import detection, held_down, weighs


def test_held_down_means_below_half_the_median():
    weights = np.array([[1, 1, 1, 0.49, 0.51], [1, 1, 1, np.nan, 0]], np.float16)
    assert held_down(weights).tolist() == [[False, False, False, True, False], [False, False, False, False, True]]


def test_held_down_takes_both_weight_and_weight_per_sample():
    samples = np.array([20, 580, 100, 100, 100, 100])
    assert not held_down(samples / 1000, samples).any()  # weighed by samples
    assert not held_down(np.full(6, 1 / 6), samples).any()  # weighed alike
    lies = np.array([0.001, 0.58, 0.1, 0.1, 0.1, 0.1])
    assert held_down(lies, samples).tolist() == [True] + [False] * 5


def test_only_those_present_count():
    weights = np.array([0.0, 0.0, 0.0, 0.4, 0.4, 0.1])
    assert held_down(weights, present=weights > 0).tolist() == [False] * 5 + [True]
    assert held_down(np.array([])).tolist() == []
    assert not held_down(np.full((2, 3), np.nan)).any()


def test_detection_counts_those_who_took_part():
    nan = np.nan
    weights = np.array([[0, 0, 1, 1, 1, 1], [nan, 0, 1, 1, 1, 0], [1] * 6, [nan] * 6, [nan, nan, 1, 1, 1, 0.1]])
    precision, recall = detection(weights, np.array([True, True, False, False, False, False]))
    np.testing.assert_array_equal(precision, [1, 0.5, nan, nan, 0])
    np.testing.assert_array_equal(recall, [1, 1, 0, nan, nan])


def test_detection_is_judged_by_weight_per_sample():
    samples = np.array([10.0, 100, 100, 100, 100])
    weights = np.array([[0.1, 1.0, 1, 1, 0.2]])  # the first has few samples, the last is held down
    liars = np.array([False, False, False, False, True])
    assert [part.tolist() for part in detection(weights, liars)] == [[0.5], [1.0]]
    assert [part.tolist() for part in detection(weights, liars, samples)] == [[1.0], [1.0]]


def test_krum_holds_nobody_down():
    weights = np.zeros((1, 9))
    weights[0, 3] = 9
    assert not held_down(weights).any()
    assert np.isnan(detection(weights, np.arange(9) < 2)).all()  # a median of 0 judges nobody


def test_a_mean_does_not_weigh():
    samples = np.array([10.0, 20, 30])
    assert not weighs(np.array([samples / 20] * 2, np.float16), samples)
    assert not weighs(np.ones((2, 3)), samples)
    assert not weighs(np.full((2, 3), np.nan))
    assert weighs(np.array([[1.0, 1.0, 1.0], [1.4, 1.4, 0.2]]), samples)


def test_picture_is_a_png_of_the_weights_with_liars_on_top():
    weights = np.array([[2, 0, 1], [2, np.nan, 5]], np.float16)  # rounds x clients
    heat = weight_map("t", weights, np.array([False, True, False]))
    assert (heat.liars, heat.liar_rows) == (1, 1)
    pixels = np.array(Image.open(io.BytesIO(picture(heat.shares))).convert("RGBA"))
    colours = {v: [*SCALE[level], 255] for v, level in {0: 0, 1: 7, 2: 14}.items()}
    assert pixels.tolist() == [[colours[0], [255, 255, 255, 0]], [colours[2], colours[2]], [colours[1], colours[2]]]


def test_a_heat_map_stays_small():
    rng = np.random.default_rng(0)
    noise = weight_map("t", rng.random((200, 500)) * 2, rng.random(500) < 0.2)  # what compresses worst
    assert len(noise.__html__()) < 80_000
    heat = weight_map("t", np.ones((900, 1500)), np.arange(1500) < 300)
    assert heat.shares.shape == (500, 400)
    assert (heat.clients, heat.liars, heat.liar_rows) == (1500, 300, 100)
    assert (heat.shares == 1).all()


def test_means_of_groups_leave_out_the_absent():
    shares = np.array([[1.0, np.nan, 3.0, np.nan, np.nan], [1.0, 2.0, 3.0, 4.0, 5.0]])
    starts = groups(5, 3)
    assert starts.tolist() == [0, 1, 3]
    np.testing.assert_array_equal(group_means(shares, starts, axis=1), [[1, 3, np.nan], [1, 2.5, 4.5]])


def test_ticks_of_a_map_are_in_the_middles_of_columns():
    ticks = column_ticks([3, 4, 5, 6])
    assert [(tick.at, tick.label) for tick in ticks] == [(0.125, "3"), (0.375, "4"), (0.625, "5"), (0.875, "6")]


@pytest.mark.parametrize(("liars", "words"), [(0, ["honest"]), (3, ["liars", "honest"]), (9, ["liars"])])
def test_a_heat_map_names_who_is_there(tmp_path, monkeypatch, liars, words):
    heat = weight_map("a <title>", np.ones((4, 9)), np.arange(9) < liars)
    drawn = heat.__html__()
    assert re.findall(r">(liars|honest)<", drawn) == words
    assert f"9 clients, {liars} of them liars" in drawn
    assert "a &lt;title&gt;" in drawn
    papers = []
    monkeypatch.setattr(Figure, "savefig", lambda paper, *_, **__: papers.append(paper))
    save_png(heat, tmp_path / "a.png")
    axes = papers[0].axes[0]
    assert [text.get_text() for text in axes.get_yticklabels()] == words
    assert [text.get_text() for text in axes.get_xticklabels()] == [tick.label for tick in heat.ticks]
    np.testing.assert_array_equal(axes.images[0].get_array(), heat.shares)
