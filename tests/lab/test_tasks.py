"""Gradients against torch, against finite sums and against a loop over the clients."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedhold.lab import (
    LinearRegression,
    Mlp,
    Samples,
    Shards,
    TorchTask,
    balanced,
    random_cuts,
    shard,
    tasks,
)

PIXELS, CLASSES = 20, 4


def images(total, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return Samples(rng.random((total, PIXELS)).astype(dtype), rng.integers(0, CLASSES, total))


def line(total, seed=0):
    rng = np.random.default_rng(seed)
    return Samples(rng.standard_normal((total, 5)), rng.standard_normal(total))


def network():
    return torch.nn.Sequential(torch.nn.Linear(PIXELS, 8), torch.nn.ReLU(), torch.nn.Linear(8, CLASSES))


def cross_entropy(outputs, targets):
    return torch.nn.functional.cross_entropy(outputs, targets, reduction="none")


def by_autograd(module, shards, i):
    """Plain torch: the mean loss of one client, backward()."""
    rows = slice(shards.offsets[i], shards.offsets[i + 1])
    module.zero_grad()
    outputs = module(torch.as_tensor(shards.inputs[rows]))
    torch.nn.functional.cross_entropy(outputs, torch.as_tensor(shards.targets[rows])).backward()
    return torch.cat([p.grad.reshape(-1) for p in module.parameters()]).numpy()


@pytest.fixture(params=["balanced", "unbalanced"])
def cut(request):
    return balanced if request.param == "balanced" else random_cuts


def test_the_papers_network_has_25450_parameters():
    assert Mlp(Samples(np.zeros((1, 784), np.float32), np.zeros(1, np.int64))).d == 25_450


def test_mlp_agrees_with_torch(cut):
    torch.manual_seed(0)
    data, module = images(120), network()
    task = Mlp(data, hidden=8, classes=CLASSES)
    w = torch.nn.utils.parameters_to_vector(module.parameters()).detach().numpy()
    shards = shard(data, cut(120, 12, np.random.default_rng(1)))
    gradients = task.gradients(w, shards)
    assert gradients.dtype == np.float32
    for i in range(12):
        np.testing.assert_allclose(gradients[i], by_autograd(module, shards, i), rtol=1e-5, atol=1e-7)
    with torch.no_grad():
        outputs, targets = module(torch.as_tensor(data.inputs)), torch.as_tensor(data.targets)
    expected = {
        "accuracy": float((outputs.argmax(1) == targets).double().mean()),
        "loss": float(torch.nn.functional.cross_entropy(outputs, targets)),
    }
    assert task.evaluate(w) == pytest.approx(expected, rel=1e-5)
    assert task.measure(w, data)["loss"] == pytest.approx(expected["loss"], rel=1e-5)


@pytest.mark.parametrize("vectorized", [True, False])
def test_torch_task_agrees_with_mlp(cut, vectorized):
    torch.manual_seed(1)
    data = images(130)
    numpy_task = Mlp(data, hidden=8, classes=CLASSES)
    # Several groups, the last not full; one by one, clients in pieces.
    together = {"vectorized": vectorized, "chunk": 50 if vectorized else 5}
    task = TorchTask(network(), cross_entropy, data, **together)
    w = task.initial(np.random.default_rng(0))
    shards = shard(data, cut(130, 11, np.random.default_rng(2)))
    assert task.d == numpy_task.d
    np.testing.assert_allclose(task.gradients(w, shards), numpy_task.gradients(w, shards), rtol=1e-5, atol=1e-7)
    assert task.vectorized == vectorized
    assert task.evaluate(w) == pytest.approx(numpy_task.evaluate(w), rel=1e-5)
    assert task.measure(w, data)["loss"] == pytest.approx(numpy_task.measure(w, data)["loss"], rel=1e-5)


@pytest.mark.parametrize("cuts", [[30, 60], [7, 9]], ids=["equal", "unequal"])
def test_torch_task_loops_where_vmap_cannot(cuts):
    """Batch normalisation writes into its buffers, which vmap refuses; the loop must not let it change the module."""
    torch.manual_seed(2)
    data = images(90)
    module = torch.nn.Sequential(torch.nn.Linear(PIXELS, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, CLASSES))
    before = {name: value.clone() for name, value in module.state_dict().items()}
    shards = shard(data, np.split(np.arange(90), cuts))
    task = TorchTask(module, cross_entropy, data)
    w = task.initial(np.random.default_rng(0))
    with pytest.warns(UserWarning, match="vmap refuses this module"):
        gradients = task.gradients(w, shards)
    assert not task.vectorized
    np.testing.assert_array_equal(task.gradients(w, shards), gradients)  # and warns no second time
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    for i in range(shards.m):
        np.testing.assert_allclose(gradients[i], by_autograd(module, shards, i), rtol=1e-4, atol=1e-6)


def test_torch_task_of_a_convolution_with_a_frozen_layer(cut):
    torch.manual_seed(3)
    data = images(40)
    module = torch.nn.Sequential(
        torch.nn.Unflatten(1, (1, 4, 5)),
        torch.nn.Conv2d(1, 3, 2),
        torch.nn.ReLU(),
        torch.nn.Flatten(),
        torch.nn.Linear(36, CLASSES),
    )
    module[1].weight.requires_grad_(False)
    task = TorchTask(module, cross_entropy, data)
    shards = shard(data, cut(40, 6, np.random.default_rng(0)))
    assert task.d == 3 + 36 * CLASSES + CLASSES
    gradients = task.gradients(task.initial(np.random.default_rng(0)), shards)
    for i in range(6):
        rows = slice(shards.offsets[i], shards.offsets[i + 1])
        module.zero_grad()
        outputs = module(torch.as_tensor(shards.inputs[rows]))
        torch.nn.functional.cross_entropy(outputs, torch.as_tensor(shards.targets[rows])).backward()
        expected = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.requires_grad])
        np.testing.assert_allclose(gradients[i], expected.numpy(), rtol=1e-4, atol=1e-6)


def test_torch_task_of_a_regression():
    data = line(30)
    module = torch.nn.Linear(5, 1, bias=False).double()
    task = TorchTask(module, lambda outputs, targets: (outputs[:, 0] - targets) ** 2 / 2, data)
    w, shards = task.initial(np.random.default_rng(0)), shard(data, balanced(30, 3, np.random.default_rng(0)))
    plain = LinearRegression(data)
    np.testing.assert_allclose(task.gradients(w, shards), plain.gradients(w, shards), rtol=1e-10)
    assert task.evaluate(w) == pytest.approx({"loss": plain.measure(w, data)["loss"]})


def test_torch_task_errors():
    data = images(4)
    shards = shard(data, [np.arange(4)])
    task = TorchTask(network(), torch.nn.functional.cross_entropy, data)
    with pytest.raises(ValueError, match=r'reduction="none"'):
        task.gradients(task.initial(np.random.default_rng(0)), shards)
    dropping = torch.nn.Sequential(network(), torch.nn.Dropout())
    with pytest.raises(ValueError, match=r"module\.eval\(\)"):
        TorchTask(dropping, cross_entropy, data)
    assert TorchTask(dropping.eval(), cross_entropy, data).d == task.d
    with pytest.raises(ValueError, match="nothing to learn"):
        TorchTask(torch.nn.ReLU(), cross_entropy, data)
    narrow = TorchTask(torch.nn.Linear(3, CLASSES), cross_entropy, data)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):  # the module's fault, not vmap's: no warning
        narrow.gradients(narrow.initial(np.random.default_rng(0)), shards)


def test_regression_is_the_formula(cut):
    """(1/n_i) sum_j (<u_j, w> - v_j) u_j, no factor 2; rmse without the 1/2."""
    data, w = line(60), np.random.default_rng(3).standard_normal(5)
    task, parts = LinearRegression(data), cut(60, 7, np.random.default_rng(4))
    expected = [
        sum((data.inputs[j] @ w - data.targets[j]) * data.inputs[j] for j in part) / len(part) for part in parts
    ]
    np.testing.assert_allclose(task.gradients(w, shard(data, parts)), expected, rtol=1e-12)
    mean_square = sum((data.inputs[j] @ w - data.targets[j]) ** 2 for j in range(60)) / 60
    assert task.evaluate(w) == pytest.approx({"rmse": mean_square**0.5, "loss": mean_square / 2})
    assert (task.d, task.initial(np.random.default_rng(0)).tolist()) == (5, [0] * 5)
    whole = LinearRegression(data, factor=1.0)  # without the 1/2: gradients are twice as long, rmse is what it was
    np.testing.assert_allclose(whole.gradients(w, shard(data, parts)), 2 * np.array(expected), rtol=1e-12)
    assert whole.evaluate(w) == pytest.approx({"rmse": mean_square**0.5, "loss": mean_square})


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 12), st.integers(0, 99))
def test_clients_together_equal_clients_alone(sizes, block, seed):
    """Any n_i, in blocks of any length, one client at a time or all at once."""
    parts = np.split(np.random.default_rng(seed).permutation(sum(sizes)), np.cumsum(sizes)[:-1])
    data = images(sum(sizes), np.float64, seed)
    task = Mlp(data, hidden=3, classes=CLASSES)
    w = task.initial(np.random.default_rng(seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tasks, "BLOCK", block)
        together = task.gradients(w, shard(data, parts))
    alone = np.concatenate([task.gradients(w, shard(data, [part])) for part in parts])
    np.testing.assert_allclose(together, alone, rtol=1e-11, atol=1e-14)


def test_gradient_is_the_slope_of_the_loss(cut):
    data = images(40, np.float64)
    task = Mlp(data, hidden=3, classes=CLASSES)
    w = task.initial(np.random.default_rng(0))
    shards = shard(data, cut(40, 6, np.random.default_rng(0)))
    whole = shards.counts @ task.gradients(w, shards) / 40  # the n_i-weighted mean is the gradient of the whole
    for j in range(0, task.d, 7):
        step = np.eye(task.d)[j] * 1e-6
        slope = (task.measure(w + step, data)["loss"] - task.measure(w - step, data)["loss"]) / 2e-6
        assert whole[j] == pytest.approx(slope, abs=1e-8)


def test_out_is_filled_and_checked():
    data = images(12)
    task, shards = Mlp(data, hidden=3, classes=CLASSES), shard(data, np.split(np.arange(12), [2, 7]))
    w = task.initial(np.random.default_rng(0))
    out = np.full((3, task.d), np.nan, np.float32)
    assert task.gradients(w, shards, out) is out
    np.testing.assert_array_equal(out, task.gradients(w, shards))
    assert task.gradients(w.astype(np.float64), shards).dtype == np.float32
    with pytest.raises(ValueError, match="out needs shape"):
        task.gradients(w, shards, np.empty((2, task.d), np.float32))
    with pytest.raises(ValueError, match="float32"):
        task.gradients(w, shards, np.empty((3, task.d)))
    with pytest.raises(ValueError, match=r"Start from task\.initial"):
        task.gradients(w[1:], shards)


def test_initial_weights_are_those_of_torch():
    task = Mlp(Samples(np.zeros((1, 784), np.float32), np.zeros(1, np.int64)))
    w = task.initial(np.random.default_rng(0))
    first, second = w[: 784 * 32 + 32], w[784 * 32 + 32 :]
    assert np.abs(first).max() <= 1 / 28
    assert 0.95 / np.sqrt(32) < np.abs(second).max() <= 1 / np.sqrt(32)
    assert first.std() == pytest.approx(1 / 28 / np.sqrt(3), rel=0.02)
    np.testing.assert_array_equal(w, task.initial(np.random.default_rng(0)))


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=9), st.integers(1, 10), st.integers(0, 99))
def test_a_batch_is_a_subset_of_each_client(sizes, size, seed):
    total = sum(sizes)
    rows = Samples(np.arange(total, dtype=float)[:, None], np.arange(total))
    shards = shard(rows, np.split(np.arange(total), np.cumsum(sizes)[:-1]))
    batch = shards.batch(size, np.random.default_rng(seed))
    assert batch.counts.tolist() == [min(size, n) for n in sizes]
    for i in range(shards.m):
        drawn = batch.targets[batch.offsets[i] : batch.offsets[i + 1]].tolist()
        assert len(set(drawn)) == len(drawn)
        assert set(drawn) <= set(range(shards.offsets[i], shards.offsets[i + 1]))
    np.testing.assert_array_equal(batch.inputs[:, 0], batch.targets)


def test_every_sample_is_as_likely_in_a_batch():
    shards = Shards(np.zeros((8, 1)), np.arange(8), np.array([0, 3, 8]))
    rng = np.random.default_rng(0)
    seen = np.bincount(np.concatenate([shards.batch(2, rng).targets for _ in range(3000)]), minlength=8) / 3000
    np.testing.assert_allclose(seen, [2 / 3] * 3 + [2 / 5] * 5, atol=0.04)


def test_an_empty_client_is_an_error():
    with pytest.raises(ValueError, match=r"empty = \[1\].*fedhold\.lab\.PARTITIONS"):
        shard(line(3), [np.arange(3), np.arange(0)])


@pytest.mark.parametrize("block", [1, 16, 512])
@pytest.mark.parametrize("sizes", [[12] * 5, [1, 40, 3, 9, 7]], ids=["equal", "unequal"])
def test_pixels_in_bytes_are_their_numbers(sizes, block, monkeypatch):
    """Gradients, losses and accuracy, in blocks of any length, of pixels that are mostly zeros."""
    monkeypatch.setattr(tasks, "BLOCK", block)
    rng = np.random.default_rng(5)
    pixels = np.where(rng.random((60, 50)) < 0.2, rng.integers(1, 256, (60, 50)), 0).astype(np.uint8)
    data = Samples(pixels, rng.integers(0, 10, 60))
    floats = Samples((pixels / 255).astype(np.float32), data.targets)
    parts = np.split(np.arange(60), np.cumsum(sizes)[:-1])
    task, plain = Mlp(data, hidden=8), Mlp(floats, hidden=8)
    shards, w = shard(data, parts), task.initial(rng)
    found, expected = task.gradients(w, shards), plain.gradients(w, shard(floats, parts))
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(task.gradients(w, shards), found)
    assert task.evaluate(w) == pytest.approx(plain.evaluate(w), rel=1e-5)
    assert task.measure(w, data)["loss"] == pytest.approx(plain.measure(w, floats)["loss"], rel=1e-5)


@pytest.mark.parametrize("vectorized", [True, False])
def test_a_torch_module_sees_pixels_in_bytes_as_their_numbers(vectorized):
    torch.manual_seed(6)
    rng = np.random.default_rng(6)
    data = Samples(rng.integers(0, 256, (30, PIXELS)).astype(np.uint8), rng.integers(0, CLASSES, 30))
    floats, parts = Samples((data.inputs / 255).astype(np.float32), data.targets), np.split(np.arange(30), [4, 20])
    module = network()
    task = TorchTask(module, cross_entropy, data, vectorized=vectorized)
    gradients, shards = task.gradients(task.initial(rng), shard(data, parts)), shard(floats, parts)
    for i in range(3):
        np.testing.assert_allclose(gradients[i], by_autograd(module, shards, i), rtol=1e-5, atol=1e-7)
    assert task.evaluate(task.initial(rng)) == TorchTask(module, cross_entropy, floats).evaluate(task.initial(rng))


def test_gradients_into_columns_that_lie_apart():
    data = images(30)
    task, shards = Mlp(data, hidden=8, classes=CLASSES), shard(data, np.split(np.arange(30), [10]))
    w = task.initial(np.random.default_rng(0))
    apart = np.zeros((2, 2 * task.d), np.float32)[:, ::2]
    assert task.gradients(w, shards, out=apart) is apart
    np.testing.assert_array_equal(apart, task.gradients(w, shards))


@pytest.mark.parametrize("make", [Mlp, LinearRegression])
def test_samples_of_another_width_are_an_error(make):
    wide, narrow = (Samples(np.ones((40, columns)), np.arange(40) % 10) for columns in (21, 20))
    task, shards = make(wide), shard(narrow, np.split(np.arange(40), [20]))
    with pytest.raises(ValueError, match=r"21 columns.*columns = 20"):
        task.gradients(task.initial(np.random.default_rng(0)), shards)


@pytest.mark.parametrize("cut", [balanced, random_cuts])
def test_some_clients_of_shards(cut):
    data = line(40)
    shards = shard(data, cut(40, 7, np.random.default_rng(0)))
    chosen = shards.subset(np.array([1, 4, 6]))
    assert shards.subset(np.arange(7)) is shards
    assert chosen.counts.tolist() == shards.counts[[1, 4, 6]].tolist()
    for place, i in enumerate([1, 4, 6]):
        np.testing.assert_array_equal(chosen.client(place).inputs, shards.client(i).inputs)
        np.testing.assert_array_equal(chosen.client(place).targets, shards.client(i).targets)
