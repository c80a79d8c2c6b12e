"""The apps in examples, their real ServerApp and ClientApp in this process: every attack, both clients, real patients."""

import functools
import json
import os
import shlex
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
from run_readmes import commands

from fedhold.audit.records import read
from fedhold.lab.datasets import DataError, mnist
from flower_grid import FIRST, Context, LocalGrid, RecordDict

EXAMPLES = Path(__file__).parents[2] / "examples"
ATTACKS = ("sign_flip", "gaussian", "non_finite", "huge", "boast", "wrong_shape", "crash")
sys.path += [str(EXAMPLES / "flower-mnist"), str(EXAMPLES / "flower-hospitals")]


def play(example, server, client, m, **changes):
    """Run an app on m nodes, its run config with some changes."""
    project = tomllib.loads((EXAMPLES / example / "pyproject.toml").read_text(encoding="utf-8"))
    config = project["tool"]["flwr"]["app"]["config"]
    changes = {name.replace("_", "-"): value for name, value in changes.items()}
    assert set(changes) <= set(config)
    config |= changes

    def node(message, state):
        own = {"partition-id": state.node_config["partition-id"], "num-partitions": m}
        return client.app(message, Context(1, state.node_id, own, RecordDict(), config))

    server.main(LocalGrid(node, m), Context(1, 1, {}, RecordDict(), config))


# Handwritten digits


@pytest.fixture(scope="module")
def images():
    """Loaded once, not once per message."""
    from flower_mnist import model

    try:
        loaded = mnist()
    except DataError:
        pytest.skip("no MNIST here")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(model, "mnist", lambda: loaded)
        yield


def digits(tmp_path, name, client, **changes):
    from flower_mnist import server_app

    results, audit = tmp_path / f"{name}.jsonl", tmp_path / f"{name}-audit.jsonl"
    files = {"results": str(results), "audit": str(audit)}
    play("flower-mnist", server_app, client, 7, num_server_rounds=2, **files, **changes)
    return [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()], audit


@pytest.mark.parametrize("attack", ATTACKS)
def test_two_of_seven_liars_do_not_stop_the_digits(images, tmp_path, attack):  # noqa: ARG001
    from flower_mnist import attack as lies
    from flower_mnist import client_app

    assert set(lies.ATTACKS) == {"none", *ATTACKS}
    rounds, audit = digits(tmp_path, attack, client_app, attack=attack, attackers=2)
    assert [line["round"] for line in rounds] == [0, 1, 2]
    assert rounds[-1]["accuracy"] > 0.85
    liars = {str(FIRST), str(FIRST + 1)}
    for row in (row for record in read(audit) for row in record.nodes):
        held = row.status == "rejected" or row.weight < 0.08
        assert held == (row.node in liars), row


def test_fedavg_is_captured(images, tmp_path):  # noqa: ARG001
    from flower_mnist import client_app

    rounds, _ = digits(tmp_path, "fedavg", client_app, strategy="fedavg", attackers=2)
    assert rounds[-1]["accuracy"] < 0.5


def test_torch_clients_learn_the_same(images, tmp_path):  # noqa: ARG001
    from flower_mnist import client_app, client_torch

    by_numpy, _ = digits(tmp_path, "numpy", client_app)
    by_torch, _ = digits(tmp_path, "torch", client_torch)
    for ours, theirs in zip(by_numpy, by_torch, strict=True):
        assert theirs["loss"] == pytest.approx(ours["loss"], rel=1e-3)


def test_unknown_words_are_listed(images, tmp_path):  # noqa: ARG001
    from flower_mnist import client_app

    for word in ("attack", "strategy"):
        with pytest.raises(ValueError, match=f"unknown {word} 'sing_flip'"):
            digits(tmp_path, "none", client_app, **{word: "sing_flip"})


# Hospitals


@pytest.fixture
def hospitals(tmp_path, monkeypatch):
    """Run the app with changes; the last round: hospital -> (accuracy, log loss)."""
    from flower_hospitals import client_app, patients, server_app

    if not (Path(os.environ.get("FEDHOLD_DATA", "")) / "heart-disease").is_dir():
        pytest.skip("no heart-disease data here")
    monkeypatch.setattr(client_app, "load", functools.cache(patients.load))  # once, not once per message

    def last_round(**changes):
        results = tmp_path / "results.jsonl"
        play("flower-hospitals", server_app, client_app, 4, results=str(results), **changes)
        last = json.loads(results.read_text(encoding="utf-8").splitlines()[-1])
        return {name: (last[f"{name} accuracy"], last[f"{name} log-loss"]) for name in patients.HOSPITALS}

    return last_round


@pytest.mark.parametrize("liar", ["cleveland", "hungarian", "switzerland", "va"])
@pytest.mark.parametrize("lie", ["sign_flip", "label_flip", "non_finite", "boast"])
def test_one_of_four_hospitals_may_lie(hospitals, liar, lie):
    told = hospitals(liar=liar, lie=lie)
    honest = {name: figures for name, figures in told.items() if name != liar}
    assert np.mean([loss for _, loss in honest.values()]) < 0.55  # 0.38 without a liar
    assert np.mean([accuracy for accuracy, _ in honest.values()]) > 0.75  # 0.84


def test_fedavg_is_captured_by_one_hospital(hospitals):
    told = hospitals(strategy="fedavg", num_server_rounds=5)
    assert np.mean([loss for _, loss in told.values()]) > 2


ROW = "50,1,4,{bp},{chol},0,0,150,0,1.0,2,?,3,{num}\n"


def test_missing_values_stay_in_the_hospital(tmp_path, monkeypatch):
    """A 0 for cholesterol is no cholesterol; it becomes the median of the patients to learn from, and says so."""
    from flower_hospitals.patients import FEATURES, load

    monkeypatch.setenv("FEDHOLD_DATA", str(tmp_path))
    folder = tmp_path / "heart-disease"
    folder.mkdir()
    rows = [ROW.format(bp=100 + 2 * i, chol=0 if i % 2 else 200 + i, num=i % 3) for i in range(40)]
    (folder / "processed.va.data").write_text("".join(rows), encoding="utf-8")
    train, held_out = load("va", seed=0)
    chol, missing = FEATURES.index("chol"), FEATURES.index("chol missing")
    assert len(train.targets) + len(held_out.targets) == 40
    there = train.inputs[train.inputs[:, missing] == 0, chol]
    for part in (train, held_out):
        assert part.inputs.shape[1] == len(FEATURES)
        assert np.isfinite(part.inputs).all()
        assert (part.inputs[:, FEATURES.index("ca missing")] == 1).all()
        assert (part.inputs[:, FEATURES.index("ca")] == 0).all()  # nobody was measured: the agreed centre
        filled = part.inputs[part.inputs[:, missing] == 1, chol]
        assert filled.size > 0
        np.testing.assert_allclose(filled, np.median(there))
    other, _ = load("va", seed=1)
    assert len(other.targets) == len(train.targets)
    assert not np.array_equal(other.inputs, train.inputs)


def test_missing_files_are_told(tmp_path, monkeypatch):
    from flower_hospitals.patients import load

    monkeypatch.setenv("FEDHOLD_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"No processed\.va\.data in .*heart-disease.*set.*FEDHOLD_DATA"):
        load("va", seed=0)
    monkeypatch.delenv("FEDHOLD_DATA")
    with pytest.raises(FileNotFoundError, match="FEDHOLD_DATA, which is not set"):
        load("va", seed=0)


# READMEs


@pytest.mark.parametrize("readme", sorted(EXAMPLES.glob("flower-*/README.md")), ids=lambda readme: readme.parent.name)
def test_commands_of_a_readme_name_what_is_there(readme):
    """examples/run_readmes.py runs them all, which takes half an hour: here it is only that apps and words exist."""
    found = commands(readme)
    assert any(command.startswith("flwr run") for command in found)
    for command in found:
        words = shlex.split(command, comments=True)
        for path in (word for word in words if word.startswith("examples/")):
            assert (EXAMPLES.parent / path).exists(), command
        if "--run-config" in words:
            given = tomllib.loads("\n".join(shlex.split(words[words.index("--run-config") + 1], posix=False)))
            project = tomllib.loads((readme.parent / "pyproject.toml").read_text(encoding="utf-8"))
            assert set(given) <= set(project["tool"]["flwr"]["app"]["config"]), command
