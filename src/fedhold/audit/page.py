"""The report of an audit: one HTML file that needs nothing else, and its numbers as CSV.

Reasons, metric names and claims are texts that clients chose. They pass `visible` on their way to the page, whose templates
escape them like all text, and `quoted` on their way to CSV files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
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
from fedhold.audit.suspects import HELD_DOWN, RULE, Standing, judge_round, ranges, shown_name, standings
from fedhold.certificate import MEANING
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
    page,
    plain_styles,
    quoted,
    visible,
    write_tables,
)
from fedhold.storage import write_whole

HEAT = (
    "Each row is a node, the most suspicious on top, and each column a round. The colour is the node's share of the "
    "aggregate; 1 is an equal share per sample. A cell is blank where the node was not asked."
)
RADIUS = f"{MEANING} There is no line where nothing could be proven."
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


def report_audit(
    audit: Path, out: Path | None = None, *, beside: Mapping[str, Mapping[str, Series]] | None = None
) -> tuple[Path, list[Standing]]:
    """Write the report of an audit file; return the path of the page, and the suspects.

    audit    the file that a strategy wrote
    out      the directory for report.html and numbers/*.csv; the directory of the audit by default
    beside   curves of other runs for the charts of metrics: metric -> name of the run -> round -> value
    """
    notes: list[str] = []
    rounds = read(audit, notes.append)
    if not rounds:
        raise ValueError(f"{audit} holds no finished round yet. Follow it with: fedhold watch {audit}")
    place, title = audit.parent if out is None else out, f"Audit of {audit.name}"
    path = write_audit(place, rounds, title=title, notes=notes, beside=beside)
    return path, [one for one in standings(rounds) if one.is_suspect]


def write_audit(
    directory: Path,
    rounds: Sequence[RoundRecord],
    *,
    title: str,
    notes: Iterable[str] = (),
    beside: Mapping[str, Mapping[str, Series]] | None = None,
) -> Path:
    """Write report.html and numbers/*.csv into `directory`; return the path of the page.

    `notes` go into its summary, and the curves `beside` into its charts of metrics, as in report_audit().
    """
    ranked = standings(rounds)
    metrics, below = _metric_charts(rounds, beside or {}), _other_charts(rounds)
    styles = plain_styles(line.label for chart in [*metrics, *below] for line in chart.curves)
    metrics, below = ([replace(chart, styles=styles) for chart in charts] for charts in (metrics, below))
    sections = [
        Section("Summary", _summary(rounds, ranked, notes)),
        Section("Who was held down", [Paragraph(HEAT), node_map(rounds, ranked)] if ranked else []),
        Section("Suspects", _suspects(ranked)),
        Section("Metrics", _metrics(metrics)),
        Section("Certificate and time", [_proven(rounds), *_cards(below)]),
        Section("Claims", _claims(rounds)),
        Section("Files", [Paragraph("Beside this page: the numbers in numbers/*.csv.")]),
    ]
    path = Path(directory) / "report.html"
    write_whole(path, page(title, _head(rounds, ranked), sections).encode())
    write_tables(path.parent / "numbers", [table for table in tables(rounds, ranked) if table.rows])
    return path


# The page


def _head(rounds: Sequence[RoundRecord], ranked: Sequence[Standing]) -> str:
    suspects = [shown_name(one.node, one.name) for one in ranked if one.is_suspect]
    more = f" and {len(suspects) - NAMED} more" if len(suspects) > NAMED else ""
    who = ", ".join(suspects[:NAMED]) + more or "nobody"
    return f"{len(rounds)} round{'s' * (len(rounds) != 1)}, {len(ranked)} nodes. Suspects: {who}."


def _summary(rounds: Sequence[RoundRecord], ranked: Sequence[Standing], notes: Iterable[str]) -> list[Block]:
    why: dict[str, list[int]] = {}
    for record in rounds:
        if record.outcome != "aggregated":
            why.setdefault(visible(record.note or "no reason was written"), []).append(record.round)
    words = Counter(visible(seen.word) for record in rounds for seen in judge_round(record).values())
    kept = ranges(when for times in why.values() for when in times)
    facts = [
        ("rule", ", ".join(dict.fromkeys(map(rule_of, rounds)))),
        ("rounds", ranges(record.round for record in rounds)),
        ("from", visible(rounds[0].time)),
        ("to", visible(rounds[-1].time)),
        ("nodes", f"{len(ranked)}, of them {sum(one.is_suspect for one in ranked)} suspects"),
        ("nodes x rounds", ", ".join(f"{count} {word}" for word, count in words.most_common())),
        ("rounds without a new model", kept or "none"),
        ("run", visible(rounds[-1].run)),
    ]
    blocks: list[Block] = [*(Paragraph(visible(note)) for note in notes), Table("summary", ("", ""), facts)]
    if why:
        rows = [(ranges(when), reason) for reason, when in why.items()]
        title = "Rounds without a new model"
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


def _metrics(charts: Sequence[Chart]) -> list[Block]:
    blocks = _cards(charts[:MOST_CHARTS])
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


def _cards(charts: Sequence[Chart]) -> list[Block]:
    return [Cards(charts)] if charts else []


def _metric_charts(rounds: Sequence[RoundRecord], beside: Mapping[str, Mapping[str, Series]]) -> list[Chart]:
    return [
        _chart(visible(name, 60), "value", {**lines, **beside.get(name, {})}, rounds)
        for name, lines in metric_series(rounds).items()
    ]


def _other_charts(rounds: Sequence[RoundRecord]) -> list[Chart]:
    """The radius and the seconds of each round, as far as there are any."""
    fs = ranges(int(record.certificate["f"]) for record in rounds if record.certificate)
    parts = {part: line for part in ("round", "aggregation") if (line := seconds_series(rounds, part))}
    charts = []
    if fs:
        radius = _chart(f"Radius for f = {fs}", "radius", {"radius": radius_series(rounds)}, rounds)
        charts.append(replace(radius, gaps=True))
    if parts:
        charts.append(_chart("Seconds per round", "seconds", parts, rounds, log=True))
    return charts


def _chart(
    title: str, metric: str, lines: Mapping[str, Series], rounds: Sequence[RoundRecord], *, log: bool = False
) -> Chart:
    """Curves by round, up to the last of any of them; a deployed run has no seeds."""
    curves = []
    last = max(rounds[-1].round, *(max(line, default=0) for line in lines.values()), 0)
    for name, line in lines.items():
        values = np.full((1, last), np.nan)
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


def standings_table(ranked: Sequence[Standing], safe: Safe) -> Table:
    """A row for each node, in the given order. The share is its mean; 1 is an equal share per sample.

    Columns for what few federations have, names and measured effects, are left out where they would be empty.
    """
    columns: dict[str, list[object]] = {
        "node": [safe(one.node) for one in ranked],
        "name": [one.name and safe(one.name) for one in ranked],
        REASONS: ["; ".join(f"{safe(reason)} ({count} x)" for reason, count in one.reasons) for one in ranked],
        "suspicion": [one.suspicion for one in ranked],
        "asked": [one.asked for one in ranked],
        HELD_DOWN: [one.held for one in ranked],
        "share": [one.share for one in ranked],
        "rejected": [one.rejected for one in ranked],
        "bad evaluations": [one.bad_evaluations for one in ranked],
        "quarantine": [one.quarantined for one in ranked],
        "effect on loss": [one.effect for one in ranked],
        "last asked": [one.last_asked for one in ranked],
        "last reply used": [one.last_used for one in ranked],
    }
    rare = ("name", "effect on loss")
    shown = {name: column for name, column in columns.items() if name not in rare or any(x is not None for x in column)}
    return Table("nodes in all", tuple(shown), list(zip(*shown.values(), strict=True)), long=[REASONS])


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
        *("round", "time", "run", "rule", "f", "outcome", "note", "nodes", HELD_DOWN, "asked", "usable", "quorum"),
        *("converged", "iterations", "certificate f", "certificate radius", "loss before", "loss after"),
        *("seconds", "seconds of aggregation"),
    )
    rows = []
    for record in rounds:
        seen = judge_round(record).values()
        proof, quorum, loss = record.certificate or {}, record.quorum or {}, record.validation or {}
        rule, note = quoted(rule_of(record)), quoted(record.note or "")
        rows.append(
            (
                *(record.round, record.time, record.run, rule, record.f, record.outcome, note),
                *(len(seen), sum(one.held for one in seen)),
                *(quorum.get("asked"), quorum.get("usable"), quorum.get("needed")),
                *(record.converged, record.iterations, proof.get("f"), proof.get("radius")),
                *(
                    loss.get("before"),
                    loss.get("after"),
                    record.seconds.get("round"),
                    record.seconds.get("aggregation"),
                ),
            )
        )
    return Table("rounds", header, rows)


def _nodes_table(rounds: Iterable[RoundRecord]) -> Table:
    header = (
        *("round", "node", "name", "phase", "status", "reason", "distance", "threshold", "weight", "share"),
        *(HELD_DOWN, "claimed", "samples", "effect on loss"),
    )
    rows = []
    for record in rounds:
        seen = judge_round(record)
        for row in record.nodes:
            one = seen[row.node]
            claimed = quoted(row.claimed) if isinstance(row.claimed, str) else row.claimed
            rows.append(
                (
                    *(record.round, quoted(row.node), quoted(row.name or ""), row.phase, row.status),
                    quoted(row.reason or ""),
                    *(row.distance, row.threshold, row.weight, one.share if row.phase == "train" else None),
                    *(one.held, claimed, row.samples, row.effect),
                )
            )
    return Table("nodes", header, rows)


def _metrics_table(rounds: Sequence[RoundRecord]) -> Table:
    series = metric_series(rounds)
    rows = [
        (record.round, quoted(phase), quoted(name), line[record.round], _plain(record, phase, name))
        for record in rounds
        for name, phases in series.items()
        for phase, line in phases.items()
        if record.round in line
    ]
    return Table("metrics", ("round", "phase", "metric", "value", "plain average"), rows)


def _plain(record: RoundRecord, phase: str, name: str) -> float | None:
    return number_of(record.averages.get(phase, {}).get(name))
