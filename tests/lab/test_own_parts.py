"""Parts of one's own in experiments: one line each, in TOML and in Python; and errors that help."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from fedhold.lab import (
    Arena,
    Experiment,
    Scenario,
    Setting,
    Standings,
    Store,
    balanced,
    federate,
    load,
    prepare,
    read_parts,
    run,
    run_all,
    run_arena,
)
from fedhold.lab.results import _checksum as checksum

PARTS = """
import numpy as np
import torch
from fedhold.rules import by_columns


def nearest_half(geometry):
    order = np.argsort(geometry.distances(geometry.start()))[: geometry.m // 2]
    return np.isin(np.arange(geometry.m), order) / len(order)


@by_columns
def middle(block, *, f=1):
    return np.sort(block, axis=0)[f : len(block) - f].mean(axis=0)


def reverse(knowledge, *, scale=1.0):
    return np.broadcast_to(-scale * knowledge.mean, (knowledge.f, knowledge.honest.shape[1]))


def stripes(labels, m, rng, *, first=0):
    total = labels if isinstance(labels, int) else len(labels)
    return np.array_split(np.roll(np.arange(total), -first), m)


def rings(*, samples=300):
    rng = np.random.default_rng(0)
    angle, outer = rng.uniform(0, 6.283, samples), np.arange(samples) % 2
    inputs = (1 + outer[:, None]) * np.stack([np.cos(angle), np.sin(angle)], axis=1) + 0.1 * rng.standard_normal((samples, 2))
    return (inputs[100:], outer[100:]), (inputs[:100], outer[:100])


def rings_of_torch():
    return tuple(torch.utils.data.TensorDataset(*map(torch.as_tensor, pair)) for pair in rings())


def line():
    x = np.linspace(-1, 1, 80)[:, None]
    return (x, 3 * x[:, 0]), (x, 3 * x[:, 0])


def network(*, width=8):
    return torch.nn.Sequential(torch.nn.Linear(2, width), torch.nn.Tanh(), torch.nn.Linear(width, 2)).double()


def with_loss():
    return network(), torch.nn.CrossEntropyLoss(reduction="none")


def one_array():
    return np.zeros((3, 2))


def uneven():
    return (np.zeros((3, 2)), [0, 1]), (np.zeros((3, 2)), [0, 1, 1])


def missing():
    return (np.full((3, 2), np.nan), [0, 1, 1]), (np.zeros((3, 2)), [0, 1, 1])


def twice(labels, m, rng):
    return [np.array([0, 1])] * m


def too_few(labels, m, rng):
    return [np.array([0, 1])]


def masks(labels, m, rng):
    return [np.arange(len(labels)) % m == i for i in range(m)]


def one_row(knowledge):
    return np.zeros(knowledge.honest.shape[1])


def no_module():
    return 3


def fails(geometry):
    raise KeyError("mine")
"""


@pytest.fixture(scope="module", autouse=True)
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine.py").write_text(PARTS)
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))
    sys.modules.pop("mine", None)


def own(**change):
    """An experiment in which every part but the model is the user's own."""
    usual = {
        "data": "mine:rings(samples=200)",
        "rule": "mine:nearest_half",
        "attack": "mine:reverse(scale=2)",
        "epsilon": 0.2,
    }
    return Experiment(**{**usual, "seed": 0, "m": 10, "partition": "mine:stripes", "rounds": 20, "step": 0.5, **change})


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"rule": "mine:middle(f=2)"},
        {"rule": "screen | mine:nearest_half", "attack": "mine:reverse"},
        {"data": "mine:rings_of_torch", "partition": "dirichlet(alpha=1)"},
        {"model": "mine:network(width=4)"},
        {"model": "mine:with_loss", "partition": "mine:stripes(first=3)"},
        {"model": "mlp(hidden=6)"},
    ],
)
def test_every_part_can_be_ones_own(change):
    result = run(own(**change))
    assert not result.infeasible
    assert result.metric == "accuracy"
    assert result.series["loss"][-1] < result.series["loss"][0]


def test_numbers_as_targets_are_a_regression():
    result = run(Experiment("mine:line", "median", None, 0.0, 0, 4, "mine:stripes", 100, 0.5))
    assert result.metric == "rmse"
    assert result.end < 0.01


def test_a_module_begins_where_the_seed_says():
    first, again, other = (
        prepare("mine:rings", "balanced", 4, seed, model="mine:network").task.initial(None) for seed in (1, 1, 2)
    )
    assert isinstance(prepare("mine:rings", "balanced", 4, 1, model="mine:network"), Scenario)
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_in_a_configuration_and_from_python(parts, tmp_path):
    (parts / "own.toml").write_text(
        'data = "mine:rings(samples=200)"\nrule = ["mine:nearest_half", "huber"]\nattack = "mine:reverse(scale=2)"\n'
        'epsilon = 0.2\nm = 10\npartition = "mine:stripes"\nrounds = 20\nstep = 0.5\nmodel = "mine:network"\n'
    )
    from_toml = load(parts / "own.toml")
    import mine

    from_python = Experiment(
        "mine:rings(samples=200)",
        mine.nearest_half,
        "mine:reverse(scale=2)",
        0.2,
        0,
        10,
        mine.stripes,
        20,
        0.5,
        model=mine.network,
    )
    assert from_toml[0] == from_python
    results = run_all(from_toml, Store(tmp_path), jobs=2, progress=False)
    assert all(result.series["loss"][-1] < result.series["loss"][0] for result in results)


def test_in_federate():
    scenario = prepare("mine:rings", "mine:stripes", 10, 0)
    learnt = federate(
        *(scenario.task, scenario.shards),
        **{
            "rule": "mine:middle",
            "attack": "mine:reverse(scale=3)",
            "byzantine": np.arange(10) < 2,
            "rounds": 3,
            "step": 0.5,
        },
    )
    assert len(learnt.history) == 3


def test_in_the_arena(parts, tmp_path):
    (parts / "arena.toml").write_text(
        'rule = "mine:nearest_half"\nattack = "mine:reverse"\ndata = "mine:rings"\nrounds = 10\nstep = 0.5\n'
    )
    whole = Arena(
        settings=(Setting("mine:rings", "balanced", 10, 0.5),),
        rules=("mean",),
        attacks=("ipm",),
        epsilons=(0.2,),
        seeds=(0,),
        m=10,
    ).joined(read_parts(parts / "arena.toml"))
    assert whole.rules == ("mean", "mine:nearest_half")
    assert whole.attacks == ("ipm", "mine:reverse")
    assert run_arena(whole, Store(tmp_path), jobs=1, progress=False) == {}
    places = Standings(whole, Store(tmp_path)).places(skewed=False)
    assert {place.rule for place in places} == {"mean", "mine:nearest_half"}


# A result belongs to the code that made it


def test_a_part_that_changed_is_run_again(tmp_path):
    code = "import numpy as np\ndef even(geometry):\n    return np.ones(geometry.m) / geometry.m\n"
    (tmp_path / "draft.py").write_text(code)
    script = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from fedhold.lab import Experiment\n"
        "print(Experiment('synthesized', 'draft:even', None, 0.0, 0).key())"
    )

    def key():
        command = [sys.executable, "-c", script, str(tmp_path)]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    before = key()
    assert key() == before
    (tmp_path / "draft.py").write_text(code + "# another\n")
    assert key() != before


def test_a_stored_result_is_read_where_its_parts_are_unknown(tmp_path):
    store = Store(tmp_path / "results")
    run_all([own()], store, jobs=1, progress=False)
    code = (
        "import sys; from pathlib import Path; from fedhold.lab import Store\n"
        "(result,) = Store(Path(sys.argv[1])).all(); print(result.experiment); assert 'mine' not in sys.modules"
    )
    told = subprocess.run([sys.executable, "-c", code, str(store.root)], capture_output=True, text=True, cwd=tmp_path)
    assert told.returncode == 0, told.stderr
    assert "mine:nearest_half on mine:rings(samples=200)" in told.stdout
    page = subprocess.run(
        [sys.executable, "-m", "fedhold", "report", str(tmp_path)], capture_output=True, text=True, cwd=tmp_path
    )
    assert page.returncode == 0, page.stderr
    assert "mine:nearest_half" in (tmp_path / "report.html").read_text()


def test_a_result_of_a_rule_that_only_a_script_had_registered_is_read(tmp_path):
    store = Store(tmp_path)
    (result,) = run_all(
        [Experiment("synthesized(samples=100, d=3)", "huber", None, 0.0, 0, 5, rounds=2)], store, progress=False
    )
    (path,) = tmp_path.glob("*.json")
    record = json.loads(path.read_bytes())
    record["experiment"]["rule"] = "only_there"
    del record["sha256"]
    path.write_text(json.dumps({**record, "sha256": checksum(record)}))
    (found,) = store.all()
    assert found.experiment.rule == "only_there"
    assert found.series == result.series


# Errors that help


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": "mine:ring"}, "mine has no 'ring': unknown data 'ring'. Did you mean 'rings'?"),
        ({"data": "mine:rings(sample=3)"}, "mine:rings: unknown parameter 'sample'. Did you mean 'samples'?"),
        (
            {"attack": "mine:reverse(scal=3)"},
            "mine:reverse: unknown parameter 'scal'. Did you mean 'scale'?",
        ),
        ({"partition": "their:stripes"}, "there is no module 'their' to import"),
        ({"model": "mine:networks"}, "unknown model 'networks'. Did you mean 'network'?"),
        ({"rule": lambda geometry: geometry}, "has no name that worker processes could import"),
        ({"data": 3}, "data must be a text or a function, got 3"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(change, message):
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        own(**change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"data": "mine:one_array"},
            "mine:one_array must return two things, the samples to train on and those to test on",
        ),
        (
            {"data": "mine:uneven"},
            "a row of inputs and one target for every sample; met inputs = (3, 2), targets = (2,)",
        ),
        ({"data": "mine:missing"}, "needs finite numbers"),
        ({"partition": "mine:twice"}, "mine:twice needs every sample at most once"),
        ({"partition": "mine:too_few"}, "to return 10 arrays, one per client; met returned = 1"),
        ({"partition": "mine:masks"}, "indices for every client"),
        ({"attack": "mine:one_row"}, "an attack needs to return shape (2, "),
        ({"model": "mine:no_module"}, "must return a torch module, (module, loss), or a task"),
        ({"data": "synthesized", "model": "mine:network"}, "synthesized has a model of its own"),
        ({"data": "mnist(hidden=3)", "model": "mine:network"}, "hidden is for the usual model"),
    ],
)
def test_what_a_part_returns_is_checked(change, message):
    experiment = own(**change)
    try:
        told = run(experiment).infeasible
    except (ValueError, TypeError) as problem:
        told = str(problem)
    assert message in told


def test_an_attack_without_liars_is_an_error():
    scenario = prepare("synthesized(samples=40, d=2)", "balanced", 4, 0)
    with pytest.raises(
        ValueError, match=r"attack needs byzantine, the clients that lie; met attack = gaussian. Say who lies"
    ):
        federate(scenario.task, scenario.shards, attack="gaussian", rounds=1, step=0.1)
    with pytest.raises(
        ValueError, match=r"the attack gaussian needs floor\(epsilon \* m\) >= 1; met epsilon = 0.01, m = 20"
    ):
        Experiment("synthesized", "huber", "gaussian", 0.01, 0, 20)
    assert [len(part) for part in balanced(4, 2, np.random.default_rng(0))] == [2, 2]


# One infeasible cell is a cell


def test_an_infeasible_experiment_is_stored_with_its_reason_and_the_grid_goes_on(tmp_path):
    grid = [
        Experiment("synthesized(samples=200, d=3)", rule, "ipm", 0.3, 0, 20, rounds=3)
        for rule in ("bulyan(f=6)", "huber")
    ]
    store = Store(tmp_path)
    refused, fine = run_all(grid, store, jobs=1, progress=False)
    assert refused.infeasible.startswith("bulyan needs m >= 4f + 3; met m = 20, f = 6.")
    assert refused.end is None
    assert fine.end is not None
    assert store.get(grid[0]).infeasible == refused.infeasible
    assert {result.infeasible for result in store.all()} == {refused.infeasible, ""}


def test_a_failing_experiment_is_no_infeasible_one(tmp_path):
    grid = [
        Experiment("synthesized(samples=200, d=3)", rule, None, 0.0, 0, 20, rounds=3)
        for rule in ("mine:fails", "huber")
    ]
    store = Store(tmp_path)
    with pytest.raises(RuntimeError, match=r"1 of 2 experiments failed. The first, mine:fails on synthesized"):
        run_all(grid, store, jobs=1, progress=False)
    assert not store.has(grid[0])
    assert store.has(grid[1])
