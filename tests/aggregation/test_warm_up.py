"""Compiling ahead: what warm_up leaves to compile, and who calls it before the first round."""

import subprocess
import sys

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord

from fedhold import aggregation, warm_up
from fedhold.errors import InfeasibleError
from fedhold.flower import RobustStrategy
from fedhold.kernels import choice
from fedhold.lab import LinearRegression, Samples, balanced, federate, shard
from flower_grid import LocalGrid, client_app

COMPILED = """
import sys
import numpy as np
from fedhold import aggregate, warm_up
from fedhold.kernels import numba_side
from numba.core.dispatcher import Dispatcher

def kernels():
    return {(name, types) for name, f in vars(numba_side).items() if isinstance(f, Dispatcher) for types in f.signatures}

rule, m, dtype = sys.argv[1], int(sys.argv[2]), sys.argv[3]
size = 2**int(sys.argv[4]) // m + 100
warm_up(rule, clients=m, numbers=size, dtype=dtype)
ahead = kernels()
assert ahead, "nothing was compiled"
X = 5 + np.random.default_rng(1).standard_normal((m, size)).astype(dtype)
for updates in (X, list(X), [{"a": row[:-7], "b": row[-7:]} for row in X]):
    result = aggregate(updates, rule)
    if result.certificate is not None:
        result.certificate.radius(m // 5)
print(kernels() - ahead)
"""


@pytest.mark.parametrize(("rule", "m", "numbers"), [("huber", 100, 22), ("spectral_huber", 40, 22), ("median", 50, 18)])
def test_nothing_is_left_to_compile(rule, m, numbers):
    run = subprocess.run(
        [sys.executable, "-c", COMPILED, rule, str(m), "float32", str(numbers)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == "set()"


@pytest.fixture
def warmed(monkeypatch):
    """The shapes of what warm_up aggregates, where a thousand numbers are enough for compiled code, and 63 to order them."""
    shapes, aggregate = [], aggregation.aggregate

    def recording(updates, *rest, **more):
        shapes.append(updates.shape)
        return aggregate(updates, *rest, **more)

    for module in (choice, aggregation):
        monkeypatch.setattr(module, "ENOUGH", 1000)
    monkeypatch.setattr(aggregation, "aggregate", recording)
    return shapes


def test_what_compiled_code_would_not_be_used_for_is_not_tried(warmed):
    warm_up(clients=10, numbers=6)
    warm_up(lambda geometry: np.full(geometry.m, 1 / geometry.m))
    assert warmed == []
    warm_up(clients=10, numbers=7)
    warm_up(clients=10, numbers=1000)
    warm_up("fl_trust", clients=7)  # It needs a root.
    assert warmed == [(10, 7), (10, 100), (7, 143)]
    with pytest.raises(InfeasibleError):
        warm_up("krum(f=5)", clients=10)


@pytest.mark.parametrize(("size", "expected"), [(7, [(10, 7)]), (6, [])])
def test_the_strategy_warms_up_once_before_its_first_round(size, expected, warmed):
    arrays = ArrayRecord({"w": Array(np.zeros(size, np.float32))})
    RobustStrategy("median").start(LocalGrid(client_app(), 10), arrays, num_rounds=2, timeout=0.02)
    assert warmed == expected


def test_too_few_nodes_for_the_rule_cost_a_round_and_no_error(warmed):
    arrays = ArrayRecord({"w": Array(np.zeros(1000, np.float32))})
    strategy = RobustStrategy("krum(f=3)", min_available_nodes=9, min_train_nodes=9, fraction_train=0.5)
    strategy.start(LocalGrid(client_app(), 10), arrays, num_rounds=1, timeout=0.02)
    assert warmed == [(9, 112)]


def test_a_federation_of_the_laboratory_warms_up_for_those_it_asks(warmed):
    rng = np.random.default_rng(0)
    samples = Samples(rng.standard_normal((60, 200)), rng.standard_normal(60))
    shards = shard(samples, balanced(60, 20, rng))
    federate(LinearRegression(samples), shards, rounds=2, step=0.1, participation=0.5)
    assert warmed == [(10, 100)]
