"""The strategies of Flower that go inside the robust one, each with settings under which it does something.

As a program: python flower_inside.py FOLDER. For each of these strategies it starts a run with a checkpoint in FOLDER/name, in
a process of its own that is killed with SIGKILL in the middle of round 3.
"""

import os
import signal
import sys
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, MetricRecord
from flwr.serverapp.strategy import FedAdagrad, FedAdam, FedAvg, FedAvgM, FedProx, FedYogi

from fedhold.flower import RobustStrategy
from flower_grid import LocalGrid, client_app, model

M, ROUNDS, KILLED_IN = 10, 5, 3


class Own(FedAvg):
    """What users write: a schedule in the config, half steps, and something to remember."""

    def __init__(self, rate=0.5, **sampling):
        super().__init__(**sampling)
        self.rate, self.losses, self.best, self.average = rate, [], (0, np.inf), None

    def configure_train(self, server_round, arrays, config, grid):
        self.current = {key: array.numpy() for key, array in arrays.items()}
        config["rate"] = self.rate**server_round
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(self, server_round, replies):
        arrays, metrics = super().aggregate_train(server_round, replies)
        new = {key: array.numpy() for key, array in arrays.items()}
        half = {key: self.rate * new[key] + (1 - self.rate) * self.current[key] for key in new}
        self.average = (
            half if self.average is None else {key: 0.9 * self.average[key] + 0.1 * half[key] for key in half}
        )
        self.losses.append(metrics["loss"])
        self.best = min(self.best, (server_round, metrics["loss"]), key=lambda one: one[1])
        return ArrayRecord({key: Array(np.asarray(value)) for key, value in half.items()}), MetricRecord(
            {**metrics, "half": 1}
        )


INSIDE = {
    "FedAvg": FedAvg,
    "FedAvgM": lambda **more: FedAvgM(server_learning_rate=0.8, server_momentum=0.5, **more),
    "FedAdam": lambda **more: FedAdam(eta=0.2, **more),
    "FedAdagrad": lambda **more: FedAdagrad(eta=0.3, **more),
    "FedYogi": lambda **more: FedYogi(eta=0.2, **more),
    "FedProx": lambda **more: FedProx(proximal_mu=0.3, **more),
    "Own": Own,
}


def robust(name, folder):
    """The strategy around the one of this name."""
    return RobustStrategy(around=INSIDE[name](fraction_train=0.7), checkpoint=folder, seed=3)


def killed(message, honest):
    if message.content["config"]["server-round"] == KILLED_IN:
        os.kill(os.getpid(), signal.SIGKILL)
    return honest


def main(folder):
    for name in INSIDE:
        child = os.fork()
        if not child:
            robust(name, folder / name).start(LocalGrid(client_app(), M, {5: killed}), model(), ROUNDS)
            os._exit(0)  # never: it is killed before
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL


if __name__ == "__main__":
    main(Path(sys.argv[1]))
