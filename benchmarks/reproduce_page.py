"""What came out of `fedhold reproduce all`, put into docs/reproduce.md: the tables between its marks, and the figures.

python benchmarks/reproduce_page.py RUNS      (the --out of the command; needs matplotlib: the extra `report`)
"""

import argparse
import csv
import re
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from fedhold.lab import Store
from fedhold.lab.paper import CLAIMS, FIGURES, METHODS, Measurements, Plan, judge

DOCS = Path(__file__).parents[1] / "docs"
WIDTH, COLOURS = 760, 192  # of the figures: to be read in a page, and small in a repository


def markdown(head, rows):
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def ends(store, figure, plan):
    """The last round of every method: mean over the seeds, smallest and largest."""
    rows = []
    for part in FIGURES[figure]:
        cells = []
        for method in METHODS:
            last = [store.get(run).series[part.metric][-1] for run in part.curve(method, plan)]
            last = [np.inf if value is None else value for value in last]
            cells.append(f"{np.mean(last):.3f} ({min(last):.3f} to {max(last):.3f})")
        rows.append([part.title, *cells])
    return markdown(["", *METHODS], rows)


def claims(store, plan):
    measurements = Measurements(cache(store.get), plan)
    verdicts = [judge(claim, measurements) for claim in CLAIMS]
    rows = [[f"**{verdict.outcome}**", verdict.says, verdict.where, verdict.numbers] for verdict in verdicts]
    return markdown(["verdict", "claim", "where", "numbers"], rows)


def table(runs, beginning):
    """A table that the command wrote as CSV."""
    (path,) = (runs / "numbers").glob(f"{beginning}*.csv")
    with path.open(newline="") as file:
        head, *rows = csv.reader(file)
    return markdown(head, rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    runs = parser.parse_args().runs
    store, plan, page = Store(runs / "results"), Plan(), DOCS / "reproduce.md"
    parts = {figure: ends(store, figure, plan) for figure in FIGURES}
    parts |= {"claims": claims(store, plan), "table1": table(runs, "table-1-measured")}
    text = page.read_text(encoding="utf-8")
    for name, made in parts.items():
        marks = re.compile(rf"(<!-- {name} -->\n\n).*?(\n\n<!-- end -->)", re.DOTALL)
        text, found = marks.subn(lambda met, made=made: met[1] + made + met[2], text)
        assert found == 1, f"{page} has no marks for {name}"
    page.write_text(text, encoding="utf-8")
    for path in sorted((runs / "figures").glob("fig*.png")):
        name = re.match(r"fig\d[a-d](-deviation)?", path.name)[0]
        image = Image.open(path).convert("RGB")
        small = image.resize((WIDTH, round(image.height * WIDTH / image.width)), Image.Resampling.LANCZOS)
        # Coverage: a palette by frequency would give a curve that is mostly hidden the colour of another.
        small = small.quantize(COLOURS, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        small.save(DOCS / "figures" / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
