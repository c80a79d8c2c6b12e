"""The command line: demo, list. Only this module imports typer and rich, so that `import holdfast` stays light."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
import typer.core
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import holdfast.demo as story
from holdfast import MIXING, RULES, __version__
from holdfast.checks import unknown
from holdfast.spec import FROM_CALL, THRESHOLDS

__all__ = ["app", "demo", "list_", "main"]

LOW = 0.5  # a client that pulls less than half as much as the typical one is shown as held down
SHOWN = 40  # rows of them


class _Commands(typer.core.TyperGroup):
    """Suggests the nearest command, as typer does by itself from 0.20 on."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(unknown("command", args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # plain help: the same in every version of typer, and under a pager
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"holdfast {__version__}")
        raise typer.Exit


@app.callback()
def _holdfast(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated learning that holds when clients lie: robust aggregation with a report and a proof for every round."""


@app.command()
def demo(
    clients: Annotated[int, typer.Option(help="How many clients send an update.")] = 100,
    liars: Annotated[int, typer.Option(help="How many of them lie; fewer than half.")] = 20,
    seed: Annotated[int, typer.Option(help="Where the round's chance comes from.")] = 0,
) -> None:
    """One round with liars: four rules, and whom Huber held down."""
    try:
        scene = story.scene(clients, liars, seed)
    except ValueError as problem:
        raise typer.BadParameter(str(problem)) from None
    console = Console(highlight=False)
    console.print(
        f"{clients} clients sent {story.D:,} numbers each; {liars} of them lie. A spread is the median distance of an honest "
        "client to the mean of the honest: 1.00 off is about as bad as picking an honest client by lot.\n"
    )
    verdicts = story.judge(scene)
    _show_lies(console, scene)
    _show_verdicts(console, scene, verdicts)
    _show_held_down(console, scene, verdicts[-1])
    _show_certificate(console, scene, verdicts[-1])


@app.command("list")
def list_(
    name: Annotated[str, typer.Argument(help="A name from the list: show all about it.", show_default=False)] = "",
) -> None:
    """Rules, mixings and thresholds; or one of them in full."""
    console = Console(highlight=False)
    known = {**RULES, **MIXING, **THRESHOLDS}
    if name and name not in known:
        raise typer.BadParameter(unknown("name", name, known))
    if name:
        typer.echo(f"{name}({_parameters(known[name], skip=0 if name in THRESHOLDS else 1)})\n")
        typer.echo(inspect.getdoc(known[name]))
        return
    _show_registry(console, "Rules: aggregate(updates, rule, ...)", RULES)
    _show_registry(console, "Mixings: written before a rule, as in 'screen | huber'", MIXING)
    _show_registry(console, "Thresholds: huber(threshold=...)", THRESHOLDS, skip=0)
    console.print("holdfast list NAME shows one of them in full, with its source.")


def main() -> None:
    """The entry point `holdfast`."""
    app(prog_name="holdfast")


def _table(*columns: str, numbers: tuple[str, ...] = ()) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    return table


def _show(console: Console, title: str, table: Table) -> None:
    if table.row_count:
        console.print(f"[bold]{escape(title)}[/bold]")
        console.print(table)


def _show_lies(console: Console, scene: story.Scene) -> None:
    table = _table("lie", "clients", "update", numbers=("clients",))
    for lie, says in story.LIES.items():
        if lie in scene.lies:
            table.add_row(lie, str(scene.lies.count(lie)), says)
    _show(console, "What the liars sent", table)


def _show_verdicts(console: Console, scene: story.Scene, verdicts: list[story.Verdict]) -> None:
    numbers = ("off by (spreads)", "liars' weight", "time")
    table = _table("rule", *numbers, "", numbers=numbers)
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
    _show(console, "What the rules made of it", table)


def _show_held_down(console: Console, scene: story.Scene, verdict: story.Verdict) -> None:
    assert verdict.result is not None
    pulls = verdict.pulls()
    low = [row for row in verdict.result.clients if pulls[row.client] < LOW]
    table = _table("client", "truth", "status", "pull", "reason", numbers=("client", "pull"))
    for row in low[:SHOWN]:
        truth = f"liar: {scene.lies[row.client]}" if scene.lies[row.client] else "honest"
        table.add_row(str(row.client), truth, row.status, f"{pulls[row.client]:.2g}", escape(row.reason))
    _show(console, f"Whom Huber rejected, or clipped to a pull below {LOW:g} of the typical client's", table)
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
    table = _table("f", "spreads", numbers=("f", "spreads"))
    for liars in sorted({max(share, 1) for share in (f // 4, f // 2, f, 3 * f // 2, 2 * f)}):
        table.add_row(str(liars), f"{certificate.radius(liars) / scene.spread:.3g}")
    _show(console, "Proven without knowing who lies: any f clients moved Huber's result by less than", table)
    if f:
        console.print(
            f"In truth the {f} liars moved it by {scene.moved(verdict.result):.3g}, found by leaving them out at the same "
            "thresholds; the proof, too, takes the thresholds as given."
        )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.2f}" if whole else "-"


def _show_registry(console: Console, title: str, known: Mapping[str, Callable[..., Any]], *, skip: int = 1) -> None:
    table = _table("name", "parameters", "")
    for name, function in known.items():
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        table.add_row(name, escape(_parameters(function, skip=skip)), escape(summary))
    _show(console, title, table)


def _parameters(function: Callable[..., Any], *, skip: int) -> str:
    """The parameters a user may pass, with their defaults; `skip` leaves the geometry out."""
    own = [p for p in list(inspect.signature(function).parameters.values())[skip:] if p.name not in FROM_CALL]
    return ", ".join(
        ("**" if p.kind is p.VAR_KEYWORD else "") + p.name + ("" if p.default is p.empty else f"={p.default!r}")
        for p in own
    )
