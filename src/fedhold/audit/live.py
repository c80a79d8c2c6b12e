"""fedhold watch: an audit as it grows, in the terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console, RenderableType
from rich.live import Live
from rich.text import Text

from fedhold.audit.page import find_audit
from fedhold.audit.records import RoundRecord, read
from fedhold.audit.scoreboard import Scoreboard, round_line
from fedhold.report import visible

__all__ = ["Follower", "watch"]

OTHER_LINES = 18  # of a screen, beside the nodes
IDLE = 4  # times as long as reading and showing take, so that a long audit costs no more than a fifth of a core


class Follower:
    """The audit in a file that may not exist yet, grow, be cut short or be replaced: whatever it holds now.

    rounds    of its last run
    notes     what its reader says of it: a line that is not whole, runs before the last
    problem   what is wrong with it, where it is no audit
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rounds: list[RoundRecord] = []
        self.notes: list[str] = []
        self.problem: ValueError | None = None
        self._state: tuple[int, int, int] | None = None

    def look(self) -> bool:
        """Read the file again if it changed since the last look; whether it did."""
        try:
            stat = self.path.stat()
            state = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
            if state == self._state:
                return False
            notes: list[str] = []
            rounds, problem = read(self.path, notes.append), None
        except FileNotFoundError:
            changed = self._state is not None
            self._state, self.rounds, self.notes, self.problem = None, [], [], None
            return changed
        except ValueError as found:
            rounds, notes, problem = [], [], found
        self._state, self.rounds, self.notes, self.problem = state, rounds, notes, problem
        return True


def watch(path: Path, *, once: bool, every: float, console: Console) -> None:
    """Show the audit now (`once`), or look every so many seconds and show what changed, until Ctrl-C.

    A terminal gets the scoreboard, anything else a line for each round.
    """
    follower = Follower(find_audit(path) or (path / "audit.jsonl" if path.is_dir() else path))
    if once:
        follower.look()
        if follower.problem is not None:
            raise follower.problem
        console.print(_screen(follower, console))
        return
    try:
        if console.is_terminal:
            _live(follower, every, console)
        else:
            _log(follower, every, console)
    except KeyboardInterrupt:
        if console.is_terminal and follower.rounds:
            console.print(_screen(follower, console))


def _live(follower: Follower, every: float, console: Console) -> None:
    size = None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for changed in _looks(follower, every):
            if changed or console.size != size:
                size = console.size
                live.update(_screen(follower, console, size.height), refresh=True)


def _log(follower: Follower, every: float, console: Console) -> None:
    told: set[tuple[str, int, str]] = set()
    for changed in _looks(follower, every):
        for record in follower.rounds if changed else ():
            this = (record.run, record.round, record.time)
            if this not in told:
                told.add(this)
                console.print(Text(round_line(record, console.encoding)), soft_wrap=True)
        if changed and follower.problem is not None:
            console.print(Text(visible(follower.problem, 400, encoding=console.encoding)), soft_wrap=True)


def _looks(follower: Follower, every: float) -> Iterator[bool]:
    """Whether the file changed, again and again."""
    while True:
        started = time.monotonic()
        yield follower.look()
        time.sleep(max(every, IDLE * (time.monotonic() - started)))


def _screen(follower: Follower, console: Console, height: int | None = None) -> RenderableType:
    """The scoreboard, or why there is none yet; cut to `height` lines."""
    if follower.problem is not None:
        return Text(visible(follower.problem, 400, encoding=console.encoding), "red")
    if not follower.rounds:
        there = "holds no finished round yet" if follower.path.exists() else "is not there yet"
        return Text(visible(f"{follower.path} {there}.", 400, encoding=console.encoding))
    rows = None if height is None else max(4, height - OTHER_LINES)
    return Scoreboard(follower.rounds, follower.notes, console.encoding, rows)
