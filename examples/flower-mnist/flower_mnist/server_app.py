"""The server: a strategy, and the test images to evaluate the model on."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord, UserConfig
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from fedhold.errors import unknown
from fedhold.flower import RobustStrategy
from fedhold.lab import Mlp
from flower_mnist.attack import known_attack
from flower_mnist.model import layers, test_task, vector

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run."""
    config = context.run_config
    known_attack(str(config["attack"]))  # an unknown attack is an error now, before the nodes meet it
    task = test_task(int(config["hidden"]))
    start = layers(task.initial(np.random.default_rng(int(config["seed"]))), task)
    begin(config)(
        grid,
        ArrayRecord({layer: Array(values) for layer, values in start.items()}),
        num_rounds=int(config["num-server-rounds"]),
        evaluate_fn=judge(task, str(config["results"])),
    )


def begin(config: UserConfig) -> Callable[..., Result]:
    """The call that trains: `start` of the strategy in the run config; with a checkpoint `resume`, which also starts anew."""
    name = str(config["strategy"])
    common: dict[str, Any] = {
        "fraction_train": float(config["fraction-train"]),
        "fraction_evaluate": 0.0,  # the server has test images of its own
        "min_available_nodes": int(config["min-nodes"]),
    }
    if name == "fedavg":
        return FedAvg(**common).start
    if name != "fedhold":
        raise ValueError(unknown("strategy", name, ("fedhold", "fedavg")))
    audit, checkpoint = str(config["audit"]) or None, str(config["checkpoint"]) or None
    strategy = RobustStrategy(str(config["rule"]), audit=audit, checkpoint=checkpoint, **common)
    return strategy.resume if checkpoint else strategy.start


def judge(task: Mlp, results: str) -> Callable[[int, ArrayRecord], MetricRecord]:
    """A function that gives accuracy and loss on the test images, and adds them as a line to the file `results`, if any."""

    def evaluate(server_round: int, arrays: ArrayRecord) -> MetricRecord:
        w = vector({layer: array.numpy() for layer, array in arrays.items()})
        with np.errstate(all="ignore"):  # a model that liars own may overflow
            measured = task.evaluate(w)
        if results:
            with Path(results).open("a", encoding="utf-8") as file:
                print(json.dumps({"round": server_round, **measured}), file=file)
        return MetricRecord(measured)

    return evaluate
