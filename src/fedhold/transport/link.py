"""A SuperLink, asked in short steps and within limits: what is sent to it, and one node's reply, part by part.

Flower's grid fetches a reply in one call: it waits for as long as the node has announced parts that it does not send, pulls
however many parts there are, and puts together whatever they say. A SuperLink answers each single question at once, though:
whether there is a reply, which parts it has, and the content of one part, if it is there yet. So these questions are asked
one by one here, and what the answers add up to is compared with the limits before the next.

The names of `flwr.proto` and `flwr.supercore`, and the grid's client, are not public; they are the same in flwr 1.38 to 1.42.
No other module may use such names, and this one is imported only where a SuperLink is met.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from flwr.app import Array, Error, Message
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, PullObjectRequest
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from httpx import HTTPStatusError

from fedhold.errors import one_line
from fedhold.transport.fetch import Step, error_reply, is_genuine, unreadable
from fedhold.transport.limits import BadReplyError, Limits, refuse_beyond
from fedhold.transport.salt import salt

SLICE = 0.25  # seconds after which a step ends, so that others come to their turn
SUPERLINK = 1  # Flower's id for the SuperLink, which answers itself for nodes that are gone


@dataclass(frozen=True)
class Link:
    """The SuperLink that the grid of a ServerApp asks.

    grid     the grid
    node     the ServerApp's own name on the SuperLink
    run      the id of the run
    ask      whether there is a reply to a message, and which objects it has
    pull     one of these objects
    confirm  that the reply has come, so that the SuperLink forgets it
    """

    grid: Grid
    node: Any
    run: int
    ask: Callable[[PullAppMessagesRequest], Any]
    pull: Callable[[PullObjectRequest], Any]
    confirm: Callable[[ConfirmMessageReceivedRequest], Any]

    @staticmethod
    def of(grid: Grid) -> Link:
        """The SuperLink of a grid, by attributes that the interface of grids does not have. Several threads may ask it."""
        own: Any = grid
        client = own._runtime_client
        ask, pull, confirm = client.PullMessages, client.PullObject, client.ConfirmMessageReceived
        return Link(grid, own.node, own.run.run_id, ask, pull, confirm)

    def push(self, messages: Sequence[Message]) -> list[str]:
        """Push the messages, and return their ids; where the SuperLink refuses them, once more with salt in them."""
        try:
            return list(self.grid.push_messages(messages))
        except HTTPStatusError as problem:
            logging.getLogger("flwr").warning(
                "The SuperLink refuses the messages; they are sent again with salt: %s", one_line(problem)
            )
            salt(messages)
            return list(self.grid.push_messages(messages))

    def fetch(self, name: str, message: Message, limits: Limits) -> LinkFetch:
        """The fetch of the reply to a message that the SuperLink knows by this name."""
        return LinkFetch(self, name, message, limits)


class LinkFetch:
    """A fetch from a SuperLink, part by part.

    link      the SuperLink
    name      the id of the message
    message   the message
    limits    the most that the reply may hold
    """

    def __init__(self, link: Link, name: str, message: Message, limits: Limits) -> None:
        self._link = link
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
        answer = self._link.ask(PullAppMessagesRequest(message_ids=[self._name]))
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
            self._missing = list(dict.fromkeys(reversed(names)))  # pulled from the end: in the order Flower sends them
            break
        return None

    def _pull(self, name: str) -> bool:
        """Pull one object; False where the node has not sent it yet."""
        answer = self._link.pull(PullObjectRequest(node=self._link.node, run_id=self._link.run, object_id=name))
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
            raise BadReplyError(unreadable(problem)) from None
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
        request = ConfirmMessageReceivedRequest(
            node=self._link.node, run_id=self._link.run, message_object_id=self._announced
        )
        if self._announced:
            with suppress(HTTPStatusError):  # then it forgets the reply with the run
                self._link.confirm(request)
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
