"""End to end: a SuperLink, SuperNodes, ServerApps and ClientApps as real processes on loopback.

Deselect with -m 'not deployment'. What each federation wrote, logs among it, is below pytest's temporary folder.
"""

import os
import signal
import time
from pathlib import Path

import credentials
import numpy as np
import pytest
from federation import Federation

from fedhold.audit.records import read
from fedhold.lab.datasets import DataError, mnist

pytestmark = pytest.mark.deployment

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "flower" / "flower_app"
MNIST = ROOT / "examples" / "flower-mnist"
NODES = 4


@pytest.fixture(scope="module")
def federation(tmp_path_factory):
    """Four nodes, no TLS. The tests below share it, the one that kills a node last."""
    with Federation(tmp_path_factory.mktemp("insecure")) as federation:
        for i in range(NODES):
            federation.start_node(i, of=NODES)
        federation.wait_for_nodes(NODES)
        yield federation
    assert federation.pids() == []


def finish(federation, run, seconds=200):
    status = federation.wait(run, seconds)
    assert status == "finished:completed", federation.log(run)


def until(path, seconds=90):
    """Wait for a trace that a process leaves."""
    end = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < end, f"no {path.name} after {seconds} s"
        time.sleep(0.1)


def test_liars_are_outvoted_and_named(federation, tmp_path):
    """The MNIST example, one of four nodes flipping and boosting its update."""
    try:
        mnist()
    except DataError:
        pytest.skip("no MNIST here")
    audit = tmp_path / "audit.jsonl"
    run = federation.run(MNIST, attackers=1, num_server_rounds=2, min_nodes=NODES, audit=str(audit))
    finish(federation, run)
    rounds = read(audit)
    assert [record.round for record in rounds] == [1, 2]
    held = set()
    for record in rounds:
        weights = {row.node: row.weight for row in record.nodes}
        assert len(weights) == NODES
        liar = min(weights, key=weights.get)
        assert weights[liar] < 0.1
        assert all(weight > 0.2 for node, weight in weights.items() if node != liar)
        held.add(liar)
    assert len(held) == 1
    assert rounds[-1].metrics["server"]["accuracy"] > 0.8


def test_a_killed_server_app_goes_on_to_the_same_bits(federation, tmp_path):
    """kill -9 of the ServerApp in the middle of a round; a new run from the checkpoint ends as an undisturbed one."""
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    calm.mkdir()
    killed.mkdir()
    finish(federation, federation.run(TINY, folder=str(calm), min_nodes=NODES))

    federation.run(TINY, folder=str(killed), min_nodes=NODES)
    until(killed / "node0-round2")
    (server,) = federation.pids("flwr-serverapp")
    os.kill(server, signal.SIGKILL)
    assert [record.round for record in read(killed / "audit.jsonl")] == [1]
    assert not (killed / "model.npy").exists()

    finish(federation, federation.run(TINY, folder=str(killed), min_nodes=NODES))
    assert [record.round for record in read(killed / "audit.jsonl")] == [1, 2, 3]
    assert len({record.run for record in read(killed / "audit.jsonl")}) == 1
    np.testing.assert_array_equal(np.load(killed / "model.npy"), np.load(calm / "model.npy"), strict=True)


def test_a_killed_node_does_not_stop_the_run(federation, tmp_path):
    """kill -9 of a SuperNode that is at work on its reply: the round closes without it, and so does the next."""
    run = federation.run(TINY, folder=str(tmp_path), num_server_rounds=2, holds=1)
    until(tmp_path / "node1-round1")
    federation.kill("node1")
    finish(federation, run)
    first, second = read(tmp_path / "audit.jsonl")
    lost = [row for row in first.nodes if row.status == "rejected"]
    assert len(first.nodes) == NODES
    assert len(lost) == 1
    assert lost[0].reason
    assert first.outcome == second.outcome == "aggregated"
    assert [row.node for row in second.nodes if row.status != "rejected"] == [
        row.node for row in first.nodes if row != lost[0]
    ]


def test_only_registered_keys_get_in(tmp_path):
    """TLS and node authentication: two nodes with keys learn; one without a key and one with a strange key are refused."""
    with Federation(tmp_path / "federation", secure=True) as federation:
        registered = set()
        for i in range(2):
            key, node = federation.new_key(f"node{i}")
            registered.add(node)
            federation.start_node(i, of=2, key=key)
        stranger, _ = credentials.make_node_key(tmp_path / "keys", "stranger")
        federation.start_node(0, of=2, name="keyless")
        federation.start_node(0, of=2, key=stranger, name="stranger")
        federation.wait_for_nodes(2)
        finish(federation, federation.run(TINY, folder=str(tmp_path), num_server_rounds=1))
        for name, code in (("keyless", "[code: 2001]"), ("stranger", "[code: 2004]")):
            assert federation.processes[name].wait(timeout=30) != 0
            assert code in federation.tail(name, 1000)
        assert {node["node-id"] for node in federation.nodes()} == registered
        (record,) = read(tmp_path / "audit.jsonl")
        assert {row.node for row in record.nodes} == registered
    assert federation.pids() == []
