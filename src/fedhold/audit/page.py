"""The report of an audit: one HTML file that needs nothing else, and its numbers as CSV.

Reasons, metric names and claims are texts that clients chose. They pass `visible` on their way to the page, where they are
escaped like all text. No figures are drawn as PNG: matplotlib reads formulas in texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedhold.audit.heatmap import draw_ledger
from fedhold.audit.numbers import (
    CLAIM,
    REASONS,
    Series,
    claims_table,
    metric_series,
    radius_series,
    rule_of,
    seconds_series,
    standings_table,
    tables,
)
from fedhold.audit.records import RoundRecord, read
from fedhold.audit.suspects import RULE, Standing, ranges, standings
from fedhold.report import Chart, Curve, draw, pages, visible, write_tables
from fedhold.storage import write_whole

__all__ = ["find_audit", "report_audit", "write_audit"]

HEAT = (
    "Each row is a node, the most suspicious on top, each column a round. The colour is the node's weight in the aggregate, 1 "
    "being an equal share among the admitted. A bar beside its name marks a suspect."
)
RADIUS = (
    "How far f nodes, whoever they are, can at most have moved the aggregate of a round, proven from what the server received. "
    "There is no line where nothing could be proven."
)
CLAIMS = (
    "Sample counts that were not taken as the nodes claimed them: what is above the cap counts as the cap, and a reply whose "
    "claim is no positive number is rejected."
)
BLIND = "The rule gives no weights, so only rejections count here: a node that lies in good form is not seen."
MOST_CHARTS = 12  # a client that invents metrics must not fill the page; the CSV file has them all
NAMED = 5  # suspects in the head of the page
MOST_ROWS = 200  # of a table in the page, likewise


def find_audit(path: Path) -> Path | None:
    """The audit that a path names: a file, or the only *.jsonl of a directory without results; None where there is none."""
    if path.is_file():
        return path
    if not path.is_dir() or (path / "results").is_dir():
        return None
    found = sorted(path.glob("*.jsonl"))
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ValueError(f"{path} holds {len(found)} audits: {names}. Name one of them.")
    return found[0] if found else None


def report_audit(audit: Path, out: Path | None = None) -> tuple[Path, list[Standing]]:
    """Write the report of an audit file into `out`, or beside it; return the path of the page, and the suspects."""
    notes: list[str] = []
    rounds = read(audit, notes.append)
    if not rounds:
        raise ValueError(f"{audit} holds no finished round yet. Follow it with: fedhold watch {audit}")
    page = write_audit(audit.parent if out is None else out, rounds, title=f"Audit of {audit.name}", notes=notes)
    return page, [one for one in standings(rounds) if one.is_suspect]


def write_audit(directory: Path, rounds: Sequence[RoundRecord], *, title: str, notes: Iterable[str] = ()) -> Path:
    """Write report.html and numbers/*.csv into `directory`; return the path of the page. `notes` go into its summary."""
    ranked = standings(rounds)
    metrics, below = _metric_charts(rounds), _other_charts(rounds)
    labels = dict.fromkeys(line.label for chart in [*metrics, *below] for line in chart.curves)
    order = {label: k for k, label in enumerate(labels)}
    sections = [
        pages.Section("Summary", _summary(rounds, ranked, notes)),
        pages.Section("Who was held down", pages.paragraph(HEAT) + draw_ledger(rounds, ranked) if ranked else ""),
        pages.Section("Suspects", _suspects(ranked)),
        pages.Section("Metrics", _metrics(metrics, order)),
        pages.Section("Certificate and time", _proven(rounds) + pages.cards(draw(chart, order) for chart in below)),
        pages.Section("Claims", _claims(rounds)),
        pages.Section("Files", pages.paragraph("Beside this page: the numbers in numbers/*.csv.")),
    ]
    path = Path(directory) / "report.html"
    write_whole(path, pages.page(title, _head(rounds, ranked), sections).encode())
    write_tables(path.parent / "numbers", [table for table in tables(rounds, ranked) if table.rows])
    return path


def _head(rounds: Sequence[RoundRecord], ranked: Sequence[Standing]) -> str:
    suspects = [visible(one.node, 40) for one in ranked if one.is_suspect]
    more = f" and {len(suspects) - NAMED} more" if len(suspects) > NAMED else ""
    who = ", ".join(suspects[:NAMED]) + more or "nobody"
    return f"{len(rounds)} round{'s' * (len(rounds) != 1)}, {len(ranked)} nodes. Suspects: {who}."


def _summary(rounds: Sequence[RoundRecord], ranked: Sequence[Standing], notes: Iterable[str]) -> str:
    why: dict[str, list[int]] = {}
    for record in rounds:
        if record.outcome != "aggregated":
            why.setdefault(visible(record.note or "no reason was written"), []).append(record.round)
    statuses = Counter(visible(row.status) for record in rounds for row in record.nodes if row.phase == "train")
    kept = sum(map(len, why.values()))
    facts = [
        ("rule", ", ".join(dict.fromkeys(map(rule_of, rounds)))),
        ("rounds", ranges(record.round for record in rounds)),
        ("from", visible(rounds[0].time)),
        ("to", visible(rounds[-1].time)),
        ("nodes", f"{len(ranked)}, of them {sum(one.is_suspect for one in ranked)} suspects"),
        ("training replies", ", ".join(f"{count} {status}" for status, count in statuses.most_common())),
        ("model kept", f"in {kept} of {len(rounds)} rounds"),
        ("run", visible(rounds[-1].run)),
    ]
    rows = [(ranges(when), reason) for reason, when in why.items()]
    table = (
        pages.heading("Rounds in which the model was kept") + pages.table(("rounds", "why"), rows, long=["why"])
        if rows
        else ""
    )
    return "".join(pages.paragraph(visible(note)) for note in notes) + pages.table(("", ""), facts) + table


def _suspects(ranked: Sequence[Standing]) -> str:
    suspects, others = ([one for one in ranked if one.is_suspect is wanted] for wanted in (True, False))
    found = _standings(suspects) if suspects else pages.paragraph("Nobody.")
    rest = pages.folded(f"The other {len(others)} nodes", _standings(others)) if others else ""
    blind = pages.paragraph(BLIND) if not any(one.share for one in ranked) else ""
    return pages.paragraph(RULE) + blind + found + rest


def _standings(ranked: Sequence[Standing]) -> str:
    table = standings_table(ranked[:MOST_ROWS], visible)
    more = f"And {len(ranked) - MOST_ROWS} more in numbers/suspects.csv."
    return pages.table(table.header, table.rows, long=[REASONS]) + pages.paragraph(more) * (len(ranked) > MOST_ROWS)


def _metrics(charts: Sequence[Chart], order: Mapping[str, int]) -> str:
    more = pages.paragraph(f"The first {MOST_CHARTS} of {len(charts)}; all are in numbers/metrics.csv.")
    return more * (len(charts) > MOST_CHARTS) + pages.cards(draw(chart, order) for chart in charts[:MOST_CHARTS])


def _proven(rounds: Sequence[RoundRecord]) -> str:
    if not any(record.certificate for record in rounds):
        return pages.paragraph("This rule proves no radius; plain huber does.")
    return pages.paragraph(f"{RADIUS} Proven in {len(radius_series(rounds))} of {len(rounds)} rounds.")


def _claims(rounds: Sequence[RoundRecord]) -> str:
    table = claims_table(rounds, visible)
    return (
        pages.paragraph(CLAIMS) + pages.table(table.header, table.rows[:MOST_ROWS], long=[CLAIM]) if table.rows else ""
    )


def _metric_charts(rounds: Sequence[RoundRecord]) -> list[Chart]:
    return [_chart(visible(name, 60), "value", lines, rounds) for name, lines in metric_series(rounds).items()]


def _other_charts(rounds: Sequence[RoundRecord]) -> list[Chart]:
    """The radius and the seconds of each round, as far as there are any."""
    fs = ranges(int(record.certificate["f"]) for record in rounds if record.certificate)
    parts = {part: line for part in ("round", "aggregation") if (line := seconds_series(rounds, part))}
    radius = _chart(f"Radius for f = {fs}", "radius", {"radius": radius_series(rounds)}, rounds)
    times = _chart("Seconds per round", "seconds", parts, rounds, log=True)
    return [radius] * bool(fs) + [times] * bool(parts)


def _chart(
    title: str, metric: str, lines: Mapping[str, Series], rounds: Sequence[RoundRecord], *, log: bool = False
) -> Chart:
    """Curves by round; there are no seeds in the world outside."""
    curves = []
    for name, line in lines.items():
        values = np.full((1, rounds[-1].round), np.nan)
        for when, value in line.items():
            values[0, when - 1] = value
        curves.append(Curve(visible(name, 60), (), values))
    return Chart(title, metric, tuple(curves), log)
