"""Fifty nodes of very different speed, ten of which lie, in a loop of one's own: rounds that wait for all, and a buffer.

python buffer.py [seed]: prints, for both, the accuracy and the simulated time after equally many updates of nodes.
"""

import heapq
import sys

import numpy as np

from fedhold import Buffer, aggregate

NODES, LIARS, SIZE, UPDATES = 50, 10, 25, 1500
CLASSES, FEATURES = 10, 30


class World:
    """The nodes: their points, their speeds, and who lies. Nobody's points are like those of anybody else."""

    def __init__(self, seed: int, *, fast_liars: bool) -> None:
        rng = np.random.default_rng(seed)
        self.centres = rng.standard_normal((CLASSES, FEATURES))
        mixes = rng.dirichlet(np.ones(CLASSES), NODES)
        self.data = [self.points(rng, 100, mix) for mix in mixes]
        self.test = self.points(rng, 2000, np.full(CLASSES, 1 / CLASSES))
        self.seconds = np.exp(rng.uniform(0, np.log(50), NODES))  # for one update: 1 to 50
        order = np.argsort(self.seconds) if fast_liars else rng.permutation(NODES)
        self.liars = set(order[:LIARS].tolist())

    def points(self, rng: np.random.Generator, n: int, mix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Points of classes that are drawn by the mix."""
        y = rng.choice(CLASSES, n, p=mix)
        return (self.centres[y] + 1.5 * rng.standard_normal((n, FEATURES))).astype(np.float32), y

    def update(self, node: int, model: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """What some steps of softmax regression add to the model; liars send three times the opposite."""
        (x, y), w = self.data[node], model["w"].copy()
        for _ in range(5):
            p = np.exp(x @ w - (x @ w).max(axis=1, keepdims=True))
            p /= p.sum(axis=1, keepdims=True)
            p[np.arange(len(y)), y] -= 1
            w -= 0.1 * x.T @ p / len(y)
        return {"w": (w - model["w"]) * (-3 if node in self.liars else 1)}

    def accuracy(self, model: dict[str, np.ndarray]) -> float:
        """On points of all classes."""
        x, y = self.test
        return float(((x @ model["w"]).argmax(axis=1) == y).mean())


def start() -> dict[str, np.ndarray]:
    """A model that knows nothing."""
    return {"w": np.zeros((FEATURES, CLASSES), np.float32)}


def in_rounds(world: World, rule: str) -> tuple[float, float]:
    """Every round waits for the slowest node."""
    model = start()
    for _ in range(UPDATES // NODES):
        model["w"] = model["w"] + aggregate([world.update(i, model) for i in range(NODES)], rule).value["w"]
    return world.accuracy(model), UPDATES // NODES * float(world.seconds.max())


def in_a_buffer(world: World, rule: str) -> tuple[float, float]:
    """Every node begins again as soon as it has sent an update."""
    buffer, taken, now = Buffer(SIZE, rule, max_staleness=20, model=start(), byzantine=LIARS), 0, 0.0
    events = [(float(world.seconds[i]), i, 0, buffer.model) for i in range(NODES)]
    heapq.heapify(events)
    while taken < UPDATES:
        now, node, began, model = heapq.heappop(events)
        taken += not buffer.add(str(node), world.update(node, model), began, samples=100).reason
        heapq.heappush(events, (now + float(world.seconds[node]), node, buffer.round, buffer.model))
    return world.accuracy(buffer.model), now


if __name__ == "__main__":
    for fast_liars in (False, True):
        world = World(int(sys.argv[1]) if len(sys.argv) > 1 else 0, fast_liars=fast_liars)
        print("The liars are the fastest nodes." if fast_liars else "The liars are any nodes.")
        for rule in ("mean", "spectral_huber"):
            for name, run in (("rounds", in_rounds), ("buffer", in_a_buffer)):
                accuracy, seconds = run(world, rule)
                print(f"  {rule:15} {name}: accuracy {accuracy:.3f} after {seconds:5.0f} simulated seconds")
