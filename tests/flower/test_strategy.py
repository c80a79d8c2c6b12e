"""The strategy in a whole run: rules, weights, dtypes, sampling, waiting and the audit."""

import inspect
import json
import logging
import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from flwr.serverapp.strategy import FedAvg

from fedhold import aggregate
from fedhold.audit import array_hash, verify
from fedhold.audit.records import STATUSES, read
from fedhold.flower import RobustStrategy
from fedhold.flower.model import Model
from fedhold.flower.rounds import Round, Rule, aggregate_replies
from fedhold.flower.state import State
from fedhold.transport import Reply
from flower_grid import FIRST, SILENT, LocalGrid, client_app, model, pull, reply_with
from flower_liars import with_arrays, with_metrics
from flower_rules import EVERY_RULE

M = 10
README = Path(__file__).parents[2] / "README.md"
NAN = with_arrays(lambda a: {"w": a["w"] * np.nan})
FAR = with_arrays(lambda a: {"w": a["w"] - 50})


def run(strategy, grid=None, arrays=None, rounds=1, **more):
    return strategy.start(
        grid or LocalGrid(client_app(), M), arrays or model(), num_rounds=rounds, timeout=0.25, **more
    )


def numbers(record):
    return {key: array.numpy() for key, array in record.items()}


# Rules


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_every_rule_learns(rule):
    result = run(RobustStrategy(rule), rounds=3)
    assert np.abs(result.arrays["w"].numpy() - 1).max() < 0.3
    assert result.arrays["steps"].numpy() == 13
    assert [result.evaluate_metrics_clientapp[t]["loss"] for t in (1, 3)] == pytest.approx([0.5, 0.125], abs=0.05)


def test_a_round_is_aggregate_of_the_updates():
    """Updates, not models: with `clipping` the two differ."""
    arrays = ArrayRecord({"w": Array(np.full((3, 2), 5.0, np.float32))})
    result = run(RobustStrategy("clipping(radius=2) | mean"), arrays=arrays)
    w = np.full((3, 2), 5.0, np.float32)
    updates = [0.5 * (pull(i, 1, (3, 2)) - w) for i in range(M)]
    expected = aggregate(updates, "clipping(radius=2) | mean", samples=[50 + i for i in range(M)]).value
    np.testing.assert_allclose(result.arrays["w"].numpy(), w + expected, rtol=1e-6)


@pytest.mark.parametrize("rule", EVERY_RULE)
def test_models_that_are_aggregated_as_they_came_give_what_updates_give(rule, monkeypatch):
    """Far from 0, as models are; with the arrays of one node in other dtypes and layouts."""
    rng = np.random.default_rng(0)
    shapes = {"a": (30, 20), "b": (7,), "c": ()}
    sent = Model({key: np.array(5 + rng.standard_normal(shape), np.float32) for key, shape in shapes.items()})
    replies = [
        Reply(
            i,
            arrays={
                key: np.array(array + 0.1 * (1 + rng.standard_normal(array.shape)), np.float32)
                for key, array in sent.arrays.items()
            },
            samples=50.0 + i,
            answered=True,
        )
        for i in range(12)
    ]
    replies[3].arrays["a"] = np.asfortranarray(replies[3].arrays["a"].astype(np.float64))
    given = RobustStrategy(rule).rule
    last = {key: np.full(shape, 0.1) for key, shape in shapes.items()}
    root = {key: array + 0.1 for key, array in sent.arrays.items()} if given.takes("root") else None
    opened = Round.opened(1, sent, given, State(sent, seed=0, last=last))
    outcomes = []
    for whole in (given.takes_whole, False):
        monkeypatch.setattr(Rule, "takes_whole", whole)
        outcomes.append(aggregate_replies(opened, replies, 12, given, np.random.default_rng(1), root=root))
    for key in shapes:
        one, other = (outcome.model.arrays[key] for outcome in outcomes)
        assert one.dtype == np.float32
        assert one.shape == shapes[key]
        np.testing.assert_allclose(one, other, atol=2e-6)
    for one, other in zip(*(outcome.record.nodes for outcome in outcomes), strict=True):
        assert (one.node, one.status, one.samples) == (other.node, other.status, other.samples)
        assert one.distance == pytest.approx(other.distance, rel=1e-4)


def test_centered_clipping_starts_from_its_last_aggregate():
    rule = "centered_clipping(radius=0.1, iterations=1)"
    w, last = np.zeros((3, 2), np.float32), None
    for t in (1, 2, 3):
        updates = [0.5 * (pull(i, t, (3, 2)) - w) for i in range(M)]
        last = aggregate(updates, rule, start=last, samples=[50 + i for i in range(M)]).value
        w = (w + last).astype(np.float32)
    arrays = ArrayRecord({"w": Array(np.zeros((3, 2), np.float32))})
    np.testing.assert_allclose(run(RobustStrategy(rule), arrays=arrays, rounds=3).arrays["w"].numpy(), w, rtol=1e-5)


def test_mean_without_a_cap_is_fedavg(tmp_path):
    ours = run(RobustStrategy("mean", sample_cap=None, audit=tmp_path / "a"), rounds=2)
    grid = LocalGrid(client_app(), M)
    theirs = FedAvg().start(grid, model(counter=False), num_rounds=2)
    np.testing.assert_allclose(ours.arrays["w"].numpy(), theirs.arrays["w"].numpy(), rtol=1e-5)
    plain = read(tmp_path / "a")[1].averages
    assert plain["train"]["loss"] == pytest.approx(theirs.train_metrics_clientapp[2]["loss"])
    assert plain["evaluate"]["loss"] == pytest.approx(theirs.evaluate_metrics_clientapp[2]["loss"])


def test_parameters_go_to_the_rule():
    in_spec = run(RobustStrategy("trimmed_mean(f=3)"))
    beside = run(RobustStrategy("trimmed_mean", parameters={"f": 3}))
    np.testing.assert_array_equal(in_spec.arrays["w"].numpy(), beside.arrays["w"].numpy())


def test_a_function_of_ones_own():
    def first(geometry):
        return np.eye(geometry.m)[0]

    w = run(RobustStrategy(first)).arrays["w"].numpy()
    np.testing.assert_allclose(w, 0.5 * pull(0, 1, (3, 2)), rtol=1e-6)


def test_bad_arguments_are_told_at_once():
    with pytest.raises(ValueError, match="Did you mean 'huber'"):
        RobustStrategy("hubert")
    with pytest.raises(TypeError, match="krum needs f"):
        RobustStrategy("krum")
    with pytest.raises(TypeError, match="fraction_trian"):
        RobustStrategy(fraction_trian=0.5)
    with pytest.raises(ValueError, match="byzantine must be at least 0"):
        RobustStrategy(byzantine=-1)
    with pytest.raises(ValueError, match="sample_cap must be at least 1"):
        RobustStrategy(sample_cap=0.5)
    with pytest.raises(ValueError, match="radius must be a number above 0"):
        RobustStrategy("centered_clipping(radius=-1)")
    with pytest.raises(TypeError, match="f must be an integer"):
        RobustStrategy("krum", parameters={"f": 2.5})
    with pytest.raises(TypeError, match=r"quarantine must be Quarantine\(...\) or None, got True"):
        RobustStrategy(quarantine=True)
    for rounds in (2.5, "3", None):
        with pytest.raises(TypeError, match="num_rounds must be an integer"):
            run(RobustStrategy(), rounds=rounds)
    assert RobustStrategy("bucketing(size=5) | krum(f=3)").rule.name == "bucketing(size=5) | krum(f=3)"


# Weights


def test_claims_are_capped(tmp_path):
    lie = with_metrics({"num-examples": 10**9})
    run(RobustStrategy("mean", audit=tmp_path / "a.jsonl"), LocalGrid(client_app(), M, {3: lie}))
    row = read(tmp_path / "a.jsonl")[0].nodes[3]
    honest = [50 + i for i in range(M) if i != 3]
    cap = 3 * np.median([*honest, 10**9])
    assert row.claimed == 10**9
    assert row.samples == cap
    assert row.weight == pytest.approx(cap / (sum(honest) + cap))
    assert "capped" in row.reason


def test_another_key_for_the_weights():
    grid = LocalGrid(client_app(), M, {i: with_metrics({"n": 1.0 if i else 1e3}) for i in range(M)})
    w = run(RobustStrategy("mean", weighted_by_key="n", sample_cap=None), grid).arrays["w"].numpy()
    np.testing.assert_allclose(w, 0.5 * pull(0, 1, (3, 2)), atol=2e-3)


# Models


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int8, np.uint16, np.int64, np.bool_])
def test_dtypes_of_a_model(dtype):
    """In a model without floats the integers make the geometry."""
    like = np.array([[0, 1], [1, 0]], dtype)

    def sends(add):
        def reply(message, _):
            new = ~like if dtype is np.bool_ else (like + np.asarray(add)).astype(dtype)
            return reply_with(message, {"x": new, "empty": np.empty((0, 4), dtype)}, {"num-examples": 5})

        return reply

    arrays = ArrayRecord({"x": Array(like), "empty": Array(np.empty((0, 4), dtype))})
    grid = LocalGrid(lambda message, _: message, 5, {i: sends(2 if i < 4 else 100) for i in range(5)})
    result = numbers(run(RobustStrategy("median", fraction_evaluate=0.0), grid, arrays).arrays)
    np.testing.assert_array_equal(result["x"], ~like if dtype is np.bool_ else like + 2)
    assert result["x"].dtype == dtype
    assert result["empty"].shape == (0, 4)
    assert result["empty"].dtype == dtype


def test_a_client_may_reckon_in_other_floats(tmp_path):
    wide = with_arrays(lambda a: {"w": np.asfortranarray(a["w"].astype(">f8"))})
    plain = run(RobustStrategy("mean"))
    mixed = run(RobustStrategy("mean", audit=tmp_path / "a"), LocalGrid(client_app(), M, {3: wide}))
    np.testing.assert_allclose(mixed.arrays["w"].numpy(), plain.arrays["w"].numpy(), rtol=1e-6)
    assert mixed.arrays["w"].numpy().dtype == np.float32
    assert all(row.status == "kept" for row in read(tmp_path / "a")[0].nodes if row.phase == "train")


@pytest.mark.parametrize(
    ("array", "told"),
    [
        (np.array([1j]), "dtype complex128"),
        (np.array(["a"]), "dtype <U1"),
        (np.array([np.nan]), "not finite"),
        (np.array([3], np.uint8).view(np.bool_), "bytes other than 0 and 1"),
        (np.empty(0), "holds no numbers"),
    ],
)
def test_a_model_that_cannot_be_aggregated_is_an_error(array, told):
    with pytest.raises((TypeError, ValueError), match=told):
        run(RobustStrategy(), arrays=ArrayRecord({"x": Array(array)}))


@pytest.mark.parametrize("rule", ["median", "mean"])
def test_bool_bytes_other_than_0_and_1_never_reach_a_model(rule, tmp_path):
    """Neither where bools are aggregated, in a model without floats, nor beside floats."""
    for arrays in ({"x": np.array([False, True])}, {"x": np.array([False, True]), "w": np.zeros(2)}):
        like = ArrayRecord({key: Array(array) for key, array in arrays.items()})
        bad = {**arrays, "x": np.array([255, 2], np.uint8).view(np.bool_)}

        def answer(message, _, bad=bad):
            return reply_with(message, bad, {"num-examples": 5})

        def honest(message, _, good=arrays):
            return reply_with(message, good, {"num-examples": 5})

        grid = LocalGrid(lambda message, _: message, 5, {i: answer if i < 2 else honest for i in range(5)})
        result = run(RobustStrategy(rule, fraction_evaluate=0.0, audit=tmp_path / "a"), grid, like)
        assert result.arrays["x"].numpy().view(np.uint8).tolist() == [0, 1]
        rows = read(tmp_path / "a")[0].nodes
        assert [row.reason for row in rows if row.status == "rejected"] == 2 * [
            "array 'x' has bytes other than 0 and 1 among its bools"
        ]


# Rounds with too few good replies


@pytest.mark.parametrize(
    ("rule", "bad", "told"),
    [
        ("huber", range(M), "0 of 10 nodes asked sent a usable reply, and the quorum is 6"),
        ("krum(f=2)", range(4), "krum needs m >= 2f \\+ 3; met m = 6"),
    ],
)
def test_too_few_good_replies_keep_the_model(rule, bad, told, tmp_path, caplog):
    grid = LocalGrid(client_app(), M, dict.fromkeys(bad, lambda *_: SILENT))
    with caplog.at_level(logging.WARNING, "flwr"):
        logging.getLogger("flwr").propagate = True
        result = run(RobustStrategy(rule, audit=tmp_path / "a", fraction_evaluate=0.0), grid)
    np.testing.assert_array_equal(result.arrays["w"].numpy(), 0)
    record = read(tmp_path / "a")[0]
    assert record.outcome == "kept"
    assert re.search(told, record.note)
    assert any("keeps the model" in line for line in caplog.messages)
    assert {int(row.node) - FIRST for row in record.nodes if row.status == "rejected"} == set(bad)


def test_all_numbers_bad_keeps_the_model_and_blames_everyone(tmp_path):
    grid = LocalGrid(client_app(), M, dict.fromkeys(range(M), NAN))
    result = run(RobustStrategy(audit=tmp_path / "a"), grid, rounds=2)
    np.testing.assert_array_equal(result.arrays["w"].numpy(), 0)
    for record in read(tmp_path / "a"):
        assert record.outcome == "kept"
        assert all(row.reason == "numbers that are not finite" for row in record.nodes if row.phase == "train")


def test_an_aggregate_that_is_not_finite_is_not_taken(tmp_path, monkeypatch):
    def broken(*args, **call):
        done = aggregate(*args, **call)
        return replace(done, value={key: array * np.nan for key, array in done.value.items()})

    strategy = RobustStrategy(audit=tmp_path / "a")
    monkeypatch.setattr("fedhold.flower.rounds.aggregate", broken)
    result = run(strategy)
    np.testing.assert_array_equal(result.arrays["w"].numpy(), 0)
    assert read(tmp_path / "a")[0].note == "the aggregate is not finite"


@pytest.mark.parametrize("error", [RuntimeError, ValueError])
def test_no_certificate_does_not_cost_the_round(tmp_path, monkeypatch, error):
    """Numbers at the edge of float64 have made either of them come."""

    def fails(_):
        raise error("nothing can be proven")

    monkeypatch.setattr("fedhold.aggregation.Aggregation.certificate", property(fails))
    run(RobustStrategy(audit=tmp_path / "a"))
    record = read(tmp_path / "a")[0]
    assert record.outcome == "aggregated"
    assert record.certificate == {"f": 2, "radius": None}


def test_waiting_for_nodes_ends():
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"needs 12 nodes .*met 10 after waiting 0.2 s. Start more SuperNodes"):
        run(RobustStrategy(min_available_nodes=12, wait=0.2))
    assert 0.2 <= time.monotonic() - began < 2


def test_waits_until_nodes_are_there(monkeypatch):
    grid = LocalGrid(client_app(), M)
    looks = iter([1, 2])
    monkeypatch.setattr(grid, "get_node_ids", lambda: grid.nodes[: next(looks, M)])
    monkeypatch.setattr("fedhold.transport.grid.POLL", 0.01)
    assert run(RobustStrategy(min_available_nodes=M, wait=5), grid).train_metrics_clientapp


def test_nodes_gone_before_evaluation_do_not_cost_the_round(tmp_path):
    grid = LocalGrid(client_app(), M)

    def leave(_, honest):
        grid.nodes = grid.nodes[:3]
        return honest

    grid.bad = {9: leave}
    strategy = RobustStrategy(min_available_nodes=5, wait=0.05, audit=tmp_path / "a", checkpoint=tmp_path / "c")
    with pytest.raises(TimeoutError):
        run(strategy, grid, rounds=2)
    assert [record.round for record in read(tmp_path / "a")] == [1]
    grid.nodes, grid.bad = [FIRST + i for i in range(M)], {}
    again = RobustStrategy(min_available_nodes=5, checkpoint=tmp_path / "c").resume(grid, num_rounds=2)
    np.testing.assert_array_equal(again.arrays["w"].numpy(), run(RobustStrategy(), rounds=2).arrays["w"].numpy())


# Sampling


def test_sampling_depends_on_seed_and_round_only():
    def asked(seed, order=1):
        grid = LocalGrid(client_app(), 20)
        grid.nodes = grid.nodes[::order]
        run(RobustStrategy(fraction_train=0.5, fraction_evaluate=0.25, seed=seed), grid, rounds=3)
        return grid.asked

    assert asked(0) == asked(0, order=-1)
    assert asked(0) != asked(1)
    assert [(kind, t, len(who)) for kind, t, who in asked(0)] == [
        (kind, t, size) for t in (1, 2, 3) for kind, size in (("train", 10), ("evaluate", 5))
    ]
    assert len({tuple(who) for kind, _, who in asked(0) if kind == "train"}) == 3


def test_arguments_of_fedavg():
    given = {"arrayrecord_key": "arrays", "configrecord_key": "config", "min_train_nodes": 7, "min_evaluate_nodes": 3}
    grid = LocalGrid(client_app(), M)
    average = lambda records, _: MetricRecord({"nodes": len(records)})  # noqa: E731
    strategy = RobustStrategy(
        fraction_train=0.1,
        fraction_evaluate=0.0001,
        evaluate_metrics_aggr_fn=average,
        train_metrics_aggr_fn=average,
        **given,
    )
    result = run(strategy, grid, train_config=ConfigRecord({"lr": 0.1}))
    assert [len(who) for _, _, who in grid.asked] == [7, 3]
    assert result.train_metrics_clientapp[1] == {"nodes": 7}
    assert result.evaluate_metrics_clientapp[1] == {"nodes": 3}
    assert set(inspect.signature(FedAvg.__init__).parameters) <= set(vars(strategy)) | {"self"}


def test_functions_for_metrics_get_whole_replies():
    seen = []

    def average(records, key):
        seen.append([(type(record["metrics"][key]), record["metrics"][key], set(record)) for record in records])
        return MetricRecord({"nodes": len(records)})

    grid = LocalGrid(client_app(), M, {3: with_metrics({"num-examples": 10**9})})
    run(RobustStrategy(train_metrics_aggr_fn=average, evaluate_metrics_aggr_fn=average), grid)
    for kind, keys in zip(seen, ({"arrays", "metrics"}, {"metrics"}), strict=True):
        assert kind[0] == (int, 50, keys)
        assert kind[3] == (float, 166.5, keys)


def test_no_training_and_no_evaluation():
    grid = LocalGrid(client_app(), M)
    result = run(
        RobustStrategy(fraction_train=0.0, fraction_evaluate=0.0), grid, evaluate_fn=lambda t, _: MetricRecord({"t": t})
    )
    assert grid.asked == []
    assert result.evaluate_metrics_serverapp == {0: {"t": 0}, 1: {"t": 1}}
    np.testing.assert_array_equal(result.arrays["w"].numpy(), 0)


def test_replies_need_the_round_they_belong_to():
    with pytest.raises(RuntimeError, match="configure_train"):
        RobustStrategy().aggregate_train(1, [])


# The audit


def test_the_audit_says_all_there_is(tmp_path):
    path = tmp_path / "deep" / "audit.jsonl"
    grid = LocalGrid(client_app(), M, {2: FAR, 5: NAN})
    run(RobustStrategy(audit=path), grid, rounds=2, evaluate_fn=lambda t, _: MetricRecord({"t": t}))
    lines = [json.loads(line, parse_constant=pytest.fail) for line in path.read_text().splitlines()]
    assert [line["round"] for line in lines] == [1, 2]
    assert all(line["format"] == 1 and line["rule"] == "spectral_huber" for line in lines)
    first = read(path)[0]
    assert first.outcome == "aggregated"
    assert first.converged
    assert first.certificate["f"] == 1  # a fifth of nine
    assert 0 < first.certificate["radius"] < 1
    assert first.metrics["server"] == {"t": 1}
    assert set(first.metrics) == {"train", "evaluate", "server"}
    assert 0 < first.seconds["aggregation"] < first.seconds["round"]
    rows = {int(row.node) - FIRST: row for row in first.nodes if row.phase == "train"}
    assert all(row.status in STATUSES for row in first.nodes)
    assert rows[2].status == "dropped"
    assert rows[2].distance > 50 * rows[2].threshold
    assert rows[2].weight == 0
    assert rows[5].status == "rejected"
    assert sum(row.weight for row in rows.values()) == pytest.approx(1)
    assert rows[3].claimed == rows[3].samples == 53
    assert {record.run for record in read(path)} == {first.run}


def test_a_half_written_line_is_left_out_and_told(tmp_path):
    path = tmp_path / "a"
    run(RobustStrategy(audit=path), rounds=2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    told = []
    assert [record.round for record in read(path, told.append)] == [1]
    assert "line 2 was not written to its end" in told[0]
    run(RobustStrategy(audit=path))  # another run goes on in place of the torn line
    assert [record.round for record in read(path, told.append)] == [1]
    assert "2 runs" in told[-1]
    assert verify(path).problems == []


def test_the_audit_has_the_hashes_of_updates_and_models(tmp_path):
    """Those that a node, and whoever keeps the models, compute by themselves."""
    sent, path = {}, tmp_path / "a"

    def remembered(message, reply):
        record = next(iter(reply.content.array_records.values()))
        sent[message.metadata.dst_node_id] = {key: array.numpy() for key, array in record.items()}
        return reply

    grid = LocalGrid(client_app(), M, {**dict.fromkeys(range(M), remembered), 5: NAN})
    result = run(RobustStrategy(audit=path, fraction_evaluate=0.0), grid)
    (record,) = read(path)
    rows = {int(row.node): row for row in record.nodes if row.phase == "train"}
    assert all(rows[node].update == array_hash(arrays) for node, arrays in sent.items())
    assert len(sent) == M - 1
    assert record.model == {
        "before": array_hash({key: array.numpy() for key, array in model().items()}),
        "after": array_hash({key: array.numpy() for key, array in result.arrays.items()}),
    }


def test_a_kept_model_has_one_hash_and_signed_audits_go_on_in_new_files(tmp_path):
    key = Ed25519PrivateKey.generate()
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    (tmp_path / "key").write_bytes(key.private_bytes(serialization.Encoding.PEM, *form))
    path = tmp_path / "audit.jsonl"
    strategy = RobustStrategy(audit=path, audit_key=tmp_path / "key", audit_max_bytes=1, fraction_evaluate=0.0)
    run(strategy, LocalGrid(client_app(), M, dict.fromkeys(range(M - 2), NAN)), rounds=3)
    found = verify(path, public_key=key.public_key())
    assert (found.problems, found.lines, found.signed) == ([], 3, 3)
    assert (tmp_path / "audit.jsonl.2").exists()
    for record in read(path):
        assert record.outcome == "kept"
        assert record.model["before"] == record.model["after"]
    with pytest.raises(ValueError, match="no Ed25519 private key"):
        RobustStrategy(audit=path, audit_key=path)


@pytest.mark.parametrize("text", ["no audit", '{"some": "json"}', '{"format": 2}', '{"format": 1, "nodes": 3}', "[1]"])
def test_another_file_is_no_audit(tmp_path, text):
    path = tmp_path / "a"
    path.write_text(text + "\n")
    with pytest.raises(ValueError, match="line 1"):
        read(path)
