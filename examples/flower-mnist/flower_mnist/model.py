"""What server and clients share: the model as named layers, and who holds which images."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedhold.lab.datasets import Samples, mnist
from fedhold.lab.partition import PARTITIONS
from fedhold.lab.tasks import Mlp, Shards, shard

Layers = dict[str, NDArray[Any]]

# As torch.nn.Sequential(Linear, ReLU, Linear) names them: clients of either kind fit the same server.
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")


def layers(w: NDArray[Any], task: Mlp) -> Layers:
    """The model vector of the task, cut into named layers."""
    ends = np.cumsum([np.prod(shape) for shape in task.shapes])[:-1]
    pieces = zip(NAMES, np.split(w, ends), task.shapes, strict=True)
    return {name: piece.reshape(shape) for name, piece, shape in pieces}


def vector(named: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """The way back."""
    return np.concatenate([named[name].ravel() for name in NAMES])


def test_task(hidden: int) -> Mlp:
    """The model, and the 10,000 test images to judge it by."""
    return Mlp(mnist().test, hidden=hidden)


def own_images(context: Context) -> tuple[Mlp, Shards]:
    """The model, and this node's share of the training images.

    Every node draws the same partition from the same seed and keeps its own part: in this example all data are on
    every machine. A node of yours reads its own files here instead.
    """
    config, node = context.run_config, context.node_config
    train = mnist().train
    rng = np.random.default_rng(int(config["seed"]))
    parts = PARTITIONS[str(config["partition"])](train.targets, int(node["num-partitions"]), rng)
    own = shard(train, [parts[int(node["partition-id"])]])
    return Mlp(Samples(own.inputs, own.targets), hidden=int(config["hidden"])), own


def draws(context: Context, server_round: int) -> np.random.Generator:
    """Chance of one node in one round: the same when the round is repeated after a crash."""
    return np.random.default_rng(
        [int(context.run_config["seed"]), int(context.node_config["partition-id"]), server_round]
    )
