"""Poisoned data: what liars learn from, that nothing else changes, and how well a backdoor does."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fedhold.lab import (
    ATTACKS,
    Experiment,
    LinearRegression,
    Mlp,
    Poisoned,
    Samples,
    Shards,
    backdoor,
    balanced,
    federate,
    label_flip,
    random_cuts,
    rsa,
    run,
    shard,
)
from fedhold.lab.knowledge import declares, poisons_data

M = 12
LIARS = np.isin(np.arange(M), [1, 5, 8])
POISONS = [name for name in ATTACKS if declares(ATTACKS[name], poisons_data)]


def world(seed=0, kind=np.float64, classes=3, m=M, cut=random_cuts):
    """Three clouds of points in ten dimensions, as floats or as pixels in bytes."""
    rng = np.random.default_rng(seed)
    places = rng.random((classes, 10))
    targets = rng.integers(0, classes, 700)
    inputs = np.clip(places[targets] + 0.1 * rng.standard_normal((700, 10)), 0, 1)
    inputs = np.rint(255 * inputs).astype(np.uint8) if kind is np.uint8 else inputs.astype(kind)
    train, test = Samples(inputs[:600], targets[:600]), Samples(inputs[600:], targets[600:])
    return Mlp(test, hidden=8, classes=classes), shard(train, cut(600, m, rng))


def owner(shards):
    return np.repeat(np.arange(shards.m), shards.counts)


def test_flipped_labels_literally():
    _, shards = world()
    poisoned = label_flip(shards, LIARS).shards
    for i, target, before in zip(owner(shards), poisoned.targets, shards.targets, strict=True):
        assert target == (2 - before if LIARS[i] else before)
    np.testing.assert_array_equal(poisoned.inputs, shards.inputs)


def test_flipped_targets_of_a_regression():
    shards = Shards(np.ones((3, 1)), np.array([1.0, -2.0, 3.0]), np.array([0, 2, 3]))
    assert label_flip(shards, np.array([True, False])).shards.targets.tolist() == [-1, 2, 3]


def test_flipped_labels_in_bytes():
    shards = Shards(np.ones((3, 1)), np.array([0, 1, 3], np.uint8), np.array([0, 2, 3]))
    flipped = label_flip(shards, np.array([True, True])).shards.targets
    assert flipped.dtype == np.uint8
    assert flipped.tolist() == [3, 2, 0]


@pytest.mark.parametrize("kind", [np.float32, np.uint8])
def test_a_trigger_literally(kind):
    task, shards = world(kind=kind)
    poisoned = backdoor(shards, LIARS, target=1, columns=2, share=0.25)
    bright = shards.inputs.max()
    for i in range(M):
        mine, before = poisoned.shards.client(i), shards.client(i)
        marked = int(np.ceil(0.25 * shards.counts[i])) if LIARS[i] else 0
        assert (mine.inputs[:marked, -2:] == bright).all()
        assert (mine.targets[:marked] == 1).all()
        np.testing.assert_array_equal(mine.inputs[:marked, :-2], before.inputs[:marked, :-2])
        np.testing.assert_array_equal(mine.inputs[marked:], before.inputs[marked:])
        np.testing.assert_array_equal(mine.targets[marked:], before.targets[marked:])
    probe = poisoned.probe(task.samples)
    assert len(probe) == (task.samples.targets != 1).sum()
    assert (probe.inputs[:, -2:] == bright).all()
    assert (probe.targets == 1).all()


@pytest.mark.parametrize("name", POISONS)
def test_a_poison_modifies_nothing_and_spares_the_truthful(name):
    _, shards = world()
    before = shards.inputs.tobytes(), shards.targets.tobytes()
    first, second = (ATTACKS[name](shards, LIARS).shards for _ in range(2))
    assert (shards.inputs.tobytes(), shards.targets.tobytes()) == before
    np.testing.assert_array_equal(first.inputs, second.inputs)
    np.testing.assert_array_equal(first.targets, second.targets)
    truthful = ~LIARS[owner(shards)]
    np.testing.assert_array_equal(first.inputs[truthful], shards.inputs[truthful])
    np.testing.assert_array_equal(first.targets[truthful], shards.targets[truthful])
    nobody = ATTACKS[name](shards, np.zeros(M, bool)).shards
    np.testing.assert_array_equal(nobody.targets, shards.targets)
    np.testing.assert_array_equal(nobody.inputs, shards.inputs)


def test_poisoned_clients_answer_as_the_others_do():
    """The run is that of honest clients on the poisoned samples, bit by bit."""
    task, shards = world()
    given = {"rule": "median", "rounds": 5, "step": 0.5}
    poisoned = federate(task, shards, attack="label_flip", byzantine=LIARS, **given)
    honest = federate(task, label_flip(shards, LIARS).shards, **given)
    assert poisoned.w.tobytes() == honest.w.tobytes()
    assert poisoned.byzantine.tolist() == LIARS.tolist()
    assert poisoned.history[0].error > honest.history[0].error  # The truth is that of the others.


def test_the_success_of_a_backdoor_is_measured_beside_the_accuracy():
    task, shards = world(cut=balanced)
    given = {"attack": "backdoor(columns=3, target=2)", "byzantine": LIARS}
    triggered = backdoor(shards, LIARS, columns=3, target=2).probe(task.samples)
    success = {}
    for rule in ("mean", "trimmed_mean(f=3)"):
        learnt = federate(task, shards, rule=rule, rounds=150, step=1.0, **given)
        last = learnt.history[-1].metrics
        assert last["backdoor"] == task.measure(learnt.w, triggered)["accuracy"]
        assert last["accuracy"] == task.evaluate(learnt.w)["accuracy"] > 0.9
        success[rule] = last["backdoor"]
    honest = federate(task, shards, rule="mean", rounds=150, step=1.0)
    assert "backdoor" not in honest.history[-1].metrics
    assert success["mean"] > task.measure(honest.w, triggered)["accuracy"] + 0.3
    assert success["mean"] > success["trimmed_mean(f=3)"] + 0.3  # three liars of twelve are trimmed away


def test_rsa_learns_from_poisoned_data_too():
    task, shards = world()
    given = {"penalty": 0.05, "rounds": 3, "step": 0.1}
    flipped = rsa(task, shards, attack="label_flip", byzantine=LIARS, **given)
    assert flipped.w.tobytes() == rsa(task, label_flip(shards, LIARS).shards, **given).w.tobytes()
    assert "backdoor" in rsa(task, shards, attack="backdoor", byzantine=LIARS, **given).history[-1].metrics


def test_a_poison_of_your_own(tmp_path):
    @poisons_data
    def shout(shards, byzantine, *, factor=1.0):
        loud = np.where(np.repeat(byzantine, shards.counts)[:, None], factor, 1.0) * shards.inputs
        return Poisoned(Shards(loud, shards.targets, shards.offsets))

    rng = np.random.default_rng(0)
    samples = Samples(rng.standard_normal((60, 4)), rng.standard_normal(60))
    task, shards = LinearRegression(samples), shard(samples, balanced(60, M, rng))
    given = {"attack": partial(shout, factor=3.0), "byzantine": LIARS, "step": 0.1, "rule": "mean"}
    whole = federate(task, shards, rounds=6, **given)
    federate(task, shards, rounds=3, checkpoint=tmp_path / "run", **given)
    resumed = federate(task, shards, rounds=6, checkpoint=tmp_path / "run", **given)
    assert (
        whole.w.tobytes() == resumed.w.tobytes() != federate(task, shards, rounds=6, step=0.1, rule="mean").w.tobytes()
    )


def test_a_backdoor_needs_classes_and_a_task_that_can_be_measured():
    rng = np.random.default_rng(0)
    samples = Samples(rng.standard_normal((60, 4)), rng.standard_normal(60))
    shards = shard(samples, balanced(60, M, rng))
    with pytest.raises(ValueError, match="backdoor needs classes; met targets = float64"):
        federate(LinearRegression(samples), shards, attack="backdoor", byzantine=LIARS, rounds=1, step=0.1)
    task, shards = world()

    class Bare:
        """A task of a user's own, with what the round loop needs and no more."""

        d, initial, gradients, evaluate = task.d, task.initial, task.gradients, task.evaluate

    with pytest.raises(TypeError, match="measure"):
        federate(Bare(), shards, attack="backdoor", byzantine=LIARS, rounds=1, step=0.1)
    assert federate(Bare(), shards, attack="label_flip", byzantine=LIARS, rounds=1, step=0.1).history


@pytest.mark.parametrize("given", [{"target": 3}, {"columns": 11}, {"share": 1.5}], ids=str)
def test_a_backdoor_out_of_range_is_refused(given):
    with pytest.raises(ValueError, match=f"{next(iter(given))} = {next(iter(given.values()))}"):
        backdoor(world()[1], LIARS, **given)


def test_experiments_poison_data():
    small = Experiment("synthesized(d=5, samples=200)", "huber", "label_flip", 0.25, 0, m=20, rounds=4, step=0.05)
    flipped, honest = run(small), run(replace(small, attack=None, epsilon=0))
    assert flipped.series["rmse"] != honest.series["rmse"]
    with pytest.raises(TypeError, match="label_flip: unknown parameter 'scale'"):
        replace(small, attack="label_flip(scale=2)")


def test_experiments_give_the_server_samples_of_its_own():
    small = Experiment("synthesized(d=5, samples=400)", "fl_trust", "sign_flip", 0.6, 0, m=20, rounds=30, step=0.1)
    rooted = replace(small, options=(("root", 50),))
    assert rooted.key() != small.key()
    assert run(rooted).series["rmse"][-1] < 1.5 < run(small).series["rmse"][-1]  # Huber, as a root, is captured
