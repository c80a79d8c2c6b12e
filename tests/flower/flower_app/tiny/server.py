"""The server: RobustStrategy with all it writes."""

import resource
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from fedhold.flower import RobustStrategy
from tiny.client import TRUTH

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    folder = Path(str(config["folder"]))
    if config["memory"]:
        resource.setrlimit(resource.RLIMIT_AS, (int(config["memory"]),) * 2)
    strategy = RobustStrategy(
        audit=folder / "audit.jsonl",
        checkpoint=folder / "checkpoint",
        fraction_evaluate=0.0,
        min_available_nodes=int(config["min-nodes"]),
    )
    start = ArrayRecord({"w": Array(np.zeros(TRUTH.size))})
    rounds, timeout = int(config["num-server-rounds"]), float(config["timeout"])
    result = strategy.resume(grid, start, num_rounds=rounds, timeout=timeout)
    np.save(folder / "model.npy", result.arrays["w"].numpy())
