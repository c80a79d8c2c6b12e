"""Another strategy of Flower inside the robust one: its config, its server optimiser, and what they remember between rounds.

The robust strategy samples nodes, reads replies and aggregates them. The strategy inside is asked what to send, and is handed
the robust aggregate as if it were the reply of one single client, so that whatever it makes of an average, such as a step of
Adam, it makes of an aggregate that liars could not capture.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg, Strategy
from numpy.typing import NDArray

from fedhold.flower.model import Model
from fedhold.flower.state import storable, to_json
from fedhold.positive import stay_positive

SAMPLING = tuple(name for name in inspect.signature(FedAvg.__init__).parameters if name != "self")
PLAIN_AVERAGE = FedAvg().train_metrics_aggr_fn  # what Flower averages metrics by unless the user gives a function
COMBINED = ("FedAvg", "FedAvgM", "FedOpt", "FedAdam", "FedAdagrad", "FedYogi", "FedProx", "Strategy")
ROBUST = (
    "it aggregates robustly itself, and would see nothing but one aggregate. Name the rule instead: RobustStrategy({})."
)
PRIVATE = (
    "it clips and counts the updates of single clients for a plain average, and its noise and its accounting hold for nothing "
    "else. Let the clients add noise: Flower's `LocalDpMod` in the ClientApp works under any strategy."
)
TREES = "it hands on trees, which have no distances and no average."
REFUSED = {
    "Krum": ROBUST.format("'krum(f=...)'"),
    "MultiKrum": ROBUST.format("'multi_krum(f=...)'"),
    "Bulyan": ROBUST.format("'bulyan(f=...)'"),
    "FedMedian": ROBUST.format("'median'"),
    "FedTrimmedAvg": ROBUST.format("'trimmed_mean(f=...)'"),
    "DifferentialPrivacyServerSideFixedClipping": PRIVATE,
    "DifferentialPrivacyServerSideAdaptiveClipping": PRIVATE,
    "DifferentialPrivacyClientSideFixedClipping": PRIVATE,
    "DifferentialPrivacyClientSideAdaptiveClipping": PRIVATE,
    "QFedAvg": "it weighs every client by the loss that the client itself reports, so a liar chooses its own weight.",
    "FedXgbBagging": TREES,
    "FedXgbCyclic": TREES,
    "RobustStrategy": "one robust strategy is enough. Combine rules in a spec, such as 'bucketing | median'.",
}
UNKNOWN = "this version of fedhold does not know what it does with replies. Known are FedAvg's optimisers and FedProx."
OWN_LOOP = "it has a `start` of its own, which would not be called. Do that work in configure_train or aggregate_train."
NOT_FEDAVG = "it is no FedAvg, so there is no average in it that a robust aggregate could replace."


def refusal(kind: type) -> str | None:
    """Why a strategy of this class cannot be combined with a robust one; None where it can.

    Flower's classes are known by name: a version of flwr that lacks one of them is no error.
    """
    flowers = [cls.__name__ for cls in kind.__mro__ if cls.__module__.startswith(("flwr.", "fedhold."))]
    reasons = [REFUSED[name] for name in flowers if name in REFUSED]
    if reasons:
        return reasons[0]
    if not issubclass(kind, FedAvg):
        return NOT_FEDAVG
    if any(name not in COMBINED for name in flowers):
        return UNKNOWN
    return OWN_LOOP if kind.start is not Strategy.start else None


@dataclass(frozen=True)
class Proposal:
    """What the strategy inside makes of a round.

    model      the next model; None where the round keeps the one it had
    metrics    the averages of metrics, as the strategy returned them
    note       why there is no model
    corrected  how many numbers its step would have made too low, as stay_positive() has it
    """

    model: Model | None
    metrics: MetricRecord | None
    note: str | None = None
    corrected: int = 0


class Inner:
    """A strategy inside the robust one.

    strategy   as the user made it. A copy of it is used, which asks whoever was drawn and averages nothing
    """

    def __init__(self, strategy: FedAvg) -> None:
        name = type(strategy).__name__
        if not isinstance(strategy, Strategy):
            raise TypeError(f"around must be a strategy of Flower, such as FedAdam(eta=0.1); got {strategy!r}.")
        if reason := refusal(type(strategy)):
            raise TypeError(f"RobustStrategy cannot be put around {name}: {reason}")
        self.sampling = {name: getattr(strategy, name) for name in SAMPLING}
        self.name = f"{name}({', '.join(f'{key}={value!r}' for key, value in _settings(strategy).items())})"
        self.strategy = copy.copy(strategy)
        self.strategy.fraction_train = self.strategy.fraction_evaluate = 1.0
        self.strategy.min_train_nodes = self.strategy.min_evaluate_nodes = self.strategy.min_available_nodes = 1
        self.strategy.train_metrics_aggr_fn = self.strategy.evaluate_metrics_aggr_fn = PLAIN_AVERAGE
        self._at_first = dict(vars(self.strategy))

    def messages(
        self, phase: str, t: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid, drawn: Sequence[int]
    ) -> list[Message]:
        """The messages of the strategy: one model and one config, to some of the nodes drawn or all of them.

        phase           "train" or "evaluate"
        t               the round
        arrays, config  what there is to send
        grid            the grid, of which the strategy is shown the nodes drawn
        drawn           these nodes
        """
        configure = self.strategy.configure_train if phase == "train" else self.strategy.configure_evaluate
        made = {m.metadata.dst_node_id: m for m in configure(t, arrays, config, cast(Grid, _Drawn(grid, drawn)))}
        messages = [made[node] for node in drawn if node in made]
        keys = (self.strategy.arrayrecord_key, self.strategy.configrecord_key)
        first = next((message.content for message in made.values()), RecordDict())
        alike = all(message.content is first or message.content == first for message in made.values())
        if made and (not alike or set(first) != set(keys) or len(messages) < len(made)):
            raise ValueError(
                f"{type(self.strategy).__name__}.configure_{phase} must send the same two records, {keys[0]!r} and "
                f"{keys[1]!r}, to nodes of the grid it is given; it sent {sorted(first)} to {len(made)} nodes"
                f"{'' if alike else ', and not the same to all'}. Updates are measured from the one model that was sent: "
                "put what differs between nodes into the ClientApp."
            )
        for message in messages:
            message.content.config_records[keys[1]]["server-round"] = t
        return messages

    def train(
        self,
        t: int,
        model: Model,
        samples: float,
        metrics: MetricRecord | None,
        to: Message,
        sent: Model,
        objection: Callable[[Model], str | None],
    ) -> Proposal:
        """What the strategy makes of the robust aggregate and the averages of metrics; it is told that they are a reply.

        Where its numbers, or those that it remembers, are not finite, or somebody objects to its model, there is no model, and
        it forgets the round. Statistics of normalisation layers stay as the robust aggregate has them.

        t          the round
        model      the model that the robust aggregate leads to
        samples    the number of samples behind it
        metrics    the averages of metrics
        to         a message of the round
        sent       the model that was sent
        objection  why a model may not be adopted; None where it may
        """
        before = dict(vars(self.strategy))
        content = RecordDict({"metrics": self._metrics(samples, metrics)})
        content[self.strategy.arrayrecord_key] = model.record()
        with np.errstate(all="ignore"):  # what is not finite is noticed below
            made, told = self.strategy.aggregate_train(t, [Message(content, reply_to=to)])
        name = type(self.strategy).__name__
        if made is None:
            return Proposal(None, told or metrics, f"{name} returned no model")
        stepped = model.with_floats_of(made, name)
        if stepped is None or not self._is_finite():
            self.recall(before)
            return Proposal(None, metrics, f"{name} made numbers that are not finite of the aggregate")
        lower = {key: np.minimum(sent.arrays[key], array) for key, array in model.arrays.items()}
        raised, corrected = stay_positive(stepped.arrays, [lower], [1.0], sent.arrays)
        stepped = Model(stepped.arrays | raised)
        if (note := objection(stepped)) is not None:
            self.recall(before)
            return Proposal(None, metrics, note)
        for key, array in stepped.arrays.items():  # FedAvgM remembers the record that it returns, and steps from there.
            if not np.array_equal(made[key].numpy(), array):
                made[key] = Array(array)
        return Proposal(stepped, told or metrics, corrected=corrected)

    def evaluate(self, t: int, samples: float, metrics: MetricRecord | None, to: Message) -> MetricRecord | None:
        """What the strategy makes of the averages of metrics; the parameters are those of `train`."""
        reply = Message(RecordDict({"metrics": self._metrics(samples, metrics)}), reply_to=to)
        return self.strategy.aggregate_evaluate(t, [reply]) or metrics

    def _metrics(self, samples: float, metrics: MetricRecord | None) -> MetricRecord:
        return MetricRecord({**dict(metrics or {}), self.strategy.weighted_by_key: samples})

    # What it remembers

    def memory(self) -> dict[str, Any]:
        """All that the strategy remembers and a checkpoint can hold: its attributes that are numbers, texts or arrays, or
        lists and dicts of them. An attribute of another kind that the strategy has set since it was made is an error."""
        kept = {name: value for name, value in vars(self.strategy).items() if name not in SAMPLING}
        for name, value in kept.items():
            if not storable(value) and value is not self._at_first.get(name):
                raise TypeError(
                    f"{type(self.strategy).__name__}.{name} is a {type(value).__name__}, which a checkpoint cannot hold, and "
                    "changes while the run goes on. Keep numbers, texts, arrays, or lists and dicts of them, or run without "
                    "a checkpoint."
                )
        return {name: value for name, value in kept.items() if storable(value)}

    def recall(self, memory: Mapping[str, Any]) -> None:
        """Set the attributes to what `memory` gave; those that came since are removed."""
        for name in [name for name in vars(self.strategy) if name not in self._at_first and name not in memory]:
            delattr(self.strategy, name)
        vars(self.strategy).update(memory)

    def _is_finite(self) -> bool:
        """Whether all numbers in the arrays that the strategy remembers are finite."""
        arrays: list[NDArray[Any]] = []
        to_json([value for value in vars(self.strategy).values() if storable(value)], arrays)
        return all(array.dtype.kind not in "fc" or np.isfinite(array).all() for array in arrays)


class _Drawn:
    """The grid, with the nodes that were drawn in place of all that are connected."""

    def __init__(self, grid: Grid, nodes: Sequence[int]) -> None:
        self._grid, self._nodes = grid, list(nodes)

    def get_node_ids(self) -> Iterable[int]:
        return list(self._nodes)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)


def _settings(strategy: FedAvg) -> dict[str, Any]:
    """What the user chose about the strategy beside sampling, as far as it is numbers and texts."""
    own = {name: value for name, value in vars(strategy).items() if name not in SAMPLING}
    return {name: value for name, value in own.items() if isinstance(value, bool | int | float | str)}
