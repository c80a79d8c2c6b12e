"""fedhold arena: every rule against every attack, and the leaderboard."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from fedhold.cli.errors import failure, usage_errors
from fedhold.cli.parameters import Argument, Option
from fedhold.report import print_line, print_table, table_of

if TYPE_CHECKING:
    from fedhold.lab import Standings

QUICK_MINUTES = 4.5  # of running; the page is written after that


def arena(
    config: Annotated[
        Path | None, Argument("A TOML file with parts of your own: rule, attack, data, partition, ...")
    ] = None,
    quick: Annotated[bool, Option("Small data, two seeds: within 5 minutes on two cores.")] = False,
    rule: Annotated[list[str] | None, Option("One more rule: a spec, or module:name.")] = None,
    attack: Annotated[list[str] | None, Option("One more attack.")] = None,
    data: Annotated[list[str] | None, Option("One more data set.")] = None,
    only: Annotated[list[str] | None, Option("Keep the settings, rules or attacks with this in their names.")] = None,
    seeds: Annotated[int | None, Option("How many; 3 unless given, 2 with --quick.")] = None,
    momentum: Annotated[float, Option("Of the clients' answers.")] = 0.0,
    jobs: Annotated[int, Option("Processes to run at once.")] = 2,
    cluster: Annotated[str | None, Option("Run on a Dask cluster: its scheduler's address.")] = None,
    minutes: Annotated[float | None, Option("Stop after so long; 0 writes the page of what is there.")] = None,
    out: Annotated[Path, Option("Where results and page go; found again next time.")] = Path("arena"),
) -> None:
    """Every rule against every attack, on several data sets: a leaderboard and a matrix. When killed, it can be run again."""
    from fedhold.lab import Arena, DataError, Standings, Store, read_parts, run_arena, write_arena

    console = Console(highlight=False)
    sys.path.append(str(Path.cwd()))  # for parts of the user's own; the last place, where a file hides no module
    with usage_errors(DataError, TypeError, ImportError):
        whole = Arena.registered(quick=quick)
        if config is not None:
            whole = whole.joined(read_parts(config))
        more = {"rule": rule or [], "attack": attack or [], "data": data or []}
        numbers = {"seeds": seeds} if seeds is not None else {}
        options = {"options": {"momentum": momentum}} if momentum else {}
        whole = whole.joined({**more, **numbers, **options}).narrowed(only or [])
        store = Store(out / "results", f"fedhold arena --out {out}")
        limit = (QUICK_MINUTES if quick else math.inf) if minutes is None else minutes
        failures = run_arena(whole, store, jobs=jobs, cluster=cluster, seconds=60 * limit)
        standings = Standings(whole, store, failures)
        _print(console, standings)
        path = write_arena(out, standings)
    print_line(console, f"Page: {path}")
    if failures:
        first = next(iter(failures))
        raise failure(f"{len(failures)} runs failed. The first, {first}: {failures[first]}".rstrip().removesuffix("."))


def _print(console: Console, standings: Standings) -> None:
    """The leaderboards, in short."""
    for skewed, title in ((False, "Without label skew"), (True, "Label skew")):
        table = table_of("rule", "", "worst", "rank", "no attack", numbers=("worst", "rank", "no attack"))
        for place in standings.places(skewed=skewed):
            table.add_row(place.rule, place.knows, str(place.worst), str(place.rank), str(place.unharmed))
        print_table(console, title, table)
    done, whole = int(standings.complete.sum()), standings.columns
    if done < whole:
        console.print(f"{done} of {whole} columns are complete. The same command goes on from here.")
