"""The server's side of a Flower grid: wait for nodes, sample some of them, and exchange messages with them."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fedhold.transport.fetch import Fetch, GridFetch, Step, error_reply, link_of
from fedhold.transport.limits import Limits

log = logging.getLogger("flwr")  # our lines appear among Flower's own

POLL = 1.0  # seconds between two questions to the grid about its nodes
LOG_EVERY = 10.0  # seconds between two lines in the log while nodes are missing
FIRST_PAUSE = 0.1  # seconds between the first two attempts to fetch a reply
PAUSE = 3.0  # the most seconds between two of them, as in Flower
WORKERS = 4  # replies that are fetched at the same time
PATIENCE = 0.5  # seconds after which a step that hangs no longer keeps others waiting
LAST_LOOK = 1.0  # seconds beyond the timeout in which a last look at every missing reply must end


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
            log.info("Waiting for nodes: %d of %d are there, %.0f s left.", len(nodes), needed, wait - waited)
            logged = waited
        time.sleep(min(POLL, wait - waited))


def sample(nodes: Sequence[int], size: int, rng: np.random.Generator) -> list[int]:
    """`size` of the nodes in their order, drawn without replacement; all of them where there are no more."""
    size = min(size, len(nodes))
    return [nodes[i] for i in sorted(rng.choice(len(nodes), size, replace=False))] if size else []


def exchange(grid: Grid, messages: Sequence[Message], timeout: float, limits: Limits) -> list[Message]:
    """Send the messages, and collect replies until all have arrived or `timeout` seconds have passed.

    This replaces `grid.send_and_receive`, which one bad reply can hold up or end together with the run. Here every reply is
    fetched on its own, beside the others; when time is up, every node that is still missing gets a last look, for which there
    is another second. A reply that cannot be used becomes an error reply of its node; so does a message that could not be
    delivered.

    Each message gets a secret, as its group id: a node copies it to its reply without knowing, and it makes the id of the
    message one that nobody can guess. So only the node that was asked can reply.

    grid       the grid
    messages   one per node
    timeout    the seconds to wait
    limits     the most that one reply may hold
    """
    messages = list(messages)
    if not messages:
        return []
    for message in messages:
        message.metadata.group_id = f"{message.metadata.group_id}{secrets.token_hex(16)}"
    link = link_of(grid)
    ids = list(grid.push_messages(messages)) if link is None else link.push(messages)
    ids += [""] * (len(messages) - len(ids))
    asked = list(zip(ids, messages, strict=True))
    fetches: list[Fetch] = [
        GridFetch(grid, name, message) if link is None else link.fetch(name, message, limits)
        for name, message in asked
        if name
    ]
    undelivered = [error_reply(message, "the message could not be delivered") for name, message in asked if not name]
    # Flower's client of a SuperLink is made for several threads. Of other grids that is not known, so steps take turns.
    return undelivered + _collect(fetches, timeout, 1 if link is None else WORKERS)


@dataclass(eq=False)
class _Pending:
    """A fetch that has not come to its end.

    fetch   the fetch
    due     when to go on with it, on the clock of time.monotonic
    pause   the seconds to wait after a step that brought nothing
    since   when the step under way began; None where none is
    """

    fetch: Fetch
    due: float
    pause: float = FIRST_PAUSE
    since: float | None = None


def _collect(fetches: Sequence[Fetch], timeout: float, workers: int) -> list[Message]:
    """The replies that the fetches bring until all are done, or time is up and each has had a last look.

    Steps run in daemon threads, one per step: one that hangs is left alone, holds up nobody and ends with the process. It
    counts as one of the `workers` for PATIENCE seconds only, so that any number of them leaves room for others.
    """
    began = time.monotonic()
    end = began + timeout
    left, given_up = [_Pending(fetch, began) for fetch in fetches], list[_Pending]()
    ended: SimpleQueue[tuple[_Pending, Step | BaseException]] = SimpleQueue()
    replies: list[Message] = []
    while left:
        now = time.monotonic()
        if now >= end + LAST_LOOK:
            break
        idle = [one for one in left if one.since is None]
        ready = sorted((one for one in idle if one.due <= now or now >= end), key=lambda one: one.due)
        busy = [one.since + PATIENCE for one in left if one.since is not None and one.since + PATIENCE > now]
        room = max(workers - len(busy), 0)
        for one in ready[:room]:
            one.since = now
            busy.append(now + PATIENCE)
            threading.Thread(target=_run, args=(one, ended), daemon=True).start()
        waits = [end if now < end else end + LAST_LOOK, *(one.due for one in idle if one.due > now)]
        waits += busy if ready[room:] else []
        try:
            one, outcome = ended.get(timeout=max(min(waits) - now, 0.0))
        except Empty:
            continue
        if isinstance(outcome, BaseException):
            raise outcome
        replies += outcome.replies
        if outcome.done:
            left.remove(one)
            continue
        if one.since is not None and one.since >= end and not outcome.moved:  # that was its last look
            left.remove(one)
            given_up.append(one)
            continue
        one.since, one.due = None, time.monotonic() + (0.0 if outcome.moved else one.pause)
        one.pause = FIRST_PAUSE if outcome.moved else min(2 * one.pause, PAUSE)
    return replies + [reply for one in given_up + left for reply in one.fetch.unfinished()]


def _run(one: _Pending, ended: SimpleQueue[tuple[_Pending, Step | BaseException]]) -> None:
    """Do a step, and hand over what it came to, errors too: they are for the thread that waits."""
    try:
        outcome: Step | BaseException = one.fetch.step()
    except BaseException as problem:
        outcome = problem
    ended.put((one, outcome))
