"""The server's side of a Flower grid: wait for nodes, sample some of them, and exchange messages with them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from fedhold.flower.api import Error, Grid, Message, flower_log

POLL = 1.0  # seconds between two questions to the grid about its nodes
LOG_EVERY = 10.0  # seconds between two lines in the log while nodes are missing
PAUSE = 3.0  # the most seconds between two attempts to fetch replies, as in Flower
UNREADABLE = 4  # Flower's code for a reply that is not to be had
NETWORK = {"grpc", "httpcore", "httpx", "requests"}  # errors from these packages are the network's, not a reply's


def sample_size(nodes: int, fraction: float, least: int) -> int:
    """How many of `nodes` nodes to ask: this fraction of them, but no fewer than `least`."""
    return max(int(nodes * fraction), least)


def wait_for_nodes(grid: Grid, *, fraction: float, least: int, available: int, wait: float) -> list[int]:
    """The ids of the connected nodes, in rising order, as soon as there are enough of them.

    grid             the grid
    fraction, least  how many will be asked: see `sample_size`; so many must be connected
    available        so many must be connected in any case
    wait             the seconds after which too few nodes are a TimeoutError
    """
    began = time.monotonic()
    logged = -LOG_EVERY
    while True:
        nodes = sorted(set(grid.get_node_ids()))
        needed = max(available, sample_size(len(nodes), fraction, least))
        if len(nodes) >= needed:
            return nodes
        waited = time.monotonic() - began
        if waited >= wait:
            raise TimeoutError(
                f"the round needs {needed} nodes (min_available_nodes = {available}, at least {least} to ask); met "
                f"{len(nodes)} after waiting {wait:g} s. Start more SuperNodes, lower min_available_nodes, or raise wait."
            )
        if waited >= logged + LOG_EVERY:
            flower_log.info("Waiting for nodes: %d of %d are there, %.0f s left.", len(nodes), needed, wait - waited)
            logged = waited
        time.sleep(min(POLL, wait - waited))


def sample(nodes: Sequence[int], size: int, rng: np.random.Generator) -> list[int]:
    """`size` of the nodes in their order, drawn without replacement; all of them where there are no more."""
    size = min(size, len(nodes))
    return [nodes[i] for i in sorted(rng.choice(len(nodes), size, replace=False))] if size else []


def exchange(grid: Grid, messages: Sequence[Message], timeout: float) -> list[Message]:
    """Send the messages, and collect replies until all have arrived or `timeout` seconds have passed.

    This replaces `grid.send_and_receive`, which one bad reply can end together with the run: Flower decodes whatever bytes a
    node stored, and raises where it cannot. Here replies are fetched one by one, so that only the reply of this node is
    lost. It becomes an error reply; so does a message that could not be delivered.
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
    """The replies that have arrived for the message with this id; an error reply where they cannot be decoded."""
    try:
        return list(grid.pull_messages([name]))
    except Exception as problem:  # a liar chooses the bytes, and so what the decoder raises
        if isinstance(problem, OSError) or type(problem).__module__.partition(".")[0] in NETWORK:
            raise
        reason = f"the reply could not be read: {type(problem).__name__}: {problem}"
        return [Message(Error(UNREADABLE, reason), reply_to=message)]
