"""Samples in which liars are the majority: they wait for one, and take the model unless `byzantine=` is told."""

import itertools

import numpy as np
import pytest

from fedhold.audit.records import read
from fedhold.flower import RobustStrategy
from flower_grid import LocalGrid, client_app, model
from flower_liars import with_arrays

M, LIARS = 10, 3
FAR = with_arrays(lambda a: {"w": a["w"] - 50})


def waiting_grid():
    """Nodes of whom the first three lie as soon as they are most of a sample."""

    def waits(message, honest):
        return (
            FAR(message, honest) if 2 * sum(i < LIARS for i in grid.asked[-1][2]) > len(grid.asked[-1][2]) else honest
        )

    grid = LocalGrid(client_app(), M, dict.fromkeys(range(LIARS), waits))
    return grid


def run(grid, rounds=12, seed=0, **more):
    strategy = RobustStrategy(fraction_train=0.5, fraction_evaluate=0.0, seed=seed, **more)
    return strategy.start(grid, model(), num_rounds=rounds, timeout=0.25)


def rounds_captured(grid):
    return [t for _, t, who in grid.asked if 2 * sum(i < LIARS for i in who) > len(who)]


def seed_with_captures():
    """A seed of samples of which some are captured, but not the first, nor two in a row."""
    for seed in range(100):
        run(grid := waiting_grid(), seed=seed)
        met = rounds_captured(grid)
        if met and met[0] > 1 and all(b - a > 1 for a, b in itertools.pairwise(met)):
            return seed, met
    raise AssertionError


def test_a_captured_sample_does_not_take_the_model(tmp_path):
    seed, captured = seed_with_captures()
    assert abs(run(waiting_grid(), rounds=captured[-1], seed=seed).arrays["w"].numpy() - 1).max() > 10
    result = run(waiting_grid(), seed=seed, byzantine=LIARS, audit=tmp_path / "audit.jsonl")
    assert abs(result.arrays["w"].numpy() - 1).max() < 0.5
    rounds = read(tmp_path / "audit.jsonl")
    assert [record.round for record in rounds if record.outcome == "kept"] == captured
    assert all("held back unless the next round confirms it" in rounds[t - 1].note for t in captured)


@pytest.mark.parametrize("rule", ["spectral_huber", "median", "centered_clipping(radius=1.0)"])
def test_honest_runs_end_with_the_same_bits(rule):
    one, other = (
        run(LocalGrid(client_app(), M), rule=rule, **more).arrays["w"].numpy() for more in ({}, {"byzantine": LIARS})
    )
    np.testing.assert_array_equal(one, other)


def jumps(at):
    """Nodes whose learning rate is a hundred times as large from a round on."""
    far = with_arrays(lambda a: {"w": a["w"] + 100})

    def jump(message, honest):
        return far(message, honest) if message.content["config"]["server-round"] >= at else honest

    return LocalGrid(client_app(), M, dict.fromkeys(range(M), jump))


def test_a_jump_that_all_make_costs_one_round_and_no_more():
    result = run(jumps(5), rounds=8, byzantine=LIARS)
    assert [record.outcome for record in result.records] == [*["aggregated"] * 4, "kept", *["aggregated"] * 3]


def test_where_no_sample_can_be_captured_nothing_is_held_back():
    result = run(jumps(5), rounds=8, byzantine=2)
    assert {record.outcome for record in result.records} == {"aggregated"}


def test_what_was_held_back_is_in_the_checkpoint(tmp_path):
    more = {"byzantine": LIARS, "checkpoint": tmp_path, "fraction_train": 0.5, "fraction_evaluate": 0.0, "seed": 0}
    grid = jumps(5)
    assert RobustStrategy(**more).start(grid, model(), num_rounds=5, timeout=0.25).records[-1].outcome == "kept"
    result = RobustStrategy(**more).resume(grid, num_rounds=6, timeout=0.25)
    whole = run(jumps(5), rounds=6, byzantine=LIARS)
    assert result.records[-1].outcome == "aggregated"
    np.testing.assert_array_equal(result.arrays["w"].numpy(), whole.arrays["w"].numpy())
