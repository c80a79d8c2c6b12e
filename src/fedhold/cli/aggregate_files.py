"""fedhold aggregate: updates from files, the result to a file."""

from __future__ import annotations

import csv
import json
import math
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

from fedhold.aggregation import Aggregation, Client, aggregate
from fedhold.errors import listed
from fedhold.report import print_table, table_of
from fedhold.spec import parse
from fedhold.storage import write_whole
from fedhold.updates import DamagedFileError, Told, open_updates, paths_of, save_update

__all__ = ["bar", "play", "read_samples"]

PATIENCE = 2.0  # seconds before a bar is worth showing
SHOWN = 20  # clients in the printed table; the report has them all
COLUMNS = ("file", "status", "weight", "distance", "threshold", "samples", "reason")


def play(
    source: Sequence[Path], *, rule: str, out: Path, samples: Path | None, report: Path | None, console: Console
) -> Aggregation:
    """Aggregate the files, print who was rejected or stands out, and write the result, and a report if asked for."""
    try:
        parse(rule, {})  # before hours of reading
    except TypeError as problem:
        raise ValueError(str(problem)) from None
    paths = paths_of(source[0] if len(source) == 1 and source[0].is_dir() else source)
    names = [path.name for path in paths]
    claimed = None if samples is None else read_samples(samples, names)
    with bar(sum(path.stat().st_size for path in paths), Console(stderr=True), PATIENCE) as on_read:
        updates = open_updates(paths, on_read=on_read)
        _check_out(out, source, paths, updates)
        result = aggregate(updates, rule, samples=claimed)
    save_update(result.value, out)
    if report is not None:
        write_whole(report, (json.dumps(_report(result, names), indent=1) + "\n").encode())
    _print_clients(console, result, names)
    console.print(f"{result!r}", markup=False, soft_wrap=True)
    console.print(f"Result: {out}", markup=False, soft_wrap=True)
    return result


@contextmanager
def bar(total: int, console: Console, patience: float) -> Iterator[Told]:
    """A bar that is told of bytes read; a rule may read all of them several times. None is shown before `patience` seconds."""
    progress = Progress(
        TextColumn("reading, time {task.fields[turn]}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    task, began, lock = progress.add_task("", total=total, turn=1), time.monotonic(), Lock()
    done = 0

    def on_read(count: int) -> None:
        nonlocal done
        with lock:  # told by several threads
            done += count
            progress.update(task, completed=done % total, turn=done // total + 1)
            if console.is_terminal and time.monotonic() - began > patience:
                progress.start()

    try:
        yield on_read
    finally:
        if progress.live.is_started:
            progress.stop()


def read_samples(path: Path, names: Sequence[str]) -> list[Any]:
    """The n_i for files of these names: from JSON, a list in their order or an object; or from CSV, with lines name,n_i.

    What is no number is left to `aggregate`, which rejects the client.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        given = json.loads(text) if path.suffix.lower() == ".json" else _from_csv(text)
    except (OSError, ValueError) as problem:
        raise ValueError(f"samples cannot be read from {path}: {problem}. Pass a .json or .csv file.") from None
    if isinstance(given, list):
        if len(given) != len(names):
            raise ValueError(f"{path} has {len(given)} samples for {len(names)} files. Pass one n_i per file.")
        return given
    missing = [name for name in names if not isinstance(given, dict) or name not in given]
    if missing:
        raise ValueError(
            f"{path} has no samples for {listed(missing[:5])}{' ...' if len(missing) > 5 else ''}. Pass a JSON object or CSV "
            "lines with the name of every file and its n_i."
        )
    return [given[name] for name in names]


def _from_csv(text: str) -> dict[str, Any]:
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if any(len(row) != 2 for row in rows):
        raise ValueError("a line that is not name,n_i")
    return {name.strip(): _number(samples) for name, samples in rows}


def _number(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


def _check_out(out: Path, source: Sequence[Path], paths: Sequence[Path], updates: Sequence[Any]) -> None:
    """What would go wrong after hours of reading, said before."""
    if out.resolve() in {path.resolve() for path in (*source, *paths)} or out.resolve().parent in map(
        Path.resolve, source
    ):
        raise ValueError(f"{out} lies among the updates, and would be one of them next time. Pass another --out.")
    sound = [update for update in updates if not isinstance(update, DamagedFileError)]
    suffix = ".safetensors" if any(isinstance(update, dict) for update in sound) else ".npy"
    if sound and out.suffix.lower() != suffix:
        raise ValueError(f"{out} must end in {suffix}, as the updates do. Pass another --out.")
    out.parent.mkdir(parents=True, exist_ok=True)


def _report(result: Aggregation, names: Sequence[str]) -> dict[str, Any]:
    return {
        "rule": result.rule,
        "converged": result.converged,
        "iterations": result.iterations,
        "clients": [
            {"file": name, **{key: _plain(value) for key, value in row.items()}}
            for name, row in zip(names, result.clients.to_dicts(), strict=True)
        ],
    }


def _plain(value: Any) -> Any:
    """JSON has no infinity and no NaN."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _print_clients(console: Console, result: Aggregation, names: Sequence[str]) -> None:
    """The rejected first, then those farthest from the result."""
    ordered = sorted(result.clients, key=lambda row: -math.inf if row.distance is None else -row.distance)
    table = table_of(*COLUMNS, numbers=COLUMNS[2:6])
    for row in ordered[:SHOWN]:
        table.add_row(escape(names[row.client]), *(_cell(row, column) for column in COLUMNS[1:]))
    more = f" (of {len(ordered)}; --report has them all)" if len(ordered) > SHOWN else ""
    print_table(console, f"Clients, the rejected first, then the farthest{more}", table)


def _cell(row: Client, column: str) -> str:
    value = getattr(row, column)
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else escape(str(value))
