"""RobustStrategy(guard=...): which candidate a round took is in the audit, and honest minorities are followed."""

import numpy as np
import pytest

from fedhold.audit import read, report_audit
from fedhold.flower import RobustStrategy
from flower_grid import LocalGrid, client_app, model
from flower_liars import with_arrays

M = 20
ABOVE = with_arrays(lambda a: {"w": a["w"] + 3})


def losses(target, seed=0):
    """Of each of 40 samples: its squared distance to the model."""
    drawn = np.random.default_rng(seed).normal(target, 0.1, 40)
    return lambda arrays: np.square(arrays["w"].numpy().ravel() - drawn[:, None]).mean(axis=1)


def run(strategy, rounds=1):
    grid = LocalGrid(client_app(), M, dict.fromkeys(range(5), ABOVE))
    return strategy.start(grid, model(), num_rounds=rounds, timeout=0.25)


def test_the_samples_decide_and_the_audit_says_so(tmp_path):
    plain = run(RobustStrategy(fraction_evaluate=0.0))
    loose = run(RobustStrategy(guard=losses(1.7), audit=tmp_path / "a", fraction_evaluate=0.0))
    strict = run(RobustStrategy(guard=losses(-3.0), audit=tmp_path / "b", fraction_evaluate=0.0))
    np.testing.assert_array_equal(strict.arrays["w"].numpy(), plain.arrays["w"].numpy())
    assert loose.arrays["w"].numpy().mean() > plain.arrays["w"].numpy().mean() + 0.05
    (one,), (two,) = read(tmp_path / "a"), read(tmp_path / "b")
    assert one.guard["taken"] in ("huber", "near_mean")
    assert one.guard["gain"] > 2 * one.guard["error"] > 0
    assert set(one.guard["losses"]) == {"rule", "huber", "near_mean"}
    assert two.guard["taken"] == "rule"
    assert "groups of 15 and 5" in one.diagnosis
    page = report_audit(tmp_path / "a", tmp_path / "page")[0].read_text()
    assert f"took {one.guard['taken']} in 1" in page
    assert "groups of 15 and 5" in page


def test_a_guard_that_fails_is_told_and_costs_nothing(tmp_path, caplog):
    def fails(_):
        raise OSError("the samples are gone")

    plain = run(RobustStrategy(fraction_evaluate=0.0))
    result = run(RobustStrategy(guard=fails, audit=tmp_path / "a", fraction_evaluate=0.0))
    np.testing.assert_array_equal(result.arrays["w"].numpy(), plain.arrays["w"].numpy())
    assert "the samples are gone" in read(tmp_path / "a")[0].guard["note"]
    assert "the samples are gone" in caplog.text


def test_validate_takes_the_same_function(tmp_path):
    run(RobustStrategy(guard=losses(1.0), validate=losses(1.0), audit=tmp_path / "a", fraction_evaluate=0.0))
    (record,) = read(tmp_path / "a")
    assert record.validation["after"] == pytest.approx(record.guard["losses"][record.guard["taken"]], rel=1e-3)
