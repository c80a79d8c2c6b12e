from fedhold.lab.paper.claims import Verdict
from fedhold.lab.paper.figures import CLIENTS, MNIST_STEP
from fedhold.lab.paper.reproduce import reproduce

__all__ = ["CLIENTS", "MNIST_STEP", "Verdict", "reproduce"]
