"""Counters and masks next to floating numbers: no rule sees them, whatever library, file or server they come from."""

from collections import OrderedDict

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from click.testing import CliRunner

from cases import M, assert_refused, honest_updates, parameters, takes
from fedhold import MIXINGS, RULES, aggregate, open_update, save_update
from fedhold.cli.app import app
from fedhold.updates import counters as counting

LIARS = 4
FLOATS = ("weight", "bias")


def floats(client):
    """The floating arrays of a client. The first ones send -3 times what they should."""
    rng = np.random.default_rng(client)
    sign = -3 if client < LIARS else 1
    draw = honest_updates(1, 27, seed=7)[0] + 0.2 * rng.normal(size=27)
    return {
        "weight": (sign * draw[:20]).reshape(4, 5).astype(np.float32),
        "bias": (sign * draw[20:]).astype(np.float32),
    }


def counted(client):
    """Counters and masks that differ, as those of nodes of different size do. Liars count far more than anybody."""
    far = 10**15 if client < LIARS else 0
    return {
        "num_batches_tracked": np.array(160 + 10 * client + far),
        "seen": np.arange(6).reshape(2, 3) + client,
        "mask": np.arange(5) < client % 5,
    }


def dicts(client, library):
    return {name: library(array) for name, array in (floats(client) | counted(client)).items()}


LIBRARIES = {
    "NumPy": np.asarray,
    "torch": lambda array: torch.as_tensor(np.array(array)),
    "JAX": lambda array: jnp.asarray(np.minimum(array, 2**30) if array.dtype == np.int64 else array),
}
FORMS = {
    **{library: (lambda client, to=to: dicts(client, to)) for library, to in LIBRARIES.items()},
    "ordered": lambda client: OrderedDict(dicts(client, np.asarray)),
    "lists": lambda client: list(dicts(client, np.asarray).values()),
    "nested": lambda client: {"model": floats(client), "state": tuple(counted(client).values())},
    "channels last": lambda client: {k: v.T.copy().T if v.ndim else v for k, v in dicts(client, np.asarray).items()},
}


def without(update):
    """The same update without its counters."""
    if isinstance(update, dict):
        return {name: update[name] for name in ("model", *FLOATS) if name in update}
    return update[:2]


def leaves(update):
    """The arrays of an update, whatever the order of its keys."""
    if isinstance(update, dict | list | tuple):
        parts = [update[key] for key in sorted(update)] if isinstance(update, dict) else update
        return [leaf for part in parts for leaf in leaves(part)]
    return [np.asarray(update)]


def assert_unseen(found, alone):
    """The floating arrays, weights and rows are those of a call without counters."""
    for mine, other in zip(leaves(without(found.value)), leaves(alone.value), strict=True):
        np.testing.assert_array_equal(mine, other)
    if alone.weights is None:
        assert found.weights is None
    else:
        np.testing.assert_array_equal(found.weights, alone.weights)
    assert found.clients == alone.clients


def given(rule, update):
    """The parameters of a rule for these clients; `root` is an update that is shaped as theirs."""
    root = {"root": update(M - 1)} if takes(rule, "root") else {}
    return {**{name: value for name, value in parameters(rule, LIARS).items() if name != "rng"}, "rng": 0}, root


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rule", RULES)
def test_no_rule_sees_counters(rule, form):
    update = FORMS[form]
    known, root = given(rule, update)
    updates = [update(client) for client in range(M)]
    alone = aggregate(
        list(map(without, updates)), rule, **known, **{name: without(place) for name, place in root.items()}
    )
    assert_unseen(aggregate(updates, rule, **known, **root), alone)


@pytest.mark.parametrize("mixing", MIXINGS)
def test_no_mixing_sees_counters(mixing):
    told = {"nearest_neighbour_mixing": "f=4", "clipping": "radius=3", "adaptive_clipping": "f=4"}.get(mixing, "")
    updates = [FORMS["NumPy"](client) for client in range(M)]
    for rule in ("huber", "median"):
        spec = f"{mixing}({told}) | {rule}"
        assert_unseen(aggregate(updates, spec, rng=0), aggregate(list(map(without, updates)), spec, rng=0))


@pytest.mark.parametrize("form", ["NumPy", "torch", "JAX"])
def test_a_counter_is_the_weighted_median_of_those_admitted(form):
    updates = [FORMS[form](client) for client in range(M)]
    updates[-1]["bias"] = updates[-1]["bias"] * np.nan  # rejected, and so is its count
    for rule in ("spectral_huber", "median"):
        result = aggregate(updates, rule)
        weights = np.full(M, 1.0) if result.weights is None else result.weights.copy()
        weights[-1] = 0
        for name in ("num_batches_tracked", "seen", "mask"):
            sent, value = np.stack([np.asarray(update[name]) for update in updates]), np.asarray(result.value[name])
            assert value.dtype == sent.dtype
            assert value.shape == sent.shape[1:]
            for place in np.ndindex(value.shape):
                column = sent[(slice(None), *place)]
                order = np.argsort(column, kind="stable")
                below = np.cumsum(weights[order]) / weights.sum()
                assert value[place] == column[order][np.searchsorted(below, 0.5 - 1e-12)]
        assert type(result.value["seen"]) is type(updates[0]["seen"])


def test_large_counters_are_read_in_parts(monkeypatch):
    """Counts beyond 2**53 keep every digit, and where a piece ends changes nothing."""
    rng = np.random.default_rng(0)
    updates = [
        {"w": rng.normal(size=9), "ids": 2**62 + rng.integers(0, 9, (5, 7)), "steps": np.array(client)}
        for client in range(5)
    ]
    whole = aggregate(updates, "mean").value
    np.testing.assert_array_equal(whole["ids"], np.sort([update["ids"] for update in updates], axis=0)[2])
    monkeypatch.setattr(counting, "COUNTED", 4)
    parts = aggregate(updates, "mean").value
    np.testing.assert_array_equal(parts["ids"], whole["ids"])
    assert parts["steps"] == 2


def test_a_client_whose_counters_have_another_form_is_rejected():
    updates = [FORMS["NumPy"](client) for client in range(M)]
    updates[0]["seen"] = np.arange(5)
    updates[1]["mask"] = np.ones(5)
    del updates[2]["num_batches_tracked"]
    reasons = aggregate(updates).clients.reasons
    assert ["shape (5,)" in reasons[0], "dtype of kind float" in reasons[1], "misses" in reasons[2]] == [True] * 3


def test_updates_without_floating_numbers():
    """Integers alone are aggregated as numbers; bools alone have no mean."""
    counts = [{"a": np.array([client, 2]), "empty": np.empty(0, np.float32)} for client in (1, 2, 9)]
    np.testing.assert_array_equal(aggregate(counts, "mean").value["a"], [4, 2])
    with_bools = [{**update, "mask": np.array([True])} for update in counts]
    assert_refused(ValueError, "all 3 clients", "bool", call=lambda: aggregate(with_bools))


# Files, and the command line


def stored(folder, update):
    """A file for every client, in a new folder."""
    folder.mkdir()
    for client in range(M):
        save_update(update(client), folder / f"client{client:03}.safetensors")
    return folder


@pytest.mark.parametrize("rule", RULES)
def test_files(rule, tmp_path):
    known = parameters(rule, LIARS)
    found = aggregate(stored(tmp_path / "counted", FORMS["NumPy"]), rule, **known)
    in_memory = aggregate([dicts(client, np.asarray) for client in range(M)], rule, **known)
    assert_unseen(found, aggregate(stored(tmp_path / "floats", floats), rule, **known))
    for name, value in in_memory.value.items():
        np.testing.assert_allclose(found.value[name], value, rtol=1e-6)
        assert found.value[name].dtype == value.dtype


def spec(rule):
    """The rule as text, told how many lie where it asks."""
    return f"{rule}(f={LIARS})" if takes(rule, "f") else rule


@pytest.mark.parametrize("rule", RULES)
def test_the_command_line(rule, tmp_path):
    folder, out = stored(tmp_path / "counted", FORMS["NumPy"]), tmp_path / "model.safetensors"
    done = CliRunner().invoke(app, ["aggregate", str(folder), "--out", str(out), "--rule", spec(rule), "--seed", "0"])
    assert done.exit_code == 0, done.output
    model, alone = open_update(out), aggregate(stored(tmp_path / "floats", floats), rule, **parameters(rule, LIARS))
    for name in FLOATS:
        np.testing.assert_array_equal(np.asarray(model[name]), alone.value[name])
    assert 160 <= int(np.asarray(model["num_batches_tracked"])) <= 160 + 10 * M


def test_bytes_of_bools_in_files_are_bools(tmp_path):
    """A hostile file may have any byte where a bool stands: it counts as true."""
    for client in range(3):
        save_update({"w": np.ones(4, np.float32), "mask": np.zeros(2, bool)}, tmp_path / f"{client}.safetensors")
        path = tmp_path / f"{client}.safetensors"
        path.write_bytes(path.read_bytes()[:-2] + b"\x07\x00")
    value = aggregate(tmp_path).value["mask"]
    assert value.view(np.uint8).tolist() == [1, 0]


# Servers


@pytest.mark.parametrize("rule", RULES)
def test_nvflare(rule):
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

    from fedhold.nvflare import RobustAggregator

    def value(update):
        aggregator = RobustAggregator(spec(rule), seed=0)
        for client in range(M):
            meta = {"client_name": f"site-{client:02}"}
            aggregator.accept_model(FLModel(params_type=ParamsType.FULL, params=update(client), meta=meta))
        return aggregator.aggregate_model().params

    found, alone = value(lambda client: dicts(client, np.asarray)), value(floats)
    for name in FLOATS:
        np.testing.assert_array_equal(found[name], alone[name])
    assert 160 <= found["num_batches_tracked"] <= 160 + 10 * M


@pytest.mark.parametrize("rule", RULES)
def test_flower(rule):
    from flwr.app import Array, ArrayRecord

    from fedhold.flower import RobustStrategy
    from flower_grid import LocalGrid, reply_with

    def model(update):
        """The model after one round in which every node sends its update."""

        def app(message, context):
            return reply_with(message, update(context.node_config["partition-id"]), {"num-examples": 5})

        start = ArrayRecord({name: Array(np.zeros_like(array)) for name, array in update(0).items()})
        strategy = RobustStrategy(spec(rule), seed=0, fraction_evaluate=0.0)
        return {k: a.numpy() for k, a in strategy.start(LocalGrid(app, M), start, num_rounds=1).arrays.items()}

    found, alone = model(lambda client: dicts(client, np.asarray)), model(floats)
    for name in FLOATS:
        np.testing.assert_array_equal(found[name], alone[name])
    assert 160 <= found["num_batches_tracked"] <= 160 + 10 * M


def test_text_of_an_nvflare_client_is_no_path(tmp_path):
    from nvflare.app_common.abstract.fl_model import FLModel, ParamsType

    from fedhold.nvflare import RobustAggregator

    save_update(np.ones(3), tmp_path / "secret.npy")
    aggregator, told = RobustAggregator(), []
    aggregator.warning = told.append
    aggregator.accept_model(
        FLModel(params_type=ParamsType.FULL, params=str(tmp_path / "secret.npy"), meta={"client_name": "a"})
    )
    assert aggregator.aggregate_model().params == {}
    assert "str is no dict of arrays" in told[0]
