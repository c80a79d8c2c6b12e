"""A federation whose model has batch normalisation, in this process, and clients that lie in its statistics alone."""

import numpy as np
import torch
from flwr.app import ArrayRecord
from flwr.clientapp import ClientApp
from torch import nn

from flower_grid import LocalGrid, reply_with
from flower_liars import with_arrays

M, CLASSES, SIDE = 10, 4, 8
VARIANCE = "1.running_var"

torch.set_num_threads(1)


def network():
    """Small enough for a test. Its first variances are about .01 on images of `samples`."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, stride=2), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(72, CLASSES)
    )


def samples(count, rng):
    """Images of a few classes: each a pattern of its own under noise."""
    patterns = 0.3 * np.random.default_rng(0).standard_normal((CLASSES, 1, SIDE, SIDE))
    labels = rng.integers(CLASSES, size=count)
    images = patterns[labels] + 0.3 * rng.standard_normal((count, 1, SIDE, SIDE))
    return torch.tensor(images, dtype=torch.float32), torch.tensor(labels)


def shards(m=M, *, skewed=False, count=60):
    """The samples of m clients; skewed: each has two of the classes."""
    parts = []
    for i in range(m):
        images, labels = samples(4 * count, np.random.default_rng([1, i]))
        mine = (labels - i) % CLASSES < 2 if skewed else labels >= 0
        parts.append((images[mine][:count], labels[mine][:count]))
    return parts


def client_app(parts, make=network, *, steps=5, rate=0.1):
    """Clients that take a few steps of gradient descent from the model they get."""
    app = ClientApp()

    @app.train()
    def train(message, context):
        net, i = make(), context.node_config["partition-id"]
        net.load_state_dict(message.content["arrays"].to_torch_state_dict())
        images, labels = parts[i]
        rng = np.random.default_rng([message.content["config"]["server-round"], i])
        optimiser = torch.optim.SGD(net.parameters(), lr=rate)
        for _ in range(steps):
            rows = torch.from_numpy(rng.permutation(len(labels))[:32])
            optimiser.zero_grad()
            nn.functional.cross_entropy(net(images[rows]), labels[rows]).backward()
            optimiser.step()
        arrays = {key: tensor.numpy() for key, tensor in net.state_dict().items()}
        return reply_with(message, arrays, {"num-examples": len(labels)})

    return app


def accuracy(arrays, test, make=network):
    """Of a model in eval mode; NaN if it answers with a number that is not finite."""
    net = make()
    net.load_state_dict(arrays.to_torch_state_dict())
    net.eval()
    with torch.no_grad():
        outputs = net(test[0])
    return float((outputs.argmax(dim=1) == test[1]).float().mean()) if outputs.isfinite().all() else float("nan")


def learn(strategy, parts, bad=None, *, rounds=40, make=network, app=None, **more):
    """A run from the first model."""
    grid = LocalGrid(app or client_app(parts, make), len(parts), bad)
    return strategy.start(grid, ArrayRecord(make().state_dict()), num_rounds=rounds, **more)


def lowered(channels=1, by=0.3, key=VARIANCE):
    """A client that trains honestly, and lowers the variances of some channels."""

    def low(arrays):
        variances = arrays[key].copy()
        variances[:channels] -= by
        return {key: variances}

    return with_arrays(low)


def scaled(factor, key=VARIANCE):
    """A client that trains honestly, and multiplies all variances."""
    return with_arrays(lambda arrays: {key: arrays[key] * np.float32(factor)})


def tuned(channels=4, m=M, liars=1, key=VARIANCE):
    """Clients that lower variances by about what takes the mean of all replies just above 0."""
    return with_arrays(
        lambda arrays: {
            key: np.concatenate([-(m - liars - 0.1) / liars * arrays[key][:channels], arrays[key][channels:]])
        }
    )
