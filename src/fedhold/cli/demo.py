"""fedhold demo: one round with liars, then a federation of 500 clients trained among them; without network or torch."""

from __future__ import annotations

import math
from pathlib import Path

from rich.console import Console
from rich.table import Table

from fedhold.cli.show_round import print_round
from fedhold.lab import Experiment, Panel, Result, Store, run_all, story, write_report
from fedhold.report import held_down, table_of

__all__ = ["ATTACKS", "RULES", "demo", "runs"]

CLIENTS, EPSILON, ROUNDS = 500, 0.2, 200
LIARS = int(CLIENTS * EPSILON)
ATTACKS = ("sign_flip", "krum_attack", "trimmed_mean_attack", "huber_attack")
RULES = {
    "mean": "mean",
    "krum": f"krum(f={LIARS})",
    "median": "median",
    "trimmed_mean": f"trimmed_mean(f={LIARS})",
    "huber": "huber",
}
BROKEN = 2.0  # an RMSE of twice what is left when the truth is known (1: the noise)


def runs(seed: int) -> dict[tuple[str, str], Experiment]:
    """(rule, attack) -> the run, as in the paper's figure 1; Huber's keep every client's weight."""
    watched = {"huber": (("keep_weights", 1),)}
    return {
        (label, attack): Experiment(
            "synthesized", rule, attack, EPSILON, seed, m=CLIENTS, rounds=ROUNDS, options=watched.get(label, ())
        )
        for attack in ATTACKS
        for label, rule in RULES.items()
    }


def demo(out: Path, *, seed: int, jobs: int, console: Console) -> Path:
    """Show one round; train, print the table and who was caught, write the report."""
    console.print("[bold]ONE ROUND[/bold]")
    print_round(console, story.scene(seed=seed))
    console.print(f"\n[bold]{ROUNDS} ROUNDS[/bold]")
    console.print(
        f"{CLIENTS} clients learn a linear model of 50 numbers together; {LIARS} of them lie, in one of four ways. "
        "Krum and the trimmed mean are told how many; Huber is told nothing.\n"
    )
    planned = runs(seed)
    results = run_all(list(planned.values()), Store(out / "results"), jobs=jobs, progress=console.is_terminal)
    found = dict(zip(planned, results, strict=True))
    console.print(f"[bold]RMSE after {ROUNDS} rounds; 1.00 is the noise, what is left when the truth is known[/bold]")
    console.print(_table(found))
    for attack in ATTACKS:
        console.print(_caught(found["huber", attack]))
    panels = [
        Panel(
            f"{attack}, {LIARS} of {CLIENTS} lie", "rmse", {label: [found[label, attack]] for label in RULES}, log=True
        )
        for attack in ATTACKS
    ]
    path = write_report(out, results, title="A federation with liars", panels=panels, png=False)
    console.print(f"\nReport: {path}")
    return path


def _table(found: dict[tuple[str, str], Result]) -> Table:
    """Best in bold, broken in red."""
    table = table_of("rule", *ATTACKS, numbers=ATTACKS)
    ends = {key: _end(result) for key, result in found.items()}
    best = {attack: min(ends[label, attack] for label in RULES) for attack in ATTACKS}
    for label in RULES:
        cells = []
        for attack in ATTACKS:
            end = ends[label, attack]
            style = "red" if not end < BROKEN else "bold" if end == best[attack] else ""
            cells.append(f"[{style}]{end:.3f}[/{style}]" if style else f"{end:.3f}")
        table.add_row(label, *cells)
    return table


def _end(result: Result) -> float:
    end = result.series["rmse"][-1]
    return math.inf if end is None or math.isnan(end) else end


def _caught(result: Result) -> str:
    """Whom Huber held down at the end: a pull below half of the typical client's."""
    assert result.weights is not None
    held = held_down(result.weights)[-1]
    caught = held[result.byzantine].sum()
    return (
        f"{result.experiment.attack}: in the last round Huber held {held.sum()} clients below half of the typical pull; "
        f"{caught} of them lie, of {len(result.byzantine)} liars in all."
    )
