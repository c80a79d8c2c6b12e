"""Runs that were cut off: nothing is lost but the open round, and the bits are those of an uninterrupted run."""

import json

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, MetricRecord

from fedhold.audit.records import read
from fedhold.flower import Quarantine, RobustStrategy
from fedhold.storage import DamagedCheckpointError, read_checkpoint, write_checkpoint
from flower_grid import LocalGrid, client_app, model
from flower_liars import with_arrays

NAN = with_arrays(lambda a: {"w": a["w"] * np.nan})
RULES = ["huber", "centered_clipping(radius=0.1)", "bucketing | median", "median_of_means(f=2)"]
ROUNDS = 6


class Killed(BaseException):
    """As abrupt as it gets within one process: nothing of ours catches it."""


def strategy(rule, folder, **more):
    more = {"quarantine": Quarantine(strikes=2, window=2, rounds=2), "seed": 3, "fraction_train": 0.7, **more}
    return RobustStrategy(rule, audit=folder / "audit.jsonl", checkpoint=folder / "run", **more)


def grid(killed_in=None, phase="train"):
    """Ten nodes, one of them bad; the server is killed in the given round."""

    def deadly(message, honest):
        kind, t = message.metadata.message_type, message.content["config"]["server-round"]
        if kind == phase and t == killed_in:
            raise Killed
        return honest

    return LocalGrid(client_app(), 10, {4: NAN, **{i: deadly for i in range(10) if i != 4}})


def here(t, arrays):
    return MetricRecord({"far": float(np.abs(arrays["w"].numpy() - 1).max()), "round": t})


def same(one, other):
    assert list(one.arrays) == list(other.arrays)
    for key in one.arrays:
        a, b = one.arrays[key].numpy(), other.arrays[key].numpy()
        assert a.dtype == b.dtype
        assert a.shape == b.shape
        assert a.tobytes() == b.tobytes()
    assert one.train_metrics_clientapp == other.train_metrics_clientapp
    assert one.evaluate_metrics_clientapp == other.evaluate_metrics_clientapp
    assert one.evaluate_metrics_serverapp == other.evaluate_metrics_serverapp


@pytest.mark.parametrize("rule", RULES)
def test_same_bits_after_a_kill(rule, tmp_path):
    whole = strategy(rule, tmp_path / "whole").start(grid(), model(), ROUNDS, evaluate_fn=here)
    cut = tmp_path / "cut"
    for killed_in, phase in ((1, "train"), (2, "evaluate"), (5, "train")):  # one after the other, each in a new process
        with pytest.raises(Killed):
            strategy(rule, cut).resume(grid(killed_in, phase), model(), ROUNDS, evaluate_fn=here)
    same(whole, strategy(rule, cut).resume(grid(), model(), ROUNDS, evaluate_fn=here))
    one, other = read(tmp_path / "whole" / "audit.jsonl"), read(cut / "audit.jsonl")
    assert [record.round for record in other] == list(range(1, ROUNDS + 1))
    assert [record.nodes for record in one] == [record.nodes for record in other]
    assert len({record.run for record in other}) == 1


def test_start_then_resume_with_more_rounds(tmp_path):
    whole = strategy("huber", tmp_path / "whole").start(grid(), model(), ROUNDS)
    strategy("huber", tmp_path / "parts").start(grid(), model(), 2)
    same(whole, strategy("huber", tmp_path / "parts").resume(grid(), num_rounds=ROUNDS))
    unused = grid()
    same(whole, strategy("huber", tmp_path / "parts").resume(unused, num_rounds=ROUNDS))
    assert unused.asked == []


def test_killed_while_it_writes(tmp_path, monkeypatch):
    """Audit first, then the checkpoint: the round is told twice, and the later line counts."""
    whole = strategy("huber", tmp_path / "whole").start(grid(), model(), 3)
    cut, calls = tmp_path / "cut", []

    def killed(path, data, **_):
        calls.append(path)
        if len(calls) == 3:
            path.with_name(".half").write_bytes(data[: len(data) // 2])
            raise Killed
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    with monkeypatch.context() as patch:
        patch.setattr("fedhold.storage.write_whole", killed)
        with pytest.raises(Killed):
            strategy("huber", cut).start(grid(), model(), 3)
    same(whole, strategy("huber", cut).resume(grid(), num_rounds=3))
    assert len((cut / "audit.jsonl").read_text().splitlines()) == 4
    assert [record.round for record in read(cut / "audit.jsonl")] == [1, 2, 3]


def test_start_does_not_overwrite_a_run(tmp_path):
    strategy("huber", tmp_path).start(grid(), model(), 1)
    with pytest.raises(ValueError, match=r"already holds round 1 of a run. Call resume"):
        strategy("huber", tmp_path).start(grid(), model(), 1)


def test_a_run_that_never_closed_a_round_may_start_again(tmp_path):
    with pytest.raises(Killed):
        strategy("huber", tmp_path).start(grid(1), model(), 1)
    assert strategy("huber", tmp_path).start(grid(), model(), 1).train_metrics_clientapp


@pytest.mark.parametrize("cut", [0, 10, 400, -30])
def test_a_damaged_checkpoint_is_an_error(tmp_path, cut):
    strategy("huber", tmp_path).start(grid(), model(), 1)
    file = tmp_path / "run" / "checkpoint.npz"
    file.write_bytes(file.read_bytes()[:cut])
    with pytest.raises(ValueError, match=r"checkpoint .* is damaged .*Put back a copy"):
        strategy("huber", tmp_path).resume(grid(), model(), 2)


def test_one_flipped_bit_is_damage(tmp_path):
    strategy("huber", tmp_path).start(grid(), model(), 1)
    file = tmp_path / "run" / "checkpoint.npz"
    data = bytearray(file.read_bytes())
    at = data.find(b'"facts"')
    data[at] ^= 4
    file.write_bytes(data)
    with pytest.raises(ValueError, match="is damaged"):
        strategy("huber", tmp_path).resume(grid(), model(), 2)


def test_a_checkpoint_of_another_run_is_an_error(tmp_path):
    strategy("huber", tmp_path).start(grid(), model(), 1)
    with pytest.raises(ValueError, match="another run: it had rule 'huber', now 'median'"):
        strategy("median", tmp_path).resume(grid(), model(), 2)
    with pytest.raises(ValueError, match="it had another seed"):
        strategy("huber", tmp_path, seed=4).resume(grid(), model(), 2)
    with pytest.raises(ValueError, match="model"):
        strategy("huber", tmp_path).resume(grid(), ArrayRecord({"x": Array(np.zeros(3))}), 2)


@pytest.mark.parametrize(
    ("rule", "other"),
    [
        ("huber(threshold=by_samples(0, 20))", "huber(threshold=by_samples(5, 2000))"),
        ("huber(threshold=fixed(2.0))", "huber(threshold=fixed(3.0))"),
        ("huber(threshold=automatic(0.5))", "huber(threshold=automatic(0.6))"),
        ("screen(beyond=2) | mean", "screen(beyond=3) | mean"),
    ],
)
def test_every_parameter_of_the_rule_is_noticed(rule, other, tmp_path):
    strategy(rule, tmp_path).start(grid(), model(), 1)
    with pytest.raises(ValueError, match="another run: it had rule"):
        strategy(other, tmp_path).resume(grid(), model(), 2)
    strategy(rule, tmp_path).resume(grid(), model(), 2)


def test_many_thresholds_are_noticed_to_the_last(tmp_path):
    """NumPy shows an array of more than 1000 numbers by its ends."""
    given = np.ones(2000)
    strategy("huber", tmp_path, parameters={"threshold": given}).start(grid(), model(), 1)
    other = np.where(np.arange(2000) == 1000, 2.0, given)
    with pytest.raises(ValueError, match="another run"):
        strategy("huber", tmp_path, parameters={"threshold": other}).resume(grid(), model(), 2)


# Seeds


def whom(folder, **more):
    """Whom a run asks to train, round by round."""
    link = grid()
    strategy("huber", folder, **more).start(link, model(), ROUNDS)
    return [who for kind, _, who in link.asked if kind == "train"]


def test_a_seed_that_was_given_repeats_a_run(tmp_path):
    assert whom(tmp_path / "one", seed=5) == whom(tmp_path / "other", seed=5) != whom(tmp_path / "third", seed=6)


def test_a_seed_that_was_not_given_is_a_secret(tmp_path):
    one, other = (strategy("bucketing | median", tmp_path / name, seed=None) for name in "ab")
    assert len({one._new_seed(), other._new_seed(), 0}) == 3
    one.start(grid(), model(), 2)
    assert str(saved_seed(tmp_path / "a")) not in (tmp_path / "a" / "audit.jsonl").read_text()
    with pytest.raises(ValueError, match="it had another seed") as told:
        strategy("bucketing | median", tmp_path / "a", seed=7).resume(grid(), model(), 3)
    assert str(saved_seed(tmp_path / "a")) not in str(told.value)


def test_every_start_draws_another_seed(tmp_path):
    one, seeds = strategy("huber", tmp_path, seed=None), set()
    for _ in range(3):
        one.start(grid(), model(), 1)
        seeds.add(saved_seed(tmp_path))
        (tmp_path / "run" / "checkpoint.npz").unlink()
    assert len(seeds) == 3


@pytest.mark.parametrize("killed_in", [1, 3])
def test_a_resumed_run_draws_what_it_would_have_drawn(killed_in, tmp_path, monkeypatch):
    """The operating system gives the one run and the other the same number, and after the kill another."""
    monkeypatch.setattr("secrets.randbits", lambda _: 11)
    whole = strategy("bucketing | median", tmp_path / "whole", seed=None).start(grid(), model(), ROUNDS)
    cut = tmp_path / "cut"
    with pytest.raises(Killed):
        strategy("bucketing | median", cut, seed=None).resume(grid(killed_in), model(), ROUNDS)
    monkeypatch.setattr("secrets.randbits", lambda _: 22)
    same(whole, strategy("bucketing | median", cut, seed=None).resume(grid(), model(), ROUNDS))


def saved_seed(folder):
    with np.load(folder / "run" / "checkpoint.npz", allow_pickle=False) as file:
        return json.loads(file["notes"].tobytes())["facts"]["seed"]


def test_resume_needs_something_to_go_on_from(tmp_path):
    with pytest.raises(ValueError, match="resume needs a checkpoint"):
        RobustStrategy().resume(grid(), model())
    with pytest.raises(ValueError, match="Pass initial_arrays"):
        strategy("huber", tmp_path).resume(grid())
    strategy("huber", tmp_path).start(grid(), model(), 3)
    with pytest.raises(ValueError, match=r"num_rounds = 2, done = 3"):
        strategy("huber", tmp_path).resume(grid(), num_rounds=2)


# Files that are not as this version writes them


def test_a_checkpoint_without_a_part_of_the_state_is_damaged(tmp_path):
    strategy("huber", tmp_path).start(grid(), model(), 1)
    write_checkpoint(tmp_path / "run" / "checkpoint.npz", "Flower run", {}, '{"facts": {}}')
    with pytest.raises(DamagedCheckpointError, match="KeyError: 'run'"):
        strategy("huber", tmp_path).resume(grid(), model(), 2)


@pytest.mark.parametrize("part", ["round", "quarantine", "names", "tally", "inner"])
def test_no_part_of_the_state_may_be_missing(part, tmp_path):
    strategy("huber", tmp_path).start(grid(), model(), 1)
    path = tmp_path / "run" / "checkpoint.npz"
    saved = read_checkpoint(path, "Flower run")
    del saved.notes[part]
    write_checkpoint(path, "Flower run", saved.arrays, json.dumps(saved.notes))
    with pytest.raises(DamagedCheckpointError, match=f"KeyError: '{part}'"):
        strategy("huber", tmp_path).resume(grid(), model(), 2)
