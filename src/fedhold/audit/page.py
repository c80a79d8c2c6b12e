"""The report of an audit: one HTML file that needs nothing else, and its numbers as CSV.

Reasons, metric names and claims are texts that clients chose. They pass `visible` on their way to the page, whose templates
escape them like all text, and `quoted` on their way to CSV files. There are no PNG files: matplotlib would read formulas in
the texts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from fedhold.audit.heatmap import node_map
from fedhold.audit.records import (
    NodeRecord,
    RoundRecord,
    Series,
    metric_series,
    number_of,
    radius_series,
    read,
    rule_of,
    seconds_series,
)
from fedhold.audit.suspects import RULE, Standing, judge_round, ranges, standings
from fedhold.report import (
    Block,
    Cards,
    Chart,
    Curve,
    Folded,
    Heading,
    Paragraph,
    Section,
    Table,
    draw,
    page,
    quoted,
    visible,
    write_tables,
)
from fedhold.storage import write_whole

HEAT = (
    "Each row is a node, the most suspicious on top, and each column a round. The colour is the node's weight in the "
    "aggregate; 1 is an equal share among the admitted nodes. A bar beside its name marks a suspect."
)
RADIUS = (
    "Whichever f nodes lie, the Huber centre of the others is within the radius of the aggregate of a round; under huber that "
    "is how far the f can have moved it. It is proven from what the server received. There is no line where nothing could be "
    "proven."
)
CLAIMS = (
    "These sample counts were not taken as the nodes claimed them: a count above the cap counts as the cap, and a reply whose "
    "count is no positive number is rejected."
)
BLIND = "The rule gives no weights, so only rejections count here: a lie in the right form goes unseen."
MOST_CHARTS = 12  # a client that invents metrics must not fill the page; the CSV file has them all
MOST_ROWS = 200  # of a table in the page, for the same reason
NAMED = 5  # suspects in the head of the page
REASONS = "most frequent reasons"
CLAIM = "largest or strangest claim"

Safe = Callable[[object], str]  # how a table writes a client's text: `visible` or `quoted`


def report_audit(audit: Path, out: Path | None = None) -> tuple[Path, list[Standing]]:
    """Write the report of an audit file; return the path of the page, and the suspects.

    audit   the file that a strategy wrote
    out     the directory for report.html and numbers/*.csv; the directory of the audit by default
    """
    notes: list[str] = []
    rounds = read(audit, notes.append)
    if not rounds:
        raise ValueError(f"{audit} holds no finished round yet. Follow it with: fedhold watch {audit}")
    path = write_audit(audit.parent if out is None else out, rounds, title=f"Audit of {audit.name}", notes=notes)
    return path, [one for one in standings(rounds) if one.is_suspect]


def write_audit(directory: Path, rounds: Sequence[RoundRecord], *, title: str, notes: Iterable[str] = ()) -> Path:
    """Write report.html and numbers/*.csv into `directory`; return the path of the page. `notes` go into its summary."""
    ranked = standings(rounds)
    metrics, below = _metric_charts(rounds), _other_charts(rounds)
    labels = dict.fromkeys(line.label for chart in [*metrics, *below] for line in chart.curves)
    order = {label: k for k, label in enumerate(labels)}
    sections = [
        Section("Summary", _summary(rounds, ranked, notes)),
        Section("Who was held down", [Paragraph(HEAT), node_map(rounds, ranked)] if ranked else []),
        Section("Suspects", _suspects(ranked)),
        Section("Metrics", _metrics(metrics, order)),
        Section("Certificate and time", [_proven(rounds), *_cards(below, order)]),
        Section("Claims", _claims(rounds)),
        Section("Files", [Paragraph("Beside this page: the numbers in numbers/*.csv.")]),
    ]
    path = Path(directory) / "report.html"
    write_whole(path, page(title, _head(rounds, ranked), sections).encode())
    write_tables(path.parent / "numbers", [table for table in tables(rounds, ranked) if table.rows])
    return path


# The page


def _head(rounds: Sequence[RoundRecord], ranked: Sequence[Standing]) -> str:
    suspects = [visible(one.node, 40) for one in ranked if one.is_suspect]
    more = f" and {len(suspects) - NAMED} more" if len(suspects) > NAMED else ""
    who = ", ".join(suspects[:NAMED]) + more or "nobody"
    return f"{len(rounds)} round{'s' * (len(rounds) != 1)}, {len(ranked)} nodes. Suspects: {who}."


def _summary(rounds: Sequence[RoundRecord], ranked: Sequence[Standing], notes: Iterable[str]) -> list[Block]:
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
    blocks: list[Block] = [*(Paragraph(visible(note)) for note in notes), Table("summary", ("", ""), facts)]
    if why:
        rows = [(ranges(when), reason) for reason, when in why.items()]
        title = "Rounds in which the model was kept"
        blocks += [Heading(title), Table(title, ("rounds", "why"), rows, long=["why"])]
    return blocks


def _suspects(ranked: Sequence[Standing]) -> list[Block]:
    suspects, others = ([one for one in ranked if one.is_suspect is wanted] for wanted in (True, False))
    blocks: list[Block] = [Paragraph(RULE)]
    if not any(one.share for one in ranked):
        blocks.append(Paragraph(BLIND))
    blocks += _standings(suspects) if suspects else [Paragraph("Nobody.")]
    if others:
        blocks.append(Folded(f"The other {len(others)} nodes", _standings(others)))
    return blocks


def _standings(ranked: Sequence[Standing]) -> list[Block]:
    blocks: list[Block] = [standings_table(ranked[:MOST_ROWS], visible)]
    if len(ranked) > MOST_ROWS:
        blocks.append(Paragraph(f"And {len(ranked) - MOST_ROWS} more in numbers/suspects.csv."))
    return blocks


def _metrics(charts: Sequence[Chart], order: Mapping[str, int]) -> list[Block]:
    blocks = _cards(charts[:MOST_CHARTS], order)
    if len(charts) > MOST_CHARTS:
        blocks.insert(0, Paragraph(f"The first {MOST_CHARTS} of {len(charts)}; all are in numbers/metrics.csv."))
    return blocks


def _proven(rounds: Sequence[RoundRecord]) -> Block:
    if not any(record.certificate for record in rounds):
        return Paragraph("This rule proves no radius; plain spectral_huber and huber do.")
    return Paragraph(f"{RADIUS} Proven in {len(radius_series(rounds))} of {len(rounds)} rounds.")


def _claims(rounds: Sequence[RoundRecord]) -> list[Block]:
    table = claims_table(rounds, visible, most=MOST_ROWS)
    return [Paragraph(CLAIMS), table] if table.rows else []


def _cards(charts: Iterable[Chart], order: Mapping[str, int]) -> list[Block]:
    drawings = [draw(chart, order) for chart in charts]
    return [Cards(drawings)] if drawings else []


def _metric_charts(rounds: Sequence[RoundRecord]) -> list[Chart]:
    return [_chart(visible(name, 60), "value", lines, rounds) for name, lines in metric_series(rounds).items()]


def _other_charts(rounds: Sequence[RoundRecord]) -> list[Chart]:
    """The radius and the seconds of each round, as far as there are any."""
    fs = ranges(int(record.certificate["f"]) for record in rounds if record.certificate)
    parts = {part: line for part in ("round", "aggregation") if (line := seconds_series(rounds, part))}
    charts = []
    if fs:
        charts.append(_chart(f"Radius for f = {fs}", "radius", {"radius": radius_series(rounds)}, rounds))
    if parts:
        charts.append(_chart("Seconds per round", "seconds", parts, rounds, log=True))
    return charts


def _chart(
    title: str, metric: str, lines: Mapping[str, Series], rounds: Sequence[RoundRecord], *, log: bool = False
) -> Chart:
    """Curves by round; a deployed run has no seeds."""
    curves = []
    for name, line in lines.items():
        values = np.full((1, rounds[-1].round), np.nan)
        for when, value in line.items():
            values[0, when - 1] = value
        curves.append(Curve(visible(name, 60), (), values))
    return Chart(title, metric, tuple(curves), log)


# The tables


def tables(rounds: Sequence[RoundRecord], ranked: Sequence[Standing]) -> list[Table]:
    """The tables for CSV files: rounds, what became of every node in each, suspects, metrics, and claims."""
    every = standings_table(ranked, quoted)
    flags = [(one.is_suspect, *row) for one, row in zip(ranked, every.rows, strict=True)]
    return [
        _rounds_table(rounds),
        _nodes_table(rounds),
        Table("suspects", ("suspect", *every.header), flags),
        _metrics_table(rounds),
        claims_table(rounds, quoted),
    ]


def standings_table(ranked: Iterable[Standing], safe: Safe) -> Table:
    """A row for each node, in the given order. The mean weight is in units of an equal share."""
    header = (
        *("node", REASONS, "suspicion", "asked", "held down", "rejected", "clipped", "dropped", "bad evaluations"),
        *("quarantine", "mean weight", "last asked", "last good"),
    )
    rows = [
        (
            *(safe(one.node), "; ".join(f"{safe(reason)} ({count} x)" for reason, count in one.reasons), one.suspicion),
            *(one.asked, one.held, one.rejected, one.clipped, one.dropped, one.bad_evaluations),
            *(one.quarantined, one.share, one.last_asked, one.last_good),
        )
        for one in ranked
    ]
    return Table("nodes in all", header, rows, long=[REASONS])


def claims_table(rounds: Sequence[RoundRecord], safe: Safe, most: int | None = None) -> Table:
    """Nodes whose claimed sample counts were not taken as they came, each with its claim that was furthest off.

    The nodes with the most such rounds come first; `most` limits their number.
    """
    found: dict[str, list[tuple[int, NodeRecord]]] = {}
    for record in rounds:
        for row in record.nodes:
            if row.claimed is not None and row.claimed != row.samples:
                found.setdefault(row.node, []).append((record.round, row))
    header = ("node", "rounds", "first", "last", CLAIM, "counted as")
    rows: list[tuple[object, ...]] = []
    for node, times in sorted(found.items(), key=lambda item: -len(item[1]))[:most]:
        worst = max((row for _, row in times), key=_strangeness)
        claim = safe(worst.claimed) if isinstance(worst.claimed, str) else number_of(worst.claimed)
        counted = "rejected" if worst.status == "rejected" else worst.samples
        rows.append((safe(node), len(times), times[0][0], times[-1][0], claim, counted))
    return Table("claims", header, rows, long=[CLAIM])


def _strangeness(row: NodeRecord) -> tuple[bool, float]:
    return (True, 0.0) if isinstance(row.claimed, str) else (False, abs(number_of(row.claimed) or 0.0))


def _rounds_table(rounds: Iterable[RoundRecord]) -> Table:
    header = (
        *("round", "time", "run", "rule", "outcome", "note", "nodes", "held down", "converged", "iterations"),
        *("certificate f", "certificate radius", "seconds", "seconds of aggregation"),
    )
    rows = []
    for record in rounds:
        seen = judge_round(record).values()
        proof = record.certificate or {}
        rule, note = quoted(rule_of(record)), quoted(record.note or "")
        rows.append(
            (
                *(record.round, record.time, record.run, rule, record.outcome, note),
                *(len(seen), sum(one.held for one in seen), record.converged, record.iterations),
                *(proof.get("f"), proof.get("radius"), record.seconds.get("round"), record.seconds.get("aggregation")),
            )
        )
    return Table("rounds", header, rows)


def _nodes_table(rounds: Iterable[RoundRecord]) -> Table:
    header = (
        *("round", "node", "phase", "status", "reason", "distance", "threshold", "weight", "equal shares"),
        *("held down", "claimed", "samples"),
    )
    rows = []
    for record in rounds:
        seen = judge_round(record)
        for row in record.nodes:
            one = seen[row.node]
            claimed = quoted(row.claimed) if isinstance(row.claimed, str) else row.claimed
            rows.append(
                (
                    *(record.round, quoted(row.node), row.phase, row.status, quoted(row.reason or "")),
                    *(row.distance, row.threshold, row.weight, one.share if row.phase == "train" else None),
                    *(one.held, claimed, row.samples),
                )
            )
    return Table("nodes", header, rows)


def _metrics_table(rounds: Sequence[RoundRecord]) -> Table:
    series = metric_series(rounds)
    rows = [
        (record.round, quoted(phase), quoted(name), line[record.round])
        for record in rounds
        for name, phases in series.items()
        for phase, line in phases.items()
        if record.round in line
    ]
    return Table("metrics", ("round", "phase", "metric", "value"), rows)
