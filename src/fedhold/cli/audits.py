"""fedhold watch, verify and receipt, and fedhold report where it is given an audit: what a strategy wrote about its rounds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click
from rich.console import Console

from fedhold.cli.errors import usage_errors
from fedhold.cli.parameters import Argument, Option
from fedhold.report import print_line, visible

if TYPE_CHECKING:
    from fedhold.audit import Receipt

SHOWN = 10  # suspects that are printed; the report has them all
MOST_PROBLEMS = 100  # of an audit that are printed


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


def verify(
    path: Annotated[Path, Argument("An audit.jsonl, or a receipt.")],
    public_key: Annotated[Path | None, Option("A PEM file: everything must be signed with its key.")] = None,
    head: Annotated[
        str | None, Option("A hash that a line of the audit must have, or a receipt whose head must be there.")
    ] = None,
) -> None:
    """Check offline that no line of an audit was changed, cut or added, or that a receipt is genuine."""
    from fedhold import audit

    console = Console(highlight=False)
    with usage_errors():
        key = None if public_key is None else audit.read_public_key(public_key)
        if audit.is_receipt(path):
            _tell_receipt(audit.verify_receipt(path, public_key=key), console, checked=key is not None)
            return
        known = head
        if head is not None and Path(head).is_file():
            known = audit.verify_receipt(Path(head), public_key=key).head
        found = audit.verify(path, public_key=key, known=known)
    for problem in found.problems[:MOST_PROBLEMS]:
        print_line(console, problem)
    if len(found.problems) > MOST_PROBLEMS:
        console.print(f"And {len(found.problems) - MOST_PROBLEMS} problems more.")
    if found.problems:
        raise click.exceptions.Exit(1)
    signed = f"{found.signed} of {found.lines} lines are signed"
    told = "all are signed with this key" if key else f"{signed}, which --public-key checks" if found.signed else signed
    print_line(console, f"No line was changed, added or moved: {found.lines} lines; {told}.")
    print_line(console, f"Head: {found.head}")
    if known is None:
        console.print("Lines cut from the end show only to who kept a head: fedhold verify --head HASH.")


def receipt(
    audit: Annotated[Path, Argument("The audit.jsonl.")],
    node: Annotated[str, Option("The id of the node.")],
    round_: Annotated[
        int | None, Option("The round; the last one with the node unless given.", "--round", least=1)
    ] = None,
) -> None:
    """Print the proof of what was done to a node in a round, which it can check without the rows of others."""
    from fedhold.audit import receipt as made

    with usage_errors():
        proof = made(audit, node, round_)
    click.echo(proof, nl=False)


def _tell_receipt(proof: Receipt, console: Console, *, checked: bool) -> None:
    record = proof.record
    print_line(
        console, f"Node {proof.node} in round {record.round} of run {record.run}, {record.rule}: {record.outcome}."
    )
    for row in record.nodes:
        facts = {"reason": row.reason, "weight": row.weight, "distance": row.distance, "SHA-256 of update": row.update}
        told = "".join(f"; {name} {value}" for name, value in facts.items() if value is not None)
        print_line(console, f"{row.phase}: {row.status}{told}")
    signed = (
        "signed with this key" if checked else "signed, which --public-key checks" if proof.signed else "not signed"
    )
    print_line(console, f"The receipt is genuine, {signed}. Head of its audit: {proof.head}")


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
