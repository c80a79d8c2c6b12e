"""Exchanging messages with a grid: deadlines, secrets, and what a reply may come to before it is put together."""

import itertools
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.common.serde import message_to_proto
from flwr.proto.message_pb2 import ObjectTree
from flwr.proto.runtime_pb2 import PullAppMessagesResponse
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

from fedhold.flower import RobustStrategy
from fedhold.transport import Limits, exchange, wait_for_nodes
from fedhold.transport.grid import _collect, _Fetch
from fedhold.transport.link import Link, check_inflated, salted_array
from fedhold.transport.replies import UNREADABLE, BadReplyError
from flower_grid import FIRST, SILENT, LocalGrid, client_app, model
from flower_nodes import Made, made_of

LIMITS = Limits(total=10**6, arrays=4)


def messages(grid):
    strategy = RobustStrategy(min_available_nodes=1, min_train_nodes=1)
    return list(strategy.configure_train(1, model(), ConfigRecord(), grid))


def senders(replies):
    return sorted(reply.metadata.src_node_id - FIRST for reply in replies if not reply.has_error())


class StallingGrid(LocalGrid):
    """A grid that does not return from asking for the replies of some nodes, for a minute at least."""

    def __init__(self, m, stalling):
        super().__init__(client_app(), m)
        self.stalling, self.forever = {FIRST + i for i in stalling}, threading.Event()

    def push_messages(self, messages):
        names = super().push_messages(messages)
        nodes = (message.metadata.dst_node_id for message in messages)
        self.held = {name for name, node in zip(names, nodes, strict=True) if node in self.stalling}
        return names

    def pull_messages(self, message_ids):
        if self.held.intersection(message_ids):
            self.forever.wait(60)
        return super().pull_messages(message_ids)


def test_the_timeout_holds_whoever_stalls():
    """Half of the nodes hold up a thread each; the others' replies are all there when time is up, and little later."""
    grid = StallingGrid(10, range(0, 10, 2))
    began = time.monotonic()
    replies = exchange(grid, messages(grid), 8.0, LIMITS)
    assert 8 <= time.monotonic() - began < 11
    assert senders(replies) == [1, 3, 5, 7, 9]
    grid.forever.set()


def test_a_reply_in_the_last_moment_counts():
    """The pauses between two questions grow to seconds; when time is up, everyone is asked once more."""
    grid = LocalGrid(client_app(), 3, {1: lambda *_: SILENT})
    sent = messages(grid)

    def answer():
        del grid.bad[1]
        grid.replies[sent[1].metadata.message_id] = [grid._answer(sent[1])]

    threading.Timer(2.6, answer).start()  # questions come after .1, .3, .7, 1.5 and 3.1 seconds
    began = time.monotonic()
    replies = exchange(grid, sent, 3.0, LIMITS)
    assert time.monotonic() - began < 5
    assert senders(replies) == [0, 1, 2]


def test_a_thread_that_hangs_does_not_keep_the_process():
    code = """
import sys, threading
sys.path[:0] = sys.argv[1:]
from fedhold.transport import exchange
from test_grid import LIMITS, StallingGrid, messages
grid = StallingGrid(2, [0])
print(len(exchange(grid, messages(grid), 1.0, LIMITS)), flush=True)
"""
    here = Path(__file__).parent
    began = time.monotonic()
    run = subprocess.run(
        [sys.executable, "-c", code, str(here), str(here.parent)], capture_output=True, text=True, timeout=50
    )
    assert run.stdout == "1\n", run.stderr
    assert run.returncode == 0
    assert time.monotonic() - began < 40


def test_every_message_has_a_secret_of_its_own():
    grid = LocalGrid(client_app(), 10)
    sent = messages(grid)
    sent[0].metadata.group_id = "mine"
    exchange(grid, sent, 1.0, LIMITS)
    secrets = {message.metadata.group_id for message in sent}
    assert len(secrets) == 10
    assert min(map(len, secrets)) == 32
    assert sent[0].metadata.group_id.startswith("mine")


def test_an_error_of_the_network_is_not_a_nodes():
    class Gone(LocalGrid):
        def pull_messages(self, message_ids):
            raise ConnectionRefusedError(str(message_ids))

    grid = Gone(client_app(), 3)
    with pytest.raises(ConnectionRefusedError):
        exchange(grid, messages(grid), 1.0, LIMITS)


# What a reply comes to


def test_an_honest_reply_is_within_the_limits():
    """Arrays with equal contents are sent once, whole or in parts; large ones are sent in several."""
    rng = np.random.default_rng(0)
    arrays = {f"layer{i}": Array(np.zeros(100)) for i in range(1000)} | {"w": Array(rng.random(2 * 10**6))}
    record = RecordDict({"arrays": ArrayRecord(arrays), "metrics": MetricRecord({"num-examples": 1})})
    objects = get_all_nested_objects(record)
    limits = Limits(4 * sum(len(array.data) for array in arrays.values()) + 2**20, len(arrays))
    check_inflated({name: one.deflate() for name, one in objects.items()}, limits)
    assert len(objects) < limits.objects
    assert sum(len(one.deflate()) for one in objects.values()) < limits.sent


def array_of(chunk, times):
    told = {"dtype": "float64", "shape": [1], "stype": "numpy.ndarray", "arraychunk_ids": [0] * times}
    return Made("Array", json.dumps(told).encode(), chunk)


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (array_of(Made("ArrayChunk", bytes(1000)), 10**5), "bytes; at most 1,000,000"),
        (made_of(MetricRecord({"x": [1] * 2 * 10**6})), "bytes beside the numbers of arrays; at most"),
    ],
    ids=["a chunk many times", "two million numbers"],
)
def test_what_inflates_is_refused_before(made, told):
    with pytest.raises(BadReplyError, match=told):
        check_inflated(made.contents(), LIMITS)


# Salt


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.array(5), np.zeros((0, 3)), np.ones(10**6, "f4")])
def test_salt_changes_every_part_of_an_array_and_no_number(array):
    before = Array(array)
    after = [salted_array(before) for _ in range(2)]
    for one in after:
        np.testing.assert_array_equal(one.numpy(), array, strict=True)
        assert (one.dtype, one.shape, one.stype) == (before.dtype, before.shape, before.stype)
        assert (10 + int.from_bytes(one.data[8:10], "little")) % 64 == 0
    assert len({one.object_id for one in (before, *after)}) == 3


def test_messages_are_sent_again_with_salt_where_the_link_refuses_them():
    class Refusing(LocalGrid):
        def push_messages(self, messages):
            if any("salt" not in message.content["config"] for message in messages):
                answer = httpx.Response(500, request=httpx.Request("POST", "http://link"))
                raise httpx.HTTPStatusError("refused", request=answer.request, response=answer)
            return super().push_messages(messages)

    grid = Refusing(client_app(), 4)
    sent = messages(grid)
    names = Link(grid, node=None, run=1, ask=None, pull=None, confirm=None).push(sent, 1.0)
    assert senders(grid.pull_messages(names)) == [0, 1, 2, 3]
    assert len({id(message.content) for message in sent}) == 1


# A SuperLink that answers 5xx, as one does whose database is busy


def refusal(status):
    answer = httpx.Response(status, request=httpx.Request("POST", "http://link"))
    return httpx.HTTPStatusError("refused", request=answer.request, response=answer)


def asked_of(refusals, status=500, timeout=2.0):
    """The reply to a message whose SuperLink refuses the first questions, and then has an error of the node's."""
    (sent,) = messages(LocalGrid(client_app(), 1))
    sent.metadata.__dict__["_message_id"] = "asked"
    left = itertools.count()

    def ask(_request):
        if next(left) < refusals:
            raise refusal(status)
        answer = Message(Error(2, "the node says so"), reply_to=sent)
        tree = ObjectTree(object_id="answer")
        return PullAppMessagesResponse(messages_list=[message_to_proto(answer)], message_object_trees=[tree])

    link = Link(None, node=None, run=1, ask=ask, pull=None, confirm=lambda _: None)
    began = time.monotonic()
    (reply,) = _collect([_Fetch(sent, link.fetch("asked", sent, LIMITS))], timeout, 1)
    return reply.error, time.monotonic() - began


def test_a_link_that_is_busy_is_asked_again():
    error, took = asked_of(3, timeout=30.0)
    assert (error.code, error.reason) == (2, "the node says so")
    assert took < 10


def test_a_link_that_stays_busy_is_asked_until_time_is_up():
    error, took = asked_of(10**6, timeout=1.0)
    assert error.code == UNREADABLE
    assert "the SuperLink answered 500 when it was last asked" in error.reason
    assert 1 <= took < 4


def test_what_a_link_refuses_for_good_is_not_asked_again():
    error, took = asked_of(10**6, status=404, timeout=30.0)
    assert "does not hand it out" in error.reason
    assert took < 10


def test_a_busy_link_ends_no_run(monkeypatch):
    """Messages are pushed again until time is up, and are then not delivered; nodes are counted again."""
    monkeypatch.setattr("fedhold.transport.link.BUSY", 0.1)

    class Busy(LocalGrid):
        def __init__(self, times):
            super().__init__(client_app(), 4)
            self.left = times

        def meet(self):
            self.left -= 1
            if self.left >= 0:
                raise refusal(500)

        def push_messages(self, messages):
            self.meet()
            return super().push_messages(messages)

        def get_node_ids(self):
            self.meet()
            return super().get_node_ids()

    def push(times):
        return Link(Busy(times), node=None, run=1, ask=None, pull=None, confirm=None).push(sent, 1.0)

    sent = messages(LocalGrid(client_app(), 4))
    assert len(push(4)) == 4
    assert push(10**6) == []
    assert len(wait_for_nodes(Busy(1), fraction=1.0, least=1, available=4, wait=30.0)) == 4
