"""The server: RobustStrategy with all it writes."""

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
    strategy = RobustStrategy(
        audit=folder / "audit.jsonl",
        checkpoint=folder / "checkpoint",
        fraction_evaluate=0.0,
        min_available_nodes=int(config["min-nodes"]),
    )
    start = ArrayRecord({"w": Array(np.zeros(TRUTH.size))})
    result = strategy.resume(grid, start, num_rounds=int(config["num-server-rounds"]))
    np.save(folder / "model.npy", result.arrays["w"].numpy())
