"""The networks for images: their sizes, and their gradients against plain autograd, client by client."""

import numpy as np
import pytest
import torch

from fedhold.lab import MODELS, Experiment, Images, Samples, datasets, federate, prepare, run, scenarios, shard

SIZES = {  # counted by hand from the papers' tables
    ("cnn", 784, 10): 1_663_370,  # McMahan et al. 2017, "1,663,370 total parameters"
    ("cnn", 784, 62): (25 * 32 + 32) + (25 * 32 * 64 + 64) + (49 * 64 * 512 + 512) + (512 * 62 + 62),
    ("cnn", 3072, 10): (75 * 32 + 32) + (25 * 32 * 64 + 64) + (64 * 64 * 512 + 512) + (512 * 10 + 10),
    ("resnet18", 3072, 10): 11_173_962,
    ("resnet18", 784, 62): 11_173_962 - 2 * 9 * 64 + 52 * 513,
}
SMALL = {"cnn": {"width": 3, "hidden": 8}, "resnet18": {"width": 4, "groups": 2}}


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """As in worker processes: the threads of torch wait for each other by spinning, which is slow on busy cores."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pictures(count, pixels=3 * 8 * 8, seed=0):
    """Noise, brighter by class."""
    rng, classes = np.random.default_rng(seed), np.arange(count) % 3
    return Samples((rng.integers(0, 80, (count, pixels)) + 80 * classes[:, None]).astype(np.uint8), classes)


def blank(pixels):
    return Samples(np.zeros((2, pixels), np.uint8), np.array([0, 1]))


@pytest.mark.parametrize(("name", "pixels", "classes"), SIZES)
def test_sizes(name, pixels, classes):
    task = MODELS[name](blank(pixels), classes=classes)
    assert task.d == SIZES[name, pixels, classes]
    with torch.no_grad():
        assert task.module(torch.zeros(2, pixels)).shape == (2, classes)


def test_stages_halve_the_image_and_double_the_channels():
    module, shapes = MODELS["resnet18"](blank(3072), classes=10).module, []
    for part in module:
        part.register_forward_hook(lambda _, __, output: shapes.append(tuple(output.shape[1:])))
    with torch.no_grad():
        module(torch.zeros(1, 3072))
    stages = [(64, 32, 32)] * 2 + [(128, 16, 16)] * 2 + [(256, 8, 8)] * 2 + [(512, 4, 4)] * 2
    assert shapes == [(3, 32, 32), (64, 32, 32), *stages, (512, 1, 1), (512,), (10,)]
    kinds = [type(part) for part in module.modules()]
    assert (
        kinds.count(torch.nn.Conv2d) == 17 + 3
    )  # with the linear one 18 layers, and three shortcuts that change the shape
    assert kinds.count(torch.nn.GroupNorm) == 20


@pytest.mark.parametrize("name", SMALL)
def test_gradients_are_those_of_autograd(name):
    """Clients of unequal n_i, the largest in several pieces; in float64, so that only a mistake shows."""
    torch.manual_seed(0)
    data = pictures(20)
    task = MODELS[name](data, classes=3, **SMALL[name])
    task.module.double()
    task = type(task)(task.module, task.criterion, data, vectorized=task.vectorized, chunk=4)
    shards = shard(data, np.split(np.arange(20), [1, 4]))
    gradients = task.gradients(task.initial(np.random.default_rng(0)), shards)
    for i in range(3):
        client = shards.client(i)
        task.module.zero_grad()
        outputs = task.module(torch.as_tensor(client.inputs / 255))
        torch.nn.functional.cross_entropy(outputs, torch.as_tensor(client.targets)).backward()
        expected = torch.cat([p.grad.reshape(-1) for p in task.module.parameters()]).numpy()
        np.testing.assert_allclose(gradients[i], expected, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize("name", SMALL)
def test_a_sample_is_classified_alike_in_every_batch(name):
    torch.manual_seed(0)
    module = MODELS[name](pictures(6), classes=3, **SMALL[name]).module.double()
    rows = torch.as_tensor(pictures(6).inputs / 255)
    with torch.no_grad():
        torch.testing.assert_close(module(rows)[:2], module(rows[:2]), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "rounds"), [("cnn", 20), ("resnet18", 6)])
def test_the_loss_falls(name, rounds):
    torch.manual_seed(0)
    data = pictures(12)
    task = MODELS[name](data, classes=3, **SMALL[name])
    learnt = federate(task, shard(data, np.array_split(np.arange(12), 3)), rule="median", rounds=rounds, step=0.2)
    losses = [row.metrics["loss"] for row in learnt.history]
    assert losses[-1] < 0.9 * losses[0]


@pytest.fixture
def tiny_cifar(monkeypatch):
    rng = np.random.default_rng(0)
    train, test = (Samples(rng.integers(0, 256, (n, 3072)).astype(np.uint8), np.arange(n) % 4) for n in (40, 8))
    monkeypatch.setattr(datasets, "cifar10", lambda: Images("cifar10", train, test))
    for kept in (scenarios._prepare, scenarios._images):
        kept.cache_clear()
    yield
    for kept in (scenarios._prepare, scenarios._images):
        kept.cache_clear()


@pytest.mark.usefixtures("tiny_cifar")
@pytest.mark.parametrize("model", [None, "cnn(width=2, hidden=4)", "resnet18(width=2)"])
def test_by_name_in_an_experiment(model):
    result = run(Experiment("cifar10(samples=30)", "huber", "ipm", 0.2, 0, m=5, rounds=2, step=0.05, model=model))
    assert result.metric == "accuracy"
    assert np.isfinite(result.series["loss"]).all()


@pytest.mark.usefixtures("tiny_cifar")
def test_a_network_begins_where_the_seed_says():
    first, again, other = (
        prepare("cifar10", "balanced", 4, seed, model="cnn(width=2)").task.initial(None) for seed in (1, 1, 2)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (
        first.size == MODELS["cnn"](blank(3072), classes=10, width=2).d
    )  # the data has ten classes, four of them here


def test_mistakes_are_named(monkeypatch):
    with pytest.raises(ValueError, match=r"cnn needs square images of at least 4 x 4 .*met numbers = 50\. Use mnist"):
        MODELS["cnn"](blank(50), classes=2)
    with pytest.raises(ValueError, match=r"resnet18 needs square images of at least 8 x 8"):
        MODELS["resnet18"](blank(48), classes=2)
    with pytest.raises(ValueError, match=r"groups to divide width; met width = 6, groups = 4\. Usual"):
        MODELS["resnet18"](blank(784), classes=2, width=6, groups=4)
    monkeypatch.setattr("fedhold.lab.experiment.find_spec", lambda name: None if name == "torch" else pytest.fail(name))
    with pytest.raises(ValueError, match=r"the model cnn needs torch\. From a checkout"):
        Experiment("mnist", "mean", None, 0.0, 0, model="cnn")
