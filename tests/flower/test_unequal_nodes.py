"""Nodes that make unequal numbers of local steps, whom the audit suspects then, and the scale that a run remembers."""

from itertools import pairwise

import numpy as np
import pytest

from fedhold.audit import read
from fedhold.flower import RobustStrategy
from flower_grid import FIRST, LocalGrid, client_app, model, reply_with
from flower_liars import parts, with_metrics

M, GIANT, FLIPPER = 8, 0, 1


def times(factor, **claims):
    """A node that replies with its update times a factor, and with these metrics."""

    def reply(message, honest):
        arrays, metrics = parts(honest)
        sent = message.content["arrays"]["w"].numpy()
        return reply_with(message, {**arrays, "w": sent + factor * (arrays["w"] - sent)}, {**metrics, **claims})

    return reply


def run(bad, rounds=4, rule="spectral_huber", **settings):
    strategy = RobustStrategy(rule, fraction_evaluate=0.0, **settings)
    return strategy.start(LocalGrid(client_app(), M, bad), model(20), num_rounds=rounds, timeout=0.25)


@pytest.mark.parametrize("rule", ["huber", "spectral_huber"])
@pytest.mark.parametrize("factor", [3, 7, 1e6])
def test_a_giant_that_goes_the_way_of_the_others_is_no_suspect(factor, rule):
    """It has half of the data and makes more steps: its update is longer, so its weight is low, and it accuses nobody."""
    result = run({GIANT: times(factor, **{"num-examples": 50 * M})}, rule=rule)
    row = result.records[0].nodes[GIANT]
    assert row.weight < 0.5 / M
    assert row.cosine > 0.5
    assert result.suspects == []


@pytest.mark.parametrize("rule", ["huber", "spectral_huber"])
@pytest.mark.parametrize("factor", [-3, -7, -1e6])
def test_a_flipper_is_a_suspect_beside_an_honest_giant(factor, rule):
    result = run({GIANT: times(7), FLIPPER: times(factor)}, rule=rule)
    assert [one.node for one in result.suspects] == [str(FIRST + FLIPPER)]


def test_noise_is_no_direction_of_the_others():
    rng = np.random.default_rng(0)

    def noise(message, honest):
        arrays, metrics = parts(honest)
        return reply_with(message, {**arrays, "w": rng.normal(0, 200, arrays["w"].shape).astype(np.float32)}, metrics)

    result = run({FLIPPER: noise})
    assert [one.node for one in result.suspects] == [str(FIRST + FLIPPER)]


@pytest.mark.parametrize("value", [1e38, -1e38, np.nan])
def test_huge_numbers_are_judged_by_their_weight(value):
    def huge(message, honest):
        arrays, metrics = parts(honest)
        return reply_with(message, {**arrays, "w": np.full_like(arrays["w"], value)}, metrics)

    assert np.isfinite(run({FLIPPER: huge}).arrays["w"].numpy()).all()


# Steps


def steps_of(factor=1):
    return times(factor, **{"local-steps": 10 * factor, "num-examples": 50})


def test_updates_are_divided_by_the_steps_that_nodes_claim(tmp_path):
    """With steps, a node that went three times as far in three times the steps counts as the others."""
    nodes = {i: steps_of() for i in range(1, M)}
    audit = tmp_path / "audit.jsonl"
    result = run({GIANT: steps_of(3), **nodes}, rounds=1, rule="mean", steps_key="local-steps", audit=audit)
    equal = run({GIANT: steps_of(), **nodes}, rounds=1, rule="mean")
    np.testing.assert_allclose(result.arrays["w"].numpy(), equal.arrays["w"].numpy(), atol=1e-6)
    (record,) = read(audit)
    assert record.nodes[GIANT].reason is None


def test_claims_of_steps_that_cannot_be_used():
    nodes = {i: steps_of() for i in range(4, M)}
    nodes |= {0: with_metrics({"local-steps": float("nan")}), 1: with_metrics({"local-steps": 0})}
    nodes |= {2: with_metrics({"local-steps": 1000}), 3: with_metrics({"local-steps": [1, 2]})}
    rows = run(nodes, rounds=1, steps_key="local-steps", quorum=0.25).records[0].nodes
    assert [row.status for row in rows[:4]] == ["rejected", "rejected", "clipped", "rejected"]
    assert rows[0].reason.startswith("steps nan: not a positive number")
    assert rows[2].reason == "steps 1000 counted as 30"


# A scale that remembers


def test_the_scale_is_remembered_across_a_resumption(tmp_path):
    def strategy(folder):
        return RobustStrategy("huber", fraction_evaluate=0.0, memory=True, checkpoint=folder, seed=0)

    grid = LocalGrid(client_app(), M)
    whole = strategy(tmp_path / "whole").start(grid, model(), num_rounds=4, timeout=0.25)
    strategy(tmp_path / "parts").start(LocalGrid(client_app(), M), model(), num_rounds=2, timeout=0.25)
    resumed = strategy(tmp_path / "parts").resume(LocalGrid(client_app(), M), num_rounds=4, timeout=0.25)
    assert (resumed.arrays["w"].numpy() == whole.arrays["w"].numpy()).all()
    scales = [record.scale for record in whole.records]
    assert all(later >= 0.97 * before * 0.999 for before, later in pairwise(scales))


def test_a_rule_without_a_scale_has_no_memory():
    with pytest.raises(TypeError, match="median remembers no scale"):
        RobustStrategy("median", memory=True)


def test_groups_have_no_scale_to_remember():
    with pytest.raises(TypeError, match="memory is about one geometry, and groups have one each"):
        RobustStrategy("huber", memory=True, exclude="head.*")
