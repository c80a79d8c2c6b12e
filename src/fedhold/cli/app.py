"""The command `fedhold`: its commands in the order in which the help lists them, and its entry point."""

from __future__ import annotations

from typing import Annotated, Any

import typer
import typer.core

from fedhold import __version__
from fedhold.cli.aggregate import aggregate
from fedhold.cli.arena import arena
from fedhold.cli.audits import watch
from fedhold.cli.bench import bench
from fedhold.cli.demo import demo, round_
from fedhold.cli.errors import shown_safely
from fedhold.cli.experiments import init, report, reproduce, run
from fedhold.cli.listing import list_
from fedhold.errors import unknown


class _Commands(typer.core.TyperGroup):
    """Suggests the nearest command, which typer does by itself only from 0.20 on; its errors send nothing to the terminal."""

    def make_context(self, *arguments: Any, **words: Any) -> Any:
        with shown_safely():
            return super().make_context(*arguments, **words)

    def invoke(self, ctx: Any) -> Any:
        with shown_safely():
            return super().invoke(ctx)

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
        typer.echo(f"fedhold {__version__}")
        raise typer.Exit


@app.callback()
def _fedhold(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Federated learning that holds when clients lie: robust aggregation with a report and a proof for every round."""


app.command("aggregate")(aggregate)
app.command("demo")(demo)
app.command("round")(round_)
app.command("reproduce")(reproduce)
app.command("init")(init)
app.command("run")(run)
app.command("arena")(arena)
app.command("report")(report)
app.command("watch")(watch)
app.command("bench")(bench)
app.command("list")(list_)


def main() -> None:
    """The entry point `fedhold`."""
    app(prog_name="fedhold")
