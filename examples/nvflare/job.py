"""Eight sites in NVFlare's simulator, two of which lie: python job.py [folder]. The folder gets audit and metrics."""

import sys
from pathlib import Path

import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.client.config import ExchangeFormat
from nvflare.recipe.sim_env import SimEnv

from fedhold.audit import OpenMetrics
from fedhold.nvflare import RobustAggregator

SITES, ROUNDS = 8, 3


def main(folder: Path) -> None:
    """Run the job, and say where its audit is."""
    folder.mkdir(parents=True, exist_ok=True)
    audit = folder / "audit.jsonl"
    recipe = FedAvgRecipe(
        name="robust",
        model=torch.nn.Linear(10, 1),
        min_clients=SITES,
        num_rounds=ROUNDS,
        train_script=str(Path(__file__).with_name("client.py")),
        aggregator=RobustAggregator(audit=str(audit), on_round=OpenMetrics(folder / "metrics.prom")),
        server_expected_format=ExchangeFormat.PYTORCH,
    )
    recipe.execute(SimEnv(num_clients=SITES, num_threads=SITES, workspace_root=str(folder / "workspace")))
    print(f"Now: fedhold watch {audit} --once")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "nvflare-run").absolute())
