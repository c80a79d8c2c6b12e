"""The network side of a Flower server: messages go out to nodes, and what comes back is read without trust.

In: Flower's grid, messages, and arrays of the form that replies must have. Out: for every node its arrays and its number of
samples, or the reason why it has none. It knows no rule and no model. Imports: `fedhold.errors`. Needs flwr.

    grid     waiting for nodes, sampling them, exchanging messages with them
    link     a SuperLink, asked part by part; the only module with names that Flower does not publish
    replies  what nodes sent -> arrays and samples, or a reason; the most that one reply may hold
"""

from fedhold.transport.grid import exchange, sample, sample_size, wait_for_nodes
from fedhold.transport.replies import KINDS, WIDEST, Arrays, Limits, Reply, flaw_of, read_replies

__all__ = [
    "KINDS",
    "WIDEST",
    "Arrays",
    "Limits",
    "Reply",
    "exchange",
    "flaw_of",
    "read_replies",
    "sample",
    "sample_size",
    "wait_for_nodes",
]


def __dir__() -> list[str]:
    """The public names, for help() and for the completion of names."""
    return sorted(__all__)
