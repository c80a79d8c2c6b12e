"""python benchmarks/peers: our rules beside those of other libraries, as multiples of X.mean(0)."""

import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).parents[1]))

import click
from rich.console import Console

from bench import Peers, Plan, Results, measure_all, print_results, read_results, write_results
from bench.__main__ import Earlier, Inputs, Json, Repeat, Round, Rules, Scaling, Seconds, Shapes
from fedhold.cli.parameters import Option, command
from peers import environment
from peers.document import draw, write
from peers.libraries import PACKAGES, PEERS
from peers.round import TORCH_AND_BYZFL


def compare(
    shape: Shapes = None,
    rules: Rules = "",
    repeat: Repeat = 7,
    seconds: Seconds = 10.0,
    inputs: Inputs = False,
    round_: Round = False,
    scaling: Scaling = False,
    json: Json = None,
    chart: Annotated[Path | None, Option("Draw them here, as PNG.")] = None,
    docs: Annotated[Path | None, Option("Write them here as a document, its chart in figures/.")] = None,
    earlier: Earlier = None,
) -> None:
    """Our rules beside those of ByzFL, Flower, geom-median and torchjd, in an environment made for these libraries.

    Speed in multiples of X.mean(0), and the error of rules that iterate. For our rules alone: python benchmarks/bench.
    """
    console = Console(highlight=False)
    place = environment.folder()
    try:
        plan = Plan.of(
            shape or [],
            rules,
            repeat,
            seconds,
            inputs=inputs,
            scaling=scaling,
            round=round_,
            peers=Peers(PEERS, TORCH_AND_BYZFL, PACKAGES, environment.left_out(place)),
        )
        if earlier is not None:
            results = read_results(earlier)
        elif environment.inside(place):
            results = measure_all(plan, console, lambda so_far: _write_json(json, so_far))
        else:
            environment.prepare(place, console)
            raise click.exceptions.Exit(environment.run_inside(place, sys.argv[1:]))
        print_results(console, results)
        _write_json(json, results)
        if chart is not None:
            draw(results, chart)
        if docs is not None:
            write(results, docs)
    except ValueError as problem:
        raise click.BadParameter(str(problem)) from None
    for kind, path in (("json", json), ("chart", chart), ("docs", docs)):
        if path is not None:
            console.print(f"{kind}: {path}", markup=False)


def _write_json(path: Path | None, results: Results) -> None:
    if path is not None:
        write_results(path, results)


app = command(compare, "compare")

if __name__ == "__main__":
    app(prog_name="python benchmarks/peers")
