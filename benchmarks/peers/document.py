"""docs/performance.md and its chart, written from the JSON of a benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench import (
    FASTER_TARGET,
    OURS,
    OWN_STOPS,
    SLOPE_TARGET,
    YARDSTICK,
    FailedRound,
    Growth,
    Machine,
    Results,
    RoundTimes,
    Shape,
    best_of,
    busy,
    cell,
    first_call_cells,
    has_multiple,
    input_cells,
    last_slope,
    libraries_of,
    remarks,
    rules_of,
    title,
)
from fedhold.errors import listed
from fedhold.report import COLOURS, can_plot
from peers.libraries import LIBRARIES, PEERS

HEAD = """# Performance

*Written by `python benchmarks/peers --docs`; `make bench` measures again. Lower is better everywhere.*

Times are multiples of the mean of the same numbers, as one would write it, measured in the same run; the best call of each
counts. {machine}
"""

INPUTS = """
## What people send

What you send decides what it costs. The mean is `X.mean(0)`, or for dicts a sum over the clients, layer by layer. Each kind of
input is aggregated once before it is timed. The same numbers in another form should cost little more than in one matrix.
"""

FIRST_CALLS = """
### The first call of a process

Seconds for 100 x 50,000 numbers in a new process, after its imports.
"""

COMPILED = """
### Compiled loops

`pip install '.[fast]'` adds numba, which compiles twins of a few NumPy loops: the pass that checks all numbers and finds the
first centre, products of all pairs of up to 128 clients, order statistics of up to 160, and copies from lists of arrays (of
float16 and bfloat16, too). They read tiles of at least 2^18 numbers; little data never imports numba. Results differ by
rounding alone, and do not depend on the number of threads. Without numba, or with one too old for your NumPy, NumPy runs every
loop.

A call on large data takes about three quarters of the CPU time: half for lists of float16, and for lists of 500 arrays; six
tenths for Krum of up to 100 clients. It takes as long as before for Fortran order, and for medians and pairs of 500. The first
large call of a process takes half a second more, to import numba and to read compiled code from disk; the first on a machine
takes a second. A process that aggregates once is better off without the extra.
"""

BESIDE = """
## Beside other libraries

Every rule of ours stands beside each library that has it. All ran in one process on the same float32 arrays, in turns: each
had up to {repeat} calls spread over the run. The clients are standard normal around a common offset; a fifth of them, the
liars, are shifted by two standard deviations.

- Only the aggregation is timed. Flower's strategies run their own `aggregate_train` on real messages whose arrays need no
  deserialisation; torch libraries get tensors on the memory of the NumPy array. Ours includes the check of every number
  and the report on every client.
- A call that took more than {budget:g} s was made once and says so. `memory`: not run, it would not have fitted.
- `huber` finds its threshold itself. `huber + certificate` also proves how near everyone else's aggregate is without any f.
  `centered_clipping` takes five steps from zero in both libraries. Buckets hold two clients. `clipping` shortens updates to the
  square root of d.
- Flower's Bulyan collects garbage once for every client; what the others have loaded here is kept out of its way.
"""

DIFFERS = """
Some libraries compute something else under the same name (see [](agreement.md)):
"""

AHEAD = """
### Where another library is ahead
"""

ERRORS = """
## How far from the answer

Rules that iterate can stop early and look fast. For each: when it stops; then, for every shape, its multiple of the mean, and
its distance to a float64 reference, found by plain fixed-point steps on a Gram matrix to 1e-13, in units of the median distance
of a client to it.
"""

SCALING = """
## Growth

seconds ~ size^slope, by least squares over all sizes, and over the last step alone; the target is a slope of at most {target}.
`{yardstick}` is there for comparison: what leaves the cache grows faster than its size.
"""

ROUND = """
## One round, end to end

The paper's MNIST experiment: gradients of {clients} clients at one model, {liars} of them replaced by lies, one aggregate.
Beside ours, the same with torch client by client, ByzFL's sign flip and ByzFL's geometric median (it has no Huber; three
steps from zero). Milliseconds, the best of several rounds in turns:
"""


def write(results: Results, path: Path) -> None:
    """Write the document, and its chart in figures/ beside it."""
    chart = path.parent / "figures" / f"{path.stem}.png"
    draw(results, chart)
    settings = results["settings"]
    text = HEAD.format(machine=_machine(results["environment"]))
    if warning := busy(settings["load before"]):
        text += f"\n**{warning}**\n"
    if results["left out"]:
        text += f"\nCould not be installed, and so are missing: {', '.join(results['left out'])}.\n"
    text += _inputs(results)
    text += BESIDE.format(**settings) + _differs(results["shapes"])
    text += f"\n![multiples of the mean, by rule and library](figures/{chart.name})\n"
    text += "".join(_shape(shape) for shape in results["shapes"])
    text += _ahead(results["shapes"])
    text += _errors(results["shapes"])
    if results.get("scaling"):
        text += _scaling(results["scaling"])
    if results.get("round"):
        text += _round(results["round"])
    path.write_text(text, encoding="utf-8")


def _machine(environment: Machine) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in environment["versions"].items())
    threads = ", ".join(f"{name} {value}" for name, value in environment["threads"].items())
    return (
        f"{environment['processor']}, {environment['cores']} cores; Python {environment['python']}; {versions}. "
        f"Threads: {threads}."
    )


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(head) + " |", "|---|" + "---:|" * (len(head) - 1)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)]) + "\n"


def _inputs(results: Results) -> str:
    """What people send, one table for each group; and first calls."""
    rows, text = results.get("inputs", []), ""
    for group in dict.fromkeys(row["group"] for row in rows):
        head, lines = input_cells([row for row in rows if row["group"] == group])
        text += f"\n### {group.capitalize()}\n\n{_table(head, lines)}"
    text = INPUTS + text if rows else ""
    first = results.get("first calls", [])
    return text + (f"{FIRST_CALLS}\n{_table(*first_call_cells(first))}{COMPILED}" if first else "")


def _differs(shapes: Sequence[Shape]) -> str:
    """What libraries compute instead of a rule, of those that were measured."""
    shown = {(row["rule"], row["library"]) for shape in shapes for row in shape["rows"] if has_multiple(row)}
    notes = dict[str, list[str]]()
    for peer in PEERS:
        if peer.differs and (peer.rule, peer.library) in shown:
            notes.setdefault(f"{peer.differs}.", []).append(f"{peer.library}'s {peer.rule}")
    return DIFFERS + "\n" + "".join(f"- {listed(who)}: {what}\n" for what, who in notes.items()) if notes else ""


def _ahead(shapes: Sequence[Shape]) -> str:
    """Every rule and shape for which another library was faster than ours."""
    notes = []
    for shape in shapes:
        found = {(row["rule"], row["library"]): row for row in shape["rows"]}
        for rule in rules_of(shape):
            best, ours = best_of(shape, rule), found.get((rule, OURS))
            if best not in ("", OURS) and ours is not None:
                there, here = cell(found[rule, best]), cell(ours)
                notes.append(f"- {shape['m']:,} x {shape['d']:,}, {title(rule)}: {best} {there}, fedhold {here}\n")
    told = "".join(notes) if notes else "Nowhere in these tables.\n"
    return f"{AHEAD}\n{told}"


def _shape(shape: Shape) -> str:
    libraries = libraries_of(shape)
    found = {(row["rule"], row["library"]): row for row in shape["rows"]}
    rows = []
    for rule in rules_of(shape):
        fastest = best_of(shape, rule)
        cells = ((name, cell(found.get((rule, name)))) for name in libraries)
        rows.append([title(rule), *(f"**{text}**" if name == fastest else text for name, text in cells)])
    mean = 1000 * found[YARDSTICK, "NumPy"]["best"]
    heading = f"\n### {shape['m']:,} clients x {shape['d']:,} numbers, {shape['f']} lie\n\n"
    notes = "".join(f"- {remark}\n" for remark in remarks(shape))
    return (
        heading
        + f"`{YARDSTICK}` took {mean:.1f} ms.\n\n"
        + _table(["rule", *libraries], rows)
        + (f"\n{notes}" if notes else "")
    )


def _errors(shapes: Sequence[Shape]) -> str:
    off: dict[tuple[str, str], dict[int, str]] = {}
    for number, shape in enumerate(shapes):
        for row in shape["rows"]:
            if "off" in row:
                off.setdefault((row["rule"], row["library"]), {})[number] = f"{cell(row)}, {row['off']:.1e}"
    stops = {(peer.rule, peer.library): peer.stops for peer in PEERS}
    head = ["rule", "library", "stops at", *(f"{shape['m']:,} x {shape['d']:,}" for shape in shapes)]
    rows = [
        [
            rule,
            library,
            stops.get((rule, library)) or OWN_STOPS,
            *(found.get(number, "-") for number in range(len(shapes))),
        ]
        for (rule, library), found in off.items()
    ]
    return f"{ERRORS}\n{_table(head, rows)}" if rows else ""


def _scaling(rows: Sequence[Growth]) -> str:
    over = [f"{row['sizes'][0]:,} to {row['sizes'][-1]:,} {row['axis']}" for row in rows]
    slopes = [(f"{row['slope']:.2f}", f"{last_slope(row):.2f}") for row in rows]
    shown = [[row["rule"], sizes, *both] for row, sizes, both in zip(rows, over, slopes, strict=True)]
    text = SCALING.format(target=SLOPE_TARGET, yardstick=YARDSTICK)
    return text + "\n" + _table(["rule", "over", "slope", "last step"], shown)


def _round(found: RoundTimes | FailedRound) -> str:
    if "failed" in found:
        return f"\n## One round, end to end\n\nNot measured: {found['failed']}\n"
    parts = list(found["best"][OURS])
    rows = [
        [name, *(f"{1000 * seconds[part]:.1f}" for part in parts), f"{1000 * sum(seconds.values()):.1f}"]
        for name, seconds in found["best"].items()
    ]
    text = ROUND.format(**found) + "\n" + _table(["", *parts, "in all"], rows)
    if "faster" in found:
        text += (
            f"\nfedhold is {found['faster']:.1f} times faster (target: at least {FASTER_TARGET:g}). The gradients of both "
            f"differ by {found['gradients apart']:.0e} of their length.\n"
        )
    return text


def draw(results: Results, path: Path) -> None:
    """Draw one panel per shape: rules down, multiples of the mean across, a dot per library."""
    if not can_plot():
        raise ValueError("the chart needs matplotlib. From a checkout of fedhold: pip install '.[report]'")
    from matplotlib.figure import Figure

    shapes = results["shapes"]
    rules = list(dict.fromkeys(rule for shape in shapes for rule in rules_of(shape)))
    across = min(2, len(shapes))
    down = -(-len(shapes) // across)
    figure = Figure(figsize=(5.2 * across + 1.6, (0.28 * len(rules) + 1.1) * down + 0.6), dpi=120, layout="constrained")
    panels = list(figure.subplots(down, across, sharex=True, sharey=True, squeeze=False).flat)
    places = {rule: len(rules) - number for number, rule in enumerate(rules)}
    for axes, shape in zip(panels, shapes, strict=False):
        for number, library in enumerate((OURS, *LIBRARIES)):
            rows = [row for row in shape["rows"] if row["library"] == library and has_multiple(row)]
            axes.plot(
                [row["multiple"] for row in rows],
                [places[row["rule"]] for row in rows],
                "D" if library == OURS else "o",
                color=COLOURS[number % len(COLOURS)],
                markersize=7 if library == OURS else 5,
                label=library,
                zorder=3 if library == OURS else 2,
            )
        axes.set(xscale="log", xlabel=f"multiples of {YARDSTICK}", title=f"{shape['m']:,} x {shape['d']:,}")
        axes.set_yticks(list(places.values()), [title(rule) for rule in places])
        axes.xaxis.set_major_formatter(lambda times, _: f"{times:,g}")
        axes.grid(alpha=0.3)
    for axes in panels[len(shapes) :]:
        axes.set_visible(False)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    shown = [(h, name) for h, name in zip(handles, labels, strict=True) if any(name in libraries_of(s) for s in shapes)]
    figure.legend(*zip(*shown, strict=True), loc="outside lower center", ncols=4, frameon=False, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})  # the version of matplotlib would change the bytes
