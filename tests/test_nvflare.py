"""The NVFlare aggregator, driven as NVFlare's FedAvg does, with its own classes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_opt.pt.lazy_tensor_dict import LazyTensorDict
from nvflare.job_config.fed_job_config import FedJobConfig
from safetensors.torch import save_file

from fedhold import aggregate
from fedhold.audit import OpenMetrics, read, standings
from fedhold.nvflare import RobustAggregator

M = 10


def honest(i, kind=ParamsType.FULL):
    rng = np.random.default_rng(i)
    params = {"w": (1 + 0.1 * rng.standard_normal((3, 2))).astype(np.float32), "steps": np.array(7)}
    meta = {"client_name": f"site-{i}", "NUM_STEPS_CURRENT_ROUND": 50 + i}
    return FLModel(params_type=kind, params=params, metrics={"loss": 0.5, "note": "text"}, meta=meta)


def changed(i, params=None, meta=None, metrics=None, kind=ParamsType.FULL):
    good = honest(i)
    return FLModel(
        params_type=kind,
        params={**good.params, **params} if isinstance(params, dict) else params or good.params,
        metrics=good.metrics if metrics is None else metrics,
        meta={**good.meta, **(meta or {})},
    )


NONSENSE = {
    "NaN": lambda i: changed(i, {"w": np.full((3, 2), np.nan)}),
    "shape": lambda i: changed(i, {"w": np.ones(6)}),
    "extra": lambda i: changed(i, {"x": np.ones(6)}),
    "missing": lambda i: FLModel(params={"w": np.ones((3, 2))}, meta=honest(i).meta),
    "objects": lambda i: changed(i, {"w": np.array([[None] * 2] * 3)}),
    "words": lambda i: changed(i, {"w": "words"}),
    "no dict": lambda i: changed(i, "words"),
    "difference": lambda i: changed(i, kind=ParamsType.DIFF),
    "far": lambda i: changed(i, {"w": np.full((3, 2), -1e30)}),
    "huge claim": lambda i: changed(i, {"w": np.full((3, 2), -5.0)}, {"NUM_STEPS_CURRENT_ROUND": 1e12}),
    "NaN claim": lambda i: changed(i, meta={"NUM_STEPS_CURRENT_ROUND": float("nan")}),
    "text claim": lambda i: changed(i, meta={"NUM_STEPS_CURRENT_ROUND": "many"}),
    "list claim": lambda i: changed(i, meta={"NUM_STEPS_CURRENT_ROUND": [1, 2]}),
    "NaN metric": lambda i: changed(i, metrics={"loss": float("nan")}),
    "huge metric": lambda i: changed(i, metrics={"loss": 10**400}),
    "odd metric": lambda i: changed(i, metrics={"loss": [1], "more": 2}),
}
NAMED = set(NONSENSE) - {"far"}


def round_of(aggregator, results):
    """One round, as FedAvg.run has it; and what was logged."""
    told = []
    aggregator.warning = told.append
    aggregator.reset_stats()
    for result in results:
        aggregator.accept_model(result)
    model = FLModel(params={"w": np.zeros((3, 2), np.float32), "steps": np.array(6)})
    return FLModelUtils.update_model(model, aggregator.aggregate_model()), told


@pytest.mark.parametrize("rule", ["huber", "median", "krum(f=2)"])
@pytest.mark.parametrize("name", NONSENSE)
def test_survives(name, rule):
    results = [NONSENSE[name](i) if i in (2, 7) else honest(i) for i in range(M)]
    rounds = []
    model, told = round_of(RobustAggregator(rule, on_round=rounds.append), results)
    assert np.abs(model.params["w"] - 1).max() < 0.3
    assert model.params["w"].dtype == np.float32
    assert model.params["steps"] == 7
    assert model.metrics["loss"] == pytest.approx(0.5)
    assert not any("site-3" in line for line in told)
    rows = {row.node: row for row in rounds[0].nodes}
    assert len(rows) == M
    for site in ("site-2", "site-7") if name in NAMED else ():
        assert rows[site].reason
        assert sum(site in line for line in told) == (
            rows[site].status != "dropped"
        )  # A weight of 0 is no news in the log.


def test_differences_are_added():
    model, _ = round_of(RobustAggregator("median"), [honest(i, ParamsType.DIFF) for i in range(M)])
    assert model.params["steps"] == 13
    np.testing.assert_allclose(
        model.params["w"], np.median([honest(i).params["w"] for i in range(M)], axis=0), rtol=1e-6
    )


@pytest.mark.parametrize("results", [[], [changed(i, {"w": np.full((3, 2), np.nan)}) for i in range(M)]])
def test_nothing_good_keeps_the_model(results):
    model, told = round_of(RobustAggregator(), results)
    np.testing.assert_array_equal(model.params["w"], 0)
    assert "the model is kept" in told[-1]


def test_tensors_that_nvflare_left_on_disk_are_read(tmp_path):
    """As its server hands them over with enable_tensor_disk_offload. A file that cannot be read costs its client the round."""

    def on_disk(i):
        file = tmp_path / f"{i}" / "tensors.safetensors"
        file.parent.mkdir()
        good = honest(i)
        save_file({name: torch.from_numpy(np.asarray(array)) for name, array in good.params.items()}, file)
        if i == 4:
            file.write_bytes(b"no tensors")
        lazy = LazyTensorDict({name: (str(file), name) for name in good.params}, str(file.parent))
        return FLModel(params={name: lazy.make_lazy_ref(name) for name in good.params}, meta=good.meta)

    aggregator, told = RobustAggregator(), []
    aggregator.warning = told.append
    for i in range(M):
        aggregator.accept_model(on_disk(i))
    made = aggregator.aggregate_model()
    expected = aggregate([honest(i).params for i in range(M) if i != 4], samples=[50 + i for i in range(M) if i != 4])
    np.testing.assert_allclose(made.params["w"].numpy(), expected.value["w"], rtol=1e-5)
    assert ["site-4 rejected: its tensors on disk cannot be read" in line for line in told] == [True]
    assert not list(tmp_path.glob("*/*"))  # The references are gone, and with them the files.


def test_the_order_of_arrival_does_not_matter():
    results = [honest(i) for i in range(M)]
    one, two = (round_of(RobustAggregator("bucketing | huber", seed=1), r)[0] for r in (results, results[::-1]))
    np.testing.assert_array_equal(one.params["w"], two.params["w"])


def test_draws_repeat_with_a_seed_alone_and_differ_from_round_to_round():
    results = [honest(i) for i in range(M)]

    def rounds(**given):
        aggregator = RobustAggregator("median_of_means(f=1)", **given)
        return np.array([round_of(aggregator, results)[0].params["w"] for _ in range(4)])

    np.testing.assert_array_equal(rounds(seed=1), rounds(seed=1))
    assert not np.array_equal(rounds(), rounds())
    assert len(np.unique(rounds(seed=1), axis=0)) > 1


def test_bad_rules_are_told_at_once():
    with pytest.raises(ValueError, match="Did you mean 'huber'"):
        RobustAggregator("hubert")


def test_a_job_keeps_every_argument(tmp_path):
    """NVFlare writes a job from attributes: an argument that is kept under another name would be lost in silence."""
    given = {
        "rule": "krum",
        "parameters": {"f": 2},
        "sample_cap": None,
        "seed": 3,
        "byzantine": 1,
        "audit": "/srv/audit.jsonl",
        "quorum": 0.25,
        "asked": 7,
        "on_round": OpenMetrics("/srv/metrics.prom"),
    }
    written = FedJobConfig("job", 1)._get_args(RobustAggregator(**given), str(tmp_path))
    assert written == {
        **given,
        "on_round": {"path": "fedhold.audit.openmetrics.OpenMetrics", "args": {"path": "/srv/metrics.prom"}},
    }


def test_audit_and_suspects(tmp_path):
    """Over rounds the liars become suspects; the audit has weights, quorum and certificate as Flower's strategy writes them."""
    path = tmp_path / "audit.jsonl"
    aggregator = RobustAggregator("huber", audit=str(path))
    for _ in range(3):
        round_of(aggregator, [NONSENSE["far" if i == 7 else "NaN"](i) if i in (2, 7) else honest(i) for i in range(M)])
    assert aggregator.suspects == ["site-2", "site-7"]
    rounds = read(path)
    assert [record.round for record in rounds] == [1, 2, 3]
    assert [one.node for one in standings(rounds) if one.is_suspect] == ["site-2", "site-7"]
    last = rounds[-1]
    assert last.quorum == {"asked": M, "usable": M - 1, "needed": 6}
    assert last.certificate["f"] == 1
    assert last.metrics["train"]["loss"] == pytest.approx(0.5)
    assert sum(row.weight or 0 for row in last.nodes) == pytest.approx(1)


@pytest.mark.parametrize(("sites", "kept"), [(10, False), (19, False), (20, True)])
def test_a_round_below_its_quorum_keeps_the_model(sites, kept):
    rounds = []
    model, told = round_of(RobustAggregator(asked=sites, on_round=rounds.append), [honest(i) for i in range(M)])
    assert (rounds[0].outcome == "kept") == kept == (not model.params["w"].any())
    assert any("the model is kept" in line and "quorum" in line for line in told) == kept


def test_what_watches_ends_nothing():
    def fails(_):
        raise RuntimeError("no disk")

    model, told = round_of(RobustAggregator(on_round=fails), [honest(i) for i in range(M)])
    assert model.params["w"].any()
    assert "on_round raised RuntimeError: no disk" in told[-1]


def test_the_example_runs_in_the_simulator(tmp_path):
    """Real processes of NVFlare: both liars become suspects, and the others' model is adopted."""
    example = Path(__file__).parents[1] / "examples" / "nvflare"
    for name in ("job.py", "client.py"):
        text = (example / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("SITES, ROUNDS = 8, 3", "SITES, ROUNDS = 5, 1"), encoding="utf-8")
    command = [sys.executable, str(tmp_path / "job.py"), str(tmp_path / "run")]
    subprocess.run(command, check=True, capture_output=True, timeout=500)
    (record,) = read(tmp_path / "run" / "audit.jsonl")
    assert record.outcome == "aggregated"
    assert [one.node for one in standings([record]) if one.is_suspect][:2] == ["site-1", "site-2"]
    assert "fedhold_round" in (tmp_path / "run" / "metrics.prom").read_text(encoding="utf-8")
