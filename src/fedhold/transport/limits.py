"""The most that one reply may hold. A node that sends more loses the round; refusing it costs the server next to nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

SPARE_BYTES = 2**20  # bytes of a reply beside its numbers: metrics, keys, headers
MAX_RECORDS = 100  # records of a reply
MAX_ENTRIES = 10_000  # entries of a record, beside as many arrays as the model has
MAX_NUMBERS = 100_000  # numbers of one list
MAX_KEY = 1000  # characters of a key
MAX_TEXT = 100_000  # characters of a text
OBJECT_HEAD = 1024  # bytes that Flower adds to each object it sends: its type, the ids of its parts, their order
SMALL_PART = (
    2**16
)  # bytes of an array in one object; Flower's own are 5 MiB, unless a node's environment says otherwise


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
    fedhold.transport.limits.BadReplyError: 5,000 records; at most 100 are accepted
    """
    if met > most:
        raise BadReplyError(f"{met:,} {what}; at most {most:,} are accepted")
