"""The server's side of a Flower grid: wait for nodes, sample some of them, and exchange messages with them."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

import numpy as np
from flwr.app import Message
from flwr.serverapp import Grid

from fedhold.transport.replies import Limits, Step, error_reply, is_genuine, is_overload, unreadable

if TYPE_CHECKING:
    from fedhold.transport.link import Link

log = logging.getLogger("flwr")  # our lines appear among Flower's own

POLL = 1.0  # seconds between two questions to the grid about its nodes
LOG_EVERY = 10.0  # seconds between two lines in the log while nodes are missing
FIRST_PAUSE = 0.1  # seconds between the first two attempts to fetch a reply
PAUSE = 3.0  # the most seconds between two of them, as in Flower
WORKERS = 4  # replies that are fetched at the same time
PATIENCE = 0.5  # seconds after which a step that hangs no longer keeps others waiting
NETWORK = {"grpc", "httpcore", "httpx", "requests"}  # errors from these packages are the network's, not a reply's
IN_MEMORY = {"Grid", "Driver", "InMemoryGrid"}  # Flower's grids that ask no SuperLink; the first two are for subclasses
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
        try:
            nodes = sorted(set(grid.get_node_ids()))
        except Exception as problem:
            if not is_overload(problem):
                raise
            nodes = []
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
    if not messages:
        return []
    for message in messages:
        message.metadata.group_id = f"{message.metadata.group_id}{secrets.token_hex(16)}"
    link = _link_of(grid)
    ids = list(grid.push_messages(messages)) if link is None else link.push(messages, timeout)
    replies, fetches = list[Message](), list[_Fetch]()
    for message, name in zip(messages, ids + [""] * (len(messages) - len(ids)), strict=True):
        if name:
            steps = _from_memory(grid, name, message) if link is None else link.fetch(name, message, limits)
            fetches.append(_Fetch(message, steps))
        else:
            replies.append(error_reply(message, "the message could not be delivered"))
    # Flower's client of a SuperLink is made for several threads. Of other grids that is not known, so steps take turns.
    return replies + _collect(fetches, timeout, 1 if link is None else WORKERS)


def _link_of(grid: Grid) -> Link | None:
    """The SuperLink that a grid of Flower asks; None for a grid in memory, or one of the user's own.

    What it takes to fetch a reply within limits has no public names in Flower. They are looked up here, before anything is
    sent. Where one has moved this is an error, since Flower's own way of fetching has no limits.
    """
    kind = next((cls for cls in type(grid).__mro__ if cls.__module__.partition(".")[0] == "flwr"), Grid)
    if kind.__name__ in IN_MEMORY:
        return None
    try:
        from fedhold.transport.link import Link

        return Link.of(grid)
    except (ImportError, AttributeError) as problem:
        raise RuntimeError(
            f"this version of fedhold cannot fetch replies from the SuperLink of flwr {version('flwr')} within its limits: "
            f"{problem}. It knows flwr 1.38 to 1.42; install one of these, or a newer fedhold. Simulations work without."
        ) from problem


def _from_memory(grid: Grid, name: str, message: Message) -> Iterator[Step]:
    """Fetch a reply by the grid's own method, from which there is no telling how long it takes; it has the reply whole."""
    while True:
        try:
            got = list(grid.pull_messages([name]))
        except Exception as problem:  # a liar chooses the bytes, and so what the decoder raises
            if isinstance(problem, OSError) or type(problem).__module__.partition(".")[0] in NETWORK:
                raise
            yield Step([error_reply(message, unreadable(problem), refused=True)], done=True)
            return
        answers = (r.metadata.reply_to_message_id == name and is_genuine(r, message) for r in got)
        yield Step(got, done=any(answers), moved=bool(got))


@dataclass(eq=False)
class _Fetch:
    """The fetch of the reply to one message. Steps of one fetch never run at the same time, those of several may.

    message     the message
    steps       what there is to do, each a short one
    due         when to go on with it, on the clock of time.monotonic
    pause       the seconds to wait after a step that brought nothing
    since       when the step under way began; None where none is
    unfinished  as the last step said
    """

    message: Message
    steps: Iterator[Step]
    due: float = 0.0
    pause: float = FIRST_PAUSE
    since: float | None = None
    unfinished: str | None = None


def _collect(fetches: Sequence[_Fetch], timeout: float, workers: int) -> list[Message]:
    """The replies that the fetches bring until all are done, or time is up and each has had a last look.

    Steps run in daemon threads, one per step: one that hangs is left alone, holds up nobody and ends with the process. It
    counts as one of the `workers` for PATIENCE seconds only, so that any number of them leaves room for others.
    """
    end = time.monotonic() + timeout
    ended: SimpleQueue[tuple[_Fetch, Step | BaseException]] = SimpleQueue()
    left, replies = list(fetches), list[Message]()
    while left and (now := time.monotonic()) < end + LAST_LOOK:
        idle = [one for one in left if one.since is None]
        ready = sorted((one for one in idle if one.due <= now or now >= end), key=lambda one: one.due)
        busy = [one.since + PATIENCE for one in left if one.since is not None and one.since + PATIENCE > now]
        room = max(workers - len(busy), 0)
        for one in ready[:room]:
            one.since = now
            busy.append(now + PATIENCE)
            threading.Thread(target=_go_on, args=(one, ended), daemon=True).start()
        waits = [end if now < end else end + LAST_LOOK, *(one.due for one in idle if one.due > now)]
        waits += busy if ready[room:] else []
        try:
            one, step = ended.get(timeout=max(min(waits) - now, 0.0))
        except Empty:
            continue
        if isinstance(step, BaseException):
            raise step
        replies += step.replies
        one.unfinished = step.unfinished
        last_look = one.since is not None and one.since >= end and not step.moved
        if step.done or last_look:
            left.remove(one)
        one.since, one.due = None, time.monotonic() + (0.0 if step.moved else one.pause)
        one.pause = FIRST_PAUSE if step.moved else min(2 * one.pause, PAUSE)
    return replies + [error_reply(one.message, one.unfinished) for one in fetches if one.unfinished]


def _go_on(one: _Fetch, ended: SimpleQueue[tuple[_Fetch, Step | BaseException]]) -> None:
    """Do a step, and hand over what it came to, errors too: they are for the thread that waits."""
    try:
        ended.put((one, next(one.steps)))
    except BaseException as problem:
        ended.put((one, problem))
