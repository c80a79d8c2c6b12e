"""Flower's names, in one place, and the one exchange of messages that a bad reply cannot end.

Everything here is public in flwr; where a name has moved, importing this module says so.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
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
except ImportError as problem:
    try:
        met = f"flwr {version('flwr')}"
    except PackageNotFoundError:
        met = "no flwr"
    raise ImportError(
        f"fedhold.flower needs flwr >= {NEEDED}; met {met}: {problem}. Install fedhold[flower], or, if your flwr is newer "
        "than this fedhold, an older flwr."
    ) from problem

__all__ = ["NEEDED", "exchange", "flower_log"]

flower_log = logging.getLogger("flwr")  # so that our lines stand among Flower's own
PAUSE = 3.0  # seconds between two rounds of asking for replies, as in Flower
UNREADABLE = 4  # Flower's code for a reply that is not to be had
LINK = {"grpc", "httpcore", "httpx", "requests"}  # errors from there are the link's, not a reply's


def exchange(grid: Grid, messages: Sequence[Message], timeout: float) -> list[Message]:
    """Send the messages, and gather replies until all are there or `timeout` seconds have passed.

    Replies are fetched one by one: Flower inflates whatever bytes a node stored, and where that fails only this node's reply
    may be lost. It becomes an error reply; so does a message that could not be delivered. `grid.send_and_receive` would end
    the run.
    """
    messages = list(messages)
    if not messages:
        return []
    ids = list(grid.push_messages(messages))
    ids += [""] * (len(messages) - len(ids))
    waiting = {str(name): message for name, message in zip(ids, messages, strict=True) if name}
    replies = [
        Message(Error(UNREADABLE, "the message could not be delivered"), reply_to=message)
        for name, message in zip(ids, messages, strict=True)
        if not name
    ]
    end, pause = time.monotonic() + timeout, 0.1
    while waiting:
        for name in list(waiting):
            got = _fetch(grid, name, waiting[name])
            replies.extend(got)
            if any(reply.metadata.reply_to_message_id == name for reply in got):
                del waiting[name]
        left = end - time.monotonic()
        if left <= 0 or not waiting:
            break
        time.sleep(min(pause, left))
        pause = min(2 * pause, PAUSE)
    return replies


def _fetch(grid: Grid, name: str, message: Message) -> list[Message]:
    try:
        return list(grid.pull_messages([name]))
    except Exception as problem:  # whatever inflating a liar's bytes may raise
        if isinstance(problem, OSError) or type(problem).__module__.partition(".")[0] in LINK:
            raise
        reason = f"the reply could not be read: {type(problem).__name__}: {problem}"
        return [Message(Error(UNREADABLE, reason), reply_to=message)]
