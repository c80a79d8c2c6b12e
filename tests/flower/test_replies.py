"""Every bad reply, alone and from a fifth of the nodes: the run lives, the model is sound, the node is named and why."""

import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, MetricRecord
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhold.audit.records import read
from fedhold.flower import RobustStrategy
from fedhold.flower.model import Model
from fedhold.transport import Limits, read_replies
from flower_grid import FIRST, LocalGrid, client_app, model
from flower_liars import EVERY, REJECTED, REMARKED, with_content, with_metrics

RULES = [
    "huber",
    "krum(f=2)",
    "median",
    "trimmed_mean(f=2)",
    "nearest_neighbour_mixing(f=2) | trimmed_mean(f=2)",
    "centered_clipping(radius=1)",
]
M = 10


def numbers(record):
    return {key: array.numpy() for key, array in record.items()}


def trained(rule, tmp_path, bad, m=M, **more):
    """The model after a round, and the audit of it."""
    audit = tmp_path / "audit.jsonl"
    strategy = RobustStrategy(rule, audit=audit, fraction_evaluate=0.0, **more)
    result = strategy.start(LocalGrid(client_app(), m, bad), model(), num_rounds=1, timeout=0.25)
    return numbers(result.arrays), read(audit)[0]


def assert_sound(arrays):
    """Near where honest clients pull: they are 0.1 around 1, and a round goes half of the way."""
    assert np.abs(arrays["w"] - 0.5).max() < 0.15
    assert arrays["w"].dtype == np.float32
    assert arrays["b"] == pytest.approx(0.5)
    assert arrays["b"].shape == ()
    assert arrays["steps"] == 11
    assert arrays["steps"].dtype == np.int64
    assert arrays["mask"].tolist() == [True, False]
    assert list(arrays) == ["w", "b", "steps", "mask"]


def assert_named(record, liars, m=M):
    """`liars`: which node sent what."""
    assert record.outcome == "aggregated"
    rows = {int(row.node) - FIRST: row for row in record.nodes if int(row.node) >= FIRST}
    assert sorted(rows) == list(range(m))
    for i, row in rows.items():
        name = liars.get(i)
        if name in REJECTED:
            assert row.status == "rejected"
            assert REJECTED[name][1] in row.reason
            assert len(row.reason) < 300
            assert not row.weight
            continue
        assert row.status != "rejected", row
        if name in REMARKED:
            assert REMARKED[name][1] in row.reason
        elif name is None:
            assert row.reason is None


@pytest.mark.parametrize(
    ("rule", "liars"), [*((rule, (2, 7)) for rule in RULES), ("huber", (4,)), ("krum(f=2)", (4,)), ("median", (4,))]
)
def test_survives(rule, liars, tmp_path):
    for n, (name, reply) in enumerate(EVERY.items()):
        arrays, record = trained(rule, tmp_path / str(n), dict.fromkeys(liars, reply))
        assert_sound(arrays)
        assert_named(record, dict.fromkeys(liars, name))


@pytest.mark.parametrize("rule", ["huber", "median", "geometric_median"])
def test_survives_all_of_them_at_once(rule, tmp_path):
    liars = {5 * i: name for i, name in enumerate(EVERY)}
    arrays, record = trained(rule, tmp_path, {i: EVERY[name] for i, name in liars.items()}, m=5 * len(EVERY))
    assert_sound(arrays)
    assert_named(record, liars, 5 * len(EVERY))


def test_someone_else_cannot_speak_for_a_node(tmp_path):
    _, record = trained("huber", tmp_path, {4: EVERY["in the name of another"]})
    stranger = next(row for row in record.nodes if row.node == "77")
    assert stranger.status == "rejected"
    assert str(FIRST + 4) in stranger.reason


def test_a_reply_that_is_too_large_is_not_decoded(tmp_path, monkeypatch):
    decoded = []
    real = np.lib.format.read_magic
    monkeypatch.setattr(np.lib.format, "read_magic", lambda file: decoded.append(len(file.getvalue())) or real(file))
    _, record = trained("huber", tmp_path, {}, max_reply_bytes=100)
    assert decoded == []
    assert all("bytes; at most 100 are accepted" in row.reason for row in record.nodes)
    assert record.outcome == "kept"


# Evaluation

BAD_METRICS = {
    "NaN metric": (with_metrics({"loss": float("nan")}), "metric 'loss' is not finite"),
    "NaN in a list": (with_metrics({"per-class": [0.5, float("nan")]}), "metric 'per-class' is not finite"),
    "inf metric": (with_metrics({"loss": -math.inf}), "not finite"),
    "huge metric": (with_metrics({"loss": 1e308}), "beyond"),
    "huge integer": (with_metrics({"loss": 2**62}), "beyond"),
    "missing metric": (with_metrics({"loss": None}), "miss 'loss'"),
    "list for a number": (with_metrics({"loss": [0.5]}), "a list of 1, expected one number"),
    "longer list": (with_metrics({"per-class": [0.5] * 3}), "a list of 3, expected a list of 2"),
    "a million numbers": (with_metrics({"per-class": [0.5] * 10**6}), "numbers in a list; at most"),
    **{name: REJECTED[name] for name in REJECTED if name.endswith("weight") or name == "nothing"},
    **{name: REJECTED[name] for name in ("exception", "silence", "cannot be inflated", "to a message never sent")},
    "two MetricRecords": (with_content(lambda c: c | {"more": MetricRecord({"loss": 1.0})}), "2 MetricRecords"),
}


def only_in(kind, reply):
    return lambda message, honest: reply(message, honest) if message.metadata.message_type == kind else honest


@pytest.mark.parametrize("liars", [(4,), (2, 7)], ids=["alone", "a fifth"])
@pytest.mark.parametrize("name", BAD_METRICS)
def test_a_hostile_evaluation_neither_ends_the_run_nor_enters_the_averages(name, liars, tmp_path):
    reply, reason = BAD_METRICS[name]
    bad = dict.fromkeys(liars, only_in("evaluate", reply))
    strategy = RobustStrategy(audit=tmp_path / "audit.jsonl")
    result = strategy.start(LocalGrid(client_app(), M, bad), model(), num_rounds=1, timeout=0.25)
    loss = float(np.abs(result.arrays["w"].numpy() - 1).mean())
    assert result.evaluate_metrics_clientapp[1]["loss"] == pytest.approx(loss)
    assert result.evaluate_metrics_clientapp[1]["per-class"] == pytest.approx([0.5, 0.25])
    rows = [row for row in read(tmp_path / "audit.jsonl")[0].nodes if row.phase == "evaluate"]
    assert [int(row.node) - FIRST for row in rows] == list(liars)
    assert all(row.status == "rejected" and reason in row.reason for row in rows)


def test_a_large_claim_does_not_own_the_averages():
    lie = with_metrics({"loss": 100.0, "num-examples": 10**12})
    grid = LocalGrid(client_app(), M, {4: only_in("evaluate", lie)})
    loss = RobustStrategy().start(grid, model(), num_rounds=1).evaluate_metrics_clientapp[1]["loss"]
    assert loss < 0.6 + 100 * 3 / (M - 1 + 3) * 1.05  # three shares of about twelve, no more


def test_nobody_sane_means_no_averages():
    grid = LocalGrid(client_app(), M, {i: with_metrics({"loss": float("nan")}) for i in range(M)})
    result = RobustStrategy().start(grid, model(), num_rounds=1)
    assert result.evaluate_metrics_clientapp == {}
    assert_sound(numbers(result.arrays))


# Any bytes

LIKE = Model({"w": np.zeros((2, 3), np.float32)})
HEADERS = st.builds(
    lambda descr, order, shape: f"{{'descr': {descr!r}, 'fortran_order': {order}, 'shape': {shape}, }}\n".encode(),
    st.sampled_from(["<f4", ">f8", "|O", "<U3", "<i8", "|V4", "<f2", [("a", "<f4")], "nonsense"]),
    st.sampled_from(["True", "False", "None"]),
    st.sampled_from(["(2, 3)", "(3, 2)", "()", "(-2, -3)", "(2, 3, 10**9)", "(99999999999999999999,)", "[2, 3]"]),
)
BYTES = st.one_of(
    st.binary(max_size=300),
    st.builds(lambda tail: b"\x93NUMPY" + tail, st.binary(max_size=300)),
    st.builds(
        lambda header, data: b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data,
        HEADERS,
        st.binary(max_size=60),
    ),
)


@settings(max_examples=300, deadline=None)
@given(data=BYTES, dtype=st.sampled_from(["float32", "float64", ">f8", "object", "<U3"]))
def test_any_bytes_are_an_array_of_the_right_shape_or_a_reason(data, dtype):
    grid = LocalGrid(client_app(), 1)
    strategy = RobustStrategy(min_train_nodes=1, min_available_nodes=1)
    (message,) = strategy.configure_train(1, LIKE.record(), ConfigRecord(), grid)
    message.metadata.__dict__["_message_id"] = "1"
    reply = with_content(
        lambda _: {
            "arrays": ArrayRecord({"w": Array(dtype, (2, 3), "numpy.ndarray", data)}),
            "m": MetricRecord({"num-examples": 5}),
        }
    )(message, message)
    limits = Limits.of(LIKE.arrays)
    keys = {"weight_key": "num-examples", "name_key": "node-name"}
    (got,) = read_replies([message], [reply], like=LIKE.arrays, **keys, limits=limits, no_reply="no reply")
    if got.reason is None:
        assert got.arrays["w"].shape == (2, 3)
        assert got.arrays["w"].dtype.kind == "f"
    else:
        assert "\n" not in got.reason
        assert len(got.reason) < 500
