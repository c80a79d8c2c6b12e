"""What a lying node sends in place of the model it trained."""

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict

from fedhold.errors import unknown
from fedhold.lab import attacks
from flower_mnist.model import NAMES, Layers

# The attacks of fedhold.lab that need to know nothing of the other clients.
ALONE = ("sign_flip", "gaussian", "non_finite")
ATTACKS = ("none", *ALONE, "huge", "boast", "wrong_shape", "crash")


def known_attack(name: str) -> str:
    """The name itself; an unknown name is an error that lists the known ones."""
    if name not in ATTACKS:
        raise ValueError(unknown("attack", name, ATTACKS))
    return name


def reply(message: Message, context: Context, learnt: Layers, samples: int, rng: np.random.Generator) -> Message:
    """The reply of this node: the model it trained and its number of samples, or a lie if it is one of the attackers."""
    config = context.run_config
    name = known_attack(str(config["attack"]))
    if name != "none" and int(context.node_config["partition-id"]) < int(config["attackers"]):
        sent = {layer: array.numpy() for layer, array in message.content["arrays"].items()}
        learnt, samples = lie(name, sent, learnt, samples, float(config["attack-scale"]), rng)
    arrays = ArrayRecord({layer: Array(values) for layer, values in learnt.items()})
    metrics = MetricRecord({"num-examples": samples})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def lie(
    name: str, sent: Layers, learnt: Layers, samples: int, scale: float, rng: np.random.Generator
) -> tuple[Layers, int]:
    """The false model, and the number of samples that the node claims.

    sign_flip, gaussian, non_finite   `scale` times what the attack of fedhold.lab makes of the update  learnt - sent
    huge          the flipped update times 1e30
    boast         the flipped update times `scale`, and a claim of 10^9 samples
    wrong_shape   the trained model without its last layer
    crash         an exception in place of a reply
    """
    if name == "crash":
        raise RuntimeError("this node crashes in every round, as its run config says")
    if name == "wrong_shape":
        return {layer: learnt[layer] for layer in NAMES[:-1]}, samples
    alone = attacks.ATTACKS[name if name in ALONE else "sign_flip"]
    times = 1e30 if name == "huge" else scale
    false = {}
    for layer, before in sent.items():
        update = (learnt[layer] - before).reshape(1, -1)
        row = alone(attacks.Knowledge(update, np.array([True]), rng))
        false[layer] = before + before.dtype.type(times) * row.reshape(before.shape)
    return false, 10**9 if name == "boast" else samples
