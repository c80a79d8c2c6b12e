"""Weights: who is held down, and how well that finds liars."""

import numpy as np

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
