"""Nodes that step towards a vector of their own, near the truth; the same numbers in the same round, always."""

import time
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()
TRUTH = np.linspace(-1, 1, 50)


@app.train()
def train(message: Message, context: Context) -> Message:
    partition, server_round = int(context.node_config["partition-id"]), int(message.content["config"]["server-round"])
    folder = Path(str(context.run_config["folder"]))
    (folder / f"node{partition}-round{server_round}").touch()
    if partition == context.run_config["holds"] and server_round == 1:
        time.sleep(600)
    w = message.content["arrays"]["w"].numpy()
    own = TRUTH + 0.1 * np.random.default_rng([partition, server_round]).standard_normal(TRUTH.size)
    arrays, metrics = ArrayRecord({"w": Array(w + 0.5 * (own - w))}), MetricRecord({"num-examples": 10 + partition})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
