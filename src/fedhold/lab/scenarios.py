"""Scenarios: the data of an experiment, dealt out to its clients, with the task to learn from it.

data   a function in DATA, or the user's own        -> samples to train and to test on, or a whole Scenario
cut    a function of PARTITIONS, or the user's own  -> the samples of each client
model  a function in MODELS, or the user's own      -> the task
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import integer, positive, require
from fedhold.lab import datasets, hospitals, writers
from fedhold.lab.datasets import Samples
from fedhold.lab.partition import PARTITIONS, Indices, Labels
from fedhold.lab.randomness import Purpose, chance
from fedhold.lab.tasks import LinearRegression, Mlp, Shards, Task, shard
from fedhold.lab.torch_task import TorchTask, usual_loss
from fedhold.spec import Part, function_named

# What data and models are passed if they have such parameters.
PASSED = ("seed", "cut", "m", "model", "samples_to_test")
CLASSES = 10  # of the images in rows, but for those of writers

Cut = Callable[[Labels | int, int, np.random.Generator], list[Indices]]
Model = Callable[[Samples, int], Task]  # makes the task from the samples to test on and the number of classes


@dataclass(frozen=True, eq=False)
class Scenario:
    """A task, and the samples that every client holds."""

    task: Task
    shards: Shards


def clients_of(data: str) -> str:
    """Whose the clients of data are that has some of its own, so that no partition deals it out; "" for all other data.

    >>> clients_of("femnist(hidden=8)"), clients_of("mnist")
    ('by writer', '')
    """
    return OWN_CLIENTS.get(data.partition("(")[0], "")


def cost_of(data: str, model: str | None = None) -> float:
    """How long a round takes, in rounds on `synthesized`."""
    return ROUND_COSTS.get(data, 1.0) * ROUND_COSTS.get(model or "", 1.0)


def synthesized(seed: int, cut: Cut, m: int, *, samples: int = 10_000, d: int = 50, factor: float = 0.5) -> Scenario:
    """Linear regression with standard normal noise, the paper's section 7.1.

    seed       of the samples and of the partition
    cut        deals the samples out: a function of PARTITIONS with its parameters
    m          the number of clients
    samples    the number of samples of all clients together
    d          the number of coordinates to learn
    factor     of the squared error in the loss; 1 makes gradients twice as long as 1/2 does

    >>> synthesized(0, PARTITIONS["balanced"], 4, samples=20, d=3).shards.counts
    array([5, 5, 5, 5])
    """
    return heterogeneous(seed, cut, m, variance=0.0, samples=samples, d=d, factor=factor)


def heterogeneous(
    seed: int, cut: Cut, m: int, *, variance: float = 0.2, samples: int = 10_000, d: int = 50, factor: float = 0.5
) -> Scenario:
    """The same, with a true model of its own for every client, the paper's section 7.4.

    variance   of each coordinate of a client's model around the common one; the other parameters are those of synthesized

    >>> heterogeneous(0, PARTITIONS["balanced"], 4, samples=20, d=3).task.d
    3
    """
    parts = cut(integer(samples, "samples", at_least=1), m, chance(seed, Purpose.PARTITION))
    rng = chance(seed, Purpose.DATA)
    train = datasets.synthesized(rng, samples=samples, d=d, parts=parts, variance=variance).train
    return Scenario(LinearRegression(train, positive(factor, "factor")), shard(train, parts))


def _image_data(name: str, samples: int, what: str) -> Callable[..., Scenario]:
    """The data of images in ten classes that the function of this name in `datasets` reads."""

    def make(
        seed: int,
        cut: Cut,
        m: int,
        model: Model | None = None,
        *,
        samples: int = samples,
        hidden: int = 32,
        tests: int = 10_000,
    ) -> Scenario:
        load = getattr(datasets, name)
        images = _images(load) if model is None else load()  # Torch wants pixels in [0, 1].
        train, test = _first(images.train, samples, "samples"), _first(images.test, tests, "tests")
        parts = cut(train.targets, m, chance(seed, Purpose.PARTITION))
        task = Mlp(test, hidden=hidden) if model is None else model(test, CLASSES)
        return Scenario(task, shard(train, parts))

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"""{what}

    seed       of the partition
    cut        deals the images out: a function of PARTITIONS with its parameters
    m          the number of clients
    model      makes the task from the test images, in place of a network with one hidden layer
    samples    use only the first so many of the {samples:,} training images
    hidden     the number of hidden units
    tests      measure on only the first so many of the 10,000 test images
    """
    return make


mnist = _image_data("mnist", 60_000, "Handwritten digits and a network with one hidden layer, the paper's section 7.2.")
fashion_mnist = _image_data("fashion_mnist", 60_000, "Images of clothes in place of digits.")
cifar10 = _image_data(
    "cifar10", 50_000, 'Photographs of ten kinds of things, in colours; model = "resnet18" or "cnn" suits them.'
)


def _first(samples: Samples, count: int, name: str) -> Samples:
    """The first so many samples; `name` is that of the parameter with the count."""
    count = integer(count, name, at_least=1)
    return Samples(samples.inputs[:count], samples.targets[:count])


def heart_disease(seed: int, cut: Cut, m: int, model: Model | None = None, *, hidden: int = 8) -> Scenario:
    """Patients of four hospitals, who has heart disease, and a small network; a client's patients are all of one hospital.

    The m clients are divided among the hospitals by the number of patients, and each hospital's patients among its clients.
    Hospitals differ in whom they examine and what they measure, so that clients differ however they are cut.

    seed       of the patients held out to test on, 30 % of each hospital's, and of the partition
    cut        deals each hospital's patients out: a function of PARTITIONS with its parameters
    m          the number of clients, at least 4
    model      makes the task from the patients to test on, in place of that network
    hidden     the number of hidden units
    """
    wards = hospitals.heart_disease(chance(seed, Purpose.DATA))
    require(
        m >= len(wards), "heart_disease", needs="m >= 4, a client in every hospital", remedy="Use more clients.", m=m
    )
    rng, parts, offset = chance(seed, Purpose.PARTITION), list[Indices](), 0
    for ward, clients in zip(wards, _apportioned([len(ward.train) for ward in wards], m), strict=True):
        parts += [offset + part for part in cut(ward.train.targets, clients, rng)]
        offset += len(ward.train)
    train, test = _joined([ward.train for ward in wards]), _joined([ward.test for ward in wards])
    return Scenario(Mlp(test, hidden=hidden, classes=2) if model is None else model(test, 2), shard(train, parts))


def femnist(m: int, model: Model | None = None, *, hidden: int = 32) -> Scenario:
    """Letters and digits by writer, 62 classes, and a network with one hidden layer; a client is a writer.

    m          the number of clients: the first so many writers in the files
    model      makes the task from what the same writers have to test on, in place of that network
    hidden     the number of hidden units
    """
    people = writers.femnist(m)
    train, test = _joined([one.train for one in people]), _joined([one.test for one in people])
    parts = np.split(np.arange(len(train)), np.cumsum([len(one.train) for one in people])[:-1])
    task = Mlp(test, hidden=hidden, classes=writers.CLASSES) if model is None else model(test, writers.CLASSES)
    return Scenario(task, shard(train, parts))


def _joined(parts: Sequence[Samples]) -> Samples:
    return Samples(np.concatenate([one.inputs for one in parts]), np.concatenate([one.targets for one in parts]))


def _apportioned(sizes: Sequence[int], m: int) -> list[int]:
    """m clients in proportion to the sizes, at least one each: one by one to where there are most samples per client."""
    clients = [1] * len(sizes)
    for _ in range(m - len(sizes)):
        clients[max(range(len(sizes)), key=lambda k: sizes[k] / (clients[k] + 1))] += 1
    return clients


@lru_cache(maxsize=1)
def _images(load: Callable[[], datasets.Images]) -> datasets.Images:
    """The images with pixels as bytes, which take a quarter of the memory of float32 and no more time to learn from."""

    def in_bytes(samples: datasets.Samples) -> datasets.Samples:
        if samples.inputs.dtype == np.uint8:
            return samples
        return replace(samples, inputs=np.rint(255 * samples.inputs).astype(np.uint8))

    images = load()
    return replace(images, train=in_bytes(images.train), test=in_bytes(images.test))


DATA: dict[str, Callable[..., Scenario]] = {
    make.__name__: make for make in (synthesized, heterogeneous, mnist, fashion_mnist, cifar10, heart_disease, femnist)
}


# Models


def mlp(samples_to_test: Samples, *, classes: int, hidden: int = 32) -> Task:
    """One hidden layer of ReLU units and a softmax, for samples with classes.

    samples_to_test  whose accuracy is measured
    classes          the number of classes; left out, that of the data
    hidden           the number of hidden units

    >>> mlp(Samples(np.eye(3), np.array([0, 1, 1])), classes=2, hidden=4).d
    26
    """
    return Mlp(samples_to_test, hidden=hidden, classes=integer(classes, "classes", at_least=1))


def linear_regression(samples_to_test: Samples) -> Task:
    """A linear model and squared errors, for samples with numbers as targets.

    samples_to_test  whose error is measured

    >>> linear_regression(Samples(np.eye(2), np.array([3.0, 4.0]))).d
    2
    """
    return LinearRegression(samples_to_test)


def cnn(samples_to_test: Samples, *, classes: int, width: int = 32, hidden: int = 512) -> Task:
    """Two convolutions of 5 x 5, each with pooling, a hidden layer and a softmax, for images.

    samples_to_test  whose accuracy is measured
    classes          the number of classes; left out, that of the data
    width            channels of the first convolution; the second has twice as many
    hidden           the number of hidden units

    Needs torch, and square images of at least 4 x 4 pixels.  McMahan et al. 2017, who use these sizes for MNIST.

    >>> cnn(Samples(np.zeros((1, 784), np.uint8), np.array([0])), classes=10).d
    1663370
    """
    networks = _networks("cnn")
    image = networks.image_of(samples_to_test.inputs.shape[1], "cnn", least=4)
    module = networks.convolutional(image, integer(classes, "classes", at_least=1), width, hidden)
    return TorchTask(module, usual_loss(samples_to_test), samples_to_test, vectorized=False, chunk=512)


def resnet18(samples_to_test: Samples, *, classes: int, width: int = 64, groups: int = 2) -> Task:
    """A residual network of 18 layers for small images, with group normalisation.

    Batch normalisation would mix the samples of a client, whose gradient is then no mean of its samples' gradients.

    samples_to_test  whose accuracy is measured
    classes          the number of classes; left out, that of the data
    width            channels of the first of four stages, a multiple of groups; every further stage doubles them
    groups           of channels that are normalised together

    Needs torch, and square images of at least 8 x 8 pixels. Every client sends 45 MB.  He et al. 2016, with
    the first layer and no pooling as for small images; Wu, He 2018; two groups as Reddi et al. 2021 have them.

    >>> resnet18(Samples(np.zeros((1, 3072), np.uint8), np.array([0])), classes=10).d
    11173962
    """
    networks = _networks("resnet18")
    image = networks.image_of(samples_to_test.inputs.shape[1], "resnet18", least=8)
    module = networks.residual(image, integer(classes, "classes", at_least=1), width, groups)
    # 32 images of 32 x 32 take half a gigabyte here, as do 700 in the CNN.
    return TorchTask(module, usual_loss(samples_to_test), samples_to_test, vectorized=False, chunk=32)


def _networks(name: str) -> ModuleType:
    if find_spec("torch") is None:
        raise ImportError(f"{name} needs torch. From a checkout of fedhold: pip install '.[torch]'")
    from fedhold.lab import networks

    return networks


# Of a round, in rounds on `synthesized`; of a model, in rounds with the usual model of the data, by the products per sample.
ROUND_COSTS = {"mnist": 15, "fashion_mnist": 15, "femnist": 15, "cifar10": 50, "cnn": 500, "resnet18": 5000}
OWN_CLIENTS = {"femnist": "by writer"}
MODELS: dict[str, Callable[..., Any]] = {make.__name__: make for make in (mlp, linear_regression, cnn, resnet18)}
WITHOUT_TORCH = ("mlp", "linear_regression")


def task_of(made: Any, samples: Samples, name: str = "model") -> Task:
    """The task that a user's model makes: itself, or a torch module with its loss.

    made     a task; a torch module; or a module and its loss, (outputs, targets) -> one loss per sample. Without a loss,
             cross-entropy for targets that are classes, and half of the squared error otherwise
    samples  to measure on
    name     what errors call it
    """
    if all(hasattr(made, word) for word in ("initial", "gradients", "evaluate")):
        task: Task = made
        return task
    module, criterion = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
    if not hasattr(module, "named_parameters"):
        raise TypeError(
            f"{name} must return a torch module, (module, loss), or a task such as fedhold.lab.Mlp, got "
            f"{type(made).__name__}. Return the module itself: `return torch.nn.Sequential(...)`."
        )
    module.eval()  # Dropout would draw outside of the run's seed.
    return TorchTask(module, criterion or usual_loss(samples), samples)


# What users hand over


def samples_of(given: Any, name: str = "data") -> Samples:
    """Samples from what a user's data function returns for training or for testing.

    given  Samples; a pair of arrays (inputs, targets), with a row of inputs for every target; or a torch Dataset of pairs
           (input, target), or any other sequence of such pairs. Inputs of any shape become rows
    name   what errors call it

    >>> samples_of((np.zeros((4, 2, 3)), [0, 1, 1, 0])).inputs.shape
    (4, 6)
    """
    if isinstance(given, Samples):
        return given
    if isinstance(given, tuple) and len(given) == 2:
        inputs, targets = np.asarray(given[0]), np.asarray(given[1])
    elif hasattr(given, "__getitem__") and hasattr(given, "__len__"):
        require(len(given) > 0, name, needs="at least one sample", remedy="Fill it.", samples=0)
        items = [given[i] for i in range(len(given))]
        inputs = np.stack([np.asarray(item[0]) for item in items])
        targets = np.array([np.asarray(item[1]).item() for item in items])
    else:
        raise TypeError(
            f"{name} must be (inputs, targets), a torch Dataset or Samples, got {type(given).__name__}. Return "
            "(inputs, targets), (test_inputs, test_targets)."
        )
    rows = inputs.reshape(len(inputs), -1) if inputs.ndim else inputs
    fits = inputs.ndim > 0 and targets.shape == (len(inputs),)
    fits = fits and inputs.dtype.kind in "fiu" and targets.dtype.kind in "fiu"
    remedy = "Numbers only; for classes, whole numbers from 0."
    met = {"inputs": inputs.shape, "targets": targets.shape, "dtypes": f"{inputs.dtype}, {targets.dtype}"}
    require(fits, name, needs="a row of inputs and one target for every sample", remedy=remedy, **met)
    finite = bool(np.isfinite(rows).all() and np.isfinite(targets).all())
    require(finite, name, needs="finite numbers", remedy="Fill in or leave out what is missing.", samples=len(rows))
    if targets.dtype.kind in "iu":
        require(targets.min() >= 0, name, needs="classes from 0", remedy="Number them 0, 1, ...", least=targets.min())
        targets = targets.astype(np.int64)
    return Samples(rows, targets)


def checked_parts(parts: Any, m: int, total: int, name: str) -> list[Indices]:
    """What a partition returned; an error unless it gives each of m clients some samples, and none of them twice.

    parts  m arrays of indices
    m      the number of clients
    total  the number of samples
    name   what errors call it

    >>> checked_parts([[0, 2], [1]], 2, 3, "mine")
    [array([0, 2]), array([1])]
    """
    try:
        found = [np.asarray(part) for part in parts]
    except TypeError:
        found = []
    remedy = "Return a list of m arrays of indices, such as np.array_split(rng.permutation(len(labels)), m)."
    require(len(found) == m, name, needs=f"to return {m} arrays, one per client", remedy=remedy, returned=len(found))
    for i, part in enumerate(found):
        whole, met = part.ndim == 1 and part.size > 0 and part.dtype.kind in "iu", (part.shape, str(part.dtype))
        require(whole, name, needs="indices for every client", remedy=remedy, client=i, met=met)
    every: NDArray[Any] = np.concatenate(found)
    inside = bool((every >= 0).all() and (every < total).all())
    require(inside, name, needs=f"indices from 0 to {total - 1}", remedy=remedy, least=every.min(), largest=every.max())
    counts = np.bincount(every, minlength=total)
    require(counts.max() <= 1, name, needs="every sample at most once", remedy=remedy, sample=counts.argmax())
    return [part.astype(np.intp, copy=False) for part in found]


# Together


def prepare(data: str | Part, partition: str | Part, m: int, seed: int, *, model: str | Part | None = None) -> Scenario:
    """The task and the shards of a scenario. The last one made is kept, since the runs of a grid often share it.

    data, partition  keys of DATA and PARTITIONS, with parameters as in "dirichlet(alpha=0.1)"; or module:name
    m, seed          the number of clients, and the seed of samples, partition and first model
    model            a key of MODELS, or module:name; by default the usual one for the data

    >>> prepare("synthesized(samples=20)", "random_cuts", 4, 0).shards.m
    4
    """
    return _prepare(str(data), str(partition), m, seed, None if model is None else str(model))


@lru_cache(maxsize=1)
def _prepare(data: str, partition: str, m: int, seed: int, model: str | None) -> Scenario:
    dealing, source = Part.read(partition, "partition"), Part.read(data, "data")
    cutter = function_named(dealing.name, "partition", PARTITIONS)

    def cut(labels: Labels | int, clients: int, rng: np.random.Generator) -> list[Indices]:
        total = labels if isinstance(labels, int) else len(labels)
        return checked_parts(cutter(labels, clients, rng, **dealing.parameters), clients, total, partition)

    chosen = None if model is None else _model(model, seed)
    make, own = function_named(source.name, "data", DATA), source.parameters
    accepted = inspect.signature(make).parameters
    if chosen is not None and "hidden" in own:
        raise ValueError(f"{data}: hidden is for the usual model, and {model} takes its place. Leave one of them out.")
    given = {"seed": seed, "cut": cut, "m": m, "model": chosen}
    made = make(**{name: value for name, value in given.items() if name in accepted}, **own)
    if isinstance(made, Scenario):
        if chosen is not None and "model" not in accepted:
            raise ValueError(
                f"{data} has a model of its own. Leave model = {model!r} out, or return samples from {data}."
            )
        return made
    return _dealt(made, data, cut, m, seed, chosen)


def _model(text: str, seed: int) -> Model:
    """Makes the task from samples; a torch module draws its first parameters from the run's seed."""
    part = Part.read(text, "model")
    make, parameters = function_named(part.name, "model", MODELS), part.parameters
    wanted = inspect.signature(make).parameters

    def build(samples: Samples, classes: int) -> Task:
        given: dict[str, Any] = {"samples_to_test": samples} if "samples_to_test" in wanted else {}
        if "classes" in wanted and wanted["classes"].default is inspect.Parameter.empty:
            if classes == 0 and "classes" not in parameters:
                raise ValueError(
                    f"{text} is for classes, and the targets are numbers. Use linear_regression, or other data."
                )
            given["classes"] = classes
        given |= parameters
        if part.name in WITHOUT_TORCH or find_spec("torch") is None:
            return task_of(make(**given), samples, text)
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(chance(seed, Purpose.INITIAL).integers(2**63)))
            return task_of(make(**given), samples, text)

    return build


def _dealt(made: Any, name: str, cut: Cut, m: int, seed: int, model: Model | None) -> Scenario:
    """A scenario from the samples that a user's data function returned."""
    if not isinstance(made, tuple | list) or len(made) != 2:
        raise TypeError(
            f"{name} must return two things, the samples to train on and those to test on, got {type(made).__name__}. "
            "Return (inputs, targets), (test_inputs, test_targets)."
        )
    train, test = samples_of(made[0], f"{name}, to train on"), samples_of(made[1], f"{name}, to test on")
    numbered = train.targets.dtype.kind in "iu"
    classes = int(max(train.targets.max(), test.targets.max())) + 1 if numbered else 0
    parts = cut(train.targets if numbered else len(train), m, chance(seed, Purpose.PARTITION))
    if model is not None:
        return Scenario(model(test, classes), shard(train, parts))
    return Scenario(Mlp(test, classes=classes) if numbered else LinearRegression(test), shard(train, parts))
