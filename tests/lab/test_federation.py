"""The round loop against plain loops over rounds, clients and samples; RSA likewise; resuming."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import oracles
from fedhold import thresholds
from fedhold.lab import (
    ATTACKS,
    Knowledge,
    LinearRegression,
    Mlp,
    Purpose,
    Samples,
    TorchTask,
    balanced,
    chance,
    federate,
    needs_server,
    needs_thresholds,
    random_cuts,
    rsa,
    shard,
)
from fedhold.lab.federation import project, rsa_parameters

M, N, D, STEP = 9, 60, 4, 0.1
LIARS = np.isin(np.arange(M), [1, 5])


def world(seed=0, cut=random_cuts):
    rng = np.random.default_rng(seed)
    inputs = rng.standard_normal((N, D))
    samples = Samples(inputs, inputs @ rng.standard_normal(D) + 0.1 * rng.standard_normal(N))
    return LinearRegression(samples), shard(samples, cut(N, M, rng))


def gradient(w, shards, i):
    """(1/n_i) sum_j grad f(w, Z_ij), a sum over samples."""
    rows = range(shards.offsets[i], shards.offsets[i + 1])
    return sum((shards.inputs[j] @ w - shards.targets[j]) * shards.inputs[j] for j in rows) / len(rows)


RULES = {
    "mean": lambda X, n: oracles.mean(X, n),
    "huber(threshold=0.5)": lambda X, n: oracles.huber(X, 0.5, n),
    "huber(threshold=by_samples(0.1, 2))": lambda X, n: oracles.huber(X, 0.1 + 2 / np.sqrt(n), n),
    "geometric_median": lambda X, n: oracles.geometric_median(X, n),
    "median": lambda X, _: oracles.median(X),
    "trimmed_mean(f=2)": lambda X, _: oracles.trimmed_mean(X, 2),
    "krum(f=2)": lambda X, _: oracles.krum(X, 2),
}
LIES = {
    "sign_flip": lambda G, i: -G[i],
    "trimmed_mean_attack": lambda G, _: np.where(sum(G) < 0, np.max(G, axis=0), np.min(G, axis=0)),
}


def algorithm_1(shards, rule, lie, rounds, radius=np.inf):
    """The paper's Algorithm 1, line by line."""
    w = w_0 = np.zeros(D)
    path = []
    for _ in range(rounds):
        G = [gradient(w, shards, i) for i in range(M)]
        X = [lie(G, i) if LIARS[i] else G[i] for i in range(M)]
        w = w - STEP * rule(np.array(X), shards.counts)
        if np.linalg.norm(w - w_0) > radius:
            w = w_0 + radius * (w - w_0) / np.linalg.norm(w - w_0)
        path.append(w)
    return path


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("rule", RULES)
def test_algorithm_1_literally(rule, lie):
    task, shards = world()
    learnt = federate(task, shards, rule=rule, attack=lie, byzantine=LIARS, rounds=12, step=STEP)
    path = algorithm_1(shards, RULES[rule], LIES[lie], 12)
    np.testing.assert_allclose(learnt.w, path[-1], rtol=1e-4, atol=1e-5)
    for row, w in zip(learnt.history, path, strict=True):
        rmse = np.sqrt(np.mean([(u @ w - v) ** 2 for u, v in zip(shards.inputs, shards.targets, strict=True)]))
        assert row.metrics["rmse"] == pytest.approx(rmse, rel=1e-4)


@pytest.mark.parametrize("radius", [0.3, 1e9])
def test_projection_literally(radius):
    task, shards = world()
    learnt = federate(task, shards, rule="mean", rounds=9, step=STEP, radius=radius)
    path = algorithm_1(shards, RULES["mean"], lambda G, i: G[i], 9, radius)
    np.testing.assert_allclose(learnt.w, path[-1], rtol=1e-9)
    assert np.linalg.norm(learnt.w) <= radius * (1 + 1e-12)


def test_projection_is_the_nearest_point_of_the_ball():
    rng = np.random.default_rng(0)
    w, centre = rng.standard_normal(5) * 3, rng.standard_normal(5)
    nearest = project(w, centre, 1.0)
    assert np.linalg.norm(nearest - centre) == pytest.approx(1)
    for other in rng.standard_normal((200, 5)):
        inside = centre + other / max(1, np.linalg.norm(other))
        assert np.linalg.norm(w - nearest) <= np.linalg.norm(w - inside) + 1e-12
    assert project(nearest, centre, 1.0 + 1e-9) is nearest


def test_the_ball_may_lie_elsewhere():
    task, shards = world()
    far = np.full(D, 10.0)
    learnt = federate(task, shards, rule="mean", rounds=3, step=STEP, radius=0.5, centre=far)
    assert np.linalg.norm(learnt.w - far) == pytest.approx(0.5)


def test_momentum_literally():
    task, shards = world()
    learnt = federate(task, shards, rule="mean", rounds=6, step=STEP, momentum=0.8)
    w, memory = np.zeros(D), None
    for _ in range(6):
        G = np.array([gradient(w, shards, i) for i in range(M)])
        memory = G if memory is None else 0.8 * memory + 0.2 * G
        w = w - STEP * oracles.mean(memory, shards.counts)
    np.testing.assert_allclose(learnt.w, w, rtol=1e-9)


def test_momentum_is_remembered_before_the_lies():
    task, shards = world()
    seen = []

    def spy(knowledge: Knowledge):
        seen.append(knowledge.honest.copy())
        return np.full((knowledge.f, D), 1e6)

    federate(task, shards, rule="median", attack=spy, byzantine=LIARS, rounds=3, step=STEP, momentum=0.5)
    assert all(np.abs(honest).max() < 1e3 for honest in seen)


def test_local_steps_of_the_mean_are_federated_averaging():
    task, shards = world()
    learnt = federate(task, shards, rule="mean", rounds=4, step=STEP, local_steps=3)
    w = np.zeros(D)
    for _ in range(4):
        models = []
        for i in range(M):
            own = w.copy()
            for _ in range(3):
                own = own - STEP * gradient(own, shards, i)
            models.append(own)
        w = oracles.mean(models, shards.counts)
    np.testing.assert_allclose(learnt.w, w, rtol=1e-9)


def test_raga_is_the_weighted_geometric_median_of_local_models():
    task, shards = world()
    learnt = federate(task, shards, rule="geometric_median", rounds=1, step=STEP, local_steps=3)
    models = []
    for i in range(M):
        own = np.zeros(D)
        for _ in range(3):
            own = own - STEP * gradient(own, shards, i)
        models.append(own)
    np.testing.assert_allclose(learnt.w, oracles.geometric_median(models, shards.counts), atol=1e-5)


@pytest.mark.parametrize("local_steps", [1, 3])
def test_batches_are_drawn_from_the_rounds_generator(local_steps):
    task, shards = world(cut=balanced)
    learnt = federate(task, shards, rule="mean", rounds=3, step=STEP, batch=2, local_steps=local_steps, seed=7)
    w = np.zeros(D)
    for t in (1, 2, 3):
        rng = chance(7, Purpose.BATCH, t)
        drawn = [shards.batch(2, rng) for _ in range(local_steps)]
        models = []
        for i in range(M):
            own = w
            for batch in drawn:
                own = own - STEP * gradient(own, batch, i)
            models.append(own)
        w = oracles.mean(models, shards.counts)
    np.testing.assert_allclose(learnt.w, w, rtol=1e-9)


def test_partial_participation_literally():
    task, shards = world()
    seen = []

    def spy(knowledge: Knowledge):
        seen.append((knowledge.m, knowledge.f))
        return -knowledge.honest[knowledge.byzantine]

    learnt = federate(
        task,
        shards,
        rule="trimmed_mean(f=1)",
        attack=spy,
        byzantine=LIARS,
        rounds=8,
        step=STEP,
        participation=0.5,
        seed=3,
    )
    w, expected = np.zeros(D), []
    for t in range(1, 9):
        asked = np.sort(chance(3, Purpose.PARTICIPATION, t).permutation(M)[:4])
        expected.append((4, int(LIARS[asked].sum())))
        X = [(-1 if LIARS[i] else 1) * gradient(w, shards, i) for i in asked]
        w = w - STEP * oracles.trimmed_mean(np.array(X), 1)
    np.testing.assert_allclose(learnt.w, w, rtol=1e-9)
    assert seen == [(m, f) for m, f in expected if f]  # nobody to attack for in a round without liars
    assert len({f for _, f in expected}) > 1


def test_whoever_was_not_asked_has_no_weight():
    task, shards = world()
    learnt = federate(task, shards, rule="mean", rounds=5, step=STEP, participation=0.5)
    assert (np.isfinite(learnt.weights).sum(axis=1) == 4).all()
    np.testing.assert_allclose(np.nansum(learnt.weights, axis=1), 4, rtol=1e-5)  # in units of an equal share
    assert len({tuple(row) for row in np.isfinite(learnt.weights)}) > 1


def test_f_stays_what_it_was_told():
    task, shards = world()
    with pytest.raises(ValueError, match=r"krum needs m >= 2f \+ 3; met m = 4, f = 2"):
        federate(task, shards, rule="krum(f=2)", rounds=1, step=STEP, participation=0.5)


# What the history says


def test_history_literally():
    task, shards = world()
    learnt = federate(
        task, shards, rule="huber(threshold=0.5)", attack="sign_flip", byzantine=LIARS, rounds=3, step=STEP, certify=2
    )
    assert [row.round for row in learnt.history] == [1, 2, 3]
    G = np.array([gradient(np.zeros(D), shards, i) for i in range(M)])
    X = np.where(LIARS[:, None], -G, G)
    value = oracles.huber(X, 0.5, shards.counts)
    distances = np.linalg.norm(X - value, axis=1)
    pulls = shards.counts * np.minimum(1, 0.5 / distances)
    first = learnt.history[0]
    assert first.error == pytest.approx(
        np.linalg.norm(value - oracles.mean(G[~LIARS], shards.counts[~LIARS])), rel=1e-4
    )
    assert first.clipped == pytest.approx(np.mean(distances > 0.5))
    assert first.rejected == 0
    assert first.liar_weight == pytest.approx(pulls[LIARS].sum() / pulls.sum(), rel=1e-4)
    np.testing.assert_allclose(learnt.weights[0], M * pulls / pulls.sum(), rtol=1e-4)
    assert first.radius is not None
    assert first.radius > 0


def test_rules_without_weights_or_proof_say_none():
    task, shards = world()
    learnt = federate(task, shards, rule="median", rounds=2, step=STEP, certify=1)
    assert learnt.weights is None
    assert [(row.liar_weight, row.radius) for row in learnt.history] == [(None, None)] * 2


def test_rejected_liars_are_counted():
    task, shards = world()
    learnt = federate(task, shards, rule="mean", attack="non_finite", byzantine=LIARS, rounds=2, step=STEP)
    assert [row.rejected for row in learnt.history] == [2 / M] * 2
    assert np.isfinite(learnt.w).all()


def test_evaluation_may_be_rarer():
    task, shards = world()
    learnt = federate(task, shards, rounds=7, step=STEP, evaluate_every=3)
    assert [bool(row.metrics) for row in learnt.history] == [False, False, True, False, False, True, True]


def test_a_run_that_diverges_is_a_result():
    task, shards = world()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        learnt = federate(task, shards, rule="mean", rounds=400, step=1e6)
    assert np.isfinite(learnt.w).all()  # the server keeps the last model it had numbers for
    assert learnt.history[-1].metrics["rmse"] > 1e100
    assert len(learnt.history) == 400


def test_a_server_that_can_admit_nobody_keeps_its_model():
    samples = Samples(np.array([[1e200], [2e200]]), np.array([1.0, 1.0]))
    task, shards = LinearRegression(samples), shard(samples, [np.array([0]), np.array([1])])
    learnt = federate(task, shards, rule="mean", rounds=3, step=1e-100)  # w leaves 0, and gradients the numbers
    assert [row.rejected for row in learnt.history] == [0, 1, 1]
    assert np.isfinite(learnt.w).all()


# What the adversary knows


@pytest.mark.parametrize(
    ("rule", "threshold", "expected"),
    [
        ("huber(threshold=0.5)", None, lambda _: np.full(M, 0.5)),
        ("huber(threshold=by_samples(0.1, 2))", None, lambda n: 0.1 + 2 / np.sqrt(n)),
        ("krum(f=2)", 0.7, lambda _: np.full(M, 0.7)),
        ("median", "by_samples(0, 3)", lambda n: 3 / np.sqrt(n)),
        ("huber", 0.7, lambda _: np.full(M, 0.7)),
    ],
)
def test_huber_attack_reckons_with_the_servers_thresholds(rule, threshold, expected):
    task, shards = world()
    attack = "huber_attack" if threshold is None else f"huber_attack(threshold={threshold})"
    common = {"rule": rule, "byzantine": LIARS, "rounds": 3, "step": STEP}
    learnt = federate(task, shards, attack=attack, **common)

    def literal(knowledge: Knowledge):
        told = replace(knowledge, thresholds=expected(shards.counts))
        return ATTACKS["huber_attack"](told)

    np.testing.assert_array_equal(learnt.w, federate(task, shards, attack=literal, **common).w)


@pytest.mark.parametrize("rule", ["huber", "median"])
def test_the_automatic_threshold_is_found_from_the_honest_gradients(rule):
    task, shards = world()
    learnt = federate(task, shards, rule=rule, attack="huber_attack", byzantine=LIARS, rounds=1, step=STEP)
    G = np.array([gradient(np.zeros(D), shards, i) for i in range(M)])
    roots, T = np.sqrt(shards.counts), np.ones(M)
    for _ in range(60):  # T_i = kappa median_j(sqrt(n_j) d_j) / sqrt(n_i), d_j measured at the answer
        distances = np.linalg.norm(G - oracles.huber(G, T, shards.counts), axis=1)
        T = thresholds.KAPPA * np.median(roots * distances) / roots

    def literal(knowledge: Knowledge):
        return ATTACKS["huber_attack"](replace(knowledge, thresholds=T))

    again = federate(task, shards, rule=rule, attack=literal, byzantine=LIARS, rounds=1, step=STEP)
    np.testing.assert_allclose(learnt.w, again.w, atol=1e-5)


def test_an_attack_that_declares_it_gets_the_servers_thresholds():
    task, shards = world()
    seen = []

    @needs_thresholds
    def spy(knowledge: Knowledge):
        seen.append(knowledge.thresholds)
        return knowledge.honest[knowledge.byzantine]

    common = {"byzantine": LIARS, "rounds": 1, "step": STEP}
    federate(task, shards, rule="huber(threshold=0.5)", attack=spy, **common)
    assert [set(thresholds) for thresholds in seen] == [{0.5}]


def test_attack_parameters_reach_the_attack():
    task, shards = world()
    common = {"rule": "mean", "byzantine": LIARS, "rounds": 2, "step": STEP}
    gentle = federate(task, shards, attack="ipm(scale=0.5)", **common)
    harsh = federate(task, shards, attack="ipm(scale=5.0)", **common)
    assert harsh.history[0].error > gentle.history[0].error


def test_what_makes_no_sense_is_refused():
    task, shards = world()
    with pytest.raises(ValueError, match=r"unknown attack 'sign_flop'. Did you mean 'sign_flip'?"):
        federate(task, shards, attack="sign_flop", byzantine=LIARS, rounds=1, step=STEP)
    with pytest.raises(ValueError, match="needs an attack; met liars = 2"):
        federate(task, shards, byzantine=LIARS, rounds=1, step=STEP)
    with pytest.raises(ValueError, match="bool"):
        federate(task, shards, attack="sign_flip", byzantine=np.array([1, 5]), rounds=1, step=STEP)
    with pytest.raises(ValueError, match="momentum < 1"):
        federate(task, shards, rounds=1, step=STEP, momentum=1.0)
    with pytest.raises(ValueError, match="participation"):
        federate(task, shards, rounds=1, step=STEP, participation=0.0)
    with pytest.raises(TypeError, match="'ruel'"):
        federate(task, shards, rounds=1, step=STEP, ruel="mean")
    with pytest.raises(
        ValueError, match=r"unknown value for settings: 'momentum'.* Known: batch, evaluate_every, rounds"
    ):
        rsa(task, shards, penalty=1.0, rounds=1, step=STEP, momentum=0.9)


# Other tasks, the same loop


def test_any_torch_module_is_learnt(monkeypatch):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    samples = Samples(rng.random((60, 6)).astype(np.float32), rng.integers(0, 3, 60))
    module = torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    theirs = TorchTask(module, lambda x, y: torch.nn.functional.cross_entropy(x, y, reduction="none"), samples)
    ours = Mlp(samples, hidden=5, classes=3)
    shards = shard(samples, balanced(60, M, rng))
    start = theirs.initial(rng)
    monkeypatch.setattr(Mlp, "initial", lambda *_: start)
    common = {"rule": "huber", "attack": "sign_flip", "byzantine": LIARS, "rounds": 5, "step": 0.5}
    for local_steps in (1, 2):
        a, b = (federate(task, shards, **common, local_steps=local_steps) for task in (theirs, ours))
        np.testing.assert_allclose(a.w, b.w, atol=1e-4)
        assert a.history[-1].metrics == pytest.approx(b.history[-1].metrics, abs=1e-4)


# RSA


def literal_rsa(shards, penalty, decay, rounds, lie):
    """Li et al. 2019, Algorithm 1: z_i is what client i says its model is."""
    x_0, x = np.zeros(D), [np.zeros(D) for _ in range(M)]
    for _ in range(rounds):
        z = [lie(x_0, x, i) if LIARS[i] else x[i] for i in range(M)]
        new = x_0 - STEP * (decay * x_0 + penalty * sum(np.sign(x_0 - z[i]) for i in range(M)))
        x = [x[i] - STEP * (gradient(x[i], shards, i) + penalty * np.sign(x[i] - x_0)) for i in range(M)]
        x_0 = new
    return x_0


def test_rsa_literally():
    task, shards = world()
    learnt = rsa(task, shards, penalty=0.05, decay=0.1, attack="sign_flip", byzantine=LIARS, rounds=30, step=STEP)

    def mirrored(x_0, x, i):  # sign_flip of x_0 - x_i
        return x_0 + (x_0 - x[i])

    np.testing.assert_allclose(learnt.w, literal_rsa(shards, 0.05, 0.1, 30, mirrored), rtol=1e-9)
    assert learnt.history[-1].error > 0


def test_rsa_learns_and_a_liar_moves_a_coordinate_by_no_more_than_an_honest_client():
    task, shards = world(cut=balanced)
    common = {"penalty": 0.05, "rounds": 300, "step": STEP}
    honest = rsa(task, shards, **common)
    assert honest.history[-1].metrics["rmse"] < 0.3 * honest.history[0].metrics["rmse"]
    attacked = rsa(task, shards, attack="gaussian", byzantine=LIARS, **common)
    assert attacked.history[-1].error <= 0.05 * 2 * np.sqrt(D) * 2
    assert attacked.history[-1].metrics["rmse"] < 0.5 * honest.history[0].metrics["rmse"]


def test_rsa_leaves_out_what_is_not_finite():
    task, shards = world()
    learnt = rsa(task, shards, penalty=0.05, attack="non_finite", byzantine=LIARS, rounds=3, step=STEP)
    assert np.isfinite(learnt.w).all()
    assert learnt.history[-1].rejected == pytest.approx(2 / M)


def test_rsa_is_read_from_a_spec():
    assert rsa_parameters("rsa(penalty=0.01)") == {"penalty": 0.01}
    assert rsa_parameters("huber") is None
    with pytest.raises(TypeError, match="needs penalty"):
        rsa_parameters("rsa")
    with pytest.raises(TypeError, match=r"unknown parameter 'penlty'. Did you mean 'penalty'?"):
        rsa_parameters("rsa(penlty=1)")


# Resuming


class Stopped(Exception):  # noqa: N818
    pass


def stop_at(t):
    def hear(row):
        if row.round == t:
            raise Stopped

    return hear


def same(a, b):
    assert a.w.tobytes() == b.w.tobytes()
    assert [replace(row, seconds=0) for row in a.history] == [replace(row, seconds=0) for row in b.history]
    if b.weights is None:
        assert a.weights is None
    else:
        assert a.weights.tobytes() == b.weights.tobytes()


EVERYTHING = {
    "memory": {"rule": "huber", "memory": True},
    "plain": {"rule": "huber"},
    "momentum, batches, some asked": {"rule": "huber", "momentum": 0.9, "batch": 2, "participation": 0.6, "certify": 1},
    "a rule that draws": {"rule": "median_of_means(f=2)"},
    "a rule that begins at the last aggregate": {"rule": "centered_clipping"},
    "local steps": {"rule": "median", "local_steps": 2, "batch": 3},
}


@pytest.mark.parametrize("name", EVERYTHING)
@pytest.mark.parametrize("stops", [(1,), (4,), (2, 3, 5)])
def test_a_stopped_run_ends_with_the_same_bits(tmp_path, name, stops):
    task, shards = world()
    common = {"attack": "gaussian", "byzantine": LIARS, "rounds": 6, "step": STEP, "seed": 5, **EVERYTHING[name]}
    whole = federate(task, shards, **common)
    for stop in stops:
        with pytest.raises(Stopped):
            federate(task, shards, **common, checkpoint=tmp_path / "run", on_round=stop_at(stop))
    rounds = []
    resumed = federate(
        task, shards, **common, checkpoint=tmp_path / "run", on_round=lambda row: rounds.append(row.round)
    )
    same(resumed, whole)
    assert rounds == list(range(stops[-1] + 1, 7))
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_stopped_rsa_ends_with_the_same_bits(tmp_path):
    task, shards = world()
    common = {"penalty": 0.05, "attack": "gaussian", "byzantine": LIARS, "rounds": 6, "step": STEP, "batch": 2}
    with pytest.raises(Stopped):
        rsa(task, shards, **common, checkpoint=tmp_path / "run", on_round=stop_at(4))
    same(rsa(task, shards, **common, checkpoint=tmp_path / "run"), rsa(task, shards, **common))


def test_a_truncated_checkpoint_never_counts(tmp_path):
    task, shards = world()
    path = tmp_path / "run"
    common = {"rounds": 4, "step": STEP, "checkpoint": path}
    whole = federate(task, shards, **common)
    data = path.read_bytes()
    for length in (0, 1, 50, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        same(federate(task, shards, **common), whole)
    path.write_bytes(data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 255]) + data[len(data) // 2 + 1 :])
    same(federate(task, shards, **common), whole)


def test_more_rounds_go_on_from_fewer(tmp_path):
    task, shards = world()
    federate(task, shards, rounds=3, step=STEP, checkpoint=tmp_path / "run")
    same(
        federate(task, shards, rounds=6, step=STEP, checkpoint=tmp_path / "run"),
        federate(task, shards, rounds=6, step=STEP),
    )
    with pytest.raises(ValueError, match="past round 2"):
        federate(task, shards, rounds=2, step=STEP, checkpoint=tmp_path / "run")


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"rule": "median"}, {"step": 0.2}, {"attack": "ipm", "byzantine": LIARS}]
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, change):
    task, shards = world()
    common = {"rounds": 2, "step": STEP, "checkpoint": tmp_path / "run"}
    federate(task, shards, **common)
    with pytest.raises(ValueError, match="is of another run"):
        federate(task, shards, **{**common, **change})
    with pytest.raises(ValueError, match="is of another run"):
        federate(*world(seed=1), **common)


# What the server holds itself, and what the adversary knows of it


def test_the_servers_own_samples_make_the_root():
    """fl_trust with the gradient of `root` samples of the truthful clients, literally."""
    task, shards = world()
    learnt = federate(
        task, shards, rule="fl_trust", root=20, attack="sign_flip", byzantine=LIARS, rounds=8, step=STEP, seed=3
    )
    truthful = np.flatnonzero(~LIARS[np.repeat(np.arange(M), shards.counts)])
    held = np.sort(chance(3, Purpose.ROOT).choice(truthful, 20, replace=False))
    w = np.zeros(D)
    for _ in range(8):
        G = np.array([gradient(w, shards, i) for i in range(M)])
        G[LIARS] *= -1
        root = sum((shards.inputs[j] @ w - shards.targets[j]) * shards.inputs[j] for j in held) / 20
        w = w - STEP * oracles.fl_trust(G, root)
    np.testing.assert_allclose(learnt.w, w, rtol=1e-9)
    without = federate(task, shards, rule="fl_trust", attack="sign_flip", byzantine=LIARS, rounds=8, step=STEP, seed=3)
    assert not np.allclose(learnt.w, without.w)


def test_a_root_survives_a_majority_of_liars(tmp_path):
    task, shards = world()
    most = np.arange(M) < 6
    given = {"attack": "sign_flip", "byzantine": most, "step": STEP}
    trusted = federate(task, shards, rule="fl_trust", root=20, rounds=40, **given)
    assert trusted.history[-1].metrics["rmse"] < 0.5
    assert federate(task, shards, rule="huber", rounds=40, **given).history[-1].metrics["rmse"] > 1
    federate(task, shards, rule="fl_trust", root=20, rounds=15, checkpoint=tmp_path / "run", **given)
    resumed = federate(task, shards, rule="fl_trust", root=20, rounds=40, checkpoint=tmp_path / "run", **given)
    assert resumed.w.tobytes() == trusted.w.tobytes()


def test_roots_that_cannot_be():
    task, shards = world()
    for root, rule, message in (
        (20, "huber", "huber needs no root"),
        (0, "fl_trust", "root must be at least 1"),
        (N + 1, "fl_trust", "root <= the samples of the truthful"),
    ):
        with pytest.raises(ValueError, match=message):
            federate(task, shards, rule=rule, root=root, rounds=1, step=STEP)


def test_a_root_that_diverges_ends_nothing():
    task, shards = world()
    learnt = federate(task, shards, rule="fl_trust", root=20, rounds=400, step=50.0)
    assert len(learnt.history) == 400


def test_claims_reach_the_server_and_its_cap():
    task, shards = world(cut=balanced)
    given = {"rule": "mean", "attack": "inflated_samples", "byzantine": LIARS, "rounds": 1, "step": STEP}
    trusting, capping = (federate(task, shards, sample_cap=cap, **given).history[0] for cap in (None, 3.0))
    assert trusting.liar_weight > 0.99
    capped = 2 * 3 * np.median(shards.counts)
    assert capping.liar_weight == pytest.approx(capped / (capped + shards.counts[~LIARS].sum()))
    assert trusting.error > 2 * capping.error


def test_an_attack_that_asks_for_it_is_given_the_servers_rule():
    """With the same chance, start and root as the server itself has: what it foresees is what happens."""
    task, shards = world()
    foreseen = []

    @needs_server
    def prophet(knowledge):
        lies = -knowledge.honest[knowledge.byzantine]
        foreseen.append(knowledge.damage(lies))
        np.testing.assert_array_equal(knowledge.samples, shards.counts)
        return lies

    for rule, more in (
        ("bucketing | median", {}),
        ("median_of_means(f=2)", {}),
        ("centered_clipping(radius=0.1)", {}),
        ("fl_trust", {"root": 10}),
        ("huber", {"sample_cap": 1.5}),
    ):
        foreseen.clear()
        learnt = federate(task, shards, rule=rule, attack=prophet, byzantine=LIARS, rounds=4, step=STEP, **more)
        assert [row.error for row in learnt.history] == pytest.approx(foreseen, rel=1e-9)


def test_an_attack_that_does_not_ask_for_it_is_not_given_the_servers_rule():
    task, shards = world()

    def curious(knowledge):
        assert knowledge.server is None
        return -knowledge.honest[knowledge.byzantine]

    federate(task, shards, attack=curious, byzantine=LIARS, rounds=1, step=STEP)


@pytest.mark.parametrize(
    ("attack", "simple"), [("optimal_alie", "alie"), ("optimal_ipm", "ipm"), ("worst_case", "sign_flip")]
)
def test_searching_attacks_in_a_run(attack, simple):
    task, shards = world()
    given = {"rule": "huber", "byzantine": LIARS, "rounds": 3, "step": STEP}
    worse, plain = (federate(task, shards, attack=name, **given).history[0].error for name in (attack, simple))
    assert worse > 0.999 * plain
    with pytest.raises(ValueError, match="server"):
        rsa(task, shards, penalty=0.1, attack=attack, byzantine=LIARS, rounds=1, step=STEP)


def test_a_guard_follows_a_minority_that_its_samples_know():
    """Four of twelve clients alone see the last input, and no other; the server's samples are of all clients."""
    rng, m = np.random.default_rng(103), 12
    inputs = rng.standard_normal((600, 20)) * ([0.3] * 19 + [0.0])
    inputs[:200] = rng.standard_normal((200, 20)) * ([0.0] * 19 + [2.0])
    samples = Samples(inputs, inputs @ np.ones(20) + 0.01 * rng.standard_normal(600))
    shards = shard(samples, np.array_split(np.arange(600), m))
    common = {"rule": "spectral_huber", "rounds": 20, "step": 0.2, "seed": 1}
    task = LinearRegression(samples)
    plain, guarded = federate(task, shards, **common), federate(task, shards, guard=60, **common)
    assert guarded.history[-1].metrics["loss"] < 0.5 * plain.history[-1].metrics["loss"]
    again = federate(task, shards, guard=60, **common)
    np.testing.assert_array_equal(again.w, guarded.w)


def test_a_guard_needs_losses_and_samples():
    task, shards = world()

    class Bare:
        d, initial, gradients, evaluate = task.d, task.initial, task.gradients, task.evaluate

    with pytest.raises(TypeError, match="the loss on each sample"):
        federate(Bare(), shards, rounds=1, step=STEP, guard=5)
    with pytest.raises(ValueError, match="Lower guard"):
        federate(task, shards, rounds=1, step=STEP, guard=10**6)


def test_losses_are_those_that_are_measured():
    rng = np.random.default_rng(0)
    samples = Samples(rng.random((30, 4)).astype(np.float32), rng.integers(0, 3, 30))
    module = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.ReLU(), torch.nn.Linear(5, 3))
    numbers = world()[0]
    for task, own in (
        (Mlp(samples, hidden=5, classes=3), samples),
        (TorchTask(module, torch.nn.CrossEntropyLoss(reduction="none"), samples), samples),
        (numbers, numbers.samples),
    ):
        w = task.initial(rng) + 0.1
        losses = task.losses(w, own)
        assert losses.shape == (len(own),)
        assert losses.mean() == pytest.approx(task.measure(w, own)["loss"], rel=1e-6)
