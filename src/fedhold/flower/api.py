"""Flower's names, in one place: where flwr has moved one of them, importing this module says so.

All of them are public in flwr.
"""

from __future__ import annotations

import logging
from importlib.metadata import PackageNotFoundError, version

NEEDED = "1.38"  # older ones give a message no sender outside their own runtime

try:
    from flwr.app import Array as Array
    from flwr.app import ArrayRecord as ArrayRecord
    from flwr.app import ConfigRecord as ConfigRecord
    from flwr.app import Error as Error
    from flwr.app import Message as Message
    from flwr.app import MessageType as MessageType
    from flwr.app import MetricRecord as MetricRecord
    from flwr.app import RecordDict as RecordDict
    from flwr.serverapp import Grid as Grid
    from flwr.serverapp.strategy import FedAvg as FedAvg
    from flwr.serverapp.strategy import Result as Result
    from flwr.serverapp.strategy import Strategy as Strategy
except ImportError as problem:
    try:
        met = f"flwr {version('flwr')}"
    except PackageNotFoundError:
        met = "no flwr"
    raise ImportError(
        f"fedhold.flower needs flwr >= {NEEDED}; met {met}: {problem}. From a checkout of fedhold: pip install '.[flower]'. If "
        "your flwr is newer than this fedhold, install an older flwr."
    ) from problem

plain_average = FedAvg().train_metrics_aggr_fn  # what Flower averages metrics by unless the user gives a function
flower_log = logging.getLogger("flwr")  # our lines appear among Flower's own
