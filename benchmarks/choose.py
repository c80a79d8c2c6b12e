"""docs/choose.md and its picture, from the numbers of an arena.

    fedhold arena --quick --out arena
    fedhold arena --quick --momentum 0.9 --only dirichlet --out arena-momentum
    fedhold arena --out whole       # over hours; what it has finished when it is stopped is enough
    python benchmarks/choose.py arena --momentum arena-momentum --whole whole

It reads numbers/*.csv of the directories, so that it needs neither the results nor the version that made them.
"""

from __future__ import annotations

import argparse
import csv
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedhold import aggregate

ROOT = Path(__file__).parents[1]
USUAL, SKEWED = "without-label-skew", "label-skew"
DEFAULT = inspect.signature(aggregate).parameters["rule"].default
MIXED = "nearest_neighbour_mixing | "
NO_ATTACK = "no attack"
BAR = "\\|"  # within a table of Markdown
FEW = "worst at 20%"
SOUND = 0.8  # kept in the mean: a rule that keeps less is no defence against anything


@dataclass(frozen=True)
class Row:
    """A line of a leaderboard, as it is written there: "0.61 (0.55 to 0.66)"."""

    words: dict[str, str]

    def __getitem__(self, column: str) -> str:
        return self.words[column]

    def number(self, column: str) -> float:
        return float(self.words[column].partition(" ")[0])


def table(folder: Path, name: str) -> list[dict[str, str]]:
    path = folder / "numbers" / f"{name}.csv"
    if not path.is_file():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def leaderboard(folder: Path, which: str) -> list[Row]:
    return [Row(words) for words in table(folder, f"leaderboard-{which}")]


def in_short(rows: list[Row]) -> list[str]:
    """Who is best, among those that are told nothing, among all, and where the default stands."""
    blind = [row for row in rows if not row["knows"]]
    best, first = max(blind, key=worst), max(rows, key=worst)
    rank, rank_of_all = min(blind, key=by_rank), min(rows, key=by_rank)
    firm, firm_of_all = max(blind, key=by_attack), max(rows, key=by_attack)
    told = (
        f"`{first['rule']}`, which knows more ({first['knows']}), keeps {first['worst case']}"
        if first["knows"]
        else "no rule that knows more keeps more"
    )
    lines = [
        f"- Best worst case without knowing how many lie: `{best['rule']}`, which keeps {best['worst case']}; {told}.",
        f"- Best under the worst attack of each data set and fraction of liars, in the mean, without knowing it: "
        f"`{firm['rule']}`, {firm['worst attack']}; of all `{firm_of_all['rule']}`"
        f"{f' ({knows})' if (knows := firm_of_all['knows']) else ''}, {firm_of_all['worst attack']}.",
        f"- Best mean rank without knowing it: `{rank['rule']}`, {rank['mean rank']}; of all `{rank_of_all['rule']}`, "
        f"{rank_of_all['mean rank']} of {len(rows)}.",
    ]
    ours = next((row for row in rows if row["rule"] == DEFAULT), None)
    if ours is not None:
        place = 1 + sum(worst(row) > worst(ours) for row in rows)
        under = 1 + sum(row.number("worst attack") > ours.number("worst attack") for row in rows)
        by = 1 + sum(by_rank(row) < by_rank(ours) for row in rows)
        lines.append(
            f"- The default, `{DEFAULT}`, is number {place} of {len(rows)} by the worst case ({ours['worst case']}), number "
            f"{under} under the worst attack ({ours['worst attack']}) and number {by} by the mean rank ({ours['mean rank']}). "
            f"Without an attack it keeps {ours[NO_ATTACK]}."
        )
    return lines


def which_when(usual: list[Row], skewed: list[Row]) -> list[str]:
    """A table of what a server may know or fear, the rule to take then, and the numbers that say so."""
    blind, told = ([row for row in usual if row["knows"] == knows] for knows in ("", "told f"))
    rooted = [row for row in usual if "has samples" in row["knows"]]
    sound = [row for row in usual if row.number("mean") >= SOUND and row["backdoor"]]
    lines = ["| your case | take | because |", "|---|---|---|"]

    def add(case: str, rule: Row, numbers: str) -> None:
        knows = f" ({rule['knows']})" if rule["knows"] else ""
        lines.append(f"| {case} | `{rule['rule'].replace('|', BAR)}`{knows} | {numbers} |")

    if blind:
        one = min(blind, key=by_rank)
        in_all = f"{one['mean']} kept in the mean, {one['worst attack']} under the worst attack"
        add("You do not know how many lie", one, f"mean rank {one['mean rank']} of {len(usual)}, {in_all}")
    if told and FEW in told[0].words:
        one = max(told, key=lambda row: (row.number(FEW), -row.number("mean rank")))
        add("You know how many lie: a fifth at most", one, f"{one[FEW]} kept in the worst case at 20 %")
    if rooted:
        one = max(rooted, key=worst)
        numbers = f"{one['worst case']} kept in the worst case"
        add("The server has a few clean samples, and two fifths may lie", one, numbers)
    if sound:
        one = min(sound, key=lambda row: row.number("backdoor"))
        numbers = f"{one['backdoor']} of them succeed, and {one['mean']} is kept in the mean"
        add("You fear backdoors more than a loss of accuracy", one, numbers)
    if skewed:
        blind = [row for row in skewed if not row["knows"]]
        one = max(blind, key=by_attack)
        numbers = f"{one['worst attack']} kept under the worst attack, {one['mean']} in the mean"
        add("Clients hold few classes each, and you do not know how many lie", one, numbers)
        one = max(blind, key=lambda row: (row.number("mean"), -row.number("mean rank")))
        numbers = f"{one['mean']} kept in the mean, {one[NO_ATTACK]} without an attack"
        add("Clients hold few classes each, few lie, and you cap the samples they claim", one, numbers)
    return lines


def worst(row: Row) -> tuple[float, float]:
    return row.number("worst case"), -row.number("mean rank")


def by_attack(row: Row) -> tuple[float, float]:
    return row.number("worst attack"), -row.number("mean rank")


def by_rank(row: Row) -> float:
    return row.number("mean rank")


def shown(rows: list[Row]) -> list[str]:
    """A leaderboard in Markdown."""
    columns = list(rows[0].words)
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    names = [f"**`{row['rule']}`**" if row["rule"] == DEFAULT else f"`{row['rule']}`" for row in rows]
    return lines + [
        "| " + " | ".join([name.replace("|", BAR), *(row[column] for column in columns[1:])]) + " |"
        for name, row in zip(names, rows, strict=True)
    ]


def what_helps(skewed: list[Row], momentum: list[Row]) -> list[str]:
    """Under label skew: what mixing and momentum add to each rule, in the mean of what is kept."""
    plain = {row["rule"]: row for row in skewed}
    lines = []
    for rule, row in plain.items():
        base = rule.removeprefix(MIXED)
        if rule.startswith(MIXED) and base in plain:
            lines.append(
                f"- Mixing, `{rule}`: worst case {row['worst case']} instead of {plain[base]['worst case']}, "
                f"mean {row['mean']} instead of {plain[base]['mean']}."
            )
    if momentum:
        gains = [
            (row.number("mean") - plain[row["rule"]].number("mean"), row) for row in momentum if row["rule"] in plain
        ]
        better = sum(gain > 0 for gain, _ in gains)
        gain, most = max(gains, key=lambda pair: pair[0])
        lines.append(
            f"- Momentum of 0.9 at the clients raises the mean of {better} of {len(gains)} rules, most that of "
            f"`{most['rule']}`, by {gain:.2f} to {most['mean']}. With it the best worst case is that of "
            f"`{max(momentum, key=worst)['rule']}`: {max(momentum, key=worst)['worst case']}."
        )
    return lines


def with_samples(rows: list[Row]) -> list[str]:
    """What rules keep that compare clients with an update of the server's own."""
    rooted = [row for row in rows if "has samples" in row["knows"]]
    helped = [
        f"`{row['rule']}` keeps {row['worst case']} in the worst case, {row['mean']} in the mean" for row in rooted
    ]
    told = "; ".join(helped) or "No rule of this arena has one"
    return [f"- A root update, which the server makes from a few clean samples of its own, needs no majority. {told}."]


def picture(folder: Path, path: Path) -> None:
    """Rules x attacks: what is kept in the worst of settings and fractions of liars."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure

    from fedhold.report.colours import SCALE

    cells = table(folder, "cells")
    judged = {(row["data"], row["partition"]): row["judged"] for row in table(folder, "settings")}
    kinds = [kind for kind in ("without label skew", "label skew") if kind in judged.values()]
    attacks = list(dict.fromkeys(cell["attack"] for cell in cells))
    figure = Figure(figsize=(0.62 * len(attacks) * len(kinds) + 4, 9), dpi=110, layout="constrained")
    axes = figure.subplots(1, len(kinds), squeeze=False)[0]
    first = leaderboard(folder, USUAL) or leaderboard(folder, SKEWED)
    rules = [row["rule"] for row in first]
    image: Any = None
    for axis, kind in zip(axes, kinds, strict=True):
        values = np.full((len(rules), len(attacks)), np.nan)
        for cell in cells:
            if judged[cell["data"], cell["partition"]] == kind and cell["rule"] in rules:
                at = rules.index(cell["rule"]), attacks.index(cell["attack"])
                values[at] = np.nanmin([values[at], float(cell["kept"])])
        image = axis.imshow(values, cmap=ListedColormap(SCALE / 255), vmin=0, vmax=1, aspect="auto")
        for (r, a), value in np.ndenumerate(values):
            if not np.isnan(value):
                colour = "white" if value < 0.55 else "black"
                axis.text(a, r, f"{value:.2f}", ha="center", va="center", fontsize=7, color=colour)
        axis.set_xticks(range(len(attacks)), attacks, rotation=60, ha="right", fontsize=8)
        names = [f"{row['rule']} *" if row["knows"] else row["rule"] for row in first]
        axis.set_yticks(range(len(rules)), names if axis is axes[0] else [""] * len(rules), fontsize=8)
        axis.set_title(kind, fontsize=10)
    figure.colorbar(image, ax=list(axes), label="kept in the worst case (* told f)", shrink=0.6)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})


def of_the_whole(folder: Path | None, note: str) -> list[str]:
    """What the whole grid says, as far as it ran."""
    boards = [(which, rows) for which in (USUAL, SKEWED) if folder and (rows := leaderboard(folder, which))]
    if not boards:
        return []
    lines = ["## The whole grid, as far as it ran", "", note, ""]
    for which, rows in boards:
        lines += [f"### {'Without label skew' if which == USUAL else 'With label skew'}", ""]
        lines += [*in_short(rows), "", *shown(rows), ""]
    return lines


# Measured by benchmarks/guard.py, which has its own seeds.
OWN_SAMPLES = """## Data of the server's own

Five of twenty honest clients alone hold three classes; or the same five send the same updates, and lie. No rule can
know which, and `fedhold.diagnose(updates)` says so: "The clients form 2 groups of 15 and 5. The default rule follows
the largest." Someone who knows can aggregate each group by itself. A server with 30 to 100 labelled samples can pass
a guard, the loss of a model on each of them:

    result = aggregate(updates, guard=lambda value: losses_on_my_samples(model + value))
    result.guard        # Guarded(taken='near_mean', losses={...}, gain=0.21, error=0.04, note='')

The candidates are the rule, huber and nearly the mean (huber with kappa 3), the last two kept within s, the median
distance, of the Huber centre with equal votes. A looser one is taken if its loss is lower by two standard errors of
the paired difference. So whatever the samples say, and whatever liars send and claim, the value is the rule's own or
within s of a centre that fewer than half cannot move far.

Fashion-MNIST, a small MLP, ten local steps, accuracy in percent after 60 rounds, means of three seeds
(`benchmarks/guard.py minority`). Five of 20 clients alone hold three classes; four others lie; the server has 100
samples:

| rule | nobody lies | sign flip | IPM .1 | IPM .5 | ALIE | label flip | hidden push | worst |
|---|---|---|---|---|---|---|---|---|
| `mean` | 79.8 | 77.3 | 79.3 | 78.8 | 80.4 | 78.3 | 73.9 | 73.9 |
| `huber` | 69.6 | 77.4 | 69.8 | 59.0 | 78.9 | 75.5 | 59.3 | 59.0 |
| `spectral_huber` | 58.1 | 57.2 | 57.4 | 57.7 | 58.6 | 58.8 | 57.9 | 57.2 |
| `spectral_huber`, guarded | 77.6 | 77.6 | 75.4 | 76.1 | 79.1 | 76.6 | 73.8 | 73.8 |

The guard costs 2.2 points where nobody lies, the default 21.7. On a fourth seed, 110, it cost nothing (78.4, the mean
78.3). Four liars this quiet hardly harm the mean itself. One who sends huge numbers breaks it, and cannot break a
value within s. Samples that lack the minority's classes leave the rule as it is. A minority that is far further away
than s is followed by s a round. A backdoor does not show in a loss, and an adversary who knows the samples can look
for lies that they miss.

Where it does not pay: ten clients with Dirichlet .1 of 10,000 images, unequal sizes, a CNN, one local epoch, 15 rounds,
two seeds (`benchmarks/guard.py dirichlet --seeds 100 101`). The guard kept the default in 22 of 30 rounds where nobody lied:

| rule | nobody lies | two flip labels |
|---|---|---|
| `mean` | 67.1 | 57.6 |
| `spectral_huber` | 58.4 | 52.4 |
| `spectral_huber`, guarded | 56.2 | 60.2 |
"""


def document(given: argparse.Namespace, figure: str) -> str:
    folder, momentum, whole = given.arena, given.momentum, given.whole
    usual, skewed = leaderboard(folder, USUAL), leaderboard(folder, SKEWED)
    if not usual and not skewed:
        raise SystemExit(f"no leaderboard in {folder}/numbers. Make one with: fedhold arena --out {folder}")
    with_momentum = leaderboard(momentum, SKEWED) if momentum else []
    # More clients, data and fractions of liars decide more.
    deciding = [leaderboard(whole, which) if whole else [] for which in (USUAL, SKEWED)]
    settings = table(folder, "settings")
    lines = [
        "# Choose a rule",
        "",
        "Which rule holds best depends on what you know and on how alike your clients' data are. These numbers come from",
        "`fedhold arena`: every rule against every attack. A number is the share that a rule keeps of what plain averaging",
        "learns where nobody lies; a model that gives one answer for everything has learnt nothing. The worst case is over all",
        "attacks, fractions of liars and data sets: one cell decides it, and where that cell breaks every rule, it says",
        "nothing about any. So there is a second measure, chosen before it was computed: an adversary chooses the attack, but",
        "neither the data nor how many lie. `worst attack` is the least over attacks, as a mean over data sets and fractions",
        "of liars. [The default rule](default.md) says which cells break nearly every rule, and why.",
        "`benchmarks/choose.py` writes this page.",
        "",
        *([given.note, ""] if given.note else []),
        *which_when(deciding[0] or usual, deciding[1] or skewed),
        "",
        "Where honest clients come in groups, or their updates are skewed, and few of them lie, `huber` loses least to the",
        "mean: [the default rule](default.md) says by how much. In the arena all claims of samples are believed, so that",
        "`inflated_samples` breaks `mean`, `huber` and `geometric_median`; `aggregate` caps claims unless it is told not to.",
        "",
    ]
    if usual:
        lines += [
            "## Clients whose data are alike, or differ by more than their labels",
            "",
            *in_short(usual),
            "",
            *shown(usual),
            "",
        ]
    lines += [
        f"![Rules and attacks: what is kept in the worst case]({figure})",
        "",
    ]
    if skewed:
        helps = what_helps(skewed, with_momentum)
        lines += [
            "## Label skew",
            "",
            "Where clients hold few classes each, honest updates differ as much as lies do, and a rule that holds outliers",
            "down holds honest clients down, too.",
            "",
            *in_short(skewed),
            *helps,
            *with_samples(skewed),
            "",
            *shown(skewed),
            "",
        ]
    lines += of_the_whole(whole, given.whole_note)
    lines += [
        OWN_SAMPLES,
        "## How this was measured",
        "",
        "| data | partition | rounds | step | judged |",
        "|---|---|---|---|---|",
        *(f"| `{s['data']}` | `{s['partition']}` | {s['rounds']} | {s['step']} | {s['judged']} |" for s in settings),
        "",
        "Rules marked `told f` know the true number of liars, as no server does. Refused are the cells where a rule's bound",
        "on m and f does not hold; they count as nothing kept. `backdoor` is the mean success of that attack, 0 the best: the",
        "accuracy does not show it. In brackets: the least and the largest over seeds.",
        "",
        "A rank is among all rules in one cell, 1 the best. Two rules that differ by less than 0.01 there are as good as each",
        "other, and share their ranks; so are two that differ by less than twice the deviation over seeds, where there are",
        "several. Nobody would choose a rule for keeping 0.998 instead of 0.995, and another seed may turn the order around:",
        "with two seeds on small data, half of the cells had a deviation above 0.015. Otherwise rules that are told how many",
        "lie, or that nobody does, would win many ranks by differences that no user sees.",
        "",
        "```sh",
        "fedhold arena --quick     # few clients, little data, two seeds: within 5 minutes on two idle cores",
        "fedhold arena             # the whole grid, over hours; it can be killed and goes on from there",
        "```",
        "",
        "[Your own parts](own.md) says how a rule or an attack of yours joins it.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arena", type=Path, help="the --out of fedhold arena")
    parser.add_argument("--momentum", type=Path, help="the same with --momentum 0.9, for label skew")
    parser.add_argument("--note", default="", help="a sentence about how much was run")
    parser.add_argument("--whole", type=Path, help="the --out of fedhold arena without --quick")
    parser.add_argument("--whole-note", default="", help="a sentence about how much of the whole grid was run")
    parser.add_argument("--docs", type=Path, default=ROOT / "docs" / "choose.md")
    parser.add_argument("--figure", type=Path, default=ROOT / "docs" / "figures" / "arena.png")
    given = parser.parse_args()
    picture(given.arena, given.figure)
    name = given.figure.relative_to(given.docs.parent).as_posix()
    given.docs.write_text(document(given, name), encoding="utf-8")
    print(f"{given.docs} and {given.figure} are written.")


if __name__ == "__main__":
    main()
