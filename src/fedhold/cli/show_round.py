"""How one round with liars is printed."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape

from fedhold.lab import story
from fedhold.report import print_table, table_of

__all__ = ["LOW", "print_round"]

LOW = 0.5  # a client that pulls less than half as much as the typical one is shown as held down
SHOWN = 40  # rows of them


def print_round(console: Console, scene: story.Scene) -> None:
    """What the liars sent, what four rules made of it, whom Huber held down, and what is proven."""
    console.print(
        f"{len(scene.lies)} clients sent {story.D:,} numbers each; {len(scene.liars)} of them lie. A spread is the median "
        "distance of an honest client to the mean of the honest: 1.00 off is about as bad as picking an honest client by "
        "lot.\n"
    )
    verdicts = story.judge(scene)
    _show_lies(console, scene)
    _show_verdicts(console, scene, verdicts)
    _show_held_down(console, scene, verdicts[-1])
    _show_certificate(console, scene, verdicts[-1])


def _show_lies(console: Console, scene: story.Scene) -> None:
    table = table_of("lie", "clients", "update", numbers=("clients",))
    for lie, says in story.LIES.items():
        if lie in scene.lies:
            table.add_row(lie, str(scene.lies.count(lie)), says)
    print_table(console, "What the liars sent", table)


def _show_verdicts(console: Console, scene: story.Scene, verdicts: list[story.Verdict]) -> None:
    numbers = ("off by (spreads)", "liars' weight", "time")
    table = table_of("rule", *numbers, "", numbers=numbers)
    notes = {"mean": "not robust", "median": "by columns: no weights", "krum": f"told f = {len(scene.liars)}"}
    for verdict in verdicts:
        if verdict.result is None:
            table.add_row(verdict.rule, "-", "-", "-", f"refused: {escape(verdict.refused)}")
            continue
        weight = verdict.liars_weight(scene)
        table.add_row(
            verdict.rule,
            f"{scene.off(verdict.result.value):.3g}",
            "-" if weight is None else f"{weight:.1%}",
            f"{1e3 * verdict.seconds:.1f} ms",
            notes.get(verdict.rule, "told nothing"),
        )
    print_table(console, "What the rules made of it", table)


def _show_held_down(console: Console, scene: story.Scene, verdict: story.Verdict) -> None:
    assert verdict.result is not None
    pulls = verdict.pulls()
    low = [row for row in verdict.result.clients if pulls[row.client] < LOW]
    table = table_of("client", "truth", "status", "pull", "reason", numbers=("client", "pull"))
    for row in low[:SHOWN]:
        truth = f"liar: {scene.lies[row.client]}" if scene.lies[row.client] else "honest"
        table.add_row(str(row.client), truth, row.status, f"{pulls[row.client]:.2g}", escape(row.reason))
    print_table(console, f"Whom Huber rejected, or clipped to a pull below {LOW:g} of the typical client's", table)
    more = f" ({len(low) - SHOWN} more than shown)" if len(low) > SHOWN else ""
    caught = sum(bool(scene.lies[row.client]) for row in low)
    console.print(
        f"Held down: {len(low)}{more}; liars among them: {caught} (precision {_share(caught, len(low))}), "
        f"of {len(scene.liars)} in all (recall {_share(caught, len(scene.liars))})."
    )
    colluders = scene.lies.count("collude")
    if colluders:
        console.print(
            f"Colluders: {colluders}. They stand closer to the centre than the honest do, so their distance says nothing "
            "against them. What holds is that no client can pull harder than its threshold allows."
        )
    console.print()


def _show_certificate(console: Console, scene: story.Scene, verdict: story.Verdict) -> None:
    assert verdict.result is not None
    certificate = verdict.result.certificate
    assert certificate is not None
    f = len(scene.liars)
    table = table_of("f", "spreads", numbers=("f", "spreads"))
    for liars in sorted({max(share, 1) for share in (f // 4, f // 2, f, 3 * f // 2, 2 * f)}):
        table.add_row(str(liars), f"{certificate.radius(liars) / scene.spread:.3g}")
    print_table(console, "Proven without knowing who lies: any f clients moved Huber's result by less than", table)
    if f:
        console.print(
            f"In truth the {f} liars moved it by {scene.moved(verdict.result):.3g}, found by leaving them out at the same "
            "thresholds; the proof, too, takes the thresholds as given."
        )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"
