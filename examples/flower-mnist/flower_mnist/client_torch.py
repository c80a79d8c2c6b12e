"""The same nodes in torch. Layers and names are the same, so that it makes no difference to the server.

To use it, name `flower_mnist.client_torch:app` as the clientapp in pyproject.toml.
"""

import torch
from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from flower_mnist.attack import reply
from flower_mnist.model import draws, own_images

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """`local-steps` steps of SGD from the model that the server sent."""
    config = context.run_config
    task, images = own_images(context)
    rng = draws(context, int(message.content["config"]["server-round"]))
    (hidden, pixels), classes = task.shapes[0], task.classes
    net = torch.nn.Sequential(torch.nn.Linear(pixels, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, classes))
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimizer = torch.optim.SGD(net.parameters(), lr=float(config["step"]))
    for _ in range(int(config["local-steps"])):
        batch = images.batch(int(config["batch"]), rng)
        optimizer.zero_grad()
        outputs = net(torch.from_numpy(batch.inputs))
        torch.nn.functional.cross_entropy(outputs, torch.from_numpy(batch.targets)).backward()
        optimizer.step()
    learnt = {name: values.numpy() for name, values in net.state_dict().items()}
    return reply(message, context, learnt, len(images.targets), rng)
