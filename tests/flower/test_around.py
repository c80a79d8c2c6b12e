"""Other strategies of Flower inside the robust one: their config and their optimisers work, and go on after a kill."""

import logging
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from flwr.app import ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import strategy as flowers
from flwr.serverapp.strategy import FedAdam, FedAvg, FedProx, FedYogi, Krum, Strategy

from fedhold.audit.records import read
from fedhold.flower import RobustStrategy
from fedhold.flower.around import COMBINED, REFUSED, Inner, refusal
from fedhold.flower.state import to_json
from flower_grid import SILENT, LocalGrid, client_app, model
from flower_inside import INSIDE, ROUNDS, M, Own, robust
from flower_liars import with_arrays, with_metrics

FAR = with_arrays(lambda a: {"w": a["w"] - 50})
DEPLOY = Path(__file__).parents[2] / "docs" / "deploy.md"


def run(strategy, bad=None, rounds=ROUNDS, arrays=None, **more):
    grid = LocalGrid(client_app(), M, bad)
    return strategy.start(grid, arrays or model(), num_rounds=rounds, timeout=0.25, **more)


def same(one, other):
    for key in one.arrays:
        a, b = one.arrays[key].numpy(), other.arrays[key].numpy()
        assert (a.dtype, a.shape, a.tobytes()) == (b.dtype, b.shape, b.tobytes())
    assert one.train_metrics_clientapp == other.train_metrics_clientapp
    assert one.evaluate_metrics_clientapp == other.evaluate_metrics_clientapp


# What is combined


@pytest.mark.parametrize("name", INSIDE)
def test_with_the_mean_and_no_cap_it_is_the_strategy_itself(name):
    ours = run(RobustStrategy("mean", sample_cap=None, around=INSIDE[name]()), arrays=model(counter=False))
    theirs = INSIDE[name]().start(LocalGrid(client_app(), M), model(counter=False), num_rounds=ROUNDS)
    for key in theirs.arrays:
        np.testing.assert_allclose(ours.arrays[key].numpy(), theirs.arrays[key].numpy(), rtol=2e-3, atol=1e-5)
    if name not in ("FedAvg", "FedProx"):
        plain = run(RobustStrategy("mean", sample_cap=None), arrays=model(counter=False))
        assert np.abs(plain.arrays["w"].numpy() - ours.arrays["w"].numpy()).max() > 0.01


@pytest.mark.parametrize("name", INSIDE)
def test_a_liar_moves_the_strategy_alone_and_not_ours(name):
    bad = {3: with_metrics({"num-examples": 500}), 5: FAR}
    honest = run(RobustStrategy(around=INSIDE[name]()))
    ours = run(RobustStrategy(around=INSIDE[name]()), bad)
    assert np.abs(ours.arrays["w"].numpy() - honest.arrays["w"].numpy()).max() < 0.15
    if name in ("FedAvg", "FedAvgM", "FedProx", "Own"):  # the adaptive ones bound every step, whichever way it goes
        theirs = INSIDE[name]().start(LocalGrid(client_app(), M, bad), model(counter=False), num_rounds=ROUNDS)
        assert np.abs(theirs.arrays["w"].numpy() - honest.arrays["w"].numpy()).max() > 1


def test_counters_and_masks_are_no_optimisers_business():
    arrays = run(RobustStrategy(around=FedAdam(eta=0.2))).arrays
    assert arrays["steps"].numpy() == 15
    assert arrays["steps"].numpy().dtype == np.int64
    assert arrays["mask"].numpy().tolist() == [True, False]


def test_clients_get_what_fedprox_and_own_strategies_send():
    seen = []

    def look(message, honest):
        seen.append((message.metadata.message_type, dict(message.content["config"])))
        return honest

    grid = LocalGrid(client_app(), M, {0: look})
    RobustStrategy(around=FedProx(proximal_mu=0.3)).start(grid, model(), 1, train_config=ConfigRecord({"lr": 0.1}))
    assert seen == [
        ("train", {"lr": 0.1, "proximal-mu": 0.3, "server-round": 1}),
        ("evaluate", {"server-round": 1}),
    ]
    seen.clear()
    RobustStrategy(around=Own(rate=0.5, fraction_evaluate=0.0)).start(grid, model(), 2)
    assert [config["rate"] for _, config in seen] == [0.5, 0.25]


def test_sampling_is_that_of_the_strategy_inside():
    grid = LocalGrid(client_app(), M)
    inside = FedAdam(fraction_train=0.5, fraction_evaluate=0.2, min_available_nodes=10)
    RobustStrategy(around=inside, seed=1).start(grid, model(), 2)
    assert [len(who) for _, _, who in grid.asked] == [5, 2, 5, 2]
    assert (inside.fraction_train, inside.current_arrays, inside.m_t) == (0.5, None, None)  # a copy was used


def test_an_own_strategy_may_choose_among_those_drawn():
    class Even(FedAvg):
        def configure_train(self, *args):
            return [message for message in super().configure_train(*args) if message.metadata.dst_node_id % 2 == 0]

    grid = LocalGrid(client_app(), M)
    RobustStrategy(around=Even(fraction_evaluate=0.0)).start(grid, model(), 1)
    assert [who for _, _, who in grid.asked] == [[0, 2, 4, 6, 8]]


def test_functions_for_metrics_get_whole_replies():
    def count(records, _):
        return MetricRecord({"nodes": len(records)})

    result = run(RobustStrategy(around=FedAdam(train_metrics_aggr_fn=count, evaluate_metrics_aggr_fn=count)), rounds=1)
    assert result.train_metrics_clientapp[1] == {"nodes": M}
    assert result.evaluate_metrics_clientapp[1] == {"nodes": M}


def test_a_round_that_keeps_the_model_is_no_step(tmp_path):
    """Adam's moments would shrink, or grow, if it were shown an aggregate of nothing."""
    strategy = RobustStrategy(around=FedAdam(), audit=tmp_path / "a", checkpoint=tmp_path / "c")
    silent = {
        i: lambda message, honest: SILENT if message.content["config"]["server-round"] == 2 else honest
        for i in range(6)
    }
    run(strategy, silent, rounds=2)
    assert [record.outcome for record in read(tmp_path / "a")] == ["aggregated", "kept"]
    first = RobustStrategy(around=FedAdam())
    run(first, rounds=1)
    for key, moment in first._inner.strategy.m_t.items():
        np.testing.assert_array_equal(strategy._inner.strategy.m_t[key], moment)


def test_numbers_that_are_not_finite_keep_the_model_and_are_forgotten(tmp_path):
    strategy = RobustStrategy("mean", sample_cap=None, around=FedAdam(), audit=tmp_path / "a")
    huge = with_arrays(lambda a: {"w": a["w"] + np.float32(1e38)})  # its square is beyond float32
    grid = LocalGrid(client_app(), M, {0: lambda m, h: huge(m, h) if m.content["config"]["server-round"] == 2 else h})
    result = strategy.start(grid, model(), num_rounds=3, timeout=0.25)
    records = read(tmp_path / "a")
    assert [record.outcome for record in records] == ["aggregated", "kept", "aggregated"]
    assert records[1].note == "FedAdam made numbers that are not finite of the aggregate"
    assert all(np.isfinite(moment).all() for moment in strategy._inner.strategy.v_t.values())
    assert np.isfinite(result.arrays["w"].numpy()).all()


def test_a_strategy_may_keep_the_model_itself(tmp_path):
    class Picky(FedAvg):
        def aggregate_train(self, server_round, replies):
            arrays, metrics = super().aggregate_train(server_round, replies)
            return (None if server_round == 1 else arrays), metrics

    run(RobustStrategy(around=Picky(), audit=tmp_path / "a"), rounds=2)
    first, second = read(tmp_path / "a")
    assert (first.outcome, first.note, second.outcome) == ("kept", "Picky returned no model", "aggregated")
    assert first.metrics["train"]["loss"] > 0


def test_the_log_says_what_is_inside(caplog):
    with caplog.at_level(logging.INFO, "flwr"):
        logging.getLogger("flwr").propagate = True
        run(RobustStrategy(around=FedAdam(eta=0.25)), rounds=1)
    assert any("Around: FedAdam(eta=0.25" in line for line in caplog.messages)
    assert any("eta (0.25)" in line for line in caplog.messages)


# What is resumed


class Killed(BaseException):
    pass


def deadly(killed_in):
    def reply(message, honest):
        if message.content["config"]["server-round"] == killed_in:
            raise Killed
        return honest

    return reply


@pytest.mark.parametrize("name", INSIDE)
def test_same_bytes_after_a_kill(name, tmp_path):
    def strategy(folder):
        return robust(name, tmp_path / folder)

    whole = strategy("whole")
    result = run(whole)
    for killed_in in (1, 3, 4):
        grid = LocalGrid(client_app(), M, dict.fromkeys(range(M), deadly(killed_in)))
        with pytest.raises(Killed):
            strategy("cut").resume(grid, model(), ROUNDS)
    cut = strategy("cut")
    same(result, cut.resume(LocalGrid(client_app(), M), model(), ROUNDS))
    one, other = (json_of(inner) for inner in (whole._inner, cut._inner))
    assert one == other


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """Checkpoints of processes that were killed with SIGKILL in round 3."""
    folder = tmp_path_factory.mktemp("killed")
    here = Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))}
    subprocess.run([sys.executable, here / "flower_inside.py", folder], check=True, timeout=300, env=environment)
    return folder


@pytest.mark.parametrize("name", INSIDE)
def test_same_bytes_after_kill_9_in_another_process(name, folders, tmp_path):
    whole = run(robust(name, tmp_path))
    grid = LocalGrid(client_app(), M)
    same(whole, robust(name, folders / name).resume(grid, model(), ROUNDS))
    assert [t for kind, t, _ in grid.asked if kind == "train"] == [3, 4, 5]


def json_of(inner):
    """All that a strategy inside remembers, with its arrays as bytes."""
    arrays = []
    notes = to_json(inner.memory(), arrays)
    return notes, [(array.dtype, array.shape, array.tobytes()) for array in arrays]


def test_another_strategy_or_setting_is_another_run(tmp_path):
    run(RobustStrategy(around=FedAdam(eta=0.2), checkpoint=tmp_path, seed=0), rounds=1)
    for other in (FedAdam(eta=0.3), FedYogi(eta=0.2), None):
        with pytest.raises(ValueError, match="of another run: it had around 'FedAdam"):
            RobustStrategy(around=other, checkpoint=tmp_path).resume(LocalGrid(client_app(), M), model(), 2)
    plain = tmp_path / "plain"
    run(RobustStrategy(checkpoint=plain), rounds=1)
    with pytest.raises(ValueError, match="it had around None, now 'FedAdam"):
        RobustStrategy(around=FedAdam(), checkpoint=plain).resume(LocalGrid(client_app(), M), model(), 2)


def test_another_start_begins_with_an_empty_memory():
    strategy = RobustStrategy(around=FedAdam(), seed=0)
    same(run(strategy, rounds=2), run(strategy, rounds=2))


def test_what_a_checkpoint_cannot_hold_is_told(tmp_path):
    class Odd(FedAvg):
        def aggregate_train(self, *args):
            self.cache = object()
            return super().aggregate_train(*args)

    assert run(RobustStrategy(around=Odd()), rounds=1).train_metrics_clientapp  # nothing is lost without a checkpoint
    with pytest.raises(TypeError, match=r"Odd.cache is a object, which a checkpoint cannot hold.*run without"):
        run(RobustStrategy(around=Odd(), checkpoint=tmp_path), rounds=1)


# What is refused


def test_every_strategy_of_flower_is_combined_or_refused_with_the_reason():
    kinds = {name: kind for name in flowers.__all__ if issubclass(kind := getattr(flowers, name), Strategy)}
    combined = {name for name, kind in kinds.items() if refusal(kind) is None}
    assert combined == {"FedAdagrad", "FedAdam", "FedAvg", "FedAvgM", "FedProx", "FedYogi"}
    assert kinds.keys() - combined - {"Strategy"} <= REFUSED.keys()
    assert combined <= set(COMBINED)
    table = DEPLOY.read_text(encoding="utf-8")
    for name in kinds.keys() - {"Strategy"}:
        assert f"`{name}`" in table, f"docs/deploy.md does not say whether {name} can be combined"


class Median(flowers.FedMedian):
    pass


class OwnLoop(FedAvg):
    def start(self, *args, **more):
        return super().start(*args, **more)


def private(name):
    return getattr(flowers, name)(FedAvg(), 1.0, 1.0, 5)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Krum(num_malicious_nodes=1), r"cannot be put around Krum: it aggregates robustly.*'krum\(f="),
        (lambda: flowers.MultiKrum(num_malicious_nodes=1, num_nodes_to_select=2), "'multi_krum"),
        (lambda: flowers.Bulyan(num_malicious_nodes=1), "'bulyan"),
        (lambda: flowers.FedTrimmedAvg(), "'trimmed_mean"),
        (Median, "cannot be put around Median: it aggregates robustly"),
        (lambda: flowers.QFedAvg(client_learning_rate=0.1), "a liar chooses its own weight"),
        (lambda: flowers.FedXgbBagging(), "trees"),
        (lambda: flowers.FedXgbCyclic(), "trees"),
        (lambda: private("DifferentialPrivacyServerSideFixedClipping"), "noise and its accounting"),
        (lambda: private("DifferentialPrivacyClientSideFixedClipping"), "LocalDpMod"),
        (lambda: RobustStrategy(), "one robust strategy is enough"),
        (OwnLoop, "a `start` of its own"),
        (lambda: "FedAdam", "must be a strategy of Flower"),
    ],
)
def test_what_cannot_be_combined_is_refused(make, told):
    with pytest.raises(TypeError, match=told):
        RobustStrategy(around=make())


def test_a_strategy_that_flower_adds_is_refused_until_it_is_known(monkeypatch):
    new = type("FedNew", (FedAvg,), {"__module__": "flwr.serverapp.strategy.fednew"})
    with pytest.raises(TypeError, match="does not know what it does"):
        RobustStrategy(around=new())
    monkeypatch.setattr("fedhold.flower.around.COMBINED", (*COMBINED, "FedNew"))
    assert Inner(new()).name == "FedNew()"


@pytest.mark.parametrize("bases", [(RobustStrategy, FedAdam), (FedAdam, RobustStrategy), (RobustStrategy, Own)])
def test_a_class_of_two_strategies_is_an_error_that_tells_the_remedy(bases):
    with pytest.raises(
        TypeError, match=r"would never be called. Put one around the other: RobustStrategy\(rule, around="
    ):
        type("R", bases, {})


def test_a_subclass_of_ours_is_none_of_that():
    class Ours(RobustStrategy):
        pass

    assert run(Ours(around=FedAdam()), rounds=1).train_metrics_clientapp


def test_arguments_of_fedavg_belong_to_the_strategy_inside():
    with pytest.raises(TypeError, match="give fraction_train to FedAdam"):
        RobustStrategy(around=FedAdam(), fraction_train=0.5)


def test_a_strategy_that_sends_different_things_is_refused():
    class Personal(FedAvg):
        def _construct_messages(self, record, node_ids, message_type):
            return [
                Message(
                    RecordDict({**record, "config": ConfigRecord({"i": i})}),
                    dst_node_id=node,
                    message_type=message_type,
                )
                for i, node in enumerate(node_ids)
            ]

    with pytest.raises(ValueError, match=r"must send the same two records, 'arrays' and 'config'.*not the same to all"):
        run(RobustStrategy(around=Personal()), rounds=1)

    class More(FedAvg):
        def _construct_messages(self, record, node_ids, message_type):
            return super()._construct_messages(RecordDict({**record, "more": ConfigRecord()}), node_ids, message_type)

    with pytest.raises(ValueError, match=r"it sent \['arrays', 'config', 'more'\]"):
        run(RobustStrategy(around=More()), rounds=1)


def test_a_strategy_that_loses_an_array_is_told():
    class Loses(FedAvg):
        def aggregate_train(self, *args):
            arrays, metrics = super().aggregate_train(*args)
            del arrays["b"]
            return arrays, metrics

    with pytest.raises(ValueError, match=r"Loses returned no array 'b' of shape \(\)"):
        run(RobustStrategy(around=Loses()), rounds=1)
