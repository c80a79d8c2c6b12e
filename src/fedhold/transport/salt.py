"""Messages that say the same in other bytes, for a SuperLink that was told lies about the objects of the first ones.

Flower names an object by the hash of its content, and keeps those of all nodes in one store. A node that foresees an object
of the server (the configuration of the next round, a model that is sent again) can announce it first, with parts that it does
not have; a SuperLink with a database then refuses the server's. With a salt in it, nobody can foresee it.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

Record = ArrayRecord | ConfigRecord | MetricRecord

MAGIC = b"\x93NUMPY\x01\x00"  # how arrays in NumPy's format begin; two bytes with the length of the header follow
LINE = 64  # bytes to which NumPy aligns the numbers after a header
LINES = 128  # NumPy reads headers up to 10,000 bytes


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
