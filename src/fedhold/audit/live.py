"""fedhold watch: an audit as it grows, in the terminal.

`follow` reads the file again and again. A terminal gets the Scoreboard: the last round, its nodes, and the suspects. A pipe
gets a line for each round. All texts that clients chose pass `visible` and are `Text`, never markup, so that they can neither
move the cursor nor choose colours.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.table import Table
from rich.text import Text

from fedhold.audit.records import RoundRecord, find_audit, metric_series, number_of, read, rule_of
from fedhold.audit.suspects import (
    COUNTED,
    HELD_DOWN,
    NOT_ASKED,
    Seen,
    Standing,
    as_text,
    judge_round,
    ranges,
    round_facts,
    short_names,
    shown_name,
    standings,
    state_of,
)
from fedhold.report import FULL, number, table_of, visible

MOST_NODES = 60  # of a screen that has no height
OTHER_LINES = 18  # of a screen, beside the nodes
IDLE = 4  # times as long as reading and showing take, so that a long audit costs no more than a fifth of a core
MOST_SAID = 400  # characters of a note, or of a part of a line
STYLES = {COUNTED: "green", HELD_DOWN: "yellow", "rejected": "bold red", "quarantined": "magenta"}
BAR = 8  # characters for a share of FULL
POINTS = 16  # of a sparkline
MOST_METRICS, MOST_SUSPECTS = 6, 5
MOST_ROWS = 1000  # nodes of a screen that has no height
MOST_HELD = 100  # nodes that the line of a round names
TAKEN = 62  # columns of the screen that the table of nodes needs beside names and reasons
MOST_CALLED = 16  # characters of a node's name in that table


# The file


class Follower:
    """The audit in a file that may not exist yet, grow, be cut short or be replaced. It always holds the file's present state.

    rounds    of the last run in the file
    notes     what the reader says about the file: a line that is not whole, runs before the last
    problem   what is wrong with the file, where it is no audit; else None
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


def follow(path: Path, *, once: bool, every: float, console: Console, as_json: bool = False) -> None:
    """What `fedhold.audit.watch` does."""
    follower = Follower(find_audit(path) or (path / "audit.jsonl" if path.is_dir() else path))
    if once:
        follower.look()
        if follower.problem is not None:
            raise follower.problem
        if as_json:
            console.out(as_text(state_of(follower.rounds, follower.notes)), highlight=False)
        else:
            console.print(_screen(follower, console))
        return
    try:
        if as_json or not console.is_terminal:
            _log(follower, every, console, as_json=as_json)
        else:
            _live(follower, every, console)
    except KeyboardInterrupt:
        if console.is_terminal and follower.rounds and not as_json:
            console.print(_screen(follower, console))


def _live(follower: Follower, every: float, console: Console) -> None:
    size = None
    with Live(console=console, screen=True, auto_refresh=False) as live:
        for changed in _looks(follower, every):
            if changed or console.size != size:
                size = console.size
                live.update(_screen(follower, console, size.height), refresh=True)


def _log(follower: Follower, every: float, console: Console, *, as_json: bool) -> None:
    printed: set[tuple[str, int, str]] = set()
    for changed in _looks(follower, every):
        if not changed:
            continue
        for record in follower.rounds:
            this = (record.run, record.round, record.time)
            if this not in printed:
                printed.add(this)
                if as_json:
                    console.out(as_text(round_facts(record)), highlight=False)
                else:
                    console.print(Text(round_line(record, console.encoding)), soft_wrap=True)
        if follower.problem is not None and not as_json:
            console.print(Text(visible(follower.problem, MOST_SAID, encoding=console.encoding)), soft_wrap=True)


def _looks(follower: Follower, every: float) -> Iterator[bool]:
    """Whether the file changed, again and again."""
    while True:
        started = time.monotonic()
        yield follower.look()
        time.sleep(max(every, IDLE * (time.monotonic() - started)))


def _screen(follower: Follower, console: Console, height: int | None = None) -> RenderableType:
    """The scoreboard, or why there is none yet; cut to `height` lines."""
    if follower.problem is not None:
        return Text(visible(follower.problem, MOST_SAID, encoding=console.encoding), "red")
    if not follower.rounds:
        there = "holds no finished round yet" if follower.path.exists() else "is not there yet"
        return Text(visible(f"{follower.path} {there}.", MOST_SAID, encoding=console.encoding))
    rows = None if height is None else max(4, height - OTHER_LINES)
    return Scoreboard(follower.rounds, follower.notes, console.encoding, rows)


# What is shown


@dataclass(frozen=True)
class Scoreboard:
    """What is known of a run, for rich to print.

    rounds     of the run
    notes      lines below the rest
    encoding   of the terminal, which decides the characters that can be shown
    rows       how many nodes to show, suspects first, the rest in one line; None for MOST_NODES
    """

    rounds: Sequence[RoundRecord]
    notes: Sequence[str] = ()
    encoding: str = "utf-8"
    rows: int | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        ranked = standings(self.rounds)
        yield from self._head()
        yield from self._metrics()
        yield self._nodes(ranked, options.max_width - TAKEN)
        yield from self._suspects(ranked)
        yield from map(self._soft, self.notes)

    def _say(self, text: object, most: int = 160) -> str:
        return visible(text, most, encoding=self.encoding)

    def _soft(self, text: str) -> Text:
        return Text(self._say(text, MOST_SAID), style="dim")

    def _draws(self, unicode: str, plain: str) -> str:
        """Characters to draw with that the terminal has."""
        return unicode if self.encoding.lower().startswith("utf") else plain

    def _head(self) -> Iterable[Text]:
        last = self.rounds[-1]
        kept = [record.round for record in self.rounds if record.outcome != "aggregated"]
        outcome = ("aggregated", "green") if last.outcome == "aggregated" else ("no new model", "bold red")
        facts = [Text(self._say(fact)) for fact in (rule_of(last), *_facts(last))]
        head = [Text(f"Round {last.round}", "bold"), facts[0], Text(*outcome), *facts[1:]]
        yield Text("   ").join([*head, Text(self._say(last.time), "dim")])
        if last.outcome != "aggregated" and last.note:
            yield Text(self._say(last.note), "red")
        if kept:
            yield Text(f"No new model in {len(kept)} of {len(self.rounds)} rounds: {ranges(kept)}")

    def _metrics(self) -> Iterable[Text]:
        lines = [
            (f"{self._say(phase, 12)} {self._say(name, 30)} ", list(line.values()))
            for name, phases in metric_series(self.rounds).items()
            for phase, line in phases.items()
        ]
        steps = self._draws("▁▂▃▄▅▆▇█", "_.-=+*%#")
        shown = [
            Text.assemble(words, (number(values[-1]), "bold"), " ", (sparkline(values[-POINTS:], steps), "cyan"))
            for words, values in lines[:MOST_METRICS]
        ]
        more = [self._soft(f"and {len(lines) - MOST_METRICS} more")] * (len(lines) > MOST_METRICS)
        if shown:
            yield Text("   ").join([*shown, *more])

    def _nodes(self, ranked: Sequence[Standing], room: int) -> Table:
        seen = judge_round(self.rounds[-1])
        names = short_names([one.node for one in ranked])
        table = table_of(*("node", "status", "share", "rejected", HELD_DOWN, "reason"), numbers=("rejected", HELD_DOWN))
        for column in table.columns:  # cut what would need a second line: the height of the screen is counted in nodes
            column.no_wrap, column.overflow = True, "crop"
        shown = ranked[: self.rows or MOST_NODES]
        called = [self._say(shown_name(one.node, one.name and one.name[:MOST_CALLED], names)) for one in shown]
        left = max(8, room - max(map(len, called), default=0))
        for one, name in zip(shown, called, strict=True):
            table.add_row(Text(name), *self._cells(one, seen.get(one.node), left))
        return table

    def _cells(self, one: Standing, now: Seen | None, room: int) -> Iterable[Text]:
        word, share = (NOT_ASKED, None) if now is None else (now.word, now.share)
        style, rejected = STYLES.get(word, "dim"), one.rejected + one.bad_evaluations
        bar = self._draws("█", "#") * round(BAR * min(1.0, (share or 0.0) / FULL))
        yield Text(self._say(word), style)
        yield Text("   -" if share is None else f"{share:.2f} {bar.ljust(BAR)}", style)
        yield Text(str(rejected), "" if rejected else "dim")
        yield Text(f"{one.held}/{one.asked}", "bold red" if one.is_suspect else "dim")
        yield Text("" if now is None else self._say("; ".join(now.reasons), room))

    def _suspects(self, ranked: Sequence[Standing]) -> Iterable[Text]:
        rest = ranked[self.rows or MOST_NODES :]
        if rest:
            seen = judge_round(self.rounds[-1])
            words = Counter(seen[one.node].word if one.node in seen else NOT_ASKED for one in rest)
            yield self._soft(
                f"and {len(rest)} nodes more: {', '.join(f'{n} {word}' for word, n in words.most_common())}"
            )
        suspects = [one for one in ranked if one.is_suspect]
        yield Text(f"Suspects: {len(suspects)} of {len(ranked)} nodes", "bold")
        for one in suspects[: MOST_NODES if self.rows is None else MOST_SUSPECTS]:
            why = f": {self._say(one.reasons[0][0])}" if one.reasons else ""
            held = f"{HELD_DOWN} in {one.held} of {one.asked} rounds{why}"
            yield Text(
                f"  {self._say(shown_name(one.node, one.name))}  {held}", no_wrap=self.rows is not None, overflow="crop"
            )


def sparkline(values: Sequence[float], steps: str) -> str:
    """Numbers as a row of characters; the first of `steps` stands for the least number, the last for the largest.

    >>> sparkline([0.0, 1.0, 2.0], "_-#")
    '_-#'
    """
    low, high = min(values), max(values)
    room = high / 2 - low / 2  # halves: the difference of the largest floats overflows
    return "".join(steps[round((value / 2 - low / 2) / room * (len(steps) - 1)) if room > 0 else 0] for value in values)


def round_line(record: RoundRecord, encoding: str = "utf-8") -> str:
    """One round as one line of plain text, for a log."""
    seen = judge_round(record)
    names = short_names(list(seen))
    held = [one for one in seen.values() if one.held]
    told = [
        f"{shown_name(one.node, one.name, names)} ({'; '.join(one.reasons) or one.status})" for one in held[:MOST_HELD]
    ]
    kept = f"no new model: {record.note or 'no reason was written'}"
    metrics = [
        f"{phase} {name} {number(line[record.round])}"
        for name, phases in metric_series([record]).items()
        for phase, line in phases.items()
    ]
    parts = [
        *(f"round {record.round}", rule_of(record), "aggregated" if record.outcome == "aggregated" else kept),
        *(*_facts(record), *metrics[:MOST_METRICS]),
        f"{HELD_DOWN} {len(held)} of {len(seen)}" + (f": {', '.join(told)}" if told else ""),
    ]
    return "  ".join(visible(part, MOST_SAID, encoding=encoding) for part in parts)


def _facts(record: RoundRecord) -> Iterable[str]:
    """Radius and seconds of a round, as far as they are known."""
    if record.certificate:
        radius = number_of(record.certificate.get("radius"))
        near = "not proven to be near" if radius is None else f"within {number(radius)}"
        yield f"everyone else's Huber aggregate {near}, without any {record.certificate.get('f')}"
    seconds = [number_of(record.seconds.get(part)) for part in ("round", "aggregation")]
    if seconds[0] is not None:
        yield f"{number(seconds[0])} s" + ("" if seconds[1] is None else f" (aggregation {number(seconds[1])} s)")
