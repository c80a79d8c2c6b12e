"""The paper's figures, Table 1, theory and claims, built with `fedhold.lab`.

In: the parts to reproduce, seeds, a directory. Out: results, a verdict on every claim, a report. Imports: `fedhold.lab`,
`fedhold.report`, `fedhold.aggregation` and below; `fedhold.lab` imports nothing from here.
"""

from fedhold.lab import Verdict
from fedhold.lab.paper.claims import Claim, Judged, Measurements, by_reading, by_words, judge, judged
from fedhold.lab.paper.figures import ATTACK_NAMES, CLIENTS, FIGURES, METHODS, NAMES, Plan, attack_free
from fedhold.lab.paper.readings import CHOICES, MNIST_STEP, READINGS, Choice, Reading, readings_table
from fedhold.lab.paper.reproduction import reproduce
from fedhold.lab.paper.sentences import CLAIMS

__all__ = [
    "ATTACK_NAMES",
    "CHOICES",
    "CLAIMS",
    "CLIENTS",
    "FIGURES",
    "METHODS",
    "MNIST_STEP",
    "NAMES",
    "READINGS",
    "Choice",
    "Claim",
    "Judged",
    "Measurements",
    "Plan",
    "Reading",
    "Verdict",
    "attack_free",
    "by_reading",
    "by_words",
    "judge",
    "judged",
    "readings_table",
    "reproduce",
]
