"""Averages of metrics: one node's lie does not move them far, and the plain averages are in the audit beside them."""

import logging
import time

import numpy as np
import pytest
from flwr.app import MetricRecord

from fedhold import aggregate
from fedhold.audit.metrics import _location, average_metrics
from fedhold.audit.records import read
from fedhold.flower import RobustStrategy
from flower_grid import SILENT, LocalGrid, client_app, model
from flower_liars import with_metrics

M = 10


def run(bad, tmp_path, **more):
    strategy = RobustStrategy(audit=tmp_path / "a", **more)
    result = strategy.start(LocalGrid(client_app(), M, bad), model(), num_rounds=1, timeout=0.25)
    return result, read(tmp_path / "a")[0]


@pytest.mark.parametrize("lie", [9e5, -9e5, 25.0])
def test_one_lie_does_not_move_the_averages(lie, tmp_path):
    honest, _ = run({}, tmp_path / "honest")
    result, record = run({3: with_metrics({"loss": lie})}, tmp_path / "lie")
    for phase, ours, before in (
        ("train", result.train_metrics_clientapp[1], honest.train_metrics_clientapp[1]),
        ("evaluate", result.evaluate_metrics_clientapp[1], honest.evaluate_metrics_clientapp[1]),
    ):
        assert ours["loss"] == pytest.approx(before["loss"], abs=0.05)
        assert record.metrics[phase]["loss"] == ours["loss"]
        assert abs(record.averages[phase]["loss"] - lie / M) < abs(lie) / M / 2


@pytest.mark.parametrize("seed", range(20))
def test_an_average_is_what_huber_makes_of_one_number_per_node(seed):
    rng = np.random.default_rng(seed)
    values, samples = rng.standard_normal(15), rng.integers(1, 100, 15).astype(float)
    values[:5] += 10.0 ** rng.integers(0, 9)
    expected = aggregate(values[:, None], "huber", samples=samples, sample_cap=None, tol=1e-9).value[0]
    assert _location(values, samples) == pytest.approx(expected, abs=1e-4)
    huge = np.where(np.arange(15) < 5, 1.7e308, values)
    assert abs(_location(huge, np.ones(15))) < 5


def test_a_claim_of_many_samples_gives_a_lie_no_more_weight(tmp_path):
    lie = with_metrics({"loss": 9e5, "num-examples": 10**9})
    result, record = run({3: lie}, tmp_path)
    assert result.train_metrics_clientapp[1]["loss"] < 1
    assert result.evaluate_metrics_clientapp[1]["loss"] < 1
    assert record.averages["evaluate"]["loss"] < 0.3 * 9e5  # the weights of the plain averages are capped, too


def test_of_a_list_every_number_has_its_own_average(tmp_path):
    """The liar's other numbers count in full."""
    bad = {i: with_metrics({"per-class": [0.1 * i, 1.0]}) for i in range(M)}
    bad[3] = with_metrics({"per-class": [9e5, 1.0]})
    result, _ = run(bad, tmp_path, fraction_train=0.0)
    first, second = result.evaluate_metrics_clientapp[1]["per-class"]
    assert 0.2 < first < 0.8
    assert second == 1.0


def test_a_function_of_ones_own_is_left_alone(tmp_path):
    def largest(records, _):
        return MetricRecord({"loss": max(record["metrics"]["loss"] for record in records)})

    result, record = run({3: with_metrics({"loss": 7.0})}, tmp_path, train_metrics_aggr_fn=largest)
    assert result.train_metrics_clientapp[1] == {"loss": 7.0}
    assert record.averages["train"] == {}
    assert "loss" in record.averages["evaluate"]


def test_nodes_that_agree_are_averaged_to_what_they_say(tmp_path):
    result, _ = run(dict.fromkeys(range(M), with_metrics({"loss": 0.1 + 0.2})), tmp_path)
    assert result.train_metrics_clientapp[1]["loss"] == 0.1 + 0.2
    assert np.isfinite(result.evaluate_metrics_clientapp[1]["loss"])


def evaluating(reply):
    return lambda message, honest: reply(message, honest) if message.metadata.message_type == "evaluate" else honest


def test_two_liars_with_long_lists_hold_up_no_round(tmp_path):
    """Honest nodes differ in what they tell besides the loss; liars who agree are no majority, and choose no metric."""
    honest = {i: evaluating(with_metrics({"per-class": [0.5] * i})) for i in range(2, M)}
    liars = dict.fromkeys(range(2), evaluating(with_metrics({"per-class": [0.5] * 100_000})))
    began = time.monotonic()
    result, record = run(honest | liars, tmp_path)
    assert time.monotonic() - began < 15
    assert result.evaluate_metrics_clientapp[1].keys() == {"loss"}
    assert [row for row in record.nodes if row.phase == "evaluate"] == []


def test_long_lists_of_everyone_take_one_call():
    """Of more than 1,000 numbers the median is taken, which a minority moves as little."""
    rng = np.random.default_rng(0)
    metrics = {i: {"loss": float(i), "x": rng.random(20_000).tolist()} for i in range(10)}
    metrics[3]["x"] = [1e5] * 20_000
    began = time.monotonic()
    averages = average_metrics(metrics, dict.fromkeys(metrics, 10.0))
    assert time.monotonic() - began < 5
    expected = np.median([one["x"] for one in metrics.values()], axis=0)
    np.testing.assert_allclose(averages.robust["x"], expected)
    assert averages.robust["loss"] == 4.5


def test_what_has_a_majority_only_after_others_are_left_out_is_no_metric_of_all():
    """Three of six tell x, and the huge loss of another makes it three of five."""
    metrics = {i: {"loss": 0.5} | ({"x": 1.0} if i < 3 else {}) for i in range(6)}
    metrics[5]["loss"] = 1e9
    averages = average_metrics(metrics, dict.fromkeys(metrics, 1.0))
    assert (averages.robust, set(averages.reasons)) == ({"loss": 0.5}, {5})


def test_an_evaluation_needs_a_quorum(tmp_path, caplog):
    """Five of ten are cut off, so that four liars would be most of those who evaluate."""
    bad = dict.fromkeys(range(5), evaluating(lambda *_: SILENT))
    bad |= dict.fromkeys(range(5, 9), evaluating(with_metrics({"loss": 1.0})))
    logging.getLogger("flwr").propagate = True
    result, record = run(bad, tmp_path / "half")
    assert result.evaluate_metrics_clientapp == {}
    assert record.averages["evaluate"] == {}
    told = "Round 1 has no evaluation: 5 of 10 nodes asked sent usable metrics, and the quorum is 6"
    assert told in caplog.messages
    result, _ = run(dict.fromkeys(range(3), evaluating(lambda *_: SILENT)), tmp_path / "feared", byzantine=4)
    assert result.evaluate_metrics_clientapp == {}
    result, _ = run(dict.fromkeys(range(4), evaluating(lambda *_: SILENT)), tmp_path / "four")
    assert result.evaluate_metrics_clientapp[1]["loss"] < 1
