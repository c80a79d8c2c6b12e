"""Flower's names, in one place: where flwr has moved one of them, importing this module says so.

Those of `flwr.app` and `flwr.serverapp` are public. The others are what Flower's own grid fetches replies with; they are the
same in flwr 1.38 to 1.42. Fedhold needs them because that grid puts no limit on how long it waits for a reply, or on what it
makes of one.
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
    from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest as ConfirmMessageReceivedRequest
    from flwr.proto.message_pb2 import ObjectTree as ObjectTree
    from flwr.proto.message_pb2 import PullObjectRequest as PullObjectRequest
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest as PullAppMessagesRequest
    from flwr.serverapp import Grid as Grid
    from flwr.serverapp.strategy import FedAvg as FedAvg
    from flwr.serverapp.strategy import Result as Result
    from flwr.serverapp.strategy import Strategy as Strategy
    from flwr.supercore.inflatable.inflatable_object import get_object_body as get_object_body
    from flwr.supercore.inflatable.inflatable_object import (
        get_object_head_values_from_object_content as get_object_head_values_from_object_content,
    )
    from flwr.supercore.inflatable.inflatable_object import iterate_object_tree as iterate_object_tree
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents as inflate_object_from_contents
    from flwr.superlink.grid import HttpGrid as HttpGrid
    from httpx import HTTPStatusError as HTTPStatusError
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
