"""The laboratory: experiments with federations in which some clients lie. Nothing a server runs imports it.

    data -> partition -> shards -> federate(rule, attack) -> history -> results -> report

In: a data set (or a task and samples of your own), a rule's spec, an attack's name, a seed. Out: histories, stored results,
reports. `fedhold.lab.paper` builds the paper's figures, tables and claims from it. Imports: `fedhold.report`,
`fedhold.aggregation` and below; attacks import no rule.
"""

from fedhold.lab.arena import Arena, Setting, read_parts, run_arena
from fedhold.lab.attacks import *  # noqa: F403
from fedhold.lab.attacks import ATTACKS
from fedhold.lab.config import load, read_toml, write_start
from fedhold.lab.datasets import DataError, Images, Regression, Samples, cifar10, fashion_mnist, mnist, synthesized
from fedhold.lab.experiment import Experiment, liars
from fedhold.lab.federation import Federated, Round, TrainingSettings, federate, rsa
from fedhold.lab.hospitals import Ward, heart_disease
from fedhold.lab.knowledge import Attack, Knowledge, Lies, Poisoned, needs_server, needs_thresholds, poisons_data
from fedhold.lab.leaderboard import Place, Standings, write_arena
from fedhold.lab.outcomes import Differences, matrices, where_of, worst_cases
from fedhold.lab.partition import PARTITIONS, balanced, by_class, dirichlet, random_cuts
from fedhold.lab.randomness import Purpose, chance
from fedhold.lab.report import ANSWER, NAMED, PROVEN, Panel, panels_of, write_report
from fedhold.lab.results import MissingResult, Result, Store, Verdict
from fedhold.lab.runner import Done, News, run, run_all, run_cells, run_tasks, tell
from fedhold.lab.scenarios import DATA, MODELS, Scenario, prepare
from fedhold.lab.tasks import LinearRegression, Mlp, Shards, Task, shard
from fedhold.lab.torch_task import TorchTask
from fedhold.lab.writers import Writer, femnist

__all__ = [
    "ANSWER",
    "ATTACKS",
    "DATA",
    "MODELS",
    "NAMED",
    "PARTITIONS",
    "PROVEN",
    "Arena",
    "Attack",
    "DataError",
    "Differences",
    "Done",
    "Experiment",
    "Federated",
    "Images",
    "Knowledge",
    "Lies",
    "LinearRegression",
    "MissingResult",
    "Mlp",
    "News",
    "Panel",
    "Place",
    "Poisoned",
    "Purpose",
    "Regression",
    "Result",
    "Round",
    "Samples",
    "Scenario",
    "Setting",
    "Shards",
    "Standings",
    "Store",
    "Task",
    "TorchTask",
    "TrainingSettings",
    "Verdict",
    "Ward",
    "Writer",
    "balanced",
    "by_class",
    "chance",
    "cifar10",
    "dirichlet",
    "fashion_mnist",
    "federate",
    "femnist",
    "heart_disease",
    "liars",
    "load",
    "matrices",
    "mnist",
    "needs_server",
    "needs_thresholds",
    "panels_of",
    "poisons_data",
    "prepare",
    "random_cuts",
    "read_parts",
    "read_toml",
    "rsa",
    "run",
    "run_all",
    "run_arena",
    "run_cells",
    "run_tasks",
    "shard",
    "synthesized",
    "tell",
    "where_of",
    "worst_cases",
    "write_arena",
    "write_report",
    "write_start",
    *ATTACKS,
]


def __dir__() -> list[str]:
    """The public names, for help() and for the completion of names."""
    return sorted(__all__)
