"""fedhold round and fedhold demo: one round with liars, and a federation trained among them; without network or torch.

What the terminal shows of the round stands in the page, too: both are made from the same blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from rich.console import Console
from rich.table import Table as Printed

from fedhold.cli.errors import usage_errors
from fedhold.cli.example_round import LIES, NUMBERS, ExampleRound, Outcome, apply_rules, make_round
from fedhold.cli.parameters import Option
from fedhold.report import LOW, Block, Heading, Paragraph, Table, held_down, print_blocks, print_line, table_of
from fedhold.spec import DEFAULT

if TYPE_CHECKING:
    from fedhold.lab import Experiment, Result

SHOWN = 40  # clients held down that are shown
NOTES = {"mean": "not robust", "median": "gives no weights"}


def round_(
    clients: Annotated[int, Option("How many clients send an update.")] = 100,
    liars: Annotated[int, Option("How many of them lie; fewer than half.")] = 20,
    seed: Annotated[int, Option("Where the round's chance comes from.")] = 0,
) -> None:
    """One round with liars: what five rules make of it, who is named, and what is proven."""
    with usage_errors():
        example = make_round(clients, liars, seed)
    story, console = tell_round(example), Console(highlight=False)
    for blocks in (story.mean, story.named, story.proven):
        print_blocks(console, blocks)


# The round


@dataclass(frozen=True)
class Story:
    """The three parts of what is told of a round: what liars do to the mean, who is named, what is proven."""

    mean: list[Block]
    named: list[Block]
    proven: list[Block]


def tell_round(example: ExampleRound) -> Story:
    """What the liars sent, what the rules made of it, whom the default rule held down, and what is proven."""
    outcomes = apply_rules(example)
    (default,) = [outcome for outcome in outcomes if outcome.rule == DEFAULT]
    intro = Paragraph(
        f"{len(example.lies)} clients sent {NUMBERS:,} numbers each; {len(example.liars)} of them lie. A spread is the median "
        "distance of an honest client to the mean of the honest: 1.00 off is about as bad as picking an honest client by lot."
    )
    mean = [intro, *_lies(example), *_outcomes(example, outcomes)]
    return Story(mean, _named(example, default), _proven(example, default))


def _lies(example: ExampleRound) -> list[Block]:
    rows = [(lie, example.lies.count(lie), update) for lie, update in LIES.items() if lie in example.lies]
    return _titled(Table("What the liars sent", ("lie", "clients", "update"), rows))


def _outcomes(example: ExampleRound, outcomes: Sequence[Outcome]) -> list[Block]:
    rows: list[tuple[object, ...]] = []
    for outcome in outcomes:
        if outcome.result is None:
            rows.append((outcome.rule, None, None, None, f"refused: {outcome.refused}"))
            continue
        told = f"told f = {len(example.liars)}" if outcome.rule == "krum" else "told nothing"
        off, weight = example.off(outcome.result.value), outcome.liars_weight(example)
        rows.append((outcome.rule, off, weight, f"{1e3 * outcome.seconds:.1f} ms", NOTES.get(outcome.rule, told)))
    header = ("rule", "off by (spreads)", "liars' weight", "time", "")
    return _titled(Table("What the rules made of it", header, rows))


def _named(example: ExampleRound, default: Outcome) -> list[Block]:
    assert default.result is not None
    admitted = np.array([row.status != "rejected" for row in default.result.clients])
    held = held_down(default.result.clients.shares, present=admitted) | ~admitted
    low = [row for row in default.result.clients if held[row.client]]
    rows = [
        (
            row.client,
            f"liar: {example.lies[row.client]}" if example.lies[row.client] else "honest",
            *(row.status, round(row.share or 0.0, 2), row.reason),
        )
        for row in low[:SHOWN]
    ]
    title = f"Held down by {DEFAULT}: rejected, or a share below {LOW:g} of the typical client's"
    more = f" ({len(low) - SHOWN} more than shown)" if len(low) > SHOWN else ""
    caught = sum(bool(example.lies[row.client]) for row in low)
    said = (
        f"Held down: {len(low)}{more}; liars among them: {caught} (precision {_share(caught, len(low))}), of "
        f"{len(example.liars)} in all (recall {_share(caught, len(example.liars))})."
    )
    colluders = example.lies.count("collude")
    if colluders:
        found = sum(example.lies[row.client] == "collude" for row in low)
        said += (
            f" Of the {colluders} who collude, {found} are among them: they stand closer to the centre than the honest do, so "
            "that their distance says nothing against them; what gives them away is that they all pull in one direction."
        )
    table = _titled(Table(title, ("client", "truth", "status", "share", "reason"), rows)) if rows else []
    return [*table, Paragraph(said)]


def _proven(example: ExampleRound, default: Outcome) -> list[Block]:
    assert default.result is not None
    certificate, f = default.result.certificate, len(example.liars)
    assert certificate is not None
    shares = sorted({max(share, 1) for share in (f // 4, f // 2, f, 3 * f // 2, 2 * f)})
    rows = [(liars, certificate.radius(liars) / example.spread) for liars in shares]
    title = "Proven: leave out any f clients, and everyone else's Huber aggregate lies within"
    blocks = _titled(Table(title, ("f", "spreads"), rows))
    if f:
        said = (
            f"That of everyone but the {f} liars lies at {example.moved(default.result):.3g}, which no server can know. Here "
            "and in the proof, thresholds and sample caps are as they are."
        )
        blocks.append(Paragraph(said))
    return blocks


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"


def _titled(table: Table) -> list[Block]:
    return [Heading(table.title), table]


# The federation: 500 clients, 100 of them liars, under four attacks and five rules.

CLIENTS, EPSILON, ROUNDS = 500, 0.2, 200
LIARS = int(CLIENTS * EPSILON)
ATTACKS = ("sign_flip", "krum_attack", "trimmed_mean_attack", "huber_attack")
RULES = {
    "mean": "mean",
    "median": "median",
    "trimmed_mean": f"trimmed_mean(f={LIARS})",
    "huber": "huber",
    DEFAULT: DEFAULT,
}
BROKEN = 2.0  # the RMSE from which a rule counts as broken; with the true model only the noise is left, an RMSE of 1
TRAINED = (
    f"{CLIENTS} clients learn a linear model of 50 numbers together; {LIARS} of them lie, in one of four ways. The trimmed "
    "mean is told how many; the others are told nothing. An RMSE of 1.00 is the noise, what is left when the truth is known."
)

Found = dict[tuple[str, str], "Result"]  # by rule and attack


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
        story = tell_round(make_round(seed=seed))
        for blocks in (story.mean, story.named, story.proven):
            print_blocks(console, blocks)
        console.print(f"[bold]{ROUNDS} ROUNDS[/bold]")
        print_blocks(console, [Paragraph(TRAINED)])
        found = _train(out, seed, jobs)
        console.print(f"[bold]RMSE after {ROUNDS} rounds[/bold]")
        console.print(_table(found))
        print_blocks(console, [*_ahead(found), _caught(found)])
        print_line(console, f"Report: {_write(out, story, found)}")


def _train(out: Path, seed: int, jobs: int) -> Found:
    """Train the federation under every attack and rule."""
    from fedhold.lab import Store, run_all

    planned = _experiments(seed)
    return dict(zip(planned, run_all(list(planned.values()), Store(out / "results"), jobs=jobs), strict=True))


def _write(out: Path, story: Story, found: Found) -> Path:
    """The page: the round and the federation, each in the order of the story."""
    from fedhold.lab import ANSWER, NAMED, PROVEN, Panel, write_report

    panels = [Panel(attack, "rmse", {label: [found[label, attack]] for label in RULES}, log=True) for attack in ATTACKS]
    rounds = Heading(f"{ROUNDS} rounds")
    opening = {
        ANSWER: [
            Heading("One round: what liars do to the mean"),
            *story.mean,
            rounds,
            Paragraph(TRAINED),
            *_ahead(found),
        ],
        NAMED: [*story.named, rounds, _caught(found)],
        PROVEN: story.proven,
    }
    title = "A federation with liars"
    return write_report(out, list(found.values()), title=title, panels=panels, opening=opening, figures=False)


def _experiments(seed: int) -> dict[tuple[str, str], Experiment]:
    """(rule, attack) -> the experiment, as in the paper's figure 1; those of the default rule keep every client's weight."""
    from fedhold.lab import Experiment

    options = {DEFAULT: (("keep_weights", 1),)}
    return {
        (label, attack): Experiment(
            "synthesized", rule, attack, EPSILON, seed, m=CLIENTS, rounds=ROUNDS, options=options.get(label, ())
        )
        for attack in ATTACKS
        for label, rule in RULES.items()
    }


def _table(found: Found) -> Printed:
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


def _ahead(found: Found) -> list[Block]:
    """One sentence on the attacks under which the mean is ahead of robust rules, with how far the liars moved it there."""
    behind = {
        attack: [rule for rule in RULES if _end(found[rule, attack]) > _end(found["mean", attack])]
        for attack in ATTACKS
    }
    mild = [attack for attack in ATTACKS if behind[attack]]
    if not mild:
        return []
    moved = {attack: _moved(found["mean", attack]) for attack in ATTACKS}
    hardest = max(ATTACKS, key=moved.__getitem__)
    rules = ", ".join(rule for rule in RULES if any(rule in behind[attack] for attack in mild))
    by, plain = (" and ".join(f"{_moved(found[rule, attack]):.2g}" for attack in mild) for rule in ("mean", "huber"))
    return [
        Paragraph(
            f"Under {' and '.join(mild)} the mean is ahead of some of the robust rules ({rules}): these lies are small, and "
            f"move the mean by only {by} in a round (under {hardest} it is {moved[hardest]:.2g}), but they are made "
            f"against robust rules, and move huber by {plain}."
        )
    ]


def _moved(result: Result) -> float:
    """How far the aggregate is from the mean of the honest, as a median over rounds."""
    errors = np.array(result.series["error"], np.float64)
    return float(np.median(np.nan_to_num(errors, nan=np.inf)))


def _caught(found: Found) -> Paragraph:
    """Whom the default rule held down in the last round of each run, and how many of them are liars."""
    said = []
    for attack in ATTACKS:
        result = found[DEFAULT, attack]
        assert result.weights is not None
        samples = None if result.samples is None else np.array(result.samples, np.float64)
        held = held_down(result.weights, samples)[-1]
        said.append(f"{attack}: {held.sum()}, of whom {held[result.byzantine].sum()} lie")
    return Paragraph(
        f"In the last round {DEFAULT} held down, of {CLIENTS} clients with {LIARS} liars: {'; '.join(said)}."
    )
