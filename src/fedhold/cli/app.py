"""The command `fedhold`: its commands in the order in which the help lists them, and its entry point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from fedhold import __version__
from fedhold.cli.aggregate import aggregate
from fedhold.cli.arena import arena
from fedhold.cli.audits import receipt, verify, watch
from fedhold.cli.demo import demo, round_
from fedhold.cli.errors import shown_safely
from fedhold.cli.experiments import init, report, reproduce, run
from fedhold.cli.listing import list_
from fedhold.cli.parameters import command
from fedhold.errors import unknown

INTERRUPTED = 130  # what shells expect of a process that Ctrl-C has ended


class _Commands(click.Group):
    """Lists its commands in their order, suggests the nearest one, and sends nothing of an argument to the terminal."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """Each command with the whole first sentence of its help, of which click would show 45 letters."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, (one.help or "").split("\n\n")[0]) for name, one in self.commands.items()])

    def make_context(self, *arguments: Any, **words: Any) -> click.Context:
        with shown_safely():
            return super().make_context(*arguments, **words)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            with shown_safely():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        if args and not args[0].startswith("-") and self.get_command(ctx, args[0]) is None:
            ctx.fail(unknown("command", args[0], self.list_commands(ctx)))
        return super().resolve_command(ctx, args)


@click.group(cls=_Commands, invoke_without_command=True, subcommand_metavar="COMMAND [ARGS]...")
@click.version_option(__version__, message="fedhold %(version)s")
@click.pass_context
def app(ctx: click.Context) -> None:
    """Federated learning that holds when clients lie: robust aggregation with a report and a proof for every round."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


COMMANDS: dict[str, Callable[..., None]] = {
    "aggregate": aggregate,
    "demo": demo,
    "round": round_,
    "reproduce": reproduce,
    "init": init,
    "run": run,
    "arena": arena,
    "report": report,
    "watch": watch,
    "verify": verify,
    "receipt": receipt,
    "list": list_,
}
for _name, _function in COMMANDS.items():
    app.add_command(command(_function, _name))


def main() -> None:
    """The entry point `fedhold`."""
    app(prog_name="fedhold")
