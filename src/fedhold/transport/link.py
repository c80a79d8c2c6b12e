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
import secrets
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
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
from fedhold.transport.replies import (
    BadReplyError,
    Limits,
    Step,
    error_reply,
    is_genuine,
    is_overload,
    refuse_beyond,
    unreadable,
)

Record = ArrayRecord | ConfigRecord | MetricRecord

SLICE = 0.25  # seconds after which a step ends, so that others come to their turn
BUSY = 3.0  # seconds between two attempts to push messages to a SuperLink that answers 5xx
SUPERLINK = 1  # Flower's id for the SuperLink, which answers itself for nodes that are gone
MAGIC = b"\x93NUMPY\x01\x00"  # how arrays in NumPy's format begin; two bytes with the length of the header follow
LINE = 64  # bytes to which NumPy aligns the numbers after a header
LINES = 128  # NumPy reads headers up to 10,000 bytes


class _GoneError(Exception):
    """The SuperLink no longer has a part of a reply, which need not be the fault of its node."""


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

    def push(self, messages: Sequence[Message], timeout: float) -> list[str]:
        """Push the messages, and return their ids; where the SuperLink refuses them, once more with salt in them.

        Where it then answers 5xx, they are pushed again and again for `timeout` seconds, and at the end are not delivered.
        """
        end, salted = time.monotonic() + timeout, False
        while True:
            try:
                return list(self.grid.push_messages(messages))
            except HTTPStatusError as problem:
                if salted and not is_overload(problem):
                    raise
                if salted and time.monotonic() >= end:
                    return []
                log = logging.getLogger("flwr")
                log.warning("The SuperLink refuses the messages; they are sent again with salt: %s", one_line(problem))
                time.sleep(BUSY if salted else 0.0)
            salt(messages)
            salted = True

    def fetch(self, name: str, message: Message, limits: Limits) -> Iterator[Step]:
        """The steps to the reply to a message that the SuperLink knows by this name. It then forgets what it holds of it."""
        announced = ""  # the id of the reply, once there is one
        try:
            while (found := (yield from self._reply_to(name))) is None:
                yield Step()
            head, tree = found
            announced = str(head.metadata.message_id)
            if head.metadata.src_node_id != SUPERLINK and head.metadata.group_id != message.metadata.group_id:
                raise BadReplyError("a reply without the secret of the message")
            if head.HasField("error"):
                reply = Message(Error(head.error.code, one_line(head.error.reason)), reply_to=message)
            else:
                most = limits.objects
                names = [str(part.object_id) for part in islice(iterate_object_tree(tree), most + 1)]
                if len(names) > most:
                    raise BadReplyError(f"more than {most:,} objects; so many are accepted")
                reply = _inflated(announced, (yield from self._pull(names, limits)), limits)
                # The SuperLink compared what the reply says beside its objects with the message, not what it says inside.
                inside = reply.metadata
                if (inside.reply_to_message_id, inside.src_node_id) != (name, message.metadata.dst_node_id):
                    raise BadReplyError(f"a reply in the name of node {inside.src_node_id}")
                if not is_genuine(reply, message):
                    raise BadReplyError("a reply without the secret of the message")
        except _GoneError as problem:
            reply = error_reply(message, str(problem))
        except BadReplyError as problem:
            reply = error_reply(message, str(problem), refused=True)
        except HTTPStatusError as problem:  # the SuperLink is there, but chokes on this reply
            reply = error_reply(message, f"the SuperLink does not hand it out: {problem}")
        if announced:
            with suppress(HTTPStatusError):  # then it forgets the reply with the run
                self.confirm(
                    ConfirmMessageReceivedRequest(node=self.node, run_id=self.run, message_object_id=announced)
                )
        yield Step([reply], done=True)

    def _reply_to(self, name: str) -> Generator[Step, None, tuple[Any, Any] | None]:
        """What the SuperLink says of the reply to a message, and the tree of its objects; None where there is none yet."""
        answer = yield from _answered(self.ask, PullAppMessagesRequest(message_ids=[name]))
        pairs = zip(answer.messages_list, answer.message_object_trees, strict=True)
        # The SuperLink also hands out messages of users to agents.
        return next((pair for pair in pairs if pair[0].metadata.reply_to_message_id == name), None)

    def _pull(self, names: Sequence[str], limits: Limits) -> Generator[Step, None, dict[str, bytes]]:
        """Pull the objects of these names."""
        contents: dict[str, bytes] = {}
        total, missing = 0, list(dict.fromkeys(reversed(names)))  # pulled from the end: in the order Flower sends them
        moved = True
        while missing:
            # The first step ends before anything is pulled: whatever hangs then, the node has announced a reply.
            reason = f"announced a reply, and did not send {len(missing):,} of its objects in time"
            yield Step(moved=moved, unfinished=reason)
            moved, end = False, time.monotonic() + SLICE
            while missing and time.monotonic() < end:
                request = PullObjectRequest(node=self.node, run_id=self.run, object_id=missing[-1])
                answer = yield from _answered(self.pull, request)
                if not answer.object_found:
                    raise _GoneError("part of the reply is gone; its upload may have taken too long")
                if not answer.object_available:
                    break
                moved = True
                total += len(answer.object_content)
                refuse_beyond(limits.sent, total, "bytes")
                contents[missing.pop()] = answer.object_content
        return contents


def _answered(ask: Callable[[Any], Any], request: Any) -> Generator[Step, None, Any]:
    """The answer to a question, which is asked again, one step each, while the SuperLink answers 5xx.

    That is no fault of the node whose reply it is: another one may have announced so many objects that the database is busy.
    """
    while True:
        try:
            return ask(request)
        except HTTPStatusError as problem:
            if not is_overload(problem):
                raise
            status = problem.response.status_code
            yield Step(unfinished=f"no reply in time: the SuperLink answered {status} when it was last asked")


def _inflated(name: str, contents: dict[str, bytes], limits: Limits) -> Message:
    """The reply, put together from its objects."""
    try:
        check_inflated(contents, limits)
        reply = inflate_object_from_contents(name, contents)
    except BadReplyError:
        raise
    except Exception as problem:  # a liar chooses the bytes, and so what the decoder raises
        raise BadReplyError(unreadable(problem)) from None
    if not isinstance(reply, Message):
        raise BadReplyError(f"a bare {type(reply).__name__} in place of a message")
    return reply


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


# Flower names an object by the hash of its content, and keeps those of all nodes in one store. A node that foresees an object
# of the server (the configuration of the next round, a model that is sent again) can announce it first, with parts that it does
# not have; a SuperLink with a database then refuses the server's. With a salt in it, nobody can foresee it.


def salt(messages: Sequence[Message]) -> None:
    """Give the messages contents that nobody can foresee, and that nodes read as they would have read the first.

    Arrays get blanks at the end of their headers, configurations an entry `salt`. Messages that shared a content still do.
    """
    made: dict[int, RecordDict] = {}
    for message in messages:
        content = message.content
        if id(content) not in made:
            made[id(content)] = RecordDict({name: _salted(record) for name, record in content.items()})
        message.content = made[id(content)]


def _salted(record: Record) -> Record:
    if isinstance(record, ArrayRecord):
        return ArrayRecord({key: salted_array(array) for key, array in record.items()})
    if isinstance(record, ConfigRecord):
        return ConfigRecord({**record, "salt": secrets.token_hex(16)})
    return record


def salted_array(array: Array) -> Array:
    """The same array with some random blanks in its header, which also move the bounds of the parts that it is sent in.

    >>> import numpy as np
    >>> before = Array(np.arange(3.0))
    >>> after = salted_array(before)
    >>> after.numpy(), after.data == before.data
    (array([0., 1., 2.]), False)
    """
    if not array.data.startswith(MAGIC):
        return array
    start = len(MAGIC) + 2
    end = start + int.from_bytes(array.data[len(MAGIC) : start], "little")
    blanks = bytes(b" \t"[byte % 2] for byte in secrets.token_bytes(LINE * (1 + secrets.randbelow(LINES))))
    header = array.data[start:end].rstrip() + b" " + blanks
    header += b" " * (-(start + len(header) + 1) % LINE) + b"\n"
    data = b"".join([MAGIC, len(header).to_bytes(2, "little"), header, array.data[end:]])
    return Array(array.dtype, array.shape, array.stype, data)
