"""fedhold round and fedhold demo: one round with liars, and a federation trained among them; without network or torch.

What the terminal shows of the round stands in the page, too: both are made from the same blocks.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table as Printed

from fedhold.aggregation import aggregate
from fedhold.cli.errors import usage_errors
from fedhold.cli.parameters import Option
from fedhold.errors import integer, require
from fedhold.kernels import Floats, Vector
from fedhold.report import LOW, Block, Heading, Paragraph, Table, held_down, print_blocks, print_line, table_of
from fedhold.result import Aggregation
from fedhold.spec import DEFAULT

if TYPE_CHECKING:
    from fedhold.lab import Experiment, Result

NUMBERS = 10_000  # in an update: enough for honest clients to be about as far from each other as in a network
HIDDEN = 0.5  # spreads between the honest mean and the colluders: closer to everyone than the honest are to each other
REPEATS = 3  # runs of a rule, of which the shortest is shown

LIES: dict[str, str] = {
    "collude": "all the same: the honest mean, moved by half a spread against its signs",
    "flip": "its own update times -10",
    "claim": "an update 3 spreads off, and a claim to have 1e9 samples",
    "nan": "NaN everywhere",
    "huge": "1e20 everywhere: finite, but float32 cannot hold its square",
    "shape": "an update with one number missing",
}
# The first liar tells the first of these lies, and so on, from the beginning again after the last.
TURNS = ("collude", "flip", "claim", "nan", "collude", "huge", "collude", "flip", "shape", "collude")
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
    for blocks in tell_round(example):
        print_blocks(Console(highlight=False), blocks)


# The round


@dataclass(frozen=True, eq=False)
class ExampleRound:
    """What a server received in one round, and the truth about it, which the server does not know.

    updates  one float32 array per client
    samples  the n_i that clients claim
    lies     one per client: a key of LIES, or '' for an honest client
    centre   the mean of the honest, weighted by their samples: what a round without liars would give
    spread   the median distance of an honest client to the centre
    """

    updates: list[NDArray[np.float32]]
    samples: Vector
    lies: tuple[str, ...]
    centre: Vector
    spread: float

    @cached_property
    def liars(self) -> NDArray[np.intp]:
        """The indices of the clients that lie."""
        return np.flatnonzero([bool(lie) for lie in self.lies])

    def off(self, value: Floats) -> float:
        """The distance of an aggregate to the centre, in spreads."""
        return float(np.linalg.norm(value.astype(np.float64) - self.centre)) / self.spread

    def moved(self, result: Aggregation) -> float:
        """How far an aggregate of the default rule is, in spreads, from the Huber aggregate of the honest clients alone.

        Thresholds and samples are as the rule took them: it counts no n_i beyond their median.
        """
        most = np.median([row.samples for row in result.clients if row.status != "rejected"])
        honest = [row for row in result.clients if not self.lies[row.client]]
        alone = aggregate(
            [self.updates[row.client] for row in honest],
            "huber",
            samples=[min(row.samples, most) for row in honest],
            sample_cap=None,
            threshold=[row.threshold for row in honest],
        )
        return float(np.linalg.norm(alone.value.astype(np.float64) - result.value)) / self.spread


@dataclass(frozen=True)
class Outcome:
    """What one rule made of a round.

    result   None where the rule's own bound on m and f fails
    refused  why there is no result, or ''
    seconds  of the shortest run
    """

    rule: str
    result: Aggregation | None
    refused: str
    seconds: float

    def liars_weight(self, example: ExampleRound) -> float | None:
        """The sum of the liars' weights; None where there is no result, and for column rules, which have no weights."""
        weights = None if self.result is None else self.result.weights
        return None if weights is None else float(weights[example.liars].sum())


def make_round(clients: int = 100, liars: int = 20, seed: int = 0) -> ExampleRound:
    """Make up a round: honest clients send the true gradient plus noise that shrinks with their samples.

    clients  how many send an update
    liars    how many of them lie, as LIES says, in the order of TURNS
    seed     decides who lies, and every number
    """
    m, f, seed = integer(clients, "clients", at_least=3), integer(liars, "liars"), integer(seed, "seed")
    remedy = f"Lower liars to {(m - 1) // 2}, or raise clients to {2 * f + 1}."
    require(2 * f < m, "demo", needs="liars < clients / 2", remedy=remedy, clients=m, liars=f)
    rng = np.random.default_rng(seed)
    samples = rng.integers(20, 101, m).astype(np.float64)
    gradient = rng.standard_normal(NUMBERS)
    noise = 5 * rng.standard_normal((m, NUMBERS)) / np.sqrt(samples)[:, None]
    updates = (gradient + noise) / np.sqrt(NUMBERS)
    who = np.sort(rng.permutation(m)[:f])
    honest = np.setdiff1d(np.arange(m), who)
    centre = samples[honest] @ updates[honest] / samples[honest].sum()
    spread = float(np.median(np.linalg.norm(updates[honest] - centre, axis=1)))
    against = -spread * np.sign(centre) / np.sqrt(NUMBERS)

    sent, lies = list(updates.astype(np.float32)), [""] * m
    for turn, client in enumerate(who.tolist()):
        lie = lies[client] = TURNS[turn % len(TURNS)]
        if lie == "claim":
            samples[client] = 1e9
        sent[client] = {
            "collude": centre + HIDDEN * against,
            "flip": -10 * updates[client],
            "claim": updates[client] + 3 * against,
            "nan": np.full(NUMBERS, np.nan),
            "huge": np.full(NUMBERS, 1e20),
            "shape": updates[client, 1:],
        }[lie].astype(np.float32)
    return ExampleRound(sent, samples, tuple(lies), centre, spread)


def apply_rules(
    example: ExampleRound, rules: tuple[str, ...] = ("mean", "median", "krum", "huber", DEFAULT)
) -> list[Outcome]:
    """Aggregate the round by each of the rules. Krum is given the true number of liars; the others need no parameter."""
    return [_outcome(example, rule, {"f": len(example.liars)} if rule == "krum" else {}) for rule in rules]


def _outcome(example: ExampleRound, rule: str, parameters: dict[str, Any]) -> Outcome:
    times: list[float] = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        try:
            result = aggregate(example.updates, rule, samples=example.samples, **parameters)
        except ValueError as refusal:
            return Outcome(rule, None, str(refusal), time.perf_counter() - started)
        times.append(time.perf_counter() - started)
    return Outcome(rule, result, "", min(times))


def tell_round(example: ExampleRound) -> tuple[list[Block], list[Block], list[Block]]:
    """What is told of a round, in three parts: what liars do to the mean, who is named, what is proven."""
    outcomes = apply_rules(example)
    (default,) = [outcome for outcome in outcomes if outcome.rule == DEFAULT]
    intro = Paragraph(
        f"{len(example.lies)} clients sent {NUMBERS:,} numbers each; {len(example.liars)} of them lie. A spread is the median "
        "distance of an honest client to the mean of the honest: 1.00 off is about as bad as picking an honest client by lot."
    )
    mean = [intro, *_lies(example), *_outcomes(example, outcomes)]
    return mean, _named(example, default), _proven(example, default)


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
    from fedhold.lab import DataError, MissingResult, Store, run_all

    with usage_errors(DataError, MissingResult):
        console = Console(highlight=False)
        console.print("[bold]ONE ROUND[/bold]")
        story = tell_round(make_round(seed=seed))
        for blocks in story:
            print_blocks(console, blocks)
        console.print(f"[bold]{ROUNDS} ROUNDS[/bold]")
        print_blocks(console, [Paragraph(TRAINED)])
        planned = _experiments(seed)
        results = run_all(list(planned.values()), Store(out / "results"), jobs=jobs)
        found = dict(zip(planned, results, strict=True))
        console.print(f"[bold]RMSE after {ROUNDS} rounds[/bold]")
        console.print(_table(found))
        print_blocks(console, [*_ahead(found), _caught(found)])
        print_line(console, f"Report: {_write(out, story, found)}")


def _experiments(seed: int) -> dict[tuple[str, str], Experiment]:
    """(rule, attack) -> the experiment, as in the paper's figure 1; those of the default rule keep every client's weight."""
    from fedhold.lab import Experiment

    return {
        (label, attack): Experiment(
            *("synthesized", rule, attack, EPSILON, seed, CLIENTS),
            rounds=ROUNDS,
            options=(("keep_weights", 1),) if label == DEFAULT else (),
        )
        for attack in ATTACKS
        for label, rule in RULES.items()
    }


def _write(out: Path, story: Sequence[Sequence[Block]], found: Found) -> Path:
    """The page: the round and the federation, each in the order of the story."""
    from fedhold.lab import ANSWER, NAMED, PROVEN, Panel, write_report

    panels = [Panel(attack, "rmse", {label: [found[label, attack]] for label in RULES}, log=True) for attack in ATTACKS]
    (mean, named, proven), rounds = story, Heading(f"{ROUNDS} rounds")
    opening = {
        ANSWER: [
            Heading("One round: what liars do to the mean"),
            *mean,
            rounds,
            Paragraph(TRAINED),
            *_ahead(found),
        ],
        NAMED: [*named, rounds, _caught(found)],
        PROVEN: proven,
    }
    title = "A federation with liars"
    return write_report(out, list(found.values()), title=title, panels=panels, opening=opening, figures=False)


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
