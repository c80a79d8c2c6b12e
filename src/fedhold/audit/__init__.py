"""Audits of deployed runs: what was done to every node in every round.

A server appends one RoundRecord per round to a file. What leaves is the list of suspects, a page with its numbers as CSV
(`report_audit`), and a live view in the terminal (`watch`). It may import `fedhold.report`, `fedhold.storage` and what lies
below them, but no server framework and nothing of the laboratory.
"""

from fedhold.audit.live import watch
from fedhold.audit.metrics import unusable_metrics
from fedhold.audit.page import report_audit
from fedhold.audit.records import STATUSES, NodeRecord, RoundRecord, append, find_audit, read
from fedhold.audit.suspects import MOST_NAME, Seen, Standing, Tally, judge_round, shown_name, standings

__all__ = [
    "MOST_NAME",
    "STATUSES",
    "NodeRecord",
    "RoundRecord",
    "Seen",
    "Standing",
    "Tally",
    "append",
    "find_audit",
    "judge_round",
    "read",
    "report_audit",
    "shown_name",
    "standings",
    "unusable_metrics",
    "watch",
]


def __dir__() -> list[str]:
    """The public names, for help() and for the completion of names."""
    return sorted(__all__)
