"""One node's reply, fetched in short steps, so that a node that stalls costs only itself.

Grids in memory, as in simulations, hold replies whole already, and are asked by their own method. A SuperLink is asked part
by part, in `fedhold.transport.link`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Protocol

from flwr.app import Error, Message
from flwr.serverapp import Grid

from fedhold.errors import one_line

if TYPE_CHECKING:
    from fedhold.transport.link import Link

UNREADABLE = 4  # Flower's code for a reply that is not to be had
NETWORK = {"grpc", "httpcore", "httpx", "requests"}  # errors from these packages are the network's, not a reply's
IN_MEMORY = {"Grid", "Driver", "InMemoryGrid"}  # Flower's grids that ask no SuperLink; the first two are for subclasses


@dataclass(frozen=True)
class Step:
    """What a step of a fetch came to.

    replies   the replies that are whole
    done      whether one of them answers the message, so that there is nothing more to wait for
    moved     whether anything arrived; where nothing did, it is no use to ask again at once
    """

    replies: Sequence[Message] = ()
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


def link_of(grid: Grid) -> Link | None:
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


def error_reply(message: Message, reason: str) -> Message:
    """A reply that says why there is none that can be used."""
    return Message(Error(UNREADABLE, one_line(reason)), reply_to=message)


def unreadable(problem: Exception) -> str:
    """The reason for a reply whose bytes made the decoder raise this."""
    return f"the reply could not be read: {type(problem).__name__}: {one_line(problem)}"


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
            return Step([error_reply(self._message, unreadable(problem))], done=True)
        answers = (r.metadata.reply_to_message_id == self._name and is_genuine(r, self._message) for r in got)
        return Step(got, done=any(answers), moved=bool(got))

    def unfinished(self) -> list[Message]:
        return []
