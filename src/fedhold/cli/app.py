"""The command line. `import fedhold` imports nothing of this, and so stays light."""

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.core
from rich.console import Console
from rich.markup import escape

import fedhold.lab.story as story
from fedhold import MIXINGS, RULES, __version__
from fedhold.cli.show_round import print_round
from fedhold.errors import unknown
from fedhold.lab import ATTACKS, DATA, PARTITIONS, DataError, MissingResult
from fedhold.report import print_table, table_of
from fedhold.spec import FROM_CALL, THRESHOLDS

__all__ = ["aggregate", "app", "bench", "demo", "list_", "main", "report", "reproduce", "round_", "run", "watch"]


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


# What `fedhold list` shows, and the parameters that the library passes.
LISTED: dict[str, tuple[Mapping[str, Callable[..., Any]], set[str]]] = {
    "Rules: aggregate(updates, rule, ...)": (RULES, {"geometry", *FROM_CALL}),
    "Mixings: written before a rule, as in 'screen | huber'": (MIXINGS, {"geometry", *FROM_CALL}),
    "Thresholds: huber(threshold=...)": (THRESHOLDS, set()),
    'Attacks: federate(..., attack=...), attack = "..." in a config': (ATTACKS, {"knowledge"}),
    'Tasks: data = "..." in a config': (DATA, {"seed", "cut", "m"}),
    'Partitions: partition = "..." in a config': (PARTITIONS, {"labels", "m", "rng"}),
}


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


@app.command()
def aggregate(
    updates: Annotated[
        list[Path],
        typer.Argument(exists=True, help="A directory of .npy or .safetensors files, one per client; or such files."),
    ],
    out: Annotated[Path, typer.Option(help="Where the result goes: .npy or .safetensors, as the updates.")],
    rule: Annotated[str, typer.Option(help="As in aggregate(): huber, 'krum(f=10)', 'screen | huber', ...")] = "huber",
    samples: Annotated[
        Path | None, typer.Option(help="The n_i: JSON, a list or {file name: n_i}; or CSV, lines of file name,n_i.")
    ] = None,
    report: Annotated[Path | None, typer.Option(help="Where to write what was done to each client, as JSON.")] = None,
) -> None:
    """Aggregate updates in files, however large: they are read in parts, and never all in memory.

    A damaged file costs its client the round, and nobody else. The result appears whole or not at all.

    Ends with 0 when the result is written, with 2 for a call that cannot work or when nobody is left, with 1 when the disk
    fails on the way.
    """
    from fedhold.cli.aggregate_files import play

    console = Console(highlight=False)
    try:
        _checked(lambda: play(updates, rule=rule, out=out, samples=samples, report=report, console=console))
    except OSError as problem:
        typer.echo(f"Error: {problem}. Nothing was written to {out}.", err=True)
        raise typer.Exit(1) from None


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the report and the results go.")] = Path("demo"),
    seed: Annotated[int, typer.Option(help="Where all chance comes from.")] = 0,
    jobs: Annotated[int, typer.Option(help="Processes to run at once.")] = 2,
) -> None:
    """One round with liars; then a federation of 500 clients, 100 of them liars, under four attacks and five rules."""
    from fedhold.cli.demo import demo as play

    _checked(lambda: play(out, seed=seed, jobs=jobs, console=Console(highlight=False)))


@app.command("round")
def round_(
    clients: Annotated[int, typer.Option(help="How many clients send an update.")] = 100,
    liars: Annotated[int, typer.Option(help="How many of them lie; fewer than half.")] = 20,
    seed: Annotated[int, typer.Option(help="Where the round's chance comes from.")] = 0,
) -> None:
    """One round with liars: four rules, whom Huber held down, and what is proven."""
    scene = _checked(lambda: story.scene(clients, liars, seed))
    print_round(Console(highlight=False), scene)


@app.command()
def reproduce(
    what: Annotated[list[str], typer.Argument(help="fig1 ... fig5, table1, theory, or all.", show_default=False)],
    seeds: Annotated[int | None, typer.Option(help="Seeds for synthesized data; 5 unless given.")] = None,
    mnist_seeds: Annotated[int | None, typer.Option(help="Seeds for MNIST; 3 unless given.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes to run at once.")] = 2,
    quick: Annotated[bool, typer.Option("--quick", help="One seed, few rounds: to see that it works.")] = False,
    out: Annotated[Path, typer.Option(help="Where results and report go; found again next time.")] = Path(
        "reproduction"
    ),
) -> None:
    """The paper's figures, its Table 1, its theory, and a verdict on each of its claims."""
    from fedhold.lab.paper import reproduce as play

    _checked(lambda: play(what, seeds=seeds, mnist_seeds=mnist_seeds, jobs=jobs, quick=quick, out=out))


@app.command()
def run(
    config: Annotated[Path, typer.Argument(help="A TOML file; examples/grid.toml is one to start from.")],
    jobs: Annotated[int, typer.Option(help="Processes to run at once.")] = 2,
    out: Annotated[Path, typer.Option(help="Where results and report go; found again next time.")] = Path("runs"),
) -> None:
    """Every combination of data, partition, attack, rule and seed that a file lists; then the report."""
    from fedhold.cli.grid import play

    _checked(lambda: play(config, jobs=jobs, out=out, console=Console(highlight=False)))


@app.command()
def report(
    path: Annotated[
        Path,
        typer.Argument(help="Where results are: the --out of run, reproduce or demo; or the audit of a deployed run."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="Where the report goes; beside what it reports on unless given.", show_default=False),
    ] = None,
) -> None:
    """The HTML report of stored results, or of an audit.jsonl."""
    from fedhold.cli.grid import report as play

    _checked(lambda: play(path, out=out, console=Console(highlight=False)))


@app.command()
def watch(
    audit: Annotated[
        Path, typer.Argument(help="The file that a strategy writes; it may not be there yet. Ctrl-C leaves.")
    ],
    once: Annotated[bool, typer.Option("--once", help="Show what is there now, and exit.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between two looks at the file.", min=0.05)] = 0.5,
) -> None:
    """Follow an audit.jsonl live: last round, nodes, suspects."""
    from fedhold.audit import watch as play

    _checked(lambda: play(audit, once=once, every=every, console=Console(highlight=False)))


@app.command()
def bench(
    shape: Annotated[list[str] | None, typer.Option(help="Clients x numbers, as 500x25450; may be repeated.")] = None,
    rules: Annotated[str, typer.Option(help="Which of our rules, with commas between; all unless given.")] = "",
    repeat: Annotated[int, typer.Option(help="Calls of each rule; the best counts.")] = 7,
    seconds: Annotated[float, typer.Option(help="Time for the calls of a rule; a longer one is made once.")] = 10.0,
    peers: Annotated[
        bool, typer.Option("--peers", help="Beside other libraries, in an environment made for it.")
    ] = False,
    round_: Annotated[bool, typer.Option("--round", help="Also one round on MNIST, end to end.")] = False,
    scaling: Annotated[bool, typer.Option("--scaling", help="Also how cost grows with clients and numbers.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write all results here.")] = None,
    chart: Annotated[Path | None, typer.Option(help="Draw them here, as PNG.")] = None,
    docs: Annotated[Path | None, typer.Option(help="Write them here as a document, its chart in figures/.")] = None,
    earlier: Annotated[Path | None, typer.Option("--from", help="Measure nothing: tell the --json of a run.")] = None,
) -> None:
    """Speed in multiples of X.mean(0), and the error of rules that iterate; ours alone, or beside other libraries."""
    from fedhold.bench import Outputs, Plan
    from fedhold.bench import bench as play

    def measure() -> int:
        plan = Plan.of(shape or [], rules, repeat, seconds, scaling=scaling, round=round_)
        return play(plan, Outputs(json, chart, docs), Console(highlight=False), peers=peers, earlier=earlier)

    raise typer.Exit(_checked(measure))


@app.command("list")
def list_(
    name: Annotated[str, typer.Argument(help="A name from the list: show all about it.", show_default=False)] = "",
) -> None:
    """Rules, mixings, thresholds, attacks, tasks and partitions; or one of them in full."""
    console = Console(highlight=False)
    known = {word: (what, ours) for registry, ours in LISTED.values() for word, what in registry.items()}
    if name and name not in known:
        raise typer.BadParameter(unknown("name", name, known))
    if name:
        what, ours = known[name]
        typer.echo(f"{name}({_parameters(what, ours)})\n")
        typer.echo(inspect.getdoc(what))
        return
    for title, (registry, ours) in LISTED.items():
        _show_registry(console, title, registry, ours)
    console.print("fedhold list NAME shows one of them in full, with its source.")


def _checked(call: Callable[[], Any]) -> Any:
    """What the call gives; our own errors without a trace of the program."""
    try:
        return call()
    except (ValueError, MissingResult, DataError) as problem:
        raise typer.BadParameter(str(problem)) from None


def main() -> None:
    """The entry point `fedhold`."""
    app(prog_name="fedhold")


def _show_registry(console: Console, title: str, known: Mapping[str, Callable[..., Any]], ours: set[str]) -> None:
    table = table_of("name", "parameters", "")
    for name, function in known.items():
        summary = (inspect.getdoc(function) or "").partition("\n")[0]
        table.add_row(name, escape(_parameters(function, ours)), escape(summary))
    print_table(console, title, table)


def _parameters(function: Callable[..., Any], ours: set[str]) -> str:
    """The parameters a user may pass, with their defaults."""
    own = [p for p in inspect.signature(function).parameters.values() if p.name not in ours]
    return ", ".join(
        ("**" if p.kind is p.VAR_KEYWORD else "") + p.name + ("" if p.default is p.empty else f"={p.default!r}")
        for p in own
    )
