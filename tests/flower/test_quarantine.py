"""Quarantine: who is left out of sampling, for how long, and who is never accused."""

import numpy as np
import pytest

from fedhold.audit import judge_round
from fedhold.audit.records import read
from fedhold.flower import Quarantine, RobustStrategy
from fedhold.flower.quarantine import QuarantineState, offenders
from flower_grid import FIRST, SILENT, LocalGrid, client_app, model
from flower_liars import raises, with_arrays
from flower_rules import EVERY_RULE

M = 10
NAN = with_arrays(lambda a: {"w": a["w"] * np.nan})
FAR = with_arrays(lambda a: {"w": a["w"] - 50})


def run(strategy, grid, rounds):
    return strategy.start(grid, model(), num_rounds=rounds, timeout=0.25)


def test_quarantine_leaves_offenders_out(tmp_path):
    grid = LocalGrid(client_app(), M, {2: NAN, 5: FAR})
    rule = Quarantine(strikes=2, window=3, rounds=3)
    run(RobustStrategy(quarantine=rule, audit=tmp_path / "a"), grid, rounds=6)
    asked = {t: who for kind, t, who in grid.asked if kind == "train"}
    assert [t for t in asked if 2 in asked[t]] == [1, 2, 6]
    assert [t for t in asked if 5 in asked[t]] == [1, 2, 6]
    third = read(tmp_path / "a")[2]
    left_out = {int(row.node) - FIRST for row in third.nodes if row.status == "quarantined"}
    assert left_out == {2, 5}
    evaluated = {t: who for kind, t, who in grid.asked if kind == "evaluate"}
    assert 2 not in evaluated[4]


def test_quarantine_is_off_by_default():
    grid = LocalGrid(client_app(), M, {2: NAN})
    run(RobustStrategy(), grid, rounds=4)
    assert all(len(who) == M for _, _, who in grid.asked)


def test_quarantine_leaves_enough_to_train():
    grid = LocalGrid(client_app(), M, dict.fromkeys(range(6), NAN))
    rule = Quarantine(strikes=1, window=1, rounds=5)
    run(RobustStrategy(quarantine=rule, min_train_nodes=7, fraction_evaluate=0.0), grid, rounds=3)
    assert [len(who) for _, _, who in grid.asked] == [10, 7, 7]


def test_a_selecting_rule_accuses_nobody(tmp_path):
    """Krum gives all but one client no weight."""
    grid = LocalGrid(client_app(), M, {2: NAN})
    rule = Quarantine(strikes=1, window=1, rounds=5)
    run(RobustStrategy("krum(f=2)", quarantine=rule, audit=tmp_path / "a"), grid, rounds=2)
    seen = judge_round(read(tmp_path / "a")[0]).values()
    assert [int(node) - FIRST for node in offenders(seen, 0.1, accuses=False)] == [2]
    assert [len(who) for kind, _, who in grid.asked if kind == "train"] == [10, 9]


@pytest.mark.parametrize(
    "rule", [*EVERY_RULE, "nearest_neighbour_mixing(f=2) | huber", "bucketing | huber", "screen | mean"]
)
def test_where_nobody_lies_nobody_is_left_out(rule):
    """multi_krum(f=2) always drops two of the ten: that once put honest nodes in quarantine for more than 30 node-rounds."""
    grid = LocalGrid(client_app(), M)
    run(RobustStrategy(rule, quarantine=Quarantine(), fraction_evaluate=0.0, seed=0), grid, rounds=20)
    assert [len(who) for _, _, who in grid.asked] == 20 * [M]


def test_quarantine_leaves_the_rule_its_bound():
    """krum(f=2) takes no fewer than 7 clients; five of ten send NaN."""
    grid = LocalGrid(client_app(), M, dict.fromkeys(range(5), NAN))
    rule = Quarantine(strikes=1, window=1, rounds=5)
    run(RobustStrategy("krum(f=2)", quarantine=rule, fraction_evaluate=0.0), grid, rounds=2)
    assert [len(who) for _, _, who in grid.asked] == [10, 7]


def test_quarantine_leaves_a_quorum():
    grid = LocalGrid(client_app(), M, dict.fromkeys(range(6), NAN))
    rule = Quarantine(strikes=1, window=1, rounds=5)
    run(RobustStrategy(quarantine=rule, fraction_evaluate=0.0), grid, rounds=2)
    assert [len(who) for _, _, who in grid.asked] == [10, 6]


def test_the_longest_in_quarantine_come_back_first():
    state = QuarantineState(offences={4: (True, False)}, until={1: 10, 2: 12, 3: 11})
    assert state.left_out(5, [1, 2, 3, 4], least=1) == [1, 2, 3]
    assert state.left_out(5, [1, 2, 3, 4], least=2) == [2, 3]
    assert state.left_out(5, [1, 2, 3, 4], least=9) == []


@pytest.mark.parametrize("bad", [{"strikes": 6, "window": 5}, {"share": 1.0}, {"rounds": 0}, {"strikes": 0}])
def test_quarantine_refuses_nonsense(bad):
    with pytest.raises(ValueError, match=r"met|at least"):
        Quarantine(**bad)


def test_who_is_cut_off_has_not_offended():
    """Nine of twenty are cut off for three rounds; left out of sampling, they would make five liars nearly a half."""
    cut = dict.fromkeys(range(9), lambda *_: SILENT)
    grid = LocalGrid(client_app(), 20, cut)
    strategy = RobustStrategy(quarantine=Quarantine(), checkpoint=None, fraction_evaluate=0.0)
    strategy.start(grid, model(), num_rounds=4, timeout=0.25)
    assert [len(who) for _, _, who in grid.asked] == 4 * [20]


def test_an_error_is_no_offence_and_a_reply_that_cannot_be_read_is():
    unreadable = lambda message, _: [ValueError("bytes that a liar chose")]  # noqa: ARG005, E731
    grid = LocalGrid(client_app(), M, {2: raises, 5: unreadable})
    run(RobustStrategy(quarantine=Quarantine(strikes=1, window=1), fraction_evaluate=0.0), grid, rounds=2)
    assert grid.asked[1][2] == [0, 1, 2, 3, 4, 6, 7, 8, 9]
