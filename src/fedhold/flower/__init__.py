"""A Flower strategy for every rule, which one bad client can neither stop nor capture.

In: replies of nodes, as `fedhold.transport` reads them. Out: the next model, and what was done to every node, as an audit and
a checkpoint. Imports: `fedhold.audit`, `fedhold.aggregation` and below, `fedhold.transport`, `fedhold.storage` and
`fedhold.errors`; of the laboratory nothing. Needs flwr, of which it uses public names alone.

    strategy    RobustStrategy: a run, round after round
    model       the global model: what aggregate() gets of replies, the next model from an aggregate
    rounds      one round: replies -> outcome, rows for the audit
    around      another strategy of Flower inside the robust one
    validation  what a node's update does to the loss on data of the server's own
    quarantine  which nodes are left out of sampling
    state       what a run goes on from, and its checkpoint
"""

try:
    import flwr.serverapp.strategy  # noqa: F401
except ImportError as problem:
    raise ImportError(
        f"fedhold.flower needs flwr >= 1.38: {problem}. From a checkout of fedhold: pip install '.[flower]'."
    ) from problem

from fedhold.flower.quarantine import Quarantine
from fedhold.flower.state import RobustResult
from fedhold.flower.strategy import RobustStrategy
from fedhold.flower.validation import Validation

__all__ = ["Quarantine", "RobustResult", "RobustStrategy", "Validation"]


def __dir__() -> list[str]:
    """The public names, for help() and for the completion of names."""
    return sorted(__all__)
