"""Groups of arrays that are aggregated by themselves, and arrays that stay as they are in the model."""

import warnings

import numpy as np
import pytest

import fedhold
from fedhold import aggregate

CLIENTS, LIARS = 10, 2


@pytest.fixture(name="factors")
def _factors():
    rng = np.random.default_rng(0)
    return rng.standard_normal((8, 250)) * 0.02, rng.standard_normal((250, 8)) * 1e-4


@pytest.fixture(name="adapters")
def _adapters(factors):
    """Ten LoRA adapters with a counter. A is about .02 with noise of .01, B about 1e-4; two clients lie in B alone."""
    rng, (a, b) = np.random.default_rng(1), factors

    def adapter(client):
        lie = -15 * b if client < LIARS else b * (1 + 0.3 * rng.standard_normal(b.shape))
        own = a + 0.01 * rng.standard_normal(a.shape)
        return {
            "q.lora_A.weight": own.astype(np.float32),
            "q.lora_B.weight": lie.astype(np.float32),
            "steps": np.array([100 + client]),
        }

    return [adapter(client) for client in range(CLIENTS)]


def _error(value, b):
    return np.linalg.norm(value["q.lora_B.weight"] - b) / np.linalg.norm(b)


@pytest.mark.parametrize("rule", ["spectral_huber", "huber", "geometric_median"])
def test_a_lie_in_small_numbers_alone(adapters, factors, rule):
    _, b = factors
    assert _error(aggregate(adapters, rule, groups="adapters").value, b) < 0.15
    by_hand = aggregate(adapters, rule, groups={"down": "*.lora_A.*", "up": ["*.lora_B.*"]})
    by_function = aggregate(adapters, rule, groups=lambda path: path.split(".")[1] if "." in path else "")
    for other in (by_hand, by_function):
        assert _error(other.value, b) == _error(aggregate(adapters, rule, groups="adapters").value, b)


def test_every_group_is_the_rule_on_its_arrays(adapters):
    result = aggregate(adapters, groups="adapters")
    for name, group in [("q.lora_A.weight", "lora_A"), ("q.lora_B.weight", "lora_B")]:
        alone = aggregate([client[name] for client in adapters])
        np.testing.assert_array_equal(result.value[name], alone.value)
        assert result.groups[group].certificate.radius(1) == alone.certificate.radius(1)
    assert result.weights is None
    assert result.certificate is None
    assert list(result.value) == list(adapters[0])


def test_a_status_is_the_worst_one(adapters):
    result = aggregate(adapters, groups="adapters")
    assert result.clients.with_status("dropped") == [0, 1]
    row = result.clients[0]
    assert row.groups == {"lora_A": result.groups["lora_A"].clients[0].status, "lora_B": "dropped"}
    assert row.distance == result.groups["lora_B"].clients[0].distance
    assert result.clients[:2][1].groups == result.clients[1].groups


def test_counters_have_no_distances_in_any_group(adapters):
    for client in adapters[:LIARS]:
        client["steps"] = np.array([10**9])
    result = aggregate(adapters, groups={"A": "*lora_A*", "B": "*lora_B*"})
    assert set(result.groups) == {"A", "B"}
    assert 100 <= result.value["steps"][0] < 110


def test_rejected_in_one_group_is_rejected_in_all(adapters):
    adapters[5]["q.lora_A.weight"][0, 0] = np.nan
    result = aggregate(adapters, groups="adapters")
    assert result.clients.with_status("rejected") == [5]
    assert result.clients[5].reason == "lora_A: numbers that are not finite"
    without = aggregate([client for i, client in enumerate(adapters) if i != 5], groups="adapters")
    np.testing.assert_array_equal(result.value["q.lora_B.weight"], without.value["q.lora_B.weight"])


def test_something_else_costs_only_its_client(adapters):
    adapters[3], adapters[4], adapters[5] = "text", {"q.lora_A.weight": adapters[4]["q.lora_A.weight"]}, []
    result = aggregate(adapters, groups="adapters")
    assert result.clients.with_status("rejected") == [3, 4, 5]
    assert "misses" in result.clients[4].reason


def test_another_rank_is_told_the_way(adapters):
    adapters[4]["q.lora_A.weight"] = adapters[4]["q.lora_A.weight"][:4]
    result = aggregate(adapters, groups="adapters")
    assert "another rank" in result.clients[4].reason
    assert "B @ A" in result.clients[4].reason


def test_excluded_arrays_stay(adapters):
    model = {name: array + 1 for name, array in adapters[7].items()}
    result = aggregate(adapters, exclude="*lora_B*", like=model)
    np.testing.assert_array_equal(result.value["q.lora_B.weight"], model["q.lora_B.weight"])
    alone = aggregate([client["q.lora_A.weight"] for client in adapters])
    np.testing.assert_array_equal(result.value["q.lora_A.weight"], alone.value)


def test_files(adapters, tmp_path):
    for i, client in enumerate(adapters):
        fedhold.save_update(client, tmp_path / f"{i}.safetensors")
    there, here = aggregate(tmp_path, groups="adapters"), aggregate(adapters, groups="adapters")
    for name, array in here.value.items():
        np.testing.assert_array_equal(there.value[name], array)
    (tmp_path / "3.safetensors").write_bytes(b"no update")
    assert aggregate(tmp_path, groups="adapters").clients.with_status("rejected") == [3]


def test_start_and_root_are_cut_as_the_updates_are(adapters):
    start = adapters[6]
    result = aggregate(adapters, "centered_clipping(radius=.001)", groups="adapters", start=start)
    name = "q.lora_B.weight"
    alone = aggregate([client[name] for client in adapters], "centered_clipping(radius=.001)", start=start[name])
    np.testing.assert_array_equal(result.value[name], alone.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"groups": "adapter"}, 'Pass "adapters"'),
        ({"exclude": "*"}, "Pass like="),
        ({"exclude": "*", "like": ...}, "leaves no array"),
        ({"groups": {"A": "*"}, "like": "text"}, "like must be shaped as the updates"),
    ],
)
def test_mistakes(adapters, call, message):
    call = {key: adapters[0] if value is ... else value for key, value in call.items()}
    with pytest.raises((TypeError, ValueError), match=message):
        aggregate(adapters, **call)


def test_a_matrix_has_no_names():
    with pytest.raises(TypeError, match="names of arrays"):
        aggregate(np.ones((3, 4)), groups={"A": "*"})


def test_nothing_is_modified(adapters):
    before = [{name: array.copy() for name, array in client.items()} for client in adapters]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        aggregate(adapters, groups="adapters", exclude="*lora_B*", like=adapters[0])
    for client, old in zip(adapters, before, strict=True):
        for name, array in old.items():
            np.testing.assert_array_equal(client[name], array)
