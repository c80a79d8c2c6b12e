"""Any torch module as a task. Torch is imported when a TorchTask is made, not before."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import integer, require
from fedhold.kernels import Floats, Vector
from fedhold.lab.datasets import Samples
from fedhold.lab.tasks import Shards

if TYPE_CHECKING:
    import torch

# Samples differentiated together: bounds the memory for activations, and per-client weights inside vmap.
CHUNK = 8_192

Criterion = Callable[["torch.Tensor", "torch.Tensor"], "torch.Tensor"]


class TorchTask:
    """A task made of a torch module; the gradients of all clients are computed at once by torch.func.vmap.

    module      differentiable, takes (n, p) rows; its parameters at this moment are w_0. It is never modified
    criterion   (outputs, targets) -> (n,), one loss per sample, as cross_entropy with reduction="none"
    samples     the samples on which `evaluate` measures the loss, and the accuracy if the targets are classes
    vectorized  False: the clients are differentiated one by one. That is faster where one client's samples keep the processor
                busy, as they do with wide convolutions
    chunk       how many samples are in memory at a time, with their activations. A client with more of them is differentiated
                in pieces, whose gradients are added, if clients are taken one by one; batch normalisation then sees a piece

    Inputs in bytes are pixels, where 0 to 255 stands for 0 to 1. Clients of unequal n_i are padded, in groups of similar size,
    with samples of weight 0. `vectorized` turns False, with a warning, when vmap refuses the module (batch normalisation,
    data-dependent branches); one by one, the gradients are the same. Buffers such as running means keep their first value.
    Needs torch (from a checkout: `pip install '.[torch]'`), and a module that is not random: `module.eval()` stops dropout.

    >>> import torch
    >>> loss = lambda outputs, targets: (outputs[:, 0] - targets) ** 2 / 2
    >>> samples = Samples(np.eye(2), np.array([3.0, 4.0]))
    >>> task = TorchTask(torch.nn.Linear(2, 1, bias=False).double(), loss, samples)
    >>> task.gradients(np.zeros(2), Shards(samples.inputs, samples.targets, np.array([0, 2])))
    array([[-1.5, -2. ]])
    """

    def __init__(
        self,
        module: torch.nn.Module,
        criterion: Criterion,
        samples: Samples,
        *,
        vectorized: bool = True,
        chunk: int = CHUNK,
    ) -> None:
        try:
            import torch
        except ImportError as reason:
            raise ImportError("TorchTask needs torch. From a checkout of fedhold: pip install '.[torch]'") from reason
        self.module, self.criterion, self.samples = module, criterion, samples
        self.vectorized, self.chunk = vectorized, integer(chunk, "chunk", at_least=1)
        self._torch = torch
        self._trained = {name: p.detach().clone() for name, p in module.named_parameters() if p.requires_grad}
        self._fixed = {
            name: value.detach().clone()
            for name, value in (*module.named_parameters(), *module.named_buffers())
            if name not in self._trained
        }
        if not self._trained:
            raise ValueError("The module has no parameter with requires_grad, so there is nothing to learn.")
        drops = [
            name
            for name, part in module.named_modules()
            if isinstance(part, torch.nn.modules.dropout._DropoutNd) and part.training
        ]
        if drops:
            raise ValueError(f"{', '.join(drops)} would draw random numbers outside rng. Call module.eval() first.")

    @property
    def d(self) -> int:
        return sum(value.numel() for value in self._trained.values())

    def initial(self, rng: np.random.Generator) -> Floats:  # noqa: ARG002
        """The parameters that the module had when the task was made; `rng` is not used."""
        flat = self._torch.cat([value.reshape(-1) for value in self._trained.values()])
        return np.asarray(flat.cpu().numpy())

    def gradients(self, w: Floats, shards: Shards, out: Floats | None = None) -> Floats:
        if out is None:
            out = np.empty((shards.m, self.d), self.initial(np.random.default_rng(0)).dtype)
        require(out.shape == (shards.m, self.d), "out", needs="shape (m, d)", remedy="Leave it away.", shape=out.shape)
        parameters = self._unflatten(w)
        if self.vectorized:
            try:
                return self._by_vmap(parameters, shards, out)
            except RuntimeError as reason:
                together = reason
            result = self._by_loop(parameters, shards, out)  # raises the same error where vmap is not the reason
            self.vectorized = False
            warnings.warn(f"vmap refuses this module, clients are computed one by one: {together}", stacklevel=2)
            return result
        return self._by_loop(parameters, shards, out)

    def evaluate(self, w: Floats) -> dict[str, float]:
        return self.measure(w, self.samples)

    def _by_vmap(self, parameters: dict[str, Any], shards: Shards, out: Floats) -> Floats:
        together = self._torch.func.vmap(self._torch.func.grad(self._weighted_loss), in_dims=(None, 0, 0, 0))
        for clients, rows, weights in _chunks(shards, self.chunk):
            inputs, targets = self._inputs(shards.inputs[rows]), self._tensor(shards.targets[rows])
            gradients = together(parameters, inputs, targets, self._tensor(weights))
            pieces = [gradients[name].detach().reshape(len(clients), -1) for name in self._trained]
            out[clients] = self._torch.cat(pieces, dim=1).cpu().numpy()
        return out

    def _by_loop(self, parameters: dict[str, Any], shards: Shards, out: Floats) -> Floats:
        alone = self._torch.func.grad(self._weighted_loss)
        for i, row in enumerate(out):
            client = shards.client(i)
            weights = np.full(len(client.targets), 1 / len(client.targets))
            for start in range(0, len(weights), self.chunk):
                rows = slice(start, start + self.chunk)
                inputs, targets = self._inputs(client.inputs[rows]), self._tensor(client.targets[rows])
                gradients = alone(parameters, inputs, targets, self._tensor(weights[rows]))
                found = self._torch.cat([gradients[name].detach().reshape(-1) for name in self._trained]).cpu().numpy()
                row[:] = found if start == 0 else row + found
        return out

    def _weighted_loss(
        self, parameters: dict[str, Any], inputs: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        return (self._losses(parameters, inputs, targets)[1] * weights).sum()

    def _losses(
        self, parameters: dict[str, Any], inputs: torch.Tensor, targets: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        # Copies, since batch normalisation writes into its buffers, and no client may influence another.
        fixed = {name: value.clone() for name, value in self._fixed.items()}
        outputs = self._torch.func.functional_call(self.module, (parameters, fixed), (inputs,))
        losses = self.criterion(outputs, targets)
        if losses.shape != targets.shape[:1]:
            wanted, met = tuple(targets.shape[:1]), tuple(losses.shape)
            remedy = 'Pass a loss with reduction="none".'
            raise ValueError(f"criterion must give one loss per sample, shape {wanted}, met {met}. {remedy}")
        return outputs, losses

    def measure(self, w: Floats, samples: Samples) -> dict[str, float]:
        """The metrics on other samples than the task's own."""
        total, right = 0.0, 0
        for outputs, losses, targets in self._measured(w, samples):
            total += float(losses.double().sum())
            if samples.targets.dtype.kind in "iu":
                right += int((outputs.argmax(dim=1) == targets).sum())
        measured = {"loss": total / len(samples)}
        return {"accuracy": right / len(samples), **measured} if samples.targets.dtype.kind in "iu" else measured

    def losses(self, w: Floats, samples: Samples) -> Vector:
        """The loss on each sample."""
        return np.concatenate([losses.double().cpu().numpy() for _, losses, _ in self._measured(w, samples)])

    def _measured(self, w: Floats, samples: Samples) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Outputs, losses and targets, some samples at a time."""
        parameters = self._unflatten(w)
        for start in range(0, len(samples), self.chunk):
            rows = slice(start, start + self.chunk)
            targets = self._tensor(samples.targets[rows])
            with self._torch.no_grad():
                found = self._losses(parameters, self._inputs(samples.inputs[rows]), targets)
            yield *found, targets

    def _tensor(self, array: NDArray[Any]) -> torch.Tensor:
        """On the module's device; floats in the module's precision. Shares memory where it can."""
        like = next(iter(self._trained.values()))
        kind = like.dtype if array.dtype.kind == "f" else None
        # Torch warns about read-only arrays; they are copied.
        return self._torch.as_tensor(np.require(array, requirements=["C", "W"])).to(device=like.device, dtype=kind)

    def _inputs(self, array: NDArray[Any]) -> torch.Tensor:
        """As `_tensor`; pixels in bytes become numbers from 0 to 1 here, so that the samples take a quarter of the memory."""
        inputs = self._tensor(array)
        return inputs if array.dtype != np.uint8 else inputs.to(next(iter(self._trained.values())).dtype) / 255

    def _unflatten(self, w: Floats) -> dict[str, Any]:
        require(w.shape == (self.d,), "w", needs=f"shape ({self.d},)", remedy="Use task.initial(rng).", shape=w.shape)
        pieces = self._torch.split(self._tensor(w), [value.numel() for value in self._trained.values()])
        return {name: p.reshape(v.shape) for (name, v), p in zip(self._trained.items(), pieces, strict=True)}


def usual_loss(samples: Samples) -> Criterion:
    """Cross-entropy where the targets are classes, half of the squared error where they are numbers; one per sample.

    samples  to measure on
    """

    def squares(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return (outputs.reshape(len(targets), -1)[:, 0] - targets) ** 2 / 2

    def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        import torch

        return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")

    return cross_entropy if samples.targets.dtype.kind in "iu" else squares


def _chunks(shards: Shards, size: int) -> Iterator[tuple[Any, NDArray[np.intp], Floats]]:
    """Groups of clients of similar n_i: the clients' numbers, (k, n) rows of their samples, (k, n) weights.

    A client with fewer samples than the largest of its group repeats its first one with weight 0: a real sample, so that
    padding cannot overflow where the samples do not.
    """
    order = np.argsort(shards.counts, kind="stable")
    first = 0
    while first < shards.m:
        # Sorted by size, so the last of the group is the largest; take as many clients as fit into `size` samples.
        sizes = shards.counts[order[first:]]
        fit = np.arange(1, len(sizes) + 1) * sizes <= size
        clients = order[first : first + max(1, int(np.count_nonzero(fit)))]
        counts, starts = shards.counts[clients], shards.offsets[clients]
        place = np.arange(counts.max())
        real = place < counts[:, None]
        rows = starts[:, None] + np.where(real, place, 0)
        yield clients, rows, np.where(real, 1 / counts[:, None], 0.0)
        first += len(clients)
