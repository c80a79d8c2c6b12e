"""The server. It has no patients, so every hospital evaluates the model on its own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, Context, MetricRecord, RecordDict, UserConfig
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Result

from fedhold.errors import unknown
from fedhold.flower import RobustStrategy
from flower_hospitals.client_app import LIES
from flower_hospitals.patients import FEATURES, HOSPITALS

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """One run."""
    config = context.run_config
    for what, known in (("strategy", ("fedhold", "fedavg")), ("liar", (*HOSPITALS, "")), ("lie", LIES)):
        if config[what] not in known:
            raise ValueError(unknown(what, str(config[what]), known))
    start = ArrayRecord({"w": Array(np.zeros(len(FEATURES)))})
    result = begin(config)(grid, start, num_rounds=int(config["num-server-rounds"]))
    if config["results"]:
        write(result, Path(str(config["results"])))


def begin(config: UserConfig) -> Callable[..., Result]:
    """The call that trains: `start` of the strategy in the run config; with a checkpoint `resume`, which also starts anew."""
    common: dict[str, Any] = {"min_available_nodes": len(HOSPITALS), "evaluate_metrics_aggr_fn": by_hospital}
    if config["strategy"] == "fedavg":
        return FedAvg(**common).start
    audit, checkpoint = str(config["audit"]) or None, str(config["checkpoint"]) or None
    cap = float(config["sample-cap"])
    strategy = RobustStrategy(str(config["rule"]), sample_cap=cap, audit=audit, checkpoint=checkpoint, **common)
    return strategy.resume if checkpoint else strategy.start


def by_hospital(records: list[RecordDict], weighting_metric_name: str) -> MetricRecord:  # noqa: ARG001
    """The metrics of every hospital side by side. In an average, one hospital's false metrics would change all of it."""
    metrics = MetricRecord()
    for record in records:
        own = record["metrics"]
        if own["hospital"] in range(len(HOSPITALS)):  # a liar may send any number here
            for name in ("accuracy", "log-loss"):
                metrics[f"{HOSPITALS[own['hospital']]} {name}"] = own[name]
    return metrics


def write(result: Result, path: Path) -> None:
    """Write the metrics of every round as a JSON line."""
    with path.open("w", encoding="utf-8") as file:
        for number, metrics in result.evaluate_metrics_clientapp.items():
            print(json.dumps({"round": number, **metrics}), file=file)
