"""The nodes: SGD on their own images, in NumPy."""

import numpy as np
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_mnist.attack import reply
from flower_mnist.model import draws, layers, own_images, vector

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """`local-steps` steps of SGD from the model that the server sent."""
    config = context.run_config
    task, images = own_images(context)
    rng = draws(context, int(message.content["config"]["server-round"]))
    w = vector({name: array.numpy() for name, array in message.content["arrays"].items()})
    step = np.float32(config["step"])
    for _ in range(int(config["local-steps"])):
        w = w - step * task.gradients(w, images.batch(int(config["batch"]), rng))[0]
    return reply(message, context, layers(w, task), len(images.targets), rng)
