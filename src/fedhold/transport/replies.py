"""The replies of nodes, read without trust: arrays and a number of samples from each, or the reason why it cannot be used."""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
from flwr.app import Array, ArrayRecord, Error, Message, MetricRecord, RecordDict
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedhold.errors import one_line

Arrays = dict[str, NDArray[Any]]
KINDS = {"f": "float", "i": "integer", "u": "integer", "b": "bool"}  # NumPy's kinds of dtype that an array may have
WIDEST = 8  # the most bytes of one number
STYPE = "numpy.ndarray"  # Flower's name for the one way of writing arrays that is accepted
UNREADABLE = 4  # Flower's code for a reply that is not to be had
REFUSED = 1000  # our code, which Flower has not, for a reply that its node sent and that cannot be used
REASON = 250  # characters of a reason, whatever a client's keys and dtypes add to it


# The most that one reply may hold. A node that sends more loses the round; refusing it costs the server next to nothing.
SPARE_BYTES = 2**20  # bytes of a reply beside its numbers: metrics, keys, headers
MAX_RECORDS = 100  # records of a reply
MAX_ENTRIES = 10_000  # entries of a record, beside as many arrays as the model has
MAX_NUMBERS = 100_000  # numbers of one list
MAX_KEY = 1000  # characters of a key
MAX_TEXT = 100_000  # characters of a text
OBJECT_HEAD = 1024  # bytes that Flower adds to each object it sends: its type, the ids of its parts, their order
# Bytes of an array in one object; Flower's own are 5 MiB, unless a node's environment says otherwise.
SMALL_PART = 2**16


class BadReplyError(Exception):
    """A reply cannot be used; the text is the reason."""


@dataclass(frozen=True)
class Limits:
    """The most that one reply may hold.

    total    bytes of all arrays, keys and values
    arrays   arrays of the model
    """

    total: int
    arrays: int

    @staticmethod
    def of(arrays: Mapping[str, NDArray[Any]], total: int | None = None) -> Limits:
        """The limits for replies to a model of these arrays; `total` is 4 times their bytes and 1 MiB unless given."""
        numbers = sum(array.nbytes for array in arrays.values())
        return Limits(4 * numbers + SPARE_BYTES if total is None else total, len(arrays))

    @property
    def objects(self) -> int:
        """The objects that a SuperLink may hold of one reply: the message, its records, their arrays, and parts of these."""
        return 2 + MAX_RECORDS + 2 * self.arrays + self.total // SMALL_PART

    @property
    def beside_arrays(self) -> int:
        """The bytes of all these objects but the parts of arrays; decoding makes up to 40 times as many of some of them."""
        return min(self.total, SPARE_BYTES) + OBJECT_HEAD * self.objects

    @property
    def sent(self) -> int:
        """The bytes of all these objects."""
        return self.total + OBJECT_HEAD * self.objects


def refuse_beyond(most: int, met: int, what: str) -> None:
    """Refuse a reply that has more than `most` of something.

    >>> refuse_beyond(100, 3, "records")
    >>> refuse_beyond(100, 5000, "records")
    Traceback (most recent call last):
    fedhold.transport.replies.BadReplyError: 5,000 records; at most 100 are accepted
    """
    if met > most:
        raise BadReplyError(f"{met:,} {what}; at most {most:,} are accepted")


class Step(NamedTuple):
    """What a step of the fetch of a reply came to.

    replies     the replies that are whole
    done        whether one of them answers the message, so that there is nothing more to wait for
    moved       whether anything arrived; where nothing did, it is no use to ask again at once
    unfinished  what there is to say of a reply of which only a part has come when time is up
    """

    replies: Sequence[Message] = ()
    done: bool = False
    moved: bool = False
    unfinished: str | None = None


def error_reply(message: Message, reason: str, *, refused: bool = False) -> Message:
    """A reply that says why there is none that can be used: because of what the node sent, or because nothing came of it."""
    return Message(Error(REFUSED if refused else UNREADABLE, one_line(reason)), reply_to=message)


def unreadable(problem: Exception) -> str:
    """The reason for a reply whose bytes made the decoder raise this."""
    return f"the reply could not be read: {type(problem).__name__}: {one_line(problem)}"


def is_overload(problem: Exception) -> bool:
    """Whether a SuperLink answered with a status of 5xx, as one whose database is busy does: the next question may succeed."""
    return getattr(getattr(problem, "response", None), "status_code", 0) >= 500


def is_genuine(reply: Message, message: Message) -> bool:
    """Whether the reply carries the secret of the message, its group id.

    Errors that Flower itself replies for a node that is gone do not always know the group, and have none.
    """
    group = reply.metadata.group_id
    return group == message.metadata.group_id or (not group and reply.has_error())


@dataclass(frozen=True)
class Reply:
    """One node's reply to one message.

    node      the id of the node
    reason    why the reply cannot be used; None where it can
    remark    what is odd about a reply that can be used
    claimed   the number of samples as it was sent: a number, or the text of what was sent instead
    samples   the same number as a float above 0; None where there is no such number
    arrays    the arrays of the model it replied with; None in evaluation
    metrics   all its metrics but the number of samples, plausible or not
    key       the key of these metrics in `content`
    content   the whole reply
    name      what the node calls itself; None where it does not
    answered  whether the node sent content, usable or not: one that raised or stayed silent sent none
    """

    node: int
    reason: str | None = None
    remark: str | None = None
    claimed: float | str | None = None
    samples: float | None = None
    arrays: Arrays | None = None
    metrics: dict[str, Any] | None = None
    key: str = ""
    content: RecordDict | None = None
    name: str | None = None
    answered: bool = False


def read_replies(
    sent: Sequence[Message],
    replies: Iterable[Message],
    *,
    like: Mapping[str, NDArray[Any]] | None,
    weight_key: str,
    name_key: str,
    limits: Limits,
    no_reply: str,
) -> list[Reply]:
    """One Reply for every node that was asked, by rising node id, then one for every other node that sent something.

    sent        the messages of this round
    replies     what came back
    like        the arrays that were sent, where such arrays must come back; None in evaluation
    weight_key  the name of the metric that holds the number of samples
    name_key    the key of a text in a ConfigRecord by which a node may name itself
    limits      the most that a reply may hold; one that holds more is rejected before any of its arrays is decoded
    no_reply    the reason for nodes from which nothing came
    """
    asked = {message.metadata.dst_node_id: message for message in sent}
    by_message = {message.metadata.message_id: message.metadata.dst_node_id for message in sent}
    by_message.pop("", None)  # a grid may give messages no ids; then all there is to go by is the sender a reply names
    answers: dict[int, Message] = {}
    remarks: dict[int, str] = {}
    for reply in replies:
        source, to = reply.metadata.src_node_id, reply.metadata.reply_to_message_id
        node = by_message.get(to) if by_message else source
        if node is None or node not in asked:
            remarks[source] = "replied to a message that was never sent"
        elif node in answers:
            remarks[node] = "replied more than once; the first reply counts"
        elif not reply.has_error() and source != node:  # error replies may come from the SuperLink itself
            remarks[source] = f"replied in the name of node {node}"
        elif not is_genuine(reply, asked[node]):
            remarks[node] = "a reply in its name lacks the secret of the message"
        else:
            answers[node] = reply
    read = []
    for node in sorted(asked):
        if node in answers:
            answer = _read(node, answers[node], like, weight_key, name_key, limits)
        else:
            answer = Reply(node, reason=remarks.pop(node, no_reply))
        read.append(replace(answer, remark=remarks[node]) if node in remarks else answer)
    return read + [Reply(node, reason=remarks[node]) for node in sorted(remarks.keys() - asked.keys())]


def _read(
    node: int,
    reply: Message,
    like: Mapping[str, NDArray[Any]] | None,
    weight_key: str,
    name_key: str,
    limits: Limits,
) -> Reply:
    """The reply of one node; the parameters are those of read_replies()."""
    if reply.has_error() and reply.error.code == REFUSED:
        return Reply(node, reason=one_line(reply.error.reason), answered=True)
    if reply.has_error():
        return Reply(node, reason=f"error {reply.error.code}: {one_line(reply.error.reason or 'without a reason')}")
    if not reply.has_content():
        return Reply(node, reason="an empty message")
    claimed: Any = None
    try:
        content = reply.content
        _check_size(content, limits)
        key = _only(content, MetricRecord)
        metrics = dict(content[key].items())
        claimed = metrics.pop(weight_key, None)
        names = [config.get(name_key) for config in content.config_records.values()]
        arrays = None if like is None else _arrays(cast(ArrayRecord, content[_only(content, ArrayRecord)]), like)
        return Reply(
            node,
            claimed=_reported(claimed),
            samples=_samples(claimed, weight_key),
            arrays=arrays,
            metrics=metrics,
            key=key,
            content=content,
            name=next((name for name in names if isinstance(name, str)), None),
            answered=True,
        )
    except BadReplyError as problem:
        return Reply(node, reason=one_line(problem, REASON), claimed=_reported(claimed), answered=True)


def _check_size(content: RecordDict, limits: Limits) -> None:
    """Refuse a reply as soon as it is seen to pass a limit; nothing is decoded to find out.

    It stops there because a node may put one large record under many names, which is small to send and long to add up.
    """
    refuse_beyond(MAX_RECORDS, len(content), "records")
    total = 0
    for name, record in content.items():
        refuse_beyond(MAX_KEY, len(name), "characters in the name of a record")
        refuse_beyond(MAX_ENTRIES + limits.arrays, len(record), "entries in a record")
        for key, value in record.items():
            if not isinstance(value, Array):  # keys of arrays must be the model's, however long these are
                refuse_beyond(MAX_KEY, len(key), "characters in a key")
            total += len(key) + (len(value.data) if isinstance(value, Array) else _size(value))
            refuse_beyond(limits.total, total, "bytes")


def _size(value: object) -> int:
    """About how many bytes an entry of a metric or config record has."""
    if isinstance(value, list):
        refuse_beyond(MAX_NUMBERS, len(value), "numbers in a list")
        return sum(map(_size, value)) if value and isinstance(value[0], str | bytes) else 8 * len(value)
    if isinstance(value, str):
        refuse_beyond(MAX_TEXT, len(value), "characters in a text")
    return len(value) if isinstance(value, str | bytes) else 8


def _only(content: RecordDict, sort: type[Any]) -> str:
    """The key of the one record of this type; none or several are a bad reply."""
    keys = [key for key, record in content.items() if isinstance(record, sort)]
    if len(keys) != 1:
        raise BadReplyError(f"{len(keys) or 'no'} {sort.__name__}{'s' if len(keys) > 1 else ''}, expected one")
    return keys[0]


def _samples(claimed: object, key: str) -> float:
    """The claimed number of samples as a float above 0; anything else is a bad reply."""
    if claimed is None:
        raise BadReplyError(f"no metric {key!r}")
    if isinstance(claimed, bool) or not isinstance(claimed, int | float):
        raise BadReplyError(f"{key!r} is a {type(claimed).__name__}, expected one number")
    if not (math.isfinite(claimed) and claimed > 0):
        raise BadReplyError(f"{key!r} is {claimed}: not a positive number")
    return float(claimed)


def _reported(claimed: object) -> float | str | None:
    """The claimed number of samples as the audit shows it."""
    if claimed is None or (isinstance(claimed, int | float) and math.isfinite(claimed)):
        return claimed
    return one_line(str(claimed[:20]) if isinstance(claimed, list) else str(claimed))


def _arrays(record: ArrayRecord, like: Mapping[str, NDArray[Any]]) -> Arrays:
    """The arrays of a record that has the same keys, shapes and kinds of dtype."""
    for key in like:
        if key not in record:
            raise BadReplyError(f"misses array {one_line(repr(key))}")
    for key in record:
        if key not in like:
            raise BadReplyError(f"has an extra array {one_line(repr(key))}")
    arrays: Arrays = {}
    for key, array in like.items():
        try:
            arrays[key] = _array(record[key], array)
        except BadReplyError as problem:
            raise BadReplyError(f"array {one_line(repr(key))} {problem}") from None
    return arrays


def _array(sent: Array, like: NDArray[Any]) -> NDArray[Any]:
    """The array in the bytes that were sent, as a view of them: a header that lies about its size allocates nothing.

    sent  the array as it came
    like  the array of the model under the same key
    """
    if sent.stype != STYPE:
        raise BadReplyError(f"is serialised as {one_line(repr(sent.stype))}, expected {STYPE!r}")
    start = 10 + int.from_bytes(sent.data[8:10], "little")  # where the numbers begin
    try:
        shape, fortran, dtype, name = _parsed(sent.data[:start])
    except Exception as problem:  # a liar chooses these bytes, and so what the parser raises
        raise BadReplyError(f"is no NumPy array: {one_line(str(problem))}") from None
    if tuple(sent.shape) != shape or sent.dtype != name:
        raise BadReplyError(
            f"declares {one_line(sent.dtype)}{one_line(str(tuple(sent.shape)))}, its bytes hold {dtype}{shape}"
        )
    if shape != like.shape:
        raise BadReplyError(f"has shape {shape}, expected {like.shape}")
    # A client may compute in wider or narrower floats than the model's; integers and bools must have the model's dtype.
    same = dtype.kind == like.dtype.kind and (dtype.kind == "f" or dtype.newbyteorder("=") == like.dtype)
    if not same or dtype.itemsize > WIDEST:
        expected = "floats" if like.dtype.kind == "f" else f"{KINDS[like.dtype.kind]}s of {like.dtype}"
        raise BadReplyError(f"has dtype {one_line(name)}, expected {expected}")
    if (size := len(sent.data) - start) != like.size * dtype.itemsize:
        raise BadReplyError(f"has {size} bytes for {like.size} numbers of {dtype}")
    if like.size == 0:
        return np.empty(shape, dtype)
    array = np.frombuffer(sent.data, dtype, offset=start)
    if dtype.itemsize > like.dtype.itemsize and (np.isfinite(array) & (np.abs(array) > np.finfo(like.dtype).max)).any():
        raise BadReplyError(f"has numbers beyond {like.dtype}")
    if flaw := flaw_of(array):
        raise BadReplyError(f"has {flaw}")
    return array.reshape(shape, order="F" if fortran else "C")


def flaw_of(array: NDArray[Any]) -> str | None:
    """What is wrong with bools whose bytes come from outside; None where nothing is, and for other dtypes.

    NumPy and torch write no byte but 0 and 1, and what their functions make of any other byte is not defined.
    """
    if array.dtype.kind == "b" and (array.view(np.uint8) > 1).any():
        return "bytes other than 0 and 1 among its bools"
    return None


# Most nodes send the same headers, and parsing one takes longer than reading a small layer.
@lru_cache(maxsize=1024)
def _parsed(header: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any], str]:
    """What the header of an array says of the numbers after it: shape, order, dtype and its name. Nothing is unpickled."""
    file = io.BytesIO(header)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if npy.read_magic(file) != (1, 0):  # later versions are for dtypes that are rejected anyway
            raise ValueError("another version of the format")
        shape, fortran, dtype = npy.read_array_header_1_0(file)
    return tuple(map(int, shape)), bool(fortran), dtype, str(dtype)
