"""The laboratory: experiments with federations in which some clients lie. Nothing a server runs imports it.

    data -> partition -> shards -> federate(rule, attack) -> history -> results -> report

In: a data set (or a task and samples of your own), a rule's spec, an attack's name, a seed. Out: histories, stored results,
reports. `fedhold.lab.paper` builds the paper's figures, tables and claims from it. Imports: `fedhold.report`,
`fedhold.aggregation` and below; attacks import no rule.
"""

from fedhold.lab.arena import Arena, Setting, read_parts, run_arena
from fedhold.lab.attacks import (
    ATTACKS,
    alie,
    drift,
    duplicates,
    gaussian,
    huber_attack,
    inflated_samples,
    ipm,
    krum_attack,
    mimic,
    min_max,
    min_sum,
    non_finite,
    sign_flip,
    trimmed_mean_attack,
)
from fedhold.lab.config import load, read_toml, write_start
from fedhold.lab.consensus import rsa
from fedhold.lab.datasets import DataError, Images, Regression, Samples, cifar10, fashion_mnist, mnist, synthesized
from fedhold.lab.executors import Done, News, run_tasks, tell
from fedhold.lab.experiment import Experiment, liars
from fedhold.lab.federation import Federated, Round, TrainingSettings, federate
from fedhold.lab.hospitals import Ward, heart_disease
from fedhold.lab.knowledge import Attack, Knowledge, Lies, needs_server, needs_thresholds
from fedhold.lab.leaderboard import Place, Standings, write_arena
from fedhold.lab.outcomes import Differences, matrices, where_of, worst_cases
from fedhold.lab.partition import PARTITIONS, balanced, by_class, dirichlet, random_cuts
from fedhold.lab.poisons import Poisoned, backdoor, label_flip, poisons_data
from fedhold.lab.randomness import Purpose, chance
from fedhold.lab.report import ANSWER, NAMED, PROVEN, Panel, panels_of, write_report
from fedhold.lab.results import MissingResult, Result, Store, Verdict
from fedhold.lab.runner import run, run_all, run_cells
from fedhold.lab.scenarios import DATA, MODELS, Scenario, prepare
from fedhold.lab.searches import optimal_alie, optimal_ipm, worst_case
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
    "alie",
    "backdoor",
    "balanced",
    "by_class",
    "chance",
    "cifar10",
    "dirichlet",
    "drift",
    "duplicates",
    "fashion_mnist",
    "federate",
    "femnist",
    "gaussian",
    "heart_disease",
    "huber_attack",
    "inflated_samples",
    "ipm",
    "krum_attack",
    "label_flip",
    "liars",
    "load",
    "matrices",
    "mimic",
    "min_max",
    "min_sum",
    "mnist",
    "needs_server",
    "needs_thresholds",
    "non_finite",
    "optimal_alie",
    "optimal_ipm",
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
    "sign_flip",
    "synthesized",
    "tell",
    "trimmed_mean_attack",
    "where_of",
    "worst_case",
    "worst_cases",
    "write_arena",
    "write_report",
    "write_start",
]


def __dir__() -> list[str]:
    """The public names, for help() and for the completion of names."""
    return sorted(__all__)
