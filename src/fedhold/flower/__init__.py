"""A Flower strategy for every rule, which one bad client can neither stop nor capture.

In: messages that Flower brings from nodes, read without trust. Out: the next model, and what was done to every node, as an
audit and a checkpoint. Imports: `fedhold.audit`, `fedhold.report`, `fedhold.aggregation` and below, `fedhold.storage` and
`fedhold.errors`; of the laboratory nothing. Needs flwr.

    strategy    RobustStrategy: a run, round after round
    grid        waiting for nodes, sampling them, exchanging messages with them
    replies     what nodes sent -> arrays and samples, or a reason
    model       the global model: updates from replies, the next model from an aggregate
    rounds      one round: replies -> outcome, rows for the audit
    averages    averages of metrics over nodes
    around      another strategy of Flower inside the robust one
    validation  what a node's update does to the loss on data of the server's own
    quarantine  which nodes are left out of sampling
    state       what a run goes on from, and its checkpoint
    api         Flower's names
"""

from fedhold.flower.quarantine import Quarantine
from fedhold.flower.state import RobustResult
from fedhold.flower.strategy import RobustStrategy
from fedhold.flower.validation import Validation

__all__ = ["Quarantine", "RobustResult", "RobustStrategy", "Validation"]


def __dir__() -> list[str]:
    """The public names, for help() and for the completion of names."""
    return sorted(__all__)
