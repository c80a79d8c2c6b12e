"""What came out of `fedhold reproduce all sweeps --readings`, put into docs/reproduce.md: tables between marks, and figures.

python benchmarks/reproduce_page.py RUNS      (the --out of the command; needs matplotlib: the extra `report`)
python benchmarks/reproduce_page.py RUNS --sweeps      (the sweeps alone, where they are in a directory of their own)

What is not in RUNS yet is called "not run" on the page; figures are drawn with the curves that are there. The runs behind the
page are kept in docs/reproduce.json, with the metric alone that they are judged by. To go on from them, and not from nothing:

python benchmarks/reproduce_page.py RUNS --restore
fedhold reproduce all --readings --out RUNS
"""

import argparse
import csv
import json
import re
from collections import Counter
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from fedhold.lab import Experiment, Result, Store
from fedhold.lab.paper import (
    ATTACK_NAMES,
    CLAIMS,
    FIGURES,
    METHODS,
    NAMES,
    READINGS,
    Plan,
    attack_free,
    by_reading,
    by_words,
    judged,
    readings_table,
    sweeps,
)

DOCS = Path(__file__).parents[1] / "docs"
KEPT = DOCS / "reproduce.json"
DIGITS = 6  # of a metric: an accuracy on 10,000 images has four
VERSIONS = ("fedhold", "python", "numpy", "numba")  # The kept runs were made while numba could make part of the work.
COLOURS = 192  # of the figures: small in a repository
OUTCOMES = ("holds", "depends", "fails", "undecided")
# Red and solid, blue and dotted, orange and purple and dashed: as section 7.1 describes the paper's curves. The rest is ours.
STYLES = {
    "huber, paper's T": ("red", "-", "o"),
    "krum": ("tab:blue", ":", "s"),
    "median_of_means": ("tab:orange", "--", "^"),
    "trimmed_mean": ("tab:purple", "--", "v"),
    "median": ("tab:green", "-.", "D"),
    "mean": ("grey", "-", "x"),
    "huber, automatic T": ("black", "-.", "+"),
}


def markdown(table):
    lines = ["| " + " | ".join(table.header) + " |", "|" + "---|" * len(table.header)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in table.rows])


def plain(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def ends(find, figure, plan):
    """The last round of every method: mean over the seeds, smallest and largest."""
    rows = []
    for part in FIGURES[figure]:
        cells = []
        for method in METHODS:
            there = [result for run in part.curve(method, plan) if (result := find(run)) is not None]
            last = [
                np.inf if result.series[part.metric][-1] is None else result.series[part.metric][-1] for result in there
            ]
            if not last:
                cells.append("not run")
            elif len(last) == 1:
                cells.append(f"{last[0]:.3f} (one seed)")
            else:
                cells.append(f"{np.mean(last):.3f} ({min(last):.3f} to {max(last):.3f})")
        rows.append([part.title, *cells])
    return plain(["", *(NAMES[method] for method in METHODS)], rows)


def verdict_table(every):
    verdicts = [one.verdict for one in every]
    rows = [[f"**{verdict.outcome}**", verdict.says, verdict.where, verdict.numbers] for verdict in verdicts]
    return plain(["verdict", "claim", "where", "numbers"], rows)


def verdicts(find):
    """The parts of the page that say what became of the claims."""
    every = [judged(claim, find, Plan(), READINGS.values()) for claim in CLAIMS]
    return {"summary": summary(every), "claims": verdict_table(every), "by_reading": markdown(by_reading(every))}


def summary(every):
    """One list per outcome; for claims that depend, on which readings."""
    parts = []
    for outcome in OUTCOMES:
        found = [one for one in every if one.outcome == outcome]
        if not found:
            continue
        lines = [f"- {one.claim.says} ({one.claim.where}){_depends(one)}" for one in found]
        parts.append(f"**{outcome.capitalize()}** ({len(found)} of {len(every)}):\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def _depends(one):
    if one.outcome != "depends":
        return ""
    return f": {one.main.outcome} under the main reading, {', '.join(f'{one.others[name]} under *{name}*' for name in one.why)}"


def what_was_run(store):
    """Runs and seeds of every reading, counted from the results themselves."""
    there, plan, rows = {result.experiment for result in store.all()}, Plan(), []
    main = set()
    for name in ("main", *READINGS):
        under = plan.widest if name == "main" else replace(plan.widest, reading=READINGS[name])
        subfigures = [part for figure in FIGURES.values() for part in figure]
        wanted = {run for part in subfigures for method in METHODS for run in part.curve(method, under)}
        wanted |= {run for part in subfigures for run in attack_free(part, under)}
        mine = (wanted - main) & there
        main |= wanted if name == "main" else set()
        counts = Counter("MNIST" if run.data == "mnist" else "regression" for run in mine)
        most = {
            kind: 1 + max((run.seed for run in mine if (run.data == "mnist") == (kind == "MNIST")), default=-1)
            for kind in counts
        }
        seeds = {kind: "one seed" if count == 1 else f"up to {count} seeds" for kind, count in most.items()}
        text = "; ".join(f"{counts[kind]} runs, {seeds[kind]}, on {kind}" for kind in sorted(counts))
        rows.append([name, text or ("the main reading's runs, cut" if name == "until .90" else "nothing yet")])
    return plain(["reading", "runs of its own"], rows)


def table(runs, beginning):
    """A table that the command wrote as CSV; None where it is not there."""
    found = sorted((runs / "numbers").glob(f"{beginning}*.csv"))
    if not found:
        return None
    with found[0].open(newline="") as file:
        head, *rows = csv.reader(file)
    return plain(head, rows)


def draw(find, figure, plan, path):
    """The paper's subfigures side by side, and under each how far its curves are from the mean without liars."""
    parts = FIGURES[figure]
    paper = Figure(figsize=(3.6 * len(parts) + 0.6, 6.6), dpi=100, layout="constrained")
    axes = paper.subplots(2, len(parts), squeeze=False)
    for column, (letter, part) in enumerate(zip("abcd", parts, strict=False)):
        free = [result for run in attack_free(part, plan) if (result := find(run)) is not None]
        top, below = axes[:, column]
        data = "" if figure in ("fig1", "fig2", "fig3") else f"{part.data}, "
        top.set_title(
            f"({letter}) {data}{ATTACK_NAMES[part.attack]} with epsilon = {part.epsilon:g}", fontsize="medium"
        )
        for place, label in enumerate(METHODS):
            there = [result for run in part.curve(label, plan) if (result := find(run)) is not None]
            if not there or not free:
                continue
            colour, line, marker = STYLES[label]
            values = np.array([result.series[part.metric] for result in there], dtype=float)
            at = np.arange(1, values.shape[1] + 1)
            every = len(at) // 8
            style = {"color": colour, "linestyle": line, "marker": marker, "markersize": 4, "linewidth": 1.3}
            style["markevery"] = (
                1 + place * every // len(METHODS),
                every,
            )  # curves that coincide show their markers in turn
            top.plot(at, values.mean(axis=0), label=NAMES[label], **style)
            below.plot(at, values.mean(axis=0) - _mean(free, part.metric), **style)
        below.set_yscale("symlog", linthresh=0.01)
        below.axhline(0, color="lightgrey", linewidth=0.8, zorder=0)
        below.set_xlabel("iterations")
        for one in (top, below):
            one.grid(alpha=0.3)
    metric = "accuracy on the test data" if parts[0].metric == "accuracy" else "square root of the l2 loss"
    axes[0][0].set_ylabel(metric if figure != "fig4" else "root of the l2 loss; accuracy")
    axes[1][0].set_ylabel("minus the mean without liars")
    named = {label: line for one in axes[0] for line, label in zip(*one.get_legend_handles_labels(), strict=True)}
    if named:
        columns = 4 if len(parts) > 2 else 2  # more would be wider than the figure
        paper.legend(
            named.values(), named.keys(), loc="outside lower center", ncols=columns, frameon=False, fontsize="small"
        )
    paper.savefig(path, metadata={"Software": None})
    make_small(path)


def make_small(path):
    # Coverage: a palette by frequency would give a curve that is mostly hidden the colour of another.
    small = (
        Image.open(path).convert("RGB").quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    )
    small.save(path, optimize=True)


def _mean(results, metric):
    return np.mean(np.array([result.series[metric] for result in results], dtype=float), axis=0)


def swept(find):
    """The figures of the sweeps whose runs are all there, each with its sentence; None where there are none."""
    trained = sweeps.illustrated(find, sweeps.FULL)
    if not trained:
        return None
    return "\n\n".join(illustration(one) for one in (*trained, *sweeps.theorems(sweeps.FULL)))


def illustration(one):
    path = DOCS / "figures" / f"{one.name}.png"
    one.chart.save(path)
    make_small(path)
    return f"![{one.name}](figures/{path.name})\n\n{one.sentence}"


def keep(store):
    """Write the metric of every run to docs/reproduce.json, a run per line."""
    lines = []
    for result in sorted(store.all(), key=lambda result: str(result.experiment)):
        values = [None if value is None else float(f"{value:.{DIGITS}g}") for value in result.series[result.metric]]
        environment = {name: version for name, version in result.environment.items() if name in VERSIONS}
        kept = {"experiment": asdict(result.experiment), "metric": result.metric, "values": values}
        lines.append(json.dumps({**kept, "environment": environment}))
    KEPT.write_text("[\n" + ",\n".join(lines) + "\n]\n", encoding="utf-8")


def kept_runs():
    """The runs of docs/reproduce.json."""
    return [
        Result(
            experiment=Experiment.recorded(kept["experiment"]),
            series={kept["metric"]: kept["values"]},
            byzantine=[],
            weights=None,
            seconds=0.0,
            environment=kept["environment"],
        )
        for kept in json.loads(KEPT.read_text(encoding="utf-8"))
    ]


def restore(store):
    """Put the runs of docs/reproduce.json into a store that lacks them."""
    runs = kept_runs()
    missing = [run for run in runs if not store.has(run.experiment)]
    for run in missing:
        store.put(run)
    print(f"{len(missing)} of {len(runs)} runs put into {store.root}; the others were there.")


def put(page, parts):
    """Each part between its marks on the page; None leaves what is there."""
    text = page.read_text(encoding="utf-8")
    for name, made in parts.items():
        if made is None:
            continue
        marks = re.compile(rf"(<!-- {name} -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
        text, found = marks.subn(lambda met, made=made: met[1] + made + met[2], text)
        assert found == 1, f"{page} has no marks for {name}"
    page.write_text(text, encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--sweeps", action="store_true", help="put the sweeps on the page, and leave the rest as it is")
    parser.add_argument(
        "--restore", action="store_true", help="put the runs behind the page into RUNS, and do nothing else"
    )
    given = parser.parse_args()
    runs, store, plan, page = given.runs, Store(given.runs / "results"), Plan(), DOCS / "reproduce.md"
    if given.restore:
        restore(store)
        return
    find = cache(store.find)
    put(page, {"sweeps": swept(find)})
    if given.sweeps:
        return
    parts = {figure: ends(find, figure, plan) for figure in FIGURES} | verdicts(find)
    parts |= {"readings": markdown(readings_table()), "by_words": markdown(by_words(CLAIMS, find, plan))}
    parts |= {"run": what_was_run(store), "table1": table(runs, "table-1-measured")}
    put(page, parts)
    for figure in FIGURES:
        draw(find, figure, plan, DOCS / "figures" / f"{figure}.png")
    keep(store)


if __name__ == "__main__":
    main()
