"""Audits of deployed runs: what was done to every node in every round.

A server appends one RoundRecord per round to a file, whose lines are a chain of hashes. What leaves is the list of suspects,
a page with its numbers as CSV (`report_audit`), a live view in the terminal (`watch`), and proofs: `verify` checks a file, and
`receipt` is one node's part of it, which `verify_receipt` checks. It may import `fedhold.report`, `fedhold.storage` and what
lies below them, but no server framework and nothing of the laboratory.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedhold.audit.chain import (
    Receipt,
    Verified,
    append,
    array_hash,
    is_receipt,
    read_private_key,
    read_public_key,
    receipt,
    verify,
    verify_receipt,
)
from fedhold.audit.metrics import Averages, average_metrics
from fedhold.audit.openmetrics import OpenMetrics
from fedhold.audit.page import report_audit
from fedhold.audit.records import STATUSES, NodeRecord, RoundRecord, find_audit, read
from fedhold.audit.rounds import (
    below_quorum,
    certificate_of,
    facts_of,
    liars_feared,
    log_rows,
    log_suspects,
    objection,
    replies_needed,
    row_of,
    with_reason,
)
from fedhold.audit.suspects import (
    MOST_NAME,
    Seen,
    Standing,
    Tally,
    as_text,
    judge_round,
    shown_name,
    standing_facts,
    standings,
)

if TYPE_CHECKING:
    from rich.console import Console

__all__ = [
    "MOST_NAME",
    "STATUSES",
    "Averages",
    "NodeRecord",
    "OpenMetrics",
    "Receipt",
    "RoundRecord",
    "Seen",
    "Standing",
    "Tally",
    "Verified",
    "append",
    "array_hash",
    "as_text",
    "average_metrics",
    "below_quorum",
    "certificate_of",
    "facts_of",
    "find_audit",
    "is_receipt",
    "judge_round",
    "liars_feared",
    "log_rows",
    "log_suspects",
    "objection",
    "read",
    "read_private_key",
    "read_public_key",
    "receipt",
    "replies_needed",
    "report_audit",
    "row_of",
    "shown_name",
    "standing_facts",
    "standings",
    "verify",
    "verify_receipt",
    "watch",
    "with_reason",
]


def watch(path: Path, *, once: bool, every: float, console: Console, as_json: bool = False) -> None:
    """Show an audit as it grows, until Ctrl-C.

    path      the audit file, or a directory that holds one
    once      whether to show the present state and return
    every     seconds between two looks at the file
    console   where to show it: a terminal gets the scoreboard, anything else a line for each round
    as_json   show JSON: with `once` the last round and every node's standing, else a line for each round
    """
    from fedhold.audit.live import follow  # the only module here that needs rich

    follow(path, once=once, every=every, console=console, as_json=as_json)


def __dir__() -> list[str]:
    """The public names, for help() and for the completion of names."""
    return sorted(__all__)
