"""What every server does with the aggregation of a round: rows of the audit, the certificate, and lines of its log."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

from fedhold.audit.records import NodeRecord, RoundRecord
from fedhold.audit.suspects import Seen, shown_name
from fedhold.errors import visible
from fedhold.result import Aggregation, Client

MAX_LOGGED = 10  # nodes that one line of the log names, and nodes with a line of their own in one round
BYZANTINE = 0.2  # the fraction of clients that a certificate is about, unless the user gives a number


class Log(Protocol):
    """Where lines go: a logger, or a server that logs."""

    def info(self, message: str, /) -> Any:
        """Log what happened."""

    def warning(self, message: str, /) -> Any:
        """Log what somebody should look at."""


def certificate_of(result: Aggregation, byzantine: int | None, log: Log) -> dict[str, Any] | None:
    """The certificate for the audit; None for a rule without one.

    byzantine  its f; None for a fifth of the admitted clients
    log        is told why there is no radius
    """
    admitted = sum(client.status != "rejected" for client in result.clients)
    f = int(BYZANTINE * admitted) if byzantine is None else byzantine
    try:
        certificate = result.certificate
        return None if certificate is None else {"f": f, "radius": float(certificate.radius(f))}
    except (RuntimeError, ValueError) as problem:  # a liar's numbers, too large for a proof, must not cost the round
        log.warning(f"No certificate: {problem}")
        return {"f": f, "radius": math.inf}


def row_of(row: NodeRecord, client: Client) -> NodeRecord:
    """The row of a node, with what the aggregation made of its update."""
    return replace(
        row,
        status=client.status,
        reason=client.reason or None,
        distance=client.distance,
        threshold=client.threshold,
        weight=client.weight,
        samples=client.samples,
        groups=client.groups or None,
    )


def with_reason(row: NodeRecord, reason: str | None) -> NodeRecord:
    """The row, with one more thing to say about the node."""
    return row if reason is None else replace(row, reason=f"{row.reason}; {reason}" if row.reason else reason)


def log_rows(phase: str, record: RoundRecord, asked: int, log: Log) -> None:
    """Log how many of the `asked` nodes were rejected and what the quorum is, and a line for each row that has a reason."""
    rows = [row for row in record.nodes if row.phase == phase and row.status != "quarantined"]
    rejected = sum(row.status == "rejected" for row in rows)
    quorum = record.quorum if phase == "train" else None
    needs = f", {quorum['usable']} usable, quorum {quorum['needed']}" if quorum else ""
    log.info(f"aggregate_{phase}: {asked} nodes asked, {rejected} rejected{needs}")
    told = [row for row in rows if row.reason and row.status != "dropped"]
    for row in told[:MAX_LOGGED]:
        log.warning(f"Round {record.round}: node {visible(row.node)} {row.status}: {row.reason}")
    if len(told) > MAX_LOGGED:
        more = len(told) - MAX_LOGGED
        log.warning(f"Round {record.round}: and {more} nodes more, which the record of the round has")


def log_suspects(record: RoundRecord, seen: Sequence[Seen], suspects: Sequence[str], nodes: int, log: Log) -> None:
    """Log in one line how many nodes a round held down, and who the suspects are so far.

    record    the round
    seen      what became of its nodes
    suspects  the suspects so far, the most suspicious first
    nodes     how many nodes there have been so far
    """
    names = {row.node: row.name for row in record.nodes}
    told = [shown_name(node, names.get(node)) for node in suspects[:MAX_LOGGED]]
    told += [f"and {len(suspects) - MAX_LOGGED} more"] * (len(suspects) > MAX_LOGGED)
    held = sum(one.held for one in seen)
    log.info(
        f"Round {record.round}: {held} of {len(seen)} nodes held down; suspects so far: {len(suspects)} of {nodes}"
        + (f": {', '.join(told)}" if told else "")
    )
