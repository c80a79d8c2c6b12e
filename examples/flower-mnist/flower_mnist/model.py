"""What server and clients share: the model as named layers, and who holds which images."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from flwr.app import Context
from numpy.typing import NDArray

from fedhold.lab import PARTITIONS, Mlp, Samples, Shards, mnist, shard

Layers = dict[str, NDArray[Any]]

# The names that torch.nn.Sequential(Linear, ReLU, Linear) gives its layers, so that NumPy and torch clients fit one server.
NAMES = ("0.weight", "0.bias", "2.weight", "2.bias")


def layers(w: NDArray[Any], task: Mlp) -> Layers:
    """The model vector of the task, cut into named layers."""
    ends = np.cumsum([np.prod(shape) for shape in task.shapes])[:-1]
    pieces = zip(NAMES, np.split(w, ends), task.shapes, strict=True)
    return {name: piece.reshape(shape) for name, piece, shape in pieces}


def vector(named: Mapping[str, NDArray[Any]]) -> NDArray[Any]:
    """The named layers as one model vector, the inverse of layers()."""
    return np.concatenate([named[name].ravel() for name in NAMES])


def test_task(hidden: int) -> Mlp:
    """The model, with the 10,000 test images to evaluate it on."""
    return Mlp(mnist().test, hidden=hidden)


def own_images(context: Context) -> tuple[Mlp, Shards]:
    """The model, and this node's part of the training images.

    In this example all images are on every machine: each node draws the same partition from the same seed, and keeps its own
    part. In an app of your own, a node reads its own files here.
    """
    config, node = context.run_config, context.node_config
    train = mnist().train
    rng = np.random.default_rng(int(config["seed"]))
    parts = PARTITIONS[str(config["partition"])](train.targets, int(node["num-partitions"]), rng)
    own = shard(train, [parts[int(node["partition-id"])]])
    return Mlp(Samples(own.inputs, own.targets), hidden=int(config["hidden"])), own


def draws(context: Context, server_round: int) -> np.random.Generator:
    """The random numbers of one node in one round; they are the same when the round is repeated after a crash."""
    return np.random.default_rng(
        [int(context.run_config["seed"]), int(context.node_config["partition-id"]), server_round]
    )
