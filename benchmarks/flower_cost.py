"""What aggregate_train costs on the server: fedhold's strategy beside Flower's FedAvg, from the same replies.

python benchmarks/flower_cost.py [--repeat 5]

Both read Flower's messages as they come from the network. With an audit the certificate is made, too, for which it takes an
m x m matrix; the line that `start` writes to the disk is not part of it.
"""

import argparse
import logging
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord
from flwr.serverapp.strategy import FedAvg, FedMedian

from fedhold.flower import RobustStrategy
from flower_grid import LocalGrid, reply_with

MNIST = {"w1": (784, 32), "b1": (32,), "w2": (32, 10), "b2": (10,)}
MILLION = {"w1": (1000, 900), "b1": (900,), "w2": (900, 110), "b2": (110,)}
CASES = [(MNIST, 10), (MNIST, 100), (MNIST, 500), (MILLION, 10), (MILLION, 100)]


def replies(shapes, nodes, rng):
    """The model, and what `nodes` clients make of it; a fifth of them lie."""
    model = {key: rng.standard_normal(shape).astype(np.float32) for key, shape in shapes.items()}

    def answer(message, _):
        lie = -10 if message.metadata.dst_node_id % 5 == 0 else 1
        arrays = {
            key: a + lie * 0.01 * (1 + rng.standard_normal(a.shape, dtype=np.float32)) for key, a in model.items()
        }
        return reply_with(message, arrays, {"num-examples": 100, "loss": float(rng.random())})

    grid = LocalGrid(lambda message, _: message, nodes, dict.fromkeys(range(nodes), answer))
    return ArrayRecord({key: Array(array) for key, array in model.items()}), grid


def seconds(strategy, arrays, grid, repeat):
    """The best time of aggregate_train over the same replies: other work on the machine only adds to it.

    A call of milliseconds is repeated for a second: its first dozen calls wait for caches.
    """
    messages = list(strategy.configure_train(1, arrays, ConfigRecord(), grid))
    answers = grid.pull_messages(grid.push_messages(messages))
    times = []
    while len(times) < repeat or (repeat > 1 and sum(times) < 1):
        began = time.perf_counter()
        strategy.aggregate_train(1, answers)
        times.append(time.perf_counter() - began)
    return min(times)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    repeat = parser.parse_args().repeat
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    print(f"Seconds of aggregate_train, the best of {repeat} or of a second of them; in brackets, times FedAvg\n")
    print("| parameters | nodes | FedAvg | FedMedian | default | default with audit | median | multi_krum |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        for shapes, nodes in CASES:
            arrays, grid = replies(shapes, nodes, np.random.default_rng(0))
            f = nodes // 5
            base = seconds(FedAvg(), arrays, grid, repeat)
            others = [
                seconds(FedMedian(), arrays, grid, 1),  # it empties the replies it aggregates: once only
                seconds(RobustStrategy(), arrays, grid, repeat),
                seconds(RobustStrategy(audit=Path(folder) / "audit.jsonl"), arrays, grid, repeat),
                seconds(RobustStrategy("median"), arrays, grid, repeat),
                seconds(RobustStrategy("multi_krum", parameters={"f": f}), arrays, grid, repeat),
            ]
            size = sum(int(np.prod(shape)) for shape in shapes.values())
            cells = [f"{base:.3f}", *(f"{one:.3f} ({one / base:.1f})" for one in others)]
            print(f"| {size:,} | {nodes} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
