"""Averages of metrics: one node's lie does not move them far, and the plain averages are in the audit beside them."""

import numpy as np
import pytest
from flwr.app import MetricRecord

from fedhold import aggregate
from fedhold.audit.metrics import _location
from fedhold.audit.records import read
from fedhold.flower import RobustStrategy
from flower_grid import LocalGrid, client_app, model
from flower_liars import with_metrics

M = 10


def run(bad, tmp_path, **more):
    strategy = RobustStrategy(audit=tmp_path / "a", **more)
    result = strategy.start(LocalGrid(client_app(), M, bad), model(), num_rounds=1, timeout=0.02)
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
