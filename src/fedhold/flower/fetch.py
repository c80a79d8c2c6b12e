"""One node's reply, fetched in short steps and within limits, so that a node that stalls or sends too much costs only itself.

Flower's grid fetches a reply in one call: it waits for as long as the node has announced parts that it does not send, pulls
however many parts there are, and puts together whatever they say. A SuperLink answers each single question at once, though:
whether there is a reply, which parts it has, and the content of one part, if it is there yet. So these questions are asked
one by one here, and what the answers add up to is compared with the limits before the next.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from fedhold.flower.api import (
    Array,
    ConfirmMessageReceivedRequest,
    Error,
    Grid,
    HttpGrid,
    HTTPStatusError,
    Message,
    PullAppMessagesRequest,
    PullObjectRequest,
    get_object_body,
    get_object_head_values_from_object_content,
    inflate_object_from_contents,
    iterate_object_tree,
)
from fedhold.flower.limits import BadReplyError, Limits, refuse_beyond
from fedhold.report import one_line

SLICE = 0.25  # seconds after which a step ends, so that others come to their turn
SUPERLINK = 1  # Flower's id for the SuperLink, which answers itself for nodes that are gone
UNREADABLE = 4  # Flower's code for a reply that is not to be had
NETWORK = {"grpc", "httpcore", "httpx", "requests"}  # errors from these packages are the network's, not a reply's


@dataclass(frozen=True)
class Step:
    """What a step of a fetch came to.

    replies   the replies that are whole
    done      whether one of them answers the message, so that there is nothing more to wait for
    moved     whether anything arrived; where nothing did, it is no use to ask again at once
    """

    replies: list[Message] = field(default_factory=list)
    done: bool = False
    moved: bool = False


class Fetch(Protocol):
    """The fetch of the reply to one message. Steps of one fetch never run at the same time, those of several may."""

    def step(self) -> Step:
        """Go on for a short while."""
        ...

    def unfinished(self) -> list[Message]:
        """What there is to say of a reply of which only a part has come when time is up."""
        ...


def fetch_from(grid: Grid, name: str, message: Message, limits: Limits) -> Fetch:
    """The fetch that suits the grid: one with limits where a SuperLink is asked, else Flower's own.

    In-memory grids, as in simulations, hold replies whole already: nothing is put together when they are fetched.

    grid      the grid that the message was pushed to
    name      the id that the grid gave the message
    message   the message
    limits    the most that the reply may hold
    """
    return LinkFetch(grid, name, message, limits) if isinstance(grid, HttpGrid) else GridFetch(grid, name, message)


def error_reply(message: Message, reason: str) -> Message:
    """A reply that says why there is none that can be used."""
    return Message(Error(UNREADABLE, one_line(reason)), reply_to=message)


def is_genuine(reply: Message, message: Message) -> bool:
    """Whether the reply carries the secret of the message, its group id.

    Errors that Flower itself replies for a node that is gone do not always know the group, and have none.
    """
    group = reply.metadata.group_id
    return group == message.metadata.group_id or (not group and reply.has_error())


class GridFetch:
    """A fetch by the grid's own method, from which there is no telling how long it takes."""

    def __init__(self, grid: Grid, name: str, message: Message) -> None:
        self._grid, self._name, self._message = grid, name, message

    def step(self) -> Step:
        try:
            got = list(self._grid.pull_messages([self._name]))
        except Exception as problem:  # a liar chooses the bytes, and so what the decoder raises
            if isinstance(problem, OSError) or type(problem).__module__.partition(".")[0] in NETWORK:
                raise
            return Step([error_reply(self._message, _unreadable(problem))], done=True)
        answers = (r.metadata.reply_to_message_id == self._name and is_genuine(r, self._message) for r in got)
        return Step(got, done=any(answers), moved=bool(got))

    def unfinished(self) -> list[Message]:
        return []


class LinkFetch:
    """A fetch from a SuperLink, part by part.

    grid      the grid of a ServerApp
    name      the id of the message
    message   the message
    limits    the most that the reply may hold
    """

    def __init__(self, grid: HttpGrid, name: str, message: Message, limits: Limits) -> None:
        self._client, self._node, self._run = grid._runtime_client, grid.node, grid.run.run_id
        self._name, self._message, self._limits = name, message, limits
        self._announced = ""  # the id of the reply, once there is one
        self._missing: list[str] = []
        self._contents: dict[str, bytes] = {}
        self._bytes = 0

    def step(self) -> Step:
        try:
            return self._step()
        except BadReplyError as problem:
            return self._done(error_reply(self._message, str(problem)))
        except HTTPStatusError as problem:  # the SuperLink is there, but chokes on this reply
            return self._done(error_reply(self._message, f"the SuperLink does not hand it out: {problem}"))

    def unfinished(self) -> list[Message]:
        missing = len(self._missing)
        reason = f"announced a reply, and did not send {missing:,} of its objects in time"
        return [error_reply(self._message, reason)] if self._announced and missing else []

    def _step(self) -> Step:
        if not self._announced:
            error = self._ask()
            if error is not None:
                return self._done(error)
            if not self._announced:
                return Step()
        end, moved = time.monotonic() + SLICE, False
        while self._missing and time.monotonic() < end:
            if not self._pull(self._missing[-1]):
                return Step(moved=moved)
            moved = True
            self._missing.pop()
        if self._missing:
            return Step(moved=True)
        return self._done(self._inflate())

    def _ask(self) -> Message | None:
        """Ask whether there is a reply, and which objects it has; an error that was replied is returned at once."""
        answer = self._client.PullMessages(PullAppMessagesRequest(message_ids=[self._name]))
        for head, tree in zip(answer.messages_list, answer.message_object_trees, strict=True):
            if head.metadata.reply_to_message_id != self._name:
                continue  # the SuperLink also hands out messages of users to agents
            self._announced = str(head.metadata.message_id)
            if head.metadata.src_node_id != SUPERLINK and head.metadata.group_id != self._message.metadata.group_id:
                raise BadReplyError("a reply without the secret of the message")
            if head.HasField("error"):
                return Message(Error(head.error.code, one_line(head.error.reason)), reply_to=self._message)
            most = self._limits.objects
            names = [str(part.object_id) for part in islice(iterate_object_tree(tree), most + 1)]
            if len(names) > most:
                raise BadReplyError(f"more than {most:,} objects; so many are accepted")
            self._missing = list(
                dict.fromkeys(reversed(names))
            )  # from the end, in the order in which Flower sends them
            break
        return None

    def _pull(self, name: str) -> bool:
        """Pull one object; False where the node has not sent it yet."""
        answer = self._client.PullObject(PullObjectRequest(node=self._node, run_id=self._run, object_id=name))
        if not answer.object_found:
            raise BadReplyError("part of the reply is gone; its upload may have taken too long")
        if not answer.object_available:
            return False
        self._bytes += len(answer.object_content)
        refuse_beyond(self._limits.sent, self._bytes, "bytes")
        self._contents[name] = answer.object_content
        return True

    def _inflate(self) -> Message:
        """The reply, put together from its objects."""
        try:
            check_inflated(self._contents, self._limits)
            reply = inflate_object_from_contents(self._announced, self._contents)
        except BadReplyError:
            raise
        except Exception as problem:  # a liar chooses the bytes, and so what the decoder raises
            raise BadReplyError(_unreadable(problem)) from None
        if not isinstance(reply, Message):
            raise BadReplyError(f"a bare {type(reply).__name__} in place of a message")
        # The SuperLink compared what the reply says beside its objects with the message; what it says inside was not.
        inside, sent = reply.metadata, self._message.metadata
        if (inside.reply_to_message_id, inside.src_node_id) != (self._name, sent.dst_node_id):
            raise BadReplyError(f"a reply in the name of node {inside.src_node_id}")
        if not is_genuine(reply, self._message):
            raise BadReplyError("a reply without the secret of the message")
        return reply

    def _done(self, reply: Message) -> Step:
        """The last step: let the SuperLink forget what it holds of the reply."""
        self._contents.clear()
        request = ConfirmMessageReceivedRequest(node=self._node, run_id=self._run, message_object_id=self._announced)
        if self._announced:
            with suppress(HTTPStatusError):  # then it forgets the reply with the run
                self._client.ConfirmMessageReceived(request)
        return Step([reply], done=True, moved=True)


def check_inflated(contents: Mapping[str, bytes], limits: Limits) -> None:
    """Refuse objects that would be put together to more than the limits: an array may name a part of it any number of times.

    contents   the objects by their ids
    limits     the most that they may come to
    """
    heads = {name: get_object_head_values_from_object_content(content) for name, content in contents.items()}
    chunks = {name: len(contents[name]) for name, (kind, _, _) in heads.items() if kind == "ArrayChunk"}
    beside = sum(len(content) for name, content in contents.items() if name not in chunks)
    refuse_beyond(limits.beside_arrays, beside, "bytes beside the numbers of arrays")
    total = 0
    for name, (kind, parts, _) in heads.items():
        if kind == "Array":
            for i in json.loads(get_object_body(contents[name], Array))["arraychunk_ids"]:
                total += chunks[parts[i]]
                refuse_beyond(limits.total, total, "bytes")


def _unreadable(problem: Exception) -> str:
    return f"the reply could not be read: {type(problem).__name__}: {one_line(problem)}"
