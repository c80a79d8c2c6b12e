"""A Flower grid in this process: it hands messages to a real ClientApp, and lets chosen nodes answer as they like."""

import itertools
import os

os.environ["FLWR_TELEMETRY_ENABLED"] = "0"
os.environ["FLWR_DISABLE_UPDATE_CHECK"] = "1"

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid

try:
    from flwr.supercore.task_identity import TaskIdentity
except ImportError as problem:
    raise ImportError(
        "flwr.supercore.task_identity has moved: messages cannot be made outside Flower's runtime. Find its new place."
    ) from problem

TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1
FIRST = 2**62  # ids as large as Flower's own
CLIENT_RAISED = 2  # Flower's code for an exception in a ClientApp
SILENT = object()  # an answer that never comes


class LocalGrid(Grid):
    """`m` nodes that run `app`, except those in `bad`: node index -> (message, honest reply) -> reply, or SILENT.

    Whatever a node raises becomes an error reply whose sender is the link itself, as in a deployment.
    """

    def __init__(self, app, m, bad=None):
        self.app, self.bad = app, dict(bad or {})
        self.nodes = [FIRST + i for i in range(m)]
        self.numbers = itertools.count()
        self.replies = {}
        self.asked = []  # (kind, round, node indices)

    def index(self, node):
        return node - FIRST

    def push_messages(self, messages):
        messages = list(messages)
        if messages:
            config = next(iter(messages[0].content.config_records.values()))
            who = sorted(self.index(message.metadata.dst_node_id) for message in messages)
            self.asked.append((messages[0].metadata.message_type, config["server-round"], who))
        for message in messages:
            message.metadata.__dict__["_message_id"] = f"message-{next(self.numbers)}"
            reply = self._answer(message)
            if reply is not SILENT:
                self.replies[message.metadata.message_id] = reply if isinstance(reply, list) else [reply]
        return [message.metadata.message_id for message in messages]

    def _answer(self, message):
        i = self.index(message.metadata.dst_node_id)
        state = Context(run_id=1, node_id=i, node_config={"partition-id": i}, state=RecordDict(), run_config={})
        try:
            reply = self.app(message, state)
            return self.bad[i](message, reply) if i in self.bad else reply
        except Exception as problem:
            error = Message(
                Error(CLIENT_RAISED, f"{type(problem).__name__}: {problem}\nTraceback ..."), reply_to=message
            )
            error.metadata.__dict__["_src_node_id"] = 1
            return error

    def pull_messages(self, message_ids):
        got = [reply for name in message_ids for reply in self.replies.pop(name, [])]
        for reply in got:
            if isinstance(reply, Exception):
                raise reply
        return got

    def send_and_receive(self, messages, *, timeout=None):  # noqa: ARG002
        return self.pull_messages(self.push_messages(messages))

    def get_node_ids(self):
        return list(self.nodes)

    # Grid demands these; the strategy must live without them, and a test that meets one should fail.

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *args, **kwargs):
        raise NotImplementedError


def model(d=6, counter=True):
    """A model with a matrix, a 0-d array, and a counter."""
    arrays = {"w": np.zeros((d // 2, 2), np.float32), "b": np.array(0.5)}
    if counter:
        arrays |= {"steps": np.array(10, np.int64), "mask": np.array([True, False])}
    return ArrayRecord({key: Array(array) for key, array in arrays.items()})


def pull(i, t, shape):
    """Where node i pulls the weights in round t: near 1, the same in every run."""
    return (1 + 0.1 * np.random.default_rng([i, t]).standard_normal(shape)).astype(np.float32)


def client_app():
    """Clients that move halfway to about 1, count a step, and tell their loss."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        arrays = {key: array.numpy().copy() for key, array in message.content["arrays"].items()}
        t, i = message.content["config"]["server-round"], context.node_config["partition-id"]
        arrays["w"] += 0.5 * (pull(i, t, arrays["w"].shape) - arrays["w"])
        if "steps" in arrays:
            arrays["steps"] += 1
        return reply_with(message, arrays, {"num-examples": 50 + i, "loss": float(abs(arrays["w"] - 1).mean())})

    @app.evaluate()
    def evaluate(message, context):
        w = message.content["arrays"]["w"].numpy()
        i = context.node_config["partition-id"]
        metrics = {"num-examples": 50 + i, "loss": float(abs(w - 1).mean()), "per-class": [0.5, 0.25]}
        return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)

    return app


def reply_with(message, arrays, metrics):
    """A reply of these arrays (NumPy, or Flower's own) and metrics."""
    record = ArrayRecord({key: a if isinstance(a, Array) else Array(np.asarray(a)) for key, a in arrays.items()})
    return Message(RecordDict({"arrays": record, "metrics": MetricRecord(metrics)}), reply_to=message)
