"""Data of the server's own: what the replies of nodes do to its loss is measured, and goes into the audit."""

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord
from threadpoolctl import threadpool_info, threadpool_limits

from fedhold.audit.records import read
from fedhold.flower import RobustStrategy, Validation
from flower_grid import FIRST, SILENT, LocalGrid, client_app, model
from flower_liars import with_arrays

M = 10
FAR = with_arrays(lambda a: {"w": a["w"] - 50})
NAN = with_arrays(lambda a: {"w": a["w"] * np.nan})


def loss(arrays):
    """Honest nodes pull the weights to about 1."""
    return float(((arrays["w"].numpy() - 1) ** 2).mean())


def run(strategy, bad=None, rounds=3):
    return strategy.start(LocalGrid(client_app(), M, bad), model(), num_rounds=rounds, timeout=0.25)


def effects(record):
    return {int(row.node) - FIRST: row.effect for row in record.nodes if row.effect is not None}


def test_the_effect_of_every_measured_reply_is_in_the_audit(tmp_path):
    validation = Validation(loss, nodes=M)
    run(RobustStrategy(validate=validation, audit=tmp_path / "a", fraction_evaluate=0.0), {4: FAR, 5: NAN}, rounds=2)
    for record in read(tmp_path / "a"):
        found = effects(record)
        assert set(found) == set(range(M)) - {5}
        assert found[4] > 1000
        assert max(effect for i, effect in found.items() if i != 4) < 0
        assert record.validation["after"] < record.validation["before"]
    first = read(tmp_path / "a")[0]
    assert first.validation["before"] == pytest.approx(1.0)


def test_suspects_come_first_and_others_are_drawn(tmp_path):
    strategy = RobustStrategy(validate=Validation(loss, nodes=3), audit=tmp_path / "a", fraction_evaluate=0.0, seed=0)
    run(strategy, {4: FAR}, rounds=6)
    measured = [set(effects(record)) for record in read(tmp_path / "a")]
    assert all(len(who) == 3 for who in measured)
    assert all(4 in who for who in measured[1:])  # from the round on in which it is a suspect
    assert len(set.union(*measured)) > 5


def test_a_function_is_enough(tmp_path):
    run(RobustStrategy(validate=loss, audit=tmp_path / "a"), rounds=1)
    assert len(effects(read(tmp_path / "a")[0])) == 5


def test_it_changes_no_aggregate():
    one, other = run(RobustStrategy(validate=loss), {4: FAR}), run(RobustStrategy(), {4: FAR})
    np.testing.assert_array_equal(one.arrays["w"].numpy(), other.arrays["w"].numpy())


def test_a_model_on_which_the_function_fails_costs_nothing(tmp_path):
    """Libraries raise where numbers are too large for them, and liars choose the numbers."""

    def fragile(arrays):
        if abs(arrays["w"].numpy()).max() > 10:
            raise OverflowError("too large\n\x1b[31m")
        return loss(arrays)

    validation = Validation(fragile, nodes=M)
    run(RobustStrategy(validate=validation, audit=tmp_path / "a", fraction_evaluate=0.0), {4: FAR}, rounds=1)
    row = read(tmp_path / "a")[0].nodes[4]
    assert (row.effect, row.status) == (None, "dropped")
    assert row.reason == "validation failed: OverflowError: too large [31m"


def test_a_round_that_keeps_the_model_is_measured_all_the_same(tmp_path):
    bad = dict.fromkeys(range(6), lambda *_: SILENT)
    run(RobustStrategy(validate=loss, audit=tmp_path / "a"), bad, rounds=1)
    record = read(tmp_path / "a")[0]
    assert record.outcome == "kept"
    assert record.validation == {"before": pytest.approx(1.0), "after": pytest.approx(1.0)}
    assert len(effects(record)) == 4


def test_what_is_no_validation():
    with pytest.raises(TypeError, match="must be a function of a model"):
        RobustStrategy(validate=0.5)
    with pytest.raises(ValueError, match="nodes must be at least 0"):
        Validation(loss, nodes=-1)


def train(arrays):
    """What an honest node would do."""
    w = arrays["w"].numpy()
    return ArrayRecord({**arrays, "w": Array(w + 0.5 * (1 - w))})


def test_the_servers_own_update_comes_from_its_data():
    from fedhold.flower.model import Model

    sent = Model.of(model())
    root = Validation(loss, train=train).root(sent)
    np.testing.assert_allclose(root["w"] - sent.arrays["w"], 0.5)
    assert root.keys() == sent.arrays.keys()
    assert Validation(loss).root(sent) is None


def test_a_rule_that_trusts_the_server_holds_against_a_majority():
    bad = dict.fromkeys(range(6), with_arrays(lambda a: {"w": a["w"] - 1}))
    result = run(RobustStrategy("fl_trust", validate=Validation(loss, train=train)), bad, rounds=5)
    assert abs(result.arrays["w"].numpy() - 1).max() < 0.3


def test_functions_of_the_server_get_one_thread_of_blas():
    """Ray forks while they run in a simulation, and a child of a process whose BLAS threads work waits for ever."""
    seen = []

    def threads(*_):
        seen.extend(one["num_threads"] for one in threadpool_info() if one["user_api"] == "blas")
        return 0.0

    with threadpool_limits(2, "blas"):
        strategy = RobustStrategy(validate=threads, fraction_evaluate=0.0)
        grid = LocalGrid(client_app(), M)
        strategy.start(grid, model(), num_rounds=1, timeout=0.25, evaluate_fn=lambda *_: MetricRecord({"x": threads()}))
    assert set(seen) == {1}
