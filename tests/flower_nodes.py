"""Nodes that speak Flower's protocol with keys of their own, and say in it what they like; SuperNodes are better behaved.

Each runs in a thread of the test. It costs no process, so that a SuperLink can have a dozen of them.
"""

import threading
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Message, Metadata, MetricRecord, RecordDict
from flwr.app.message import make_message, remove_content_from_message
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import (
    ActivateNodeRequest,
    DeactivateNodeRequest,
    PullMessagesRequest,
    PushMessagesRequest,
    RegisterNodeFleetRequest,
)
from flwr.proto.message_pb2 import ObjectTree, PullObjectRequest, PushObjectRequest
from flwr.proto.node_pb2 import Node as NodeName
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    get_object_tree,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.interceptors.http.runtime_version import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.node_auth_http_interceptor import NodeAuthHttpInterceptor

LONG = 300.0  # seconds for which a node is taken to be alive without a sign of life
TRUTH = np.linspace(-1, 1, 50)  # what honest nodes of the app in tests/flower/flower_app pull the model to


class Node:
    """A registered node. `answer` is called with the node and each message that is sent to it."""

    def __init__(self, address, answer):
        self.answer, self.failure = answer, None
        private, public = generate_key_pairs()
        key = public_key_to_bytes(public)
        signed = [RuntimeVersionHttpInterceptor(component_name="SuperNode"), NodeAuthHttpInterceptor(private, public)]
        self.client = FleetHttpClient.from_server_address(address, True, None, interceptors=signed)
        self.client.RegisterNode(RegisterNodeFleetRequest(public_key=key))
        answer = self.client.ActivateNode(ActivateNodeRequest(public_key=key, heartbeat_interval=LONG))
        self.id = answer.node_id
        self.name = NodeName(node_id=self.id)
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join(timeout=30)
        self.client.DeactivateNode(DeactivateNodeRequest(node_id=self.id))
        self.client.close()

    def _work(self):
        try:
            while not self.ended.wait(0.2):
                got = self.client.PullMessages(PullMessagesRequest(node=self.name))
                if got.messages_list:
                    self.run = got.messages_list[0].metadata.run_id
                    self.answer(self, self._pull(got.message_object_trees[0]))
        except Exception as problem:  # for the test to show
            self.failure = problem

    def _pull(self, tree):
        contents = {part.object_id: self._content(part.object_id) for part in iterate_object_tree(tree)}
        message = inflate_object_from_contents(tree.object_id, contents)
        message.metadata.__dict__["_message_id"] = tree.object_id
        return message

    def _content(self, name):
        """An object of the server's, which may announce it a little before it sends it."""
        while not (got := self.pull(name)).object_available and not self.ended.wait(0.05):
            pass
        return got.object_content

    def pull(self, name):
        return self.client.PullObject(PullObjectRequest(node=self.name, run_id=self.run, object_id=name))

    def announce(self, reply, tree):
        """Tell the SuperLink of a reply: what it lacks of it, and the session in which it would take that."""
        reply.metadata.__dict__["_message_id"] = tree.object_id
        head = message_to_proto(remove_content_from_message(reply))
        return self.client.PushMessages(
            PushMessagesRequest(
                node=self.name, messages_list=[head], message_object_trees=[tree], clientapp_runtime_list=[0.0]
            )
        )

    def push(self, reply, tree, contents):
        """Announce a reply, and send the contents of its objects."""
        told = self.announce(reply, tree)
        for name in told.objects_to_push:
            request = PushObjectRequest(
                node=self.name,
                run_id=self.run,
                object_id=name,
                object_content=contents[name],
                session_id=told.session_id,
            )
            self.client.PushObject(request)  # which the SuperLink refuses where the server has made up its mind already
        return told

    def send(self, reply):
        """Send a reply as a SuperNode would."""
        objects = get_all_nested_objects(reply)
        return self.push(reply, get_object_tree(reply), {name: one.deflate() for name, one in objects.items()})


# Objects that Flower would not make


class Made:
    """An object with a content of one's own, and those that it refers to."""

    def __init__(self, kind, body, *parts):
        head = f"{kind} {','.join(dict.fromkeys(part.name for part in parts))} {len(body)}".encode()
        self.content = head + b"\0" + body
        self.name = get_object_id(self.content)
        self.parts = parts

    def tree(self):
        parts = {part.name: part.tree() for part in self.parts}
        return ObjectTree(object_id=self.name, children=list(parts.values()))

    def contents(self):
        found = {self.name: self.content}
        for part in self.parts:
            found.update(part.contents())
        return found


def made_of(one):
    """An object of Flower's as one of these."""
    made = Made("", b"", *(made_of(part) for part in (one.children or {}).values()))
    made.content = one.deflate()
    made.name = get_object_id(made.content)
    return made


def wrapped(reply, records):
    """The message of this reply around a RecordDict of one's own."""
    whole = Made("Message", reply.deflate().partition(b"\0")[2], records)
    return whole.tree(), whole.contents()


# Answers


def reply_to(message, w, **metrics):
    """A reply with a metric of its own: Flower keeps equal records once, and may forget one while another node sends it."""
    metrics |= {"num-examples": 10, "loss": float(np.random.default_rng().random())}
    return Message(
        RecordDict({"arrays": ArrayRecord({"w": Array(w)}), "metrics": MetricRecord(metrics)}), reply_to=message
    )


def honest_reply(node, message):
    w = message.content["arrays"]["w"].numpy()
    noise = 0.1 * np.random.default_rng(node.id).standard_normal(TRUTH.size)
    return reply_to(message, w + 0.5 * (TRUTH + noise - w))


def honest(delay=0.0):
    """Nodes that need `delay` seconds to train."""

    def answer(node, message):
        time.sleep(delay)
        node.send(honest_reply(node, message))

    return answer


def far_away(node, message):
    node.send(reply_to(message, np.full(TRUTH.size, 100.0)))


def stalls(node, message):
    """Announce a reply, and send nothing of it."""
    reply = honest_reply(node, message)
    node.announce(reply, get_object_tree(reply))


def many_arrays(node, message):
    """Announce 2,000 tiny arrays."""
    reply = honest_reply(node, message)
    record = ArrayRecord({str(i): Array(np.array([i])) for i in range(2000)})
    reply.content["arrays"] = record
    node.announce(reply, get_object_tree(reply))


def copy_of(message, dst_node_id, created_at):
    """What the message to another node is, as far as this one's tells."""
    own = message.metadata
    names = ("run_id", "message_id", "src_node_id", "reply_to_message_id", "group_id", "ttl", "message_type")
    same = {name: getattr(own, name) for name in (*names, "src_task_id", "dst_task_id")}
    metadata = Metadata(**same, dst_node_id=dst_node_id, created_at=created_at)
    return make_message(metadata=metadata, content=message.content)
