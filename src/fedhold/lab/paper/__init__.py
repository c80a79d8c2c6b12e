"""The paper's figures, Table 1, theory and claims, built with `fedhold.lab`.

In: the parts to reproduce, seeds, a directory. Out: results, a verdict on every claim, a report. Imports: `fedhold.lab`,
`fedhold.report`, `fedhold.aggregation` and below; `fedhold.lab` imports nothing from here.
"""

from fedhold.lab import Verdict
from fedhold.lab.paper.claims import Claim, Measurements, judge
from fedhold.lab.paper.figures import CLIENTS, FIGURES, METHODS, MNIST_STEP, Plan
from fedhold.lab.paper.reproduction import reproduce
from fedhold.lab.paper.sentences import CLAIMS

__all__ = [
    "CLAIMS",
    "CLIENTS",
    "FIGURES",
    "METHODS",
    "MNIST_STEP",
    "Claim",
    "Measurements",
    "Plan",
    "Verdict",
    "judge",
    "reproduce",
]
