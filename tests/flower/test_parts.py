"""A model's parts: variances, statistics under a server optimiser, adapters, heads; and a user's own test of a model."""

import logging

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord
from flwr.clientapp import ClientApp
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedYogi

from fedhold.audit.records import read
from fedhold.flower import RobustStrategy
from flower_grid import LocalGrid, client_app, model, reply_with
from flower_liars import with_arrays
from flower_normalised import VARIANCE, accuracy, learn, lowered, samples, scaled, shards, tuned

TEST = samples(500, np.random.default_rng(9))
ROUNDS, M = 6, 10


def close(one, other):
    for key, array in one.arrays.items():
        np.testing.assert_allclose(array.numpy(), other.arrays[key].numpy(), rtol=1e-5, atol=1e-6)


# Variances


@pytest.fixture(scope="module", params=[False, True], ids=["iid", "skewed"], name="parts")
def _parts(request):
    return shards(skewed=request.param)


@pytest.mark.parametrize("rule", ["spectral_huber", "mean"])
@pytest.mark.parametrize(
    "bad",
    [{0: lowered()}, {0: tuned(8)}, {0: lowered(8), 1: scaled(1e-6)}],
    ids=["one channel", "just above 0", "two liars"],
)
def test_a_lie_in_the_variances_costs_no_model(parts, bad, rule):
    result = learn(RobustStrategy(rule, fraction_evaluate=0.0), parts, bad, rounds=ROUNDS)
    honest = learn(RobustStrategy(rule, fraction_evaluate=0.0), parts, rounds=ROUNDS)
    assert (result.arrays[VARIANCE].numpy() > 0.2 * honest.arrays[VARIANCE].numpy()).all()
    assert accuracy(result.arrays, TEST) >= accuracy(honest.arrays, TEST) - 0.02
    assert not any(record.corrected for record in honest.records)
    if rule == "mean":
        assert any(record.corrected for record in result.records)


def test_two_liars_of_four(tmp_path, caplog):
    strategy = RobustStrategy(fraction_evaluate=0.0, audit=tmp_path / "a")
    with caplog.at_level(logging.WARNING, "flwr"):
        result = learn(strategy, shards(4), {0: scaled(-5), 1: scaled(-5)}, rounds=2)
    assert (result.arrays[VARIANCE].numpy() > 0).all()
    assert [record.corrected for record in read(tmp_path / "a")] == [8, 8]
    assert "Round 1: raised 8 numbers" in caplog.text


# Server optimisers


@pytest.mark.parametrize("inside", [FedAdam, FedYogi, FedAvgM])
def test_an_optimiser_leaves_statistics_alone(inside):
    settings = {"server_learning_rate": 1.0, "server_momentum": 0.9} if inside is FedAvgM else {"eta": 0.1}
    result = learn(RobustStrategy(around=inside(fraction_evaluate=0.0, **settings)), shards(), rounds=5)
    assert (result.arrays[VARIANCE].numpy() > 0.01).all()
    one = learn(RobustStrategy(around=inside(fraction_evaluate=0.0, **settings)), shards(), rounds=1)
    plain = learn(RobustStrategy(fraction_evaluate=0.0), shards(), rounds=1)
    for key in ("1.running_mean", VARIANCE, "1.num_batches_tracked"):
        np.testing.assert_array_equal(one.arrays[key].numpy(), plain.arrays[key].numpy())


def _constant(values):
    """A client that always answers with the same arrays."""
    app = ClientApp()

    @app.train()
    def train(message, _):
        return reply_with(message, values, {"num-examples": 10})

    return app


def test_an_optimiser_drives_no_scale_below_0():
    """Momentum overshoots; and it goes on from the model that was adopted, not from the one that it made."""
    first = ArrayRecord({"w": Array(np.array([1.0, -1.0])), "0": Array(np.array([1.0, 2.0]))})
    app = _constant({"w": np.array([1.0, -1.0]), "0": np.array([0.1, 2.0])})
    strategy = RobustStrategy(around=FedAvgM(server_learning_rate=1.0, server_momentum=0.9, fraction_evaluate=0.0))
    result = strategy.start(LocalGrid(app, 5), first, num_rounds=2)
    assert result.arrays["0"].numpy()[0] == pytest.approx(0.1)  # -.71 without
    assert [record.corrected for record in result.records] == [0, 1]
    inside = strategy._inner.strategy
    np.testing.assert_array_equal(inside.current_arrays["0"].numpy(), result.arrays["0"].numpy())


# The user's own test of a model


@pytest.mark.parametrize("around", [None, FedAvg, FedAdam])
@pytest.mark.parametrize("answer", [False, None, np.bool_(False), ArithmeticError("\x1b[31mbad")], ids=repr)
def test_a_model_that_fails_is_not_adopted(tmp_path, answer, around):
    calls = []

    def check(arrays):
        calls.append(arrays["w"].numpy())
        if len(calls) != 2:
            return True
        if isinstance(answer, Exception):
            raise answer
        return answer

    inside = {} if around is None else {"around": around(fraction_evaluate=0.0)}
    inside |= {"fraction_evaluate": 0.0} if around is None else {}
    strategy = RobustStrategy(check_model=check, audit=tmp_path / "a", **inside)
    models = []
    strategy.start(
        LocalGrid(client_app(), M), model(), 3, evaluate_fn=lambda _, arrays: models.append(arrays["w"].numpy())
    )
    records = read(tmp_path / "a")
    assert [record.outcome for record in records] == ["aggregated", "kept", "aggregated"]
    assert records[1].note.startswith("the new model fails check_model")
    assert "\x1b" not in records[1].note
    np.testing.assert_array_equal(models[1], models[2])
    assert not np.array_equal(models[2], models[3])
    assert len(calls) == 3
    if around is FedAdam:  # the round is forgotten
        twice = RobustStrategy(check_model=lambda _: len(calls) == 3, around=FedAdam(fraction_evaluate=0.0))
        calls.clear()
        twice.start(LocalGrid(client_app(), M), model(), 1)
        assert twice._inner.strategy.m_t is None


# Groups of arrays


def adapters(rng):
    """A model of two factors whose numbers differ in size, and a head."""
    return {
        "q.lora_A.weight": (0.02 * rng.standard_normal((4, 60))).astype(np.float32),
        "q.lora_B.weight": (1e-4 * rng.standard_normal((60, 4))).astype(np.float32),
        "head.weight": rng.standard_normal(5).astype(np.float32),
        "steps": np.array(3),
    }


def adapter_app(truth):
    app = ClientApp()

    @app.train()
    def train(message, context):
        rng = np.random.default_rng(context.node_config["partition-id"])
        arrays = {key: array.numpy() for key, array in message.content["arrays"].items()}
        for key, size in (("q.lora_A.weight", 0.01), ("q.lora_B.weight", 3e-5), ("head.weight", 1.0)):
            noise = size * rng.standard_normal(arrays[key].shape)
            arrays[key] = (arrays[key] + truth[key] + noise).astype(np.float32)
        return reply_with(message, arrays, {"num-examples": 10})

    return app


@pytest.mark.parametrize("rule", ["spectral_huber", "clipping(radius=.05) | mean", "median"])
def test_adapters_are_measured_by_themselves(tmp_path, rule):
    truth = adapters(np.random.default_rng(0))
    lie = with_arrays(lambda a: {"q.lora_B.weight": a["q.lora_B.weight"] - 20 * truth["q.lora_B.weight"]})
    first = ArrayRecord({key: Array(np.zeros_like(array)) for key, array in truth.items()})
    strategy = RobustStrategy(rule, fraction_evaluate=0.0, groups="adapters", exclude="head.*", audit=tmp_path / "a")
    nan = with_arrays(lambda a: {"head.weight": a["head.weight"] * np.nan})  # nobody looks at what is excluded
    result = strategy.start(LocalGrid(adapter_app(truth), M, {0: lie, 1: lie, 2: nan}), first, 1)
    np.testing.assert_array_equal(result.arrays["head.weight"].numpy(), 0)
    rows = {int(row.node) - 2**62: row for row in read(tmp_path / "a")[0].nodes}
    assert set(rows[0].groups) == {"lora_A", "lora_B"}
    assert rows[2].status != "rejected"
    if rule == "spectral_huber":
        b = result.arrays["q.lora_B.weight"].numpy() - truth["q.lora_B.weight"]
        assert np.linalg.norm(b) < 0.2 * np.linalg.norm(truth["q.lora_B.weight"])
        assert rows[0].groups["lora_A"] != "dropped"
        assert rows[0].groups["lora_B"] == rows[0].status == "dropped"
        assert {int(one.node) - 2**62 for one in result.suspects[:2]} == {0, 1}


def test_groups_are_facts_of_a_run(tmp_path):
    def start(rounds, **more):
        strategy = RobustStrategy(fraction_evaluate=0.0, checkpoint=tmp_path, **more)
        return strategy.resume(LocalGrid(client_app(), M), model(), rounds)

    start(1, groups={"w": "w"}, exclude=["b"])
    start(2, groups={"w": "w"}, exclude=["b"])
    with pytest.raises(ValueError, match="exclude"):
        start(3, groups={"w": "w"})


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"groups": "adapter"}, 'Pass "adapters"'),
        ({"exclude": "hea.*"}, "matches no array"),
        ({"groups": {"head": "hea.*"}}, "matches no array"),
        ({"exclude": "*"}, "leaves no array"),
    ],
)
def test_mistakes_are_told_before_a_round_is_lost(more, message):
    with pytest.raises(ValueError, match=message):
        RobustStrategy(**more).start(LocalGrid(client_app(), M), model(), 1)
