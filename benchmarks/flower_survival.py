"""What one bad node does to a run: fedhold's strategy beside Flower's own, in one process.

python benchmarks/flower_survival.py [--liars 2]
"""

import argparse
import logging
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np
from flwr.serverapp.strategy import Bulyan, FedAvg, FedMedian, FedTrimmedAvg, Krum, MultiKrum

from fedhold.flower import RobustStrategy
from flower_grid import LocalGrid, client_app, model
from flower_liars import EVERY

NODES, ROUNDS = 10, 3
STRATEGIES = {
    "fedhold": lambda _: RobustStrategy(),
    "FedAvg": lambda _: FedAvg(),
    "FedMedian": lambda _: FedMedian(),
    "FedTrimmedAvg": lambda _: FedTrimmedAvg(beta=0.2),
    "Krum": lambda liars: Krum(num_malicious_nodes=liars),
    "MultiKrum": lambda liars: MultiKrum(num_malicious_nodes=liars, num_nodes_to_select=NODES - 2),
    "Bulyan": lambda liars: Bulyan(num_malicious_nodes=min(liars, 1)),
}


def outcome(strategy, bad):
    """Honest clients pull all weights near 1; three rounds go seven eighths of the way."""
    try:
        result = strategy.start(LocalGrid(client_app(), NODES, bad), model(), num_rounds=ROUNDS, timeout=0.02)
    except Exception:
        return "run ended"
    arrays = {key: array.numpy() for key, array in result.arrays.items()}
    if not arrays:
        return "no model"
    if not all(np.isfinite(array).all() for array in arrays.values()):
        return "model NaN"
    losses = [metrics["loss"] for metrics in result.evaluate_metrics_clientapp.values()]
    sane = all(isinstance(loss, float) and abs(loss) < 10 for loss in losses)
    off = np.abs(arrays["w"] - 0.875).max() > 0.25 or abs(arrays["steps"] - 10 - ROUNDS) > 1 or arrays["mask"][1]
    return "captured" if off else "ok" if sane else "metrics ruined"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--liars", type=int, default=1, help=f"how many of the {NODES} nodes reply so")
    liars = parser.parse_args().liars
    np.seterr(all="ignore")
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    print(f"{liars} of {NODES} nodes, {ROUNDS} rounds\n")
    print("| reply |" + "".join(f" {name} |" for name in STRATEGIES))
    print("|---|" + "---|" * len(STRATEGIES))
    for kind, reply in {"honest": None, **EVERY}.items():
        bad = {} if reply is None else dict.fromkeys(range(3, 3 + liars), reply)
        cells = [outcome(make(liars), bad) for make in STRATEGIES.values()]
        print(f"| {kind} |" + "".join(f" {cell} |" for cell in cells), flush=True)


if __name__ == "__main__":
    main()
