"""Who is told what became of a round: the log, the result, names of nodes, and functions of the user's own."""

import logging
import re
from dataclasses import replace

import numpy as np
import pytest
from flwr.app import ConfigRecord

from fedhold.audit.records import read
from fedhold.flower import RobustStrategy
from flower_grid import FIRST, SILENT, LocalGrid, client_app, model
from flower_liars import with_arrays, with_content

M = 10
FLIPS = with_arrays(lambda a: {"w": -30 * a["w"] - 9})
NAN = with_arrays(lambda a: {"w": a["w"] * np.nan})


def run(strategy, bad=None, rounds=3, m=M):
    return strategy.start(LocalGrid(client_app(), m, bad), model(), num_rounds=rounds, timeout=0.25)


@pytest.fixture
def log(caplog):
    logging.getLogger("flwr").propagate = True
    with caplog.at_level(logging.INFO, "flwr"):
        yield caplog


def calls_itself(name, key="node-name"):
    return with_content(lambda content: {**content, "config": ConfigRecord({key: name})})


# The log and the result


def test_one_line_per_round_names_the_suspects_without_an_audit(log):
    """The flipper sends sound numbers, so nothing is rejected, and only its weight tells."""
    run(RobustStrategy("huber", fraction_evaluate=0.0), {4: FLIPS})
    lines = [line for line in log.messages if "suspects so far" in line]
    assert lines == [f"Round {t}: 1 of 10 nodes held down; suspects so far: 1 of 10: {FIRST + 4}" for t in (1, 2, 3)]


def test_where_nobody_is_held_down_nobody_is_named(log):
    run(RobustStrategy("huber", fraction_evaluate=0.0), rounds=1)
    assert "Round 1: 0 of 10 nodes held down; suspects so far: 0 of 10" in log.messages


def test_a_large_federation_does_not_fill_the_log(log):
    run(RobustStrategy(fraction_evaluate=0.0), dict.fromkeys(range(40), NAN), rounds=1, m=100)
    (line,) = [line for line in log.messages if "suspects so far" in line]
    found = re.match(r"Round 1: (\d+) of 100 nodes held down; suspects so far: \1 of 100: ", line)
    assert found, line
    held = int(found[1])
    assert 40 <= held < 50  # those who lie, and a few of the others
    assert line.endswith(f"and {held - 10} more")
    told = [line for line in log.messages if "not finite" in line]
    assert len(told) == 10
    assert "Round 1: and 30 nodes more, which the record of the round has" in log.messages


def test_the_result_carries_the_records_of_the_audit(tmp_path):
    result = run(RobustStrategy(audit=tmp_path / "a"), {4: FLIPS})
    again = run(RobustStrategy(), {4: FLIPS})
    assert [record.round for record in again.records] == [1, 2, 3]
    written = read(tmp_path / "a")
    assert [record.nodes for record in result.records] == [record.nodes for record in written]
    unhashed = [tuple(replace(row, update=None) for row in record.nodes) for record in written]
    assert [record.nodes for record in again.records] == unhashed
    assert [(one.node, one.held) for one in again.suspects] == [(str(FIRST + 4), 3)]
    assert "Global Arrays" in str(again)  # Flower's own text


def test_a_resumed_run_knows_its_suspects_and_its_records(tmp_path, log):
    def strategy(**more):
        return RobustStrategy(checkpoint=tmp_path / "c", fraction_evaluate=0.0, **more)

    run(strategy(audit=tmp_path / "a"), {4: FLIPS})
    log.clear()
    grid = LocalGrid(client_app(), M)
    result = strategy(audit=tmp_path / "a").resume(grid, num_rounds=4)
    assert f"Round 4: 0 of 10 nodes held down; suspects so far: 1 of 10: {FIRST + 4}" in log.messages
    assert [record.round for record in result.records] == [1, 2, 3, 4]
    (tmp_path / "a").write_text("no audit\n")
    result = strategy(audit=tmp_path / "a").resume(grid, num_rounds=5)
    assert [record.round for record in result.records] == [5]
    assert any("The rounds before are not in the result" in line for line in log.messages)


def test_records_in_memory_are_bounded(monkeypatch):
    monkeypatch.setattr("fedhold.flower.state.MOST_ROWS", 2 * M)
    assert [record.round for record in run(RobustStrategy(), rounds=5).records] == [4, 5]


# Names


def test_nodes_are_called_what_they_call_themselves(tmp_path):
    evil = calls_itself("clinic\x1b[2J\n" + 300 * "x")
    names = {
        0: calls_itself("north"),
        1: evil,
        2: calls_itself(7),
        3: calls_itself(" "),
        4: calls_itself("other", key="k"),
    }
    result = run(RobustStrategy(audit=tmp_path / "a"), names, rounds=1)
    called = {int(row.node) - FIRST: row.name for row in read(tmp_path / "a")[0].nodes}
    assert called[0] == "north"
    assert called[1] == "clinic [2J " + 26 * "x" + "..."
    assert [called[i] for i in range(2, M)] == 8 * [None]
    assert result.records[0].nodes[0].name == "north"


def test_a_name_is_known_in_rounds_in_which_the_node_says_nothing(tmp_path, log):
    north = calls_itself("north")

    def sometimes(message, honest):
        return north(message, honest) if message.content["config"]["server-round"] == 1 else SILENT

    def strategy():
        return RobustStrategy(audit=tmp_path / "a", checkpoint=tmp_path / "c", fraction_evaluate=0.0)

    grid = LocalGrid(client_app(), M, {0: sometimes})
    strategy().start(grid, model(), num_rounds=2, timeout=0.25)
    strategy().resume(grid, num_rounds=3, timeout=0.25)
    assert [record.nodes[0].name for record in read(tmp_path / "a")] == 3 * ["north"]
    assert [record.nodes[0].status for record in read(tmp_path / "a")][1:] == 2 * ["rejected"]
    (told,) = [line for line in log.messages if line.startswith("Round 3: ") and "suspects so far" in line]
    assert told.endswith(f"suspects so far: 1 of 10: north ({FIRST})")


def test_another_key_for_names():
    result = run(RobustStrategy(name_key="hospital"), {0: calls_itself("north", key="hospital")}, rounds=1)
    assert result.records[0].nodes[0].name == "north"


# A function of the user's own


def test_the_record_of_every_round_goes_to_on_round(tmp_path):
    seen = []
    result = run(RobustStrategy(on_round=seen.append, audit=tmp_path / "a"), {4: FLIPS})
    assert tuple(seen) == result.records
    assert [record.round for record in seen] == [1, 2, 3]
    assert seen[-1].metrics["evaluate"]["loss"] == result.evaluate_metrics_clientapp[3]["loss"]


def test_what_on_round_raises_ends_nothing(log):
    def fails(record):
        raise ConnectionError(f"no server in round {record.round}")

    assert len(run(RobustStrategy(on_round=fails)).records) == 3
    assert log.messages.count("Round 2: on_round raised") == 1
    assert "no server in round 2" in log.text


def test_a_round_is_told_twice_and_not_never(tmp_path, monkeypatch):
    """A kill between on_round and the checkpoint."""
    seen = []

    def strategy():
        return RobustStrategy(on_round=lambda record: seen.append(record.round), checkpoint=tmp_path)

    class Killed(BaseException):
        pass

    def killed(*args):
        if args[1].round == 2:
            raise Killed
        return save(*args)

    from fedhold.flower.state import save

    monkeypatch.setattr("fedhold.flower.strategy.save", killed)
    with pytest.raises(Killed):
        run(strategy())
    monkeypatch.undo()
    strategy().resume(LocalGrid(client_app(), M), num_rounds=3)
    assert seen == [1, 2, 2, 3]


def test_tensorboard_shows_the_rounds(tmp_path):
    tensorboard = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    torch = pytest.importorskip("torch.utils.tensorboard")
    writer = torch.SummaryWriter(tmp_path)

    def on_round(record):
        for phase, metrics in record.metrics.items():
            for name, value in metrics.items():
                if isinstance(value, float):
                    writer.add_scalar(f"{phase}/{name}", value, record.round)

    result = run(RobustStrategy(on_round=on_round))
    writer.close()
    events = tensorboard.EventAccumulator(str(tmp_path)).Reload()
    shown = {event.step: event.value for event in events.Scalars("train/loss")}
    assert shown == pytest.approx({t: metrics["loss"] for t, metrics in result.train_metrics_clientapp.items()})


def test_mlflow_keeps_the_rounds(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")  # MLflow 3 wants to be told that files are meant
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri((tmp_path / "runs").as_uri())

    def on_round(record):
        for phase, metrics in record.metrics.items():
            mlflow.log_metrics({f"{phase} {k}": v for k, v in metrics.items() if isinstance(v, float)}, record.round)

    with mlflow.start_run() as started:
        result = run(RobustStrategy(on_round=on_round))
    kept = mlflow.MlflowClient().get_metric_history(started.info.run_id, "evaluate loss")
    assert {one.step: one.value for one in kept} == pytest.approx(
        {t: metrics["loss"] for t, metrics in result.evaluate_metrics_clientapp.items()}
    )
