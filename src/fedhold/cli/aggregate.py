"""fedhold aggregate: updates from files, the result to a file."""

from __future__ import annotations

import csv
import json
import math
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from typing import Annotated, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

import fedhold
from fedhold.cli.errors import failure, told, usage_errors
from fedhold.cli.parameters import Argument, Option
from fedhold.errors import listed, one_line
from fedhold.groups import Groups
from fedhold.report import ProgressLines, print_line, print_table, table_of, visible
from fedhold.result import Aggregation
from fedhold.spec import DEFAULT, parse
from fedhold.storage import write_whole
from fedhold.updates import DamagedFileError, Told, open_update, open_updates, paths_of, save_update

PATIENCE = 2.0  # seconds before a bar is worth showing
SHOWN = 20  # clients in the printed table; the report has them all
COLUMNS = ("file", "status", "weight", "share", "distance", "threshold", "samples", "reason")


def aggregate(
    updates: Annotated[
        list[Path],
        Argument("A directory of .npy or .safetensors files, one per client; or such files."),
    ],
    out: Annotated[Path, Option("Where the result goes: .npy or .safetensors, as the updates.")],
    rule: Annotated[str, Option("As in aggregate(): huber, 'krum(f=10)', 'screen | huber', ...")] = DEFAULT,
    samples: Annotated[
        Path | None, Option("The n_i: JSON, a list or {file name: n_i}; or CSV, lines of file name,n_i.")
    ] = None,
    groups: Annotated[
        list[str] | None,
        Option("Arrays that are aggregated by themselves: adapters, or name=pattern, again and again."),
    ] = None,
    exclude: Annotated[
        list[str] | None,
        Option("A pattern of arrays that stay as they are in --like, such as 'head.*'; again and again."),
    ] = None,
    like: Annotated[Path | None, Option("The model that the clients were sent, a file as theirs.")] = None,
    report: Annotated[Path | None, Option("Where to write what was done to each client, as JSON.")] = None,
    seed: Annotated[
        int | None, Option("Rules that draw then draw the same again; keep it from the clients.", least=0)
    ] = None,
) -> None:
    """Aggregate updates in files, however large: they are read in parts, and never all in memory.

    A damaged file costs its client the round, and nobody else. The result appears whole or not at all.

    Ends with 0 when the result is written, with 2 for a call that cannot work or when nobody is left, with 1 when the disk
    fails on the way.
    """
    with usage_errors():
        words = {"groups": _groups(groups or []), "exclude": exclude or None}
        result, names = _aggregated_files(
            updates, rule=rule, out=out, samples=samples, report=report, seed=seed, like=like, **words
        )
        with _saying(f"Nothing was written to {out}"):
            save_update(result.value, out)
        if report is not None:
            with _saying(f"The result is in {out}; no report was written"):
                write_whole(report, (json.dumps(_report(result, names), indent=1) + "\n").encode())
    console = Console(highlight=False)
    _print_clients(console, result, names)
    print_line(console, repr(result))
    if result.diagnosis is not None and result.diagnosis.differ:
        print_line(console, result.diagnosis.text)
    print_line(console, f"Result: {out}")


@contextmanager
def _saying(state: str) -> Iterator[None]:
    """Where the disk fails, say also what was written and what was not."""
    try:
        yield
    except OSError as problem:
        raise failure(f"{told(problem)}. {state}") from None


def _aggregated_files(
    source: Sequence[Path],
    *,
    rule: str,
    out: Path,
    samples: Path | None,
    report: Path | None,
    seed: int | None,
    like: Path | None,
    **groups: Any,
) -> tuple[Aggregation, list[str]]:
    """The aggregate of the files, and their names. What would fail after hours of reading fails before them."""
    parse(rule, {})
    if len(source) == 1 and not source[0].exists():
        raise ValueError(f"{source[0]} does not exist. Pass a directory of .npy or .safetensors files, or such files.")
    paths = paths_of(source[0] if len(source) == 1 and source[0].is_dir() else source)
    names = [path.name for path in paths]
    claimed = None if samples is None else read_samples(samples, names)
    total = 0
    for path in paths:
        with suppress(OSError):  # A link that leads nowhere has no size.
            total += path.stat().st_size
    with bar(total, Console(stderr=True), PATIENCE) as on_read:
        updates = open_updates(paths, on_read=on_read)
        _check_places(out, report, source, paths, updates)
        model = None if like is None else open_update(like)
        return fedhold.aggregate(updates, rule, samples=claimed, rng=seed, like=model, **groups), names


def _groups(words: Sequence[str]) -> Groups | None:
    """The groups that are written as "adapters", or as several "name=pattern"."""
    if not words or "=" not in words[0]:
        return words[0] if words else None
    groups: dict[str, list[str]] = {}
    for word in words:
        name, given, pattern = word.partition("=")
        if not given or not name or not pattern:
            raise ValueError(f'--groups {word} is no name=pattern. Write --groups "head=head.*", or --groups adapters.')
        groups.setdefault(name, []).append(pattern)
    return groups


@contextmanager
def bar(total: int, console: Console, patience: float) -> Iterator[Told]:
    """A progress bar; the function it gives is called with the number of bytes read, from any thread.

    total     bytes in all files; a rule may read them several times, and the bar shows which time it is
    patience  seconds before the bar is shown
    """
    progress = Progress(
        TextColumn("reading, time {task.fields[turn]}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task, began, lock = progress.add_task("", total=total, turn=1), time.monotonic(), Lock()
    done, now = 0, ProgressLines()

    def on_read(count: int) -> None:
        nonlocal done
        with lock:
            done += count
            turns, rest = divmod(done, max(total, 1))
            progress.update(task, completed=rest, turn=turns + 1)
            if not console.is_terminal:
                now.say(f"reading, time {turns + 1}: {rest / max(total, 1):.0%}")
            elif time.monotonic() - began > patience:
                progress.start()

    try:
        yield on_read
    finally:
        if progress.live.is_started:
            progress.stop()


def read_samples(path: Path, names: Sequence[str]) -> list[Any]:
    """The n_i of the files with these names.

    path   JSON, with a list in the order of the names or an object {name: n_i}; or CSV, with lines name,n_i
    names  of the files

    An n_i that is no number is an error: the file is the operator's. A number such as -1 is the client's own claim, for which
    `fedhold.aggregate` rejects the client.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        given = json.loads(text) if path.suffix.lower() == ".json" else _from_csv(text)
    except (OSError, ValueError) as problem:
        raise ValueError(f"samples cannot be read from {path}: {problem}. Pass a .json or .csv file.") from None
    if isinstance(given, list):
        if len(given) != len(names):
            raise ValueError(f"{path} has {len(given)} samples for {len(names)} files. Pass one n_i per file.")
        given = dict(zip(names, given, strict=True))
    missing = [name for name in names if not isinstance(given, dict) or name not in given]
    if missing:
        raise ValueError(
            f"{path} has no samples for {listed(missing[:5])}{' ...' if len(missing) > 5 else ''}. Pass a JSON object or CSV "
            "lines with the name of every file and its n_i."
        )
    for name in names:
        if isinstance(given[name], bool) or not isinstance(given[name], int | float):
            raise ValueError(
                f"the n_i of {name} in {path} must be a number, got {one_line(repr(given[name]), 50)}. Pass one such as 100."
            )
    return [given[name] for name in names]


def _from_csv(text: str) -> dict[str, Any]:
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if any(len(row) != 2 for row in rows):
        raise ValueError("a line that is not name,n_i")
    given: dict[str, Any] = {name.strip(): samples for name, samples in rows}
    for name, samples in given.items():
        with suppress(ValueError):
            given[name] = float(samples)
    return given


def _check_places(
    out: Path, report: Path | None, source: Sequence[Path], paths: Sequence[Path], updates: Sequence[Any]
) -> None:
    """Raise now what would make the writing of result and report fail, or destroy an update, after hours of reading."""
    taken = {os.path.realpath(path) for path in (*source, *paths)}
    for option, path in (("--out", out), ("--report", report)):
        if path is None:
            continue
        real = os.path.realpath(path)
        if real in taken or os.path.dirname(real) in taken:
            raise ValueError(
                f"{path} lies among the updates, and would be one of them next time. Pass another {option}."
            )
        if path.is_dir():
            raise ValueError(f"{path} is a directory. Pass the name of a file to {option}.")
        path.parent.mkdir(parents=True, exist_ok=True)
    if report is not None and os.path.realpath(out) == os.path.realpath(report):
        raise ValueError(f"{out} cannot hold both the result and the report. Pass another --report.")
    sound = [update for update in updates if not isinstance(update, DamagedFileError)]
    dicts = sum(isinstance(update, dict) for update in sound)
    suffix = ".safetensors" if 2 * dicts > len(sound) else ".npy"  # Those in the minority will be rejected.
    if sound and out.suffix.lower() != suffix:
        raise ValueError(f"{out} must end in {suffix}, as the updates do. Pass another --out.")


def _report(result: Aggregation, names: Sequence[str]) -> dict[str, Any]:
    """What was done to each client, for JSON, which has no infinity and no NaN: None stands for them."""

    def plain(value: Any) -> Any:
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {
        "rule": result.rule,
        "f": result.f,
        "converged": result.converged,
        "iterations": result.iterations,
        "groups": result.diagnosis.text if result.diagnosis else None,
        "clients": [
            {"file": name, **{key: plain(value) for key, value in row.items()}}
            for name, row in zip(names, result.clients.to_dicts(), strict=True)
        ],
    }


def _print_clients(console: Console, result: Aggregation, names: Sequence[str]) -> None:
    """Print the rejected clients first, then those farthest from the result."""
    ordered = sorted(result.clients, key=lambda row: -math.inf if row.distance is None else -row.distance)
    table = table_of(*COLUMNS, numbers=COLUMNS[2:7])
    for row in ordered[:SHOWN]:
        table.add_row(
            _cell(names[row.client], console), *(_cell(getattr(row, column), console) for column in COLUMNS[1:])
        )
    more = f" (of {len(ordered)}; --report has them all)" if len(ordered) > SHOWN else ""
    print_table(console, f"Clients, the rejected first, then the farthest{more}", table)


def _cell(value: object, console: Console) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else escape(visible(value, encoding=console.encoding))
