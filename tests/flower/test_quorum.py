"""A quorum: too few usable replies never make a model, however few of those asked are silent by choice."""

import logging

import numpy as np
import pytest

from fedhold.audit.records import read
from fedhold.flower import RobustStrategy
from flower_grid import SILENT, LocalGrid, client_app, model
from flower_liars import with_arrays

M = 10
NAN = with_arrays(lambda a: {"w": a["w"] * np.nan})
FAR = with_arrays(lambda a: {"w": a["w"] - 50})


def silent(*_):
    return SILENT


def run(bad, tmp_path, rule="huber", **more):
    """The model after one round of ten nodes, and the record of the round."""
    strategy = RobustStrategy(rule, audit=tmp_path / "audit.jsonl", fraction_evaluate=0.0, **more)
    result = strategy.start(LocalGrid(client_app(), M, bad), model(), num_rounds=1, timeout=0.25)
    return result.arrays["w"].numpy(), read(tmp_path / "audit.jsonl")[0]


def test_a_lone_reply_never_becomes_the_model(tmp_path, caplog):
    with caplog.at_level(logging.INFO, "flwr"):
        logging.getLogger("flwr").propagate = True
        w, record = run({0: FAR, **dict.fromkeys(range(1, M), silent)}, tmp_path)
    np.testing.assert_array_equal(w, 0)
    assert record.outcome == "kept"
    assert record.note == "1 of 10 nodes asked sent a usable reply, and the quorum is 6 (more than 0.5 of them)"
    assert record.quorum == {"asked": 10, "usable": 1, "needed": 6}
    assert "aggregate_train: 10 nodes asked, 9 rejected, 1 usable, quorum 6" in caplog.messages
    assert "Round 1 keeps the model: " + record.note in caplog.messages


@pytest.mark.parametrize("answer", [silent, NAN])
def test_half_is_too_few_and_one_more_is_enough(answer, tmp_path):
    """A reply of NaN is admitted by nobody, and counts as little as silence."""
    w, record = run(dict.fromkeys(range(5), answer), tmp_path / "half")
    np.testing.assert_array_equal(w, 0)
    assert (record.outcome, record.quorum["usable"]) == ("kept", 5)
    w, record = run(dict.fromkeys(range(4), answer), tmp_path / "more")
    assert abs(w - 0.5).max() < 0.2
    assert (record.outcome, record.quorum) == ("aggregated", {"asked": 10, "usable": 6, "needed": 6})


def test_another_quorum(tmp_path):
    nine = dict.fromkeys(range(1, M), silent)
    assert run(nine, tmp_path / "none", quorum=0)[1].outcome == "aggregated"
    two = dict.fromkeys(range(2), silent)
    assert run(two, tmp_path / "most", quorum=0.8)[1].quorum["needed"] == 9
    assert run(two, tmp_path / "most", quorum=0.8)[1].outcome == "kept"


SHAPE = with_arrays(lambda a: {"w": a["w"][:1]})


@pytest.mark.parametrize("answer", [NAN, SHAPE])
@pytest.mark.parametrize(("rule", "liars"), [("krum(f=3)", 3), ("trimmed_mean(f=4)", 4), ("bulyan(f=1)", 1)])
def test_what_cannot_be_used_is_one_of_the_lies_that_the_rule_was_told_of(answer, rule, liars, tmp_path):
    """At its bound a rule goes on with an f that is less by their number, and the audit has it."""
    w, record = run(dict.fromkeys(range(liars), answer), tmp_path, rule, quorum=0.3)
    assert abs(w - 0.5).max() < 0.2
    assert (record.outcome, record.f) == ("aggregated", 0)


def test_who_is_silent_is_none_of_them(tmp_path):
    _, record = run(dict.fromkeys(range(4), silent), tmp_path, "krum(f=3)", quorum=0.3)
    assert record.outcome == "kept"
    assert "krum needs m >= 2f + 3; met m = 6" in record.note


def test_no_quorum_goes_below_the_bound_of_the_rule(tmp_path):
    w, record = run(dict.fromkeys(range(4), silent), tmp_path, "krum(f=2)", quorum=0)
    np.testing.assert_array_equal(w, 0)
    assert record.outcome == "kept"
    assert "krum needs m >= 2f + 3; met m = 6" in record.note


@pytest.mark.parametrize("quorum", [-0.1, 1, 1.5, float("nan"), True, "half"])
def test_what_is_no_quorum(quorum):
    with pytest.raises((TypeError, ValueError), match="quorum"):
        RobustStrategy(quorum=quorum)


@pytest.mark.parametrize(
    ("rule", "least"),
    [
        ("huber", 1),
        ("krum(f=2)", 7),
        ("multi_krum(f=2, keep=1)", 7),
        ("bulyan(f=2)", 11),
        ("trimmed_mean(f=3)", 7),
        ("median_of_means(batches=4)", 4),
        ("divide_and_conquer(f=2, iterations=4)", 9),
        ("bucketing(size=2) | krum(f=2)", 13),
        ("nearest_neighbour_mixing(f=3) | krum(f=1)", 7),
        ("screen | krum(f=1)", 5),
    ],
)
def test_the_fewest_clients_a_rule_takes(rule, least):
    assert RobustStrategy(rule).rule.least == least


# Liars who are feared, and honest nodes that are cut off


def test_of_those_asked_more_than_twice_the_liars_feared_must_reply(tmp_path):
    """Ten asked, four lie together, two honest ones are cut off: with four of eight, liars would choose the model."""
    bad = dict.fromkeys(range(4), FAR) | dict.fromkeys((8, 9), silent)
    w, record = run(bad, tmp_path / "two", byzantine=4)
    np.testing.assert_array_equal(w, 0)
    assert (record.outcome, record.quorum) == ("kept", {"asked": 10, "usable": 8, "needed": 9})
    assert "more than twice the liars feared, 4" in record.note
    assert run(dict.fromkeys((9,), silent), tmp_path / "one", byzantine=4)[1].outcome == "aggregated"


def test_who_was_rejected_is_one_of_the_liars_feared(tmp_path):
    """So liars cannot keep the model from changing by sending what nobody can use, though they can by silence."""
    w, record = run(dict.fromkeys(range(3), NAN), tmp_path / "sent", byzantine=4)
    assert abs(w - 0.5).max() < 0.2
    assert (record.outcome, record.quorum) == ("aggregated", {"asked": 10, "usable": 7, "needed": 6})
    assert run(dict.fromkeys(range(3), silent), tmp_path / "silent", byzantine=4)[1].outcome == "kept"


def test_a_sample_is_feared_to_hold_its_part_of_the_liars():
    rule = RobustStrategy(byzantine=5).rule
    assert [rule.feared(asked, 20) for asked in (20, 10, 6, 1)] == [5, 3, 2, 1]
    assert [rule.needed(6, feared) for feared in (0, 2, 5)] == [4, 5, 6]


def test_the_run_says_at_its_start_how_likely_a_captured_sample_is(caplog):
    logging.getLogger("flwr").propagate = True

    def told(**more):
        caplog.clear()
        with caplog.at_level(logging.INFO, "flwr"):
            strategy = RobustStrategy(fraction_evaluate=0.0, min_available_nodes=1, **more)
            strategy.start(LocalGrid(client_app(), M), model(), num_rounds=2, timeout=0.25)
        return [(one.levelno, one.getMessage()) for one in caplog.records if "of a sample lie" in one.getMessage()]

    ((level, line),) = told(byzantine=3, fraction_train=0.5)
    assert level == logging.WARNING
    assert line.startswith(
        "5 of 10 nodes asked, 3 of them liars: in 2 rounds half or more of a sample lie with a probability of 0.16"
    )
    assert line.endswith("From 7 on it is at most 0.001.")
    assert told(byzantine=3)[0][0] == logging.INFO
    assert told(fraction_train=0.5) == []
