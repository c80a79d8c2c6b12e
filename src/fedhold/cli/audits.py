"""fedhold watch, and fedhold report where it is given an audit: what a deployed strategy wrote about its rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from rich.console import Console

from fedhold.cli.errors import usage_errors
from fedhold.cli.parameters import Argument, Option
from fedhold.report import print_line, visible

SHOWN = 10  # suspects that are printed; the report has them all


def watch(
    audit: Annotated[Path, Argument("The file that a strategy writes; it may not be there yet. Ctrl-C leaves.")],
    once: Annotated[bool, Option("Show what is there now, and exit.", "--once")] = False,
    every: Annotated[float, Option("Seconds between two looks at the file.", least=0.05)] = 0.5,
    json: Annotated[
        bool, Option("Print JSON: a line per round, or with --once the standing of every node.", "--json")
    ] = False,
) -> None:
    """Follow an audit.jsonl live: last round, nodes, suspects."""
    from fedhold.audit import watch as follow

    with usage_errors():
        follow(audit, once=once, every=every, console=Console(highlight=False), as_json=json)


def write_audit_report(audit: Path, out: Path | None, console: Console, *, as_json: bool) -> None:
    """Write the page of an audit, and print its first suspects.

    out      where the page goes; None is beside the audit
    as_json  print the path of the page and all suspects as JSON
    """
    from fedhold.audit import as_text, report_audit, shown_name, standing_facts

    page, suspects = report_audit(audit, out)
    if as_json:
        console.out(as_text({"report": str(page), "suspects": [*map(standing_facts, suspects)]}), highlight=False)
        return
    for one in suspects[:SHOWN]:
        why = f" ({visible(one.reasons[0][0])})" if one.reasons else ""
        said = f"Suspect: node {shown_name(one.node, one.name)}, held down in {one.held} of {one.asked} rounds{why}"
        print_line(console, said)
    if len(suspects) > SHOWN:
        console.print(f"And {len(suspects) - SHOWN} suspects more.")
    print_line(console, f"Report: {page}")
