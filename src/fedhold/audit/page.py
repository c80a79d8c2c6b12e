"""The report of an audit: one HTML file that needs nothing else, and its numbers as CSV.

Reasons, metric names and claims are texts that clients chose. They pass `visible` on their way to the page, whose templates
escape them like all text, and `quoted` on their way to CSV files.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np

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
from fedhold.audit.suspects import (
    HELD_DOWN,
    RULE,
    Seen,
    Standing,
    judge_round,
    ranges,
    short_names,
    shown_name,
    standings,
)
from fedhold.certificate import MEANING
from fedhold.report import (
    Block,
    Cards,
    Chart,
    Folded,
    Heading,
    HeatMap,
    Mark,
    Paragraph,
    Section,
    Table,
    curve,
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
NAME_LETTERS = 16  # of what a node calls itself, beside its row of the map
MARKS = (
    Mark("reply rejected", "#d95f02"),
    Mark("only its evaluation rejected", "#f4a582"),
    Mark("in quarantine", "#c764a5"),
    Mark("took part, without a weight", "#b9c0c8"),
)
WEIGHED, REJECTED, EVALUATION, QUARANTINED, UNWEIGHED = range(5)  # the codes of a map with these marks
REASONS = "most frequent reasons"
CLAIM = "largest or strangest claim"

Safe = Callable[[object], str]  # how a table writes a client's text: `visible` or `quoted`


def report_audit(
    audit: Path, out: Path | None = None, *, beside: Mapping[str, Mapping[str, Series]] | None = None
) -> tuple[Path, list[Standing]]:
    """Write the report of an audit file; return the path of the page, and the suspects.

    audit    the file that a strategy wrote
    out      the directory for report.html and numbers/*.csv; by default the directory of the audit, or where that holds other
             audits, too, NAME-report in it
    beside   curves of other runs for the charts of metrics: metric -> name of the run -> round -> value
    """
    notes: list[str] = []
    rounds = read(audit, notes.append)
    if not rounds:
        raise ValueError(f"{audit} holds no finished round yet. Follow it with: fedhold watch {audit}")
    alone = all(other == audit for other in audit.parent.glob("*.jsonl"))
    place = out or (audit.parent if alone else audit.parent / f"{audit.stem}-report")
    title = f"Audit of {visible(audit.name)}"
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
    ranked, series, below = standings(rounds), metric_series(rounds), _other_charts(rounds)
    metrics = _metric_charts(dict(islice(series.items(), MOST_CHARTS)), rounds, beside or {})
    styles = plain_styles(line.label for chart in [*metrics, *below] for line in chart.curves)
    metrics, below = ([replace(chart, styles=styles) for chart in charts] for charts in (metrics, below))
    sections = [
        Section("Summary", _summary(rounds, ranked, notes)),
        Section("Who was held down", [Paragraph(HEAT), node_map(rounds, ranked)] if ranked else []),
        Section("Suspects", _suspects(ranked)),
        Section("Metrics", _metrics(metrics, len(series))),
        Section("Certificate and time", [_proven(rounds), *([Cards(below)] if below else [])]),
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
    if taken := Counter(str(record.guard.get("taken")) for record in rounds if record.guard):
        facts.append(("guard", ", ".join(f"took {visible(name)} in {count}" for name, count in taken.most_common())))
    if told := [record for record in rounds if record.diagnosis]:
        facts.append((f"groups, in round {told[-1].round}", visible(told[-1].diagnosis or "")))
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


def _metrics(charts: Sequence[Chart], count: int) -> list[Block]:
    """The charts of the first metrics, of `count` in all."""
    more = f"The first {MOST_CHARTS} of {count}; all are in numbers/metrics.csv."
    return [*([Paragraph(more)] if count > MOST_CHARTS else []), Cards(charts)] if charts else []


def _proven(rounds: Sequence[RoundRecord]) -> Block:
    if not any(record.certificate for record in rounds):
        return Paragraph("This rule proves no radius; plain spectral_huber and huber do.")
    return Paragraph(f"{RADIUS} Proven in {len(radius_series(rounds))} of {len(rounds)} rounds.")


def _claims(rounds: Sequence[RoundRecord]) -> list[Block]:
    table = claims_table(rounds, visible, most=MOST_ROWS)
    return [Paragraph(CLAIMS), table] if table.rows else []


def node_map(rounds: Sequence[RoundRecord], ranked: Sequence[Standing]) -> HeatMap:
    """Nodes x rounds, in the order of `ranked`: suspects first. A cell without a weight has the colour of its mark."""
    codes = np.zeros((len(ranked), len(rounds)), np.int8)
    shares = np.full(codes.shape, np.nan)
    row = {one.node: k for k, one in enumerate(ranked)}
    for column, record in enumerate(rounds):
        for node, seen in judge_round(record).items():
            codes[row[node], column] = _code(seen)
            shares[row[node], column] = np.nan if seen.share is None else seen.share
    suspects, short = sum(one.is_suspect for one in ranked), short_names(list(row))
    return HeatMap(
        "What became of every node",
        f"{len(ranked)} nodes, {suspects} of them suspects; {len(rounds)} round{'s' * (len(rounds) > 1)}",
        shares,
        codes,
        MARKS,
        tuple(shown_name(one.node, one.name and one.name[:NAME_LETTERS], short) for one in ranked),
        tuple(record.round for record in rounds),
        (("suspects", suspects), ("others", len(ranked) - suspects)),
        np.array([record.outcome != "aggregated" for record in rounds]),
    )


def _code(seen: Seen) -> int:
    if seen.status == "quarantined":
        return QUARANTINED
    if seen.status == "rejected":
        return REJECTED
    if seen.bad_evaluation:
        return EVALUATION
    return UNWEIGHED if seen.share is None else WEIGHED


def _metric_charts(
    series: Mapping[str, Mapping[str, Series]],
    rounds: Sequence[RoundRecord],
    beside: Mapping[str, Mapping[str, Series]],
) -> list[Chart]:
    return [
        _chart(visible(name, 60), "value", {**lines, **beside.get(name, {})}, rounds) for name, lines in series.items()
    ]


def _other_charts(rounds: Sequence[RoundRecord]) -> list[Chart]:
    """The radius and the seconds of each round, as far as there are any."""
    fs = ranges(int(f) for record in rounds if (f := (record.certificate or {}).get("f")) is not None)
    parts = {part: line for part in ("round", "aggregation") if (line := seconds_series(rounds, part))}
    radius = _chart(f"Radius for f = {fs}", "radius", {"radius": radius_series(rounds)}, rounds)
    seconds = _chart("Seconds per round", "seconds", parts, rounds)
    return [*([replace(radius, gaps=True)] if fs else []), *([replace(seconds, log=True)] if parts else [])]


def _chart(title: str, metric: str, lines: Mapping[str, Series], rounds: Sequence[RoundRecord]) -> Chart:
    """Curves by round, up to the last of any of them; a deployed run has no seeds."""
    last = max(rounds[-1].round, *(max(line, default=0) for line in lines.values()), 0)
    every = range(1, last + 1)
    curves = (curve(visible(name, 60), (), [[line.get(when) for when in every]]) for name, line in lines.items())
    return Chart(title, metric, tuple(curves))


# The tables: a row is a mapping from the names of the columns


def _table(title: str, rows: Sequence[Mapping[str, object]], long: Collection[str] = ()) -> Table:
    return Table(title, tuple(rows[0]) if rows else (), [tuple(row.values()) for row in rows], long)


def tables(rounds: Sequence[RoundRecord], ranked: Sequence[Standing]) -> list[Table]:
    """The tables for CSV files: rounds, what became of every node in each, suspects, metrics, and claims."""
    every = standings_table(ranked, quoted)
    flags = [(one.is_suspect, *row) for one, row in zip(ranked, every.rows, strict=True)]
    return [
        _table("rounds", [_round_row(record) for record in rounds]),
        _table("nodes", [row for record in rounds for row in _node_rows(record)]),
        Table("suspects", ("suspect", *every.header), flags),
        _table("metrics", _metric_rows(rounds)),
        claims_table(rounds, quoted),
    ]


def standings_table(ranked: Sequence[Standing], safe: Safe) -> Table:
    """A row for each node, in the given order. The share is its mean; 1 is an equal share per sample.

    Columns for what few federations have, names and measured effects, are left out where they would be empty.
    """
    rows = [
        {
            "node": safe(one.node),
            "name": one.name and safe(one.name),
            REASONS: "; ".join(f"{safe(reason)} ({count} x)" for reason, count in one.reasons),
            "suspicion": one.suspicion,
            "asked": one.asked,
            HELD_DOWN: one.held,
            "share": one.share,
            "rejected": one.rejected,
            "bad evaluations": one.bad_evaluations,
            "quarantine": one.quarantined,
            "effect on loss": one.effect,
            "last asked": one.last_asked,
            "last reply used": one.last_used,
        }
        for one in ranked
    ]
    empty = {name for name in ("name", "effect on loss") if all(row[name] is None for row in rows)}
    shown = [{name: value for name, value in row.items() if name not in empty} for row in rows]
    return _table("nodes in all", shown, long=[REASONS])


def claims_table(rounds: Sequence[RoundRecord], safe: Safe, most: int | None = None) -> Table:
    """Nodes whose claimed sample counts were not taken as they came, each with its claim that was furthest off.

    The nodes with the most such rounds come first; `most` limits their number.
    """
    found: dict[str, list[tuple[int, NodeRecord]]] = {}
    for record in rounds:
        for row in record.nodes:
            if row.claimed is not None and row.claimed != row.samples:
                found.setdefault(row.node, []).append((record.round, row))
    rows = []
    for node, times in sorted(found.items(), key=lambda item: -len(item[1]))[:most]:
        worst = max((row for _, row in times), key=_strangeness)
        rows.append(
            {
                "node": safe(node),
                "rounds": len(times),
                "first": times[0][0],
                "last": times[-1][0],
                CLAIM: safe(worst.claimed) if isinstance(worst.claimed, str) else number_of(worst.claimed),
                "counted as": "rejected" if worst.status == "rejected" else worst.samples,
            }
        )
    return _table("claims", rows, long=[CLAIM])


def _strangeness(row: NodeRecord) -> tuple[bool, float]:
    return (True, 0.0) if isinstance(row.claimed, str) else (False, abs(number_of(row.claimed) or 0.0))


def _round_row(record: RoundRecord) -> dict[str, object]:
    seen = judge_round(record).values()
    proof, quorum, loss = record.certificate or {}, record.quorum or {}, record.validation or {}
    guard = record.guard or {}
    return {
        **{
            "round": record.round,
            "time": quoted(record.time),
            "run": quoted(record.run),
            "rule": quoted(rule_of(record)),
        },
        **{"f": record.f, "outcome": record.outcome, "note": quoted(record.note or "")},
        **{"nodes": len(seen), HELD_DOWN: sum(one.held for one in seen)},
        **{"asked": quorum.get("asked"), "usable": quorum.get("usable"), "quorum": quorum.get("needed")},
        **{"converged": record.converged, "iterations": record.iterations},
        **{"certificate f": proof.get("f"), "certificate radius": proof.get("radius")},
        **{"loss before": loss.get("before"), "loss after": loss.get("after")},
        **{"guard took": guard.get("taken"), "guard gain": guard.get("gain"), "guard error": guard.get("error")},
        "groups": record.diagnosis,
        **{"seconds": record.seconds.get("round"), "seconds of aggregation": record.seconds.get("aggregation")},
    }


def _node_rows(record: RoundRecord) -> Iterable[dict[str, object]]:
    seen = judge_round(record)
    for row in record.nodes:
        one = seen[row.node]
        yield {
            **{"round": record.round, "node": quoted(row.node), "name": quoted(row.name or ""), "phase": row.phase},
            **{"status": row.status, "reason": quoted(row.reason or "")},
            **{"distance": row.distance, "threshold": row.threshold, "weight": row.weight},
            **{"share": one.share if row.phase == "train" else None, HELD_DOWN: one.held},
            "claimed": quoted(row.claimed) if isinstance(row.claimed, str) else row.claimed,
            **{"samples": row.samples, "effect on loss": row.effect},
        }


def _metric_rows(rounds: Sequence[RoundRecord]) -> list[dict[str, object]]:
    series = metric_series(rounds)
    return [
        {
            **{"round": record.round, "phase": quoted(phase), "metric": quoted(name), "value": line[record.round]},
            "plain average": number_of(record.averages.get(phase, {}).get(name)),
        }
        for record in rounds
        for name, phases in series.items()
        for phase, line in phases.items()
        if record.round in line
    ]
