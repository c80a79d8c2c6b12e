"""Registered nodes that attack through Flower's protocol: a real SuperLink and ServerApp, and nodes that say what they like.

Deselect with -m 'not deployment'.
"""

import contextlib
import json
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from federation import HOST, Federation
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from fedhold.audit.records import read
from flower_nodes import (
    TRUTH,
    Made,
    Node,
    copy_of,
    far_away,
    honest,
    honest_reply,
    made_of,
    many_arrays,
    reply_to,
    stalls,
    wrapped,
)

pytestmark = pytest.mark.deployment

TINY = Path(__file__).parent / "flower_app"
GIB = 2**30


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """A SuperLink without nodes; each test brings its own."""
    with Federation(tmp_path_factory.mktemp("hostile")) as federation:
        yield federation
    assert federation.pids() == []


def one_round(federation, folder, answers, **config):
    """The record of a round among nodes that answer so, the row of each of these nodes, and the model after it."""
    with contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(Node(f"{HOST}:{federation.port}", answer)) for answer in answers]
        run = federation.run(TINY, folder=str(folder), num_server_rounds=1, min_nodes=len(nodes), **config)
        status = federation.wait(run, 200)
        assert [node.failure for node in nodes if node.failure] == []
    assert status == "finished:completed", federation.log(run)
    (record,) = read(folder / "audit.jsonl")
    rows = {row.node: row for row in record.nodes}
    assert rows.keys() == {str(node.id) for node in nodes}
    return record, [rows[str(node.id)] for node in nodes], np.load(folder / "model.npy")


def assert_learnt(record, rows, model):
    """All of these nodes count, and the model went half of the way from 0 to their truth."""
    assert record.outcome == "aggregated"
    assert all(row.status != "rejected" and row.weight > 0 for row in rows), rows
    assert np.abs(model - 0.5 * TRUTH).max() < 0.2


def test_who_stalls_holds_up_nobody(federation, tmp_path):
    """Two nodes announce a reply and send none of it, one announces thousands of arrays, a liar is first."""
    timeout = 12
    answers = [stalls, stalls, many_arrays, far_away, *[honest(4)] * 5]
    record, rows, model = one_round(federation, tmp_path, answers, timeout=timeout)
    assert_learnt(record, rows[4:], model)
    assert timeout <= record.seconds["round"] < timeout + 5
    assert all("announced a reply, and did not send 6 of its objects in time" in row.reason for row in rows[:2])
    assert "objects; so many are accepted" in rows[2].reason
    assert rows[3].weight < 0.05


class Forger:
    """Guess the ids of messages to other nodes from one's own, and answer them first.

    The time in a message is all of it that its neighbours do not share. Whether an id was guessed the SuperLink tells: it has
    an object of that name.
    """

    def __init__(self):
        self.victims, self.guesses, self.forged = [], 0, 0

    def __call__(self, node, message):
        sent = message.metadata.created_at
        for victim in self.victims:
            for microseconds in sorted(range(-80, 80), key=abs):
                guess = copy_of(message, victim, round(sent + microseconds * 1e-6, 6))
                name = guess.object_id
                self.guesses += 1
                if node.pull(name).object_found:
                    guess.metadata.__dict__["_message_id"] = name
                    self.forged += bool(node.send(reply_to(guess, np.full(TRUTH.size, 100.0))).objects_to_push)
                    break
        far_away(node, message)


def test_a_node_cannot_answer_for_others(federation, tmp_path):
    """Each message has a secret, so that nobody can guess its id: no forged reply reaches the server before the honest one."""
    forger = Forger()

    def patient(node, message):
        forger.victims.append(node.id)
        ready.wait(60)
        honest()(node, message)

    def first(node, message):
        while len(forger.victims) < 4:  # it is told whom else the server asked
            time.sleep(0.1)
        forger(node, message)
        ready.set()

    ready = threading.Event()
    record, rows, model = one_round(federation, tmp_path, [first, *[patient] * 4], timeout=60)
    assert forger.forged == 0
    assert forger.guesses == 4 * 160
    assert_learnt(record, rows[1:], model)
    assert rows[0].weight < 0.05


def inflating(node, message):
    """Half a MiB, 16,000 times over: 8 GiB when it is put together."""
    chunk = Made("ArrayChunk", bytes(2**19))
    told = {"dtype": "float64", "shape": [2**30], "stype": "numpy.ndarray", "arraychunk_ids": [0] * 16_000}
    array = Made("Array", json.dumps(told).encode(), chunk)
    arrays = Made("ArrayRecord", json.dumps({"w": array.name}).encode(), array)
    metrics = made_of(MetricRecord({"num-examples": 11}))
    records = Made("RecordDict", json.dumps({"a": arrays.name, "m": metrics.name}).encode(), arrays, metrics)
    reply = honest_reply(node, message)
    node.push(reply, *wrapped(reply, records))


def nested(node, message):
    """An array whose parts are arrays."""
    chunk = Made("ArrayChunk", bytes(2**10))
    array = chunk
    for _ in range(3):
        told = {"dtype": "float64", "shape": [1], "stype": "numpy.ndarray", "arraychunk_ids": [0] * 10}
        array = Made("Array", json.dumps(told).encode(), array)
    arrays = Made("ArrayRecord", json.dumps({"w": array.name}).encode(), array)
    records = Made("RecordDict", json.dumps({"a": arrays.name}).encode(), arrays)
    reply = honest_reply(node, message)
    node.push(reply, *wrapped(reply, records))


def squared(node, message):
    """One record of 20,000 metrics under 20,000 names: 2 MB to send, 400 million entries to add up."""
    reply = honest_reply(node, message)
    record = made_of(MetricRecord({str(i): i for i in range(20_000)}))
    names = json.dumps(dict.fromkeys(map(str, range(20_000)), record.name)).encode()
    node.push(reply, *wrapped(reply, Made("RecordDict", names, record)))


def long_key(node, message):
    node.send(reply_to(message, TRUTH, **{"k" * 500_000: 1.0}))


def not_a_message(node, message):
    """The SuperLink takes the announcement's word for the id of the reply, and so for what it is."""
    reply = honest_reply(node, message)
    record = made_of(ArrayRecord())
    node.push(reply, record.tree(), record.contents())


def another_inside(node, message):
    """Say beside the objects of a reply who sends it, and something else in them."""
    reply, inside = honest_reply(node, message), honest_reply(node, message)
    inside.metadata.__dict__["_src_node_id"] = 77
    whole = made_of(inside)
    node.push(reply, whole.tree(), whole.contents())


def without_secret(node, message):
    reply = Message(RecordDict(dict(honest_reply(node, message).content.items())), reply_to=message)
    reply.metadata.group_id = ""
    node.send(reply)


BOMBS = {
    inflating: "bytes; at most",
    nested: "could not be read",
    squared: "bytes; at most",
    long_key: "characters in a key; at most",
    not_a_message: "a bare ArrayRecord in place of a message",
    another_inside: "a reply in the name of node 77",
    without_secret: "a reply without the secret of the message",
}


def test_no_reply_outgrows_what_was_sent(federation, tmp_path):
    """Replies that are small to send and large to put together, or not what they seem, cost their nodes the round."""
    answers = [*BOMBS, *[honest()] * (len(BOMBS) + 1)]  # more than half, as the quorum asks
    timeout = 60
    record, rows, model = one_round(federation, tmp_path, answers, memory=4 * GIB, timeout=timeout)
    assert_learnt(record, rows[len(BOMBS) :], model)
    for (bomb, told), row in zip(BOMBS.items(), rows, strict=False):
        assert told in row.reason, bomb.__name__
        assert len(row.reason) < 300
    assert record.seconds["round"] < timeout


def foresees(node, message):
    """Announce the configuration of the next round before the server does, with a part that never comes."""
    told = message.content["config"]["server-round"]
    if told == 1:
        reply, config = honest_reply(node, message), made_of(ConfigRecord({"server-round": 2}))
        config.parts = (Made("ArrayChunk", b"never"),)
        assert config.name in node.announce(reply, wrapped(reply, config)[0]).objects_to_push


def test_who_foresees_what_the_server_sends_does_not_stop_it(tmp_path):
    """A SuperLink with a database refuses messages with an object of which it was told otherwise; with salt it takes them."""
    salts = []

    def watchful(node, message):
        salts.append(message.content["config"].get("salt"))
        honest()(node, message)

    folder = tmp_path / "run"
    folder.mkdir()
    with contextlib.ExitStack() as stack:
        federation = stack.enter_context(Federation(tmp_path / "federation", database=tmp_path / "state.db"))
        answers = [foresees, *[watchful] * 3]
        nodes = [stack.enter_context(Node(f"{HOST}:{federation.port}", answer)) for answer in answers]
        run = federation.run(TINY, folder=str(folder), num_server_rounds=2, min_nodes=4, timeout=10)
        assert federation.wait(run, 200) == "finished:completed", federation.log(run)
        assert [node.failure for node in nodes if node.failure] == []
    rounds = read(folder / "audit.jsonl")
    assert [record.outcome for record in rounds] == ["aggregated"] * 2
    assert [sum(row.status != "rejected" for row in record.nodes) for record in rounds] == [3, 3]
    assert [salt is None for salt in salts] == [True] * 3 + [False] * 3
