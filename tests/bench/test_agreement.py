"""The comparison with ByzFL: that it sees what differs, and that its document is the one of this script."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import agreement
from agreement import PAIRS, Pair, compared, ours
from fedhold import MIXINGS, RULES
from fedhold.lab import ATTACKS

DOCUMENT = (Path(__file__).parents[2] / "docs" / "agreement.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair.ours} {pair.theirs}")
def test_a_pair_is_of_known_names_and_in_the_document(pair):
    names = re.sub(r"\([^)]*\)|, damage", "", pair.ours).split(", ")
    assert set(names) <= {*RULES, *MIXINGS, *ATTACKS}
    (row,) = [line for line in DOCUMENT.splitlines() if line.startswith(f"| {pair.ours} | {pair.theirs} |")]
    assert row.endswith(f"| {pair.note} |")
    largest = re.search(r"\| (\d\.\de-\d+|0\.0e\+00) \|", row)
    assert not pair.agrees or float(largest[1]) <= agreement.CLOSE


def against_itself(change):
    return Pair("median", "ours, changed", lambda X, _: (ours("median", X), np.median(X, axis=0) + change))


def test_a_difference_is_seen():
    assert compared(against_itself(0.0)).holds
    assert compared(against_itself(0.0)).inputs == 120
    far = compared(against_itself(1e-4))
    assert not far.holds
    assert 1e-5 < far.largest < 1e-2
    assert compared(replace(far.pair, agrees=False)).holds
    assert not compared(replace(far.pair, values=lambda *_: None)).holds  # Nothing was compared.
