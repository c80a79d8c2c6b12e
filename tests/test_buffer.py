"""The buffer: what it refuses, what weights fall to, what liars can do, and what a killed process leaves."""

import importlib.util
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedhold import Buffer, aggregate

ROOT = Path(__file__).parents[1]
MODEL = {"w": np.zeros(3, np.float32), "steps": np.array(0)}


def update(number, steps=1):
    return {"w": np.full(3, number, np.float32), "steps": np.array(steps)}


def buffer(size=5, rule="huber", max_staleness=2, **more):
    return Buffer(size, rule, max_staleness, model=MODEL, **{"byzantine": 1, **more})


def fill(one, number=1.0, clients="abcde", **more):
    return [one.add(client, update(number), one.round, **more) for client in clients][-1]


def test_a_full_buffer_is_what_aggregate_makes_of_it():
    """A literal transcription of the weights: capped samples over the root of 1 + staleness."""
    one, rng = buffer(max_staleness=3), np.random.default_rng(0)
    for _ in range(3):
        fill(one)
    before = one.model["w"].copy()
    rows, began, samples = rng.standard_normal((5, 3)).astype(np.float32), [0, 3, 1, 2, 3], [10, 20, 30, 20, 900]
    for i in range(5):
        received = one.add(f"{i}", {"w": rows[i], "steps": np.array(i)}, began[i], samples[i])
    weights = [min(n, 60) / np.sqrt(1 + 3 - t) for n, t in zip(samples, began, strict=True)]
    expected = aggregate([{"w": row} for row in rows], "huber", samples=weights, sample_cap=None)
    np.testing.assert_allclose(one.model["w"], before + expected.value["w"], rtol=1e-5)
    assert received.staleness == (3, 0, 2, 1, 0)
    assert one.round == 4
    assert one.waiting == ()
    assert one.model["w"].dtype == np.float32


HOSTILE = {
    "too old": (lambda: update(1), 0, 1.0, "3 rounds ago"),
    "from the future": (lambda: update(1), 4, 1.0, "no model"),
    "before the first": (lambda: update(1), -1, 1.0, "no model"),
    "a text for a round": (lambda: update(1), "3" * 10**6, 1.0, "no model"),
    "NaN for a round": (lambda: update(1), float("nan"), 1.0, "no model"),
    "NaN": (lambda: update(np.nan), 3, 1.0, "not finite"),
    "infinite": (lambda: update(np.inf), 3, 1.0, "not finite"),
    "another shape": (lambda: update(1) | {"w": np.ones(10**6, np.float32)}, 3, 1.0, "expected float32 (3,)"),
    "another dtype": (lambda: update(1) | {"w": np.ones(3)}, 3, 1.0, "expected float32"),
    "one array more": (lambda: update(1) | {"x": np.ones(3)}, 3, 1.0, "not the arrays"),
    "no array": (lambda: update(1) | {"w": "words"}, 3, 1.0, "is no array"),
    "no dict": (lambda: "words", 3, 1.0, "not the arrays"),
    "objects": (lambda: update(1) | {"w": np.array([None] * 3)}, 3, 1.0, "is no array"),
    "no samples": (lambda: update(1), 3, 0, "positive"),
    "endless samples": (lambda: update(1), 3, float("inf"), "positive"),
    "beyond all floats": (lambda: update(1), 3, 10**400, "positive"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_cannot_be_used_is_refused_and_changes_nothing(name):
    one = buffer()
    for _ in range(3):
        fill(one)
    make, began, samples, reason = HOSTILE[name]
    received = one.add("liar", make(), began, samples)
    assert reason in received.reason
    assert len(received.reason) < 400
    assert one.waiting == ()
    assert one.round == 3


def test_a_second_reply_of_a_client_that_waits_is_refused():
    one = buffer()
    one.add("a", update(1), 0)
    for _ in range(100):
        assert "waits already" in one.add("a", update(-99), 0).reason
    assert one.waiting == ("a",)
    assert "200 characters" in one.add("x" * 10**6, update(1), 0).reason
    fill(one, clients="bcde")
    np.testing.assert_allclose(one.model["w"], 1)
    assert one.add("a", update(1), 1).reason == ""


@pytest.mark.parametrize("lie", [-1e30, 1e38, 5e-324, -3.0, 0.0])
def test_as_many_liars_as_were_promised(lie):
    one = buffer(size=9, byzantine=2)
    for _ in range(3):
        for i in range(9):
            one.add(f"{i}", update(lie if i in (3, 8) else 1), one.round, 1e300 if i == 3 else 1)
    assert np.abs(one.model["w"] - 3).max() < 1.2
    assert one.model["steps"] == 3


def test_what_the_rule_needs_is_said_at_once():
    with pytest.raises(ValueError, match="size > 2 byzantine"):
        buffer(size=4, byzantine=2)
    with pytest.raises(ValueError, match="m >= 2f"):
        buffer(size=5, rule="krum(f=2)")
    with pytest.raises(ValueError, match="Did you mean"):
        buffer(rule="hubert")


def test_the_model_of_torch_and_the_callers_arrays_stay_apart():
    one, sent = Buffer(3, "mean", model={"w": torch.zeros(3)}, byzantine=0), torch.ones(3, requires_grad=True)
    for client in "abc":
        one.add(client, {"w": sent}, 0)
        with torch.no_grad():
            sent.fill_(1)
    np.testing.assert_array_equal(one.model["w"], 1)


KILLED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from test_buffer import buffer, update
one = buffer(path={path!r})
for k in range({replies}):
    one.add("abcde"[k % 5], update(1 + k), one.round, samples=k + 1)
print(one.round, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("replies", [3, 5, 7])
def test_a_killed_process_loses_nothing(tmp_path, replies):
    path = str(tmp_path / "buffer.npz")
    code = KILLED.format(tests=str(Path(__file__).parent), path=path, replies=replies)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ})
    assert done.returncode == -signal.SIGKILL, done.stderr
    again, whole = buffer(path=path), buffer()
    for k in range(10):
        whole.add("abcde"[k % 5], update(1 + k), whole.round, samples=k + 1)
        if k >= replies:
            again.add("abcde"[k % 5], update(1 + k), again.round, samples=k + 1)
    assert again.round == whole.round == 2
    np.testing.assert_array_equal(again.model["w"], whole.model["w"])
    with pytest.raises(ValueError, match="another size, rule or model"):
        buffer(size=6, path=path)


@pytest.mark.parametrize("fast_liars", [False, True])
def test_fifty_nodes_of_very_different_speed(fast_liars):
    """The example: as accurate as rounds that wait for all, to some points, in a fifth of the time; the mean is lost."""
    spec = importlib.util.spec_from_file_location("own_loop", ROOT / "examples" / "forms" / "buffer.py")
    own_loop = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(own_loop)
    world = own_loop.World(7, fast_liars=fast_liars)
    rounds, buffered = own_loop.in_rounds(world, "spectral_huber"), own_loop.in_a_buffer(world, "spectral_huber")
    assert buffered[0] > rounds[0] - 0.04
    assert buffered[1] < rounds[1] / 5
    assert own_loop.in_a_buffer(world, "mean")[0] < rounds[0] - 0.2
