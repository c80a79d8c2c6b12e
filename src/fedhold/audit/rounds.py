"""What every server does with the aggregation of a round: rows of the audit, the certificate, and lines of its log."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Protocol

from fedhold.audit.records import NodeRecord, RoundRecord
from fedhold.audit.suspects import Seen, shown_name
from fedhold.errors import one_line, visible
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


def facts_of(result: Aggregation) -> dict[str, Any]:
    """What the record of a round has straight from the aggregation, by its names."""
    groups = result.diagnosis
    return {
        "converged": result.converged,
        "iterations": result.iterations,
        "f": result.f,
        "scale": result.scale,
        "guard": None if result.guard is None else asdict(result.guard),
        "diagnosis": None if groups is None or not groups.differ else groups.text,
    }


def liars_feared(byzantine: int | None, asked: int, nodes: int) -> int:
    """How many of the nodes asked may lie: as many of them as of all nodes there are. 0 where nobody said how many."""
    return math.ceil((byzantine or 0) * asked / max(nodes, 1))


def replies_needed(quorum: float, asked: int, feared: int = 0) -> int:
    """How many usable replies a round needs that asks so many nodes, f of whom are feared. The rule's bound holds besides.

    Who is missing may be honest, so that all f may be among those who replied, and most of these must be honest: more than
    2f. Where nobody is missing, a quorum has nothing to say.
    """
    return min(asked, max(math.floor(quorum * asked), 2 * feared) + 1)


def below_quorum(counts: Mapping[str, int], quorum: float, feared: int = 0) -> str | None:
    """Why a round has too few usable replies; None where it has enough. `counts` is `quorum` of a RoundRecord."""
    if counts["usable"] >= counts["needed"]:
        return None
    twice = f", and more than twice the liars feared, {feared}" if feared else ""
    return (
        f"{counts['usable']} of {counts['asked']} nodes asked sent a usable reply, and the quorum is {counts['needed']} (more "
        f"than {quorum:g} of them{twice})"
    )


def objection(test: Callable[[Any], object], model: Any) -> str | None:
    """Why the user's own test keeps a model from being adopted; None where it passes."""
    try:
        passed = test(model)
        return None if passed else f"the new model fails check_model, which returned {one_line(repr(passed))}"
    except Exception as problem:  # a model that liars made may be one that the test cannot stand
        return f"the new model fails check_model: {one_line(f'{type(problem).__name__}: {problem}')}"


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
    """Log how many of the `asked` nodes were rejected, what the quorum is, and all that somebody should look at."""
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
    if phase == "train" and record.corrected:
        raised = f"raised {record.corrected} numbers that were negative or too small where clients' are not"
        log.warning(f"Round {record.round}: {raised}, such as variances")
    if phase == "train" and record.guard and record.guard["note"]:
        log.warning(f"Round {record.round}: {record.guard['note']}")


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
