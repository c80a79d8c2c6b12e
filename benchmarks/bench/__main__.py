"""python benchmarks/bench: our own rules, timed, as multiples of X.mean(0)."""

import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).parents[1]))

from rich.console import Console

from bench import Plan, Results, measure_all, print_results, read_results, write_results
from fedhold.cli.errors import usage_errors
from fedhold.cli.parameters import Option, command
from fedhold.report import print_line

# The options that `python benchmarks/peers` has, too.
Shapes = Annotated[list[str] | None, Option("Clients x numbers, as 500x25450; may be repeated.")]
Rules = Annotated[str, Option("Which of our rules, with commas between; all unless given.")]
Repeat = Annotated[int, Option("Calls of each rule; the best counts.")]
Seconds = Annotated[float, Option("Time for the calls of a rule; a longer one is made once.")]
Round = Annotated[bool, Option("Also one round on MNIST, end to end.", "--round")]
Inputs = Annotated[
    bool, Option("Also what people send: offsets, lists, dicts, narrow types, little data; the first call.", "--inputs")
]
Scaling = Annotated[bool, Option("Also how cost grows with clients and numbers.", "--scaling")]
Json = Annotated[Path | None, Option("Write all results here.")]
Earlier = Annotated[Path | None, Option("Measure nothing: show the --json of an earlier run.", "--from")]


def bench(
    shape: Shapes = None,
    rules: Rules = "",
    repeat: Repeat = 7,
    seconds: Seconds = 10.0,
    inputs: Inputs = False,
    round_: Round = False,
    scaling: Scaling = False,
    json: Json = None,
    earlier: Earlier = None,
) -> None:
    """The speed of fedhold's rules in multiples of X.mean(0), and the error of those that iterate.

    For a comparison with ByzFL, Flower, geom-median and torchjd, with a chart and a document, run `make bench`, which is
    `python benchmarks/peers`.
    """
    console = Console(highlight=False)

    def write_json(results: Results) -> None:
        if json is not None:
            write_results(json, results)

    with usage_errors():
        if earlier is None:
            plan = Plan.of(shape or [], rules, repeat, seconds, inputs=inputs, scaling=scaling, round=round_)
            results = measure_all(plan, console, write_json)
        else:
            results = read_results(earlier)
        print_results(console, results)
        write_json(results)
    if json is not None:
        print_line(console, f"json: {json}")


app = command(bench, "bench")

if __name__ == "__main__":
    app(prog_name="python benchmarks/bench")
