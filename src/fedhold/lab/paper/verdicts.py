"""Verdicts over all readings of the paper, and how they hang on what its words mean in numbers.

    holds      under the main reading and every other fair one that was run
    fails      under all of them
    depends    it holds under some, and fails under others
    undecided  under the main reading, for want of seeds

A reading counts for a claim if it changes any of the runs that the claim is tested on. Readings against the paper's letter are
shown beside the others, and count for nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from fedhold.lab import Experiment, Verdict
from fedhold.lab.paper.claims import (
    OTHER_WORDS,
    WORDS,
    Claim,
    Measurements,
    Results,
    hangs_on,
    judge,
    next_runs,
    outcome,
    shown,
)
from fedhold.lab.paper.figures import Plan
from fedhold.lab.paper.readings import FAIR, MAIN, Reading
from fedhold.report import Table

UNTOUCHED, NOT_RUN = "", "not run"
TOLD = 2  # comparisons named for each reading that disagrees with the main one


@dataclass(frozen=True)
class Judged:
    """A claim under every reading.

    claim   the claim
    main    the verdict under the main reading
    others  the outcome under each of the other readings: holds, fails, undecided, "" where it changes nothing that the claim
            is tested on, "not run" where its runs are not there
    why     the comparisons behind an outcome that differs from the main one, by reading
    """

    claim: Claim
    main: Verdict
    others: dict[str, str]
    why: dict[str, str]

    @property
    def outcome(self) -> str:
        """holds, fails, depends or undecided, by the rule at the head of this module."""
        fair = {self.others[name] for name in FAIR if name in self.others} & {"holds", "fails"}
        return self.main.outcome if fair <= {self.main.outcome} or self.main.outcome == "undecided" else "depends"

    @property
    def verdict(self) -> Verdict:
        """The verdict over the readings, with the numbers of those that disagree."""
        if not self.why:
            return self.main
        under = " ".join(f"Under '{name}' it {self.others[name]}: {why}" for name, why in self.why.items())
        head = f"Under the main reading it {self.main.outcome}. " if self.outcome == "depends" else ""
        return replace(self.main, outcome=self.outcome, numbers=f"{head}{self.main.numbers} {under}")


def judged(claim: Claim, results: Results, plan: Plan, readings: Iterable[Reading] = ()) -> Judged:
    """Judge a claim under the main reading and these."""
    main = judge(claim, Measurements(results, plan))
    others, why = dict[str, str](), dict[str, str]()
    for reading in readings:
        under = replace(plan, reading=reading)
        if not hangs_on(claim, under):
            others[reading.name] = UNTOUCHED
            continue
        evidence = claim.test(Measurements(results, under))
        others[reading.name] = outcome(evidence)
        if others[reading.name] == "undecided" and not all(one.values for one in evidence):
            others[reading.name] = NOT_RUN
        if {others[reading.name], main.outcome} == {"holds", "fails"}:
            why[reading.name] = shown(evidence, TOLD)
    return Judged(claim, main, others, why)


def go_on(claims: Sequence[Claim], results: Results, plan: Plan) -> list[Experiment]:
    """The runs of the first seeds, or of another one, for what is still undecided under the plan's reading.

    There are none for a claim that does not hang on the reading, and none for one that fails by what is there already: most
    comparisons are those of the main reading.
    """
    of, main = Measurements(results, plan), Measurements(results, replace(plan, reading=MAIN))
    asked = [claim for claim in claims if plan.reading == MAIN or hangs_on(claim, plan)]
    return list(dict.fromkeys(run for claim in asked for run in next_runs(claim, of, main)))


def by_reading(verdicts: Sequence[Judged]) -> Table:
    """Claims by readings."""
    names = list(verdicts[0].others)
    rows = [(one.claim.says, one.outcome, one.main.outcome, *one.others.values()) for one in verdicts]
    return Table("Claims by reading (empty: it changes nothing there)", ("claim", "together", "main", *names), rows)


def by_words(claims: Sequence[Claim], results: Results, plan: Plan) -> Table:
    """The verdicts under the main reading if one of the paper's words meant half as much, or twice."""
    moved = [(word, value) for word, values in OTHER_WORDS.items() for value in values]
    rows = []
    for claim in claims:
        usual = judge(claim, Measurements(results, plan)).outcome
        others = [judge(claim, Measurements(results, plan, replace(WORDS, **{w: v}))).outcome for w, v in moved]
        rows.append((claim.says, usual, *("" if other == usual else other for other in others)))
    header = ("claim", "as read", *(f"{word} {value:g}" for word, value in moved))
    return Table("Claims by what words mean (empty: the verdict stays)", header, rows)
