from fedhold.lab.attacks import ATTACKS, Knowledge, sign_flip, trimmed_mean_attack
from fedhold.lab.clients import Adversary, answers
from fedhold.lab.config import load
from fedhold.lab.datasets import DataError
from fedhold.lab.experiment import Experiment, MissingResult, Result, Store, run_all
from fedhold.lab.federation import chance
from fedhold.lab.partition import PARTITIONS
from fedhold.lab.processes import in_processes
from fedhold.lab.report import Panel, write_report
from fedhold.lab.world import DATA, World, prepare, split

__all__ = [
    "ATTACKS",
    "DATA",
    "PARTITIONS",
    "Adversary",
    "DataError",
    "Experiment",
    "Knowledge",
    "MissingResult",
    "Panel",
    "Result",
    "Store",
    "World",
    "answers",
    "chance",
    "in_processes",
    "load",
    "prepare",
    "run_all",
    "sign_flip",
    "split",
    "trimmed_mean_attack",
    "write_report",
]
