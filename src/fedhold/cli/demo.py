"""fedhold round and fedhold demo: one round with liars, and a federation trained among them; without network or torch."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedhold.cli.errors import usage_errors
from fedhold.cli.example_round import LIES, NUMBERS, ExampleRound, Outcome, apply_rules, make_round
from fedhold.cli.parameters import Option
from fedhold.report import LOW, held_down, print_line, print_table, table_of

if TYPE_CHECKING:
    from fedhold.lab import Experiment, Result

SHOWN = 40  # clients held down that are printed


def round_(
    clients: Annotated[int, Option("How many clients send an update.")] = 100,
    liars: Annotated[int, Option("How many of them lie; fewer than half.")] = 20,
    seed: Annotated[int, Option("Where the round's chance comes from.")] = 0,
) -> None:
    """One round with liars: four rules, whom Huber held down, and what is proven."""
    with usage_errors():
        example = make_round(clients, liars, seed)
    print_round(Console(highlight=False), example)


def print_round(console: Console, example: ExampleRound) -> None:
    """Print what the liars sent, what four rules made of it, whom Huber held down, and what is proven."""
    console.print(
        f"{len(example.lies)} clients sent {NUMBERS:,} numbers each; {len(example.liars)} of them lie. A spread is the "
        "median distance of an honest client to the mean of the honest: 1.00 off is about as bad as picking an honest "
        "client by lot.\n"
    )
    outcomes = apply_rules(example)
    (huber,) = [outcome for outcome in outcomes if outcome.rule == "huber"]
    _print_lies(console, example)
    _print_outcomes(console, example, outcomes)
    _print_held_down(console, example, huber)
    _print_certificate(console, example, huber)


def _print_lies(console: Console, example: ExampleRound) -> None:
    table = table_of("lie", "clients", "update", numbers=("clients",))
    for lie, update in LIES.items():
        if lie in example.lies:
            table.add_row(lie, str(example.lies.count(lie)), update)
    print_table(console, "What the liars sent", table)


def _print_outcomes(console: Console, example: ExampleRound, outcomes: list[Outcome]) -> None:
    numbers = ("off by (spreads)", "liars' weight", "time")
    table = table_of("rule", *numbers, "", numbers=numbers)
    notes = {"mean": "not robust", "median": "by columns: no weights", "krum": f"told f = {len(example.liars)}"}
    for outcome in outcomes:
        if outcome.result is None:
            table.add_row(outcome.rule, "-", "-", "-", f"refused: {escape(outcome.refused)}")
            continue
        weight = outcome.liars_weight(example)
        table.add_row(
            outcome.rule,
            f"{example.off(outcome.result.value):.3g}",
            "-" if weight is None else f"{weight:.1%}",
            f"{1e3 * outcome.seconds:.1f} ms",
            notes.get(outcome.rule, "told nothing"),
        )
    print_table(console, "What the rules made of it", table)


def _print_held_down(console: Console, example: ExampleRound, huber: Outcome) -> None:
    assert huber.result is not None
    admitted = np.array([row.status != "rejected" for row in huber.result.clients])
    held = held_down(huber.result.clients.shares, present=admitted) | ~admitted
    low = [row for row in huber.result.clients if held[row.client]]
    table = table_of("client", "truth", "status", "share", "reason", numbers=("client", "share"))
    for row in low[:SHOWN]:
        truth = f"liar: {example.lies[row.client]}" if example.lies[row.client] else "honest"
        table.add_row(str(row.client), truth, row.status, f"{row.share or 0.0:.2g}", escape(row.reason))
    print_table(console, f"Held down by Huber: rejected, or a share below {LOW:g} of the typical client's", table)
    more = f" ({len(low) - SHOWN} more than shown)" if len(low) > SHOWN else ""
    caught = sum(bool(example.lies[row.client]) for row in low)
    console.print(
        f"Held down: {len(low)}{more}; liars among them: {caught} (precision {_share(caught, len(low))}), "
        f"of {len(example.liars)} in all (recall {_share(caught, len(example.liars))})."
    )
    colluders = example.lies.count("collude")
    if colluders:
        console.print(
            f"Colluders: {colluders}. They stand closer to the centre than the honest do, so their distance says nothing "
            "against them. What holds is that no client can pull harder than its threshold allows."
        )
    console.print()


def _print_certificate(console: Console, example: ExampleRound, huber: Outcome) -> None:
    assert huber.result is not None
    certificate = huber.result.certificate
    assert certificate is not None
    f = len(example.liars)
    table = table_of("f", "spreads", numbers=("f", "spreads"))
    for liars in sorted({max(share, 1) for share in (f // 4, f // 2, f, 3 * f // 2, 2 * f)}):
        table.add_row(str(liars), f"{certificate.radius(liars) / example.spread:.3g}")
    print_table(console, "Proven: leave out any f clients, and everyone else's Huber aggregate lies within", table)
    if f:
        console.print(
            f"Without the {f} liars it lies at {example.moved(huber.result):.3g}. Here and in the proof, thresholds and sample "
            "caps are as they are."
        )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"


# The federation: 500 clients, 100 of them liars, under four attacks and five rules.

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
BROKEN = 2.0  # the RMSE from which a rule counts as broken; with the true model only the noise is left, an RMSE of 1


def demo(
    out: Annotated[Path, Option("Where the report and the results go.")] = Path("demo"),
    seed: Annotated[int, Option("Where all chance comes from.")] = 0,
    jobs: Annotated[int, Option("Processes to run at once.")] = 2,
) -> None:
    """One round with liars; then a federation of 500 clients, 100 of them liars, under four attacks and five rules."""
    from fedhold.lab import DataError, MissingResult

    with usage_errors(DataError, MissingResult):
        console = Console(highlight=False)
        console.print("[bold]ONE ROUND[/bold]")
        print_round(console, make_round(seed=seed))
        console.print(f"\n[bold]{ROUNDS} ROUNDS[/bold]")
        _train(out, seed, jobs, console)


def _train(out: Path, seed: int, jobs: int, console: Console) -> None:
    """Train the federation under every attack and rule, print the table and who was caught, and write the report."""
    from fedhold.lab import Panel, Store, run_all, write_report

    console.print(
        f"{CLIENTS} clients learn a linear model of 50 numbers together; {LIARS} of them lie, in one of four ways. "
        "Krum and the trimmed mean are told how many; Huber is told nothing.\n"
    )
    planned = _experiments(seed)
    results = run_all(list(planned.values()), Store(out / "results"), jobs=jobs)
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
    console.print()
    print_line(console, f"Report: {path}")


def _experiments(seed: int) -> dict[tuple[str, str], Experiment]:
    """(rule, attack) -> the experiment, as in the paper's figure 1; those of Huber keep every client's weight."""
    from fedhold.lab import Experiment

    options = {"huber": (("keep_weights", 1),)}
    return {
        (label, attack): Experiment(
            "synthesized", rule, attack, EPSILON, seed, m=CLIENTS, rounds=ROUNDS, options=options.get(label, ())
        )
        for attack in ATTACKS
        for label, rule in RULES.items()
    }


def _table(found: dict[tuple[str, str], Result]) -> Table:
    """The RMSE at the end, by rule and attack; the best rule is bold, a broken one red."""
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
    """Who was held down in the last round of a run with Huber, and how many of them are liars."""
    assert result.weights is not None
    held = held_down(result.weights)[-1]
    caught = held[result.byzantine].sum()
    return (
        f"{result.experiment.attack}: in the last round Huber held {held.sum()} clients below half of the typical pull; "
        f"{caught} of them lie, of {len(result.byzantine)} liars in all."
    )
