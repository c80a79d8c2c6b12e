"""What the server knows itself: a little data of its own, on which it can measure what a node's update does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from flwr.app import ArrayRecord
from numpy.typing import ArrayLike

from fedhold.audit import NodeRecord, with_reason
from fedhold.errors import integer, one_line
from fedhold.flower.model import Model
from fedhold.kernels import one_blas_thread
from fedhold.transport import Arrays

Loss = Callable[[ArrayRecord], ArrayLike]
"""The loss of a model on the server's data: one number, or one for each sample."""


@dataclass(frozen=True)
class Validation:
    """The server's own small data set, as functions of a model.

    loss   the loss of a model on it, one number or one for each sample; lower is better
    nodes  of how many nodes a round measures the replies: suspects first, and others that are drawn. Each costs a call of
           `loss`; 0 measures the model alone
    train  the model that a client would make of the given one if this data set were its own; for rules that compare clients
           with the server's own update, such as fl_trust

    The measurements are for people: they go into the audit, and change no aggregate. `train` does, under such a rule.
    """

    loss: Loss
    nodes: int = 5
    train: Callable[[ArrayRecord], ArrayRecord] | None = None

    def __post_init__(self) -> None:
        integer(self.nodes, "nodes")
        if not callable(self.loss):
            raise TypeError(f"validate must be a function of a model, or Validation(...); got {self.loss!r}.")

    @one_blas_thread
    def root(self, model: Model) -> Arrays | None:
        """The model that the server's own data make of the given one, as if it were a client's."""
        return None if self.train is None else Model.of(self.train(model.record())).arrays

    def chosen(self, admitted: Sequence[int], suspects: Sequence[int], rng: np.random.Generator) -> list[int]:
        """Whose replies to measure.

        admitted  the nodes whose replies were aggregated
        suspects  the suspects so far, the most suspicious first
        rng       draws the others
        """
        first = [node for node in suspects if node in admitted][: self.nodes]
        others = [node for node in admitted if node not in first]
        drawn = rng.permutation(len(others))[: self.nodes - len(first)]
        return first + [others[i] for i in sorted(drawn)]

    @one_blas_thread
    def measure(
        self, rows: Sequence[NodeRecord], replies: Mapping[int, Arrays], sent: Model, moved: Model | None
    ) -> tuple[list[NodeRecord], dict[str, float]]:
        """The rows of a round with the effect of each reply that is to be measured, and the losses before and after the round.

        rows     of all nodes
        replies  the arrays of the nodes to be measured
        sent     the model that was sent
        moved    the model after the round; None where it stayed as it was
        """
        losses = {"before": self._mean(sent)}
        losses["after"] = losses["before"] if moved is None else self._mean(moved)
        measured = []
        for row in rows:
            if row.phase == "train" and int(row.node) in replies:
                model = sent.like(replies[int(row.node)])
                try:
                    with np.errstate(all="ignore"):
                        row = replace(row, effect=self._mean(model) - losses["before"])
                except Exception as problem:  # a liar chooses the model, and so what the user's function meets
                    told = one_line(f"{type(problem).__name__}: {problem}")
                    row = with_reason(row, f"validation failed: {told}")
            measured.append(row)
        return measured, losses

    def _mean(self, model: Model) -> float:
        return float(np.asarray(self.loss(model.record()), np.float64).mean())
