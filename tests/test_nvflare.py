"""The NVFlare aggregator, driven as NVFlare's FedAvg does, with its own classes."""

import inspect
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


def aggregate_of(aggregator, results):
    """What the aggregator makes of the results, and what was logged."""
    told = []
    aggregator.warning = told.append
    for result in results:
        aggregator.accept_model(result)
    return aggregator.aggregate_model(), told


def on_disk(result, folder, damaged=False):
    """A result whose tensors NVFlare's server left on disk."""
    file = folder / "tensors.safetensors"
    folder.mkdir()
    save_file({name: torch.as_tensor(np.asarray(array)) for name, array in result.params.items()}, file)
    if damaged:
        file.write_bytes(b"no tensors")
    lazy = LazyTensorDict({name: (str(file), name) for name in result.params}, str(folder))
    return FLModel(
        params_type=result.params_type,
        params={name: lazy.make_lazy_ref(name) for name in result.params},
        meta=result.meta,
    )


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

    made, told = aggregate_of(
        RobustAggregator(), (on_disk(honest(i), tmp_path / f"{i}", damaged=i == 4) for i in range(M))
    )
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
    with pytest.raises(ValueError, match="groups='adaptors' is unknown"):
        RobustAggregator(groups="adaptors")


def test_a_job_keeps_every_argument(tmp_path):
    """NVFlare writes a job from attributes: an argument that is kept under another name would be lost in silence."""
    given = {
        "rule": "krum",
        "parameters": {"f": 2},
        "sample_cap": None,
        "steps": True,
        "memory": True,
        "seed": 3,
        "byzantine": 1,
        "audit": "/srv/audit.jsonl",
        "quorum": 0.25,
        "asked": 7,
        "groups": {"down": "*.lora_A.*", "up": ["*.lora_B.*"]},
        "exclude": ["head.*"],
        "check_model": OpenMetrics("/srv/check"),  # stands for an object of the user's own, as NVFlare can make again
        "guard": OpenMetrics("/srv/guard"),
        "on_round": OpenMetrics("/srv/metrics.prom"),
    }
    assert set(given) == set(inspect.signature(RobustAggregator).parameters)
    objects = {name: value.path for name, value in given.items() if isinstance(value, OpenMetrics)}
    remade = {
        n: {"path": "fedhold.audit.openmetrics.OpenMetrics", "args": {"path": path}} for n, path in objects.items()
    }
    # memory has one scale, and groups have one each
    for left_out in ({"memory"}, {"groups", "exclude"}):
        asked = {name: value for name, value in given.items() if name not in left_out}
        asked["rule"], asked["parameters"] = ("huber", {}) if "memory" in asked else ("krum", {"f": 2})
        written = FedJobConfig("job", 1)._get_args(RobustAggregator(**asked), str(tmp_path))
        assert written == {**asked, **remade}


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


@pytest.mark.parametrize(("liars", "outcome"), [((2, 7, 8), "aggregated"), ((), "kept")])
def test_with_byzantine_told_most_of_those_who_answer_must_be_honest(liars, outcome):
    """Flower's arithmetic: 7 of 10 that answer withstand 3 liars, but not 4; and whoever is rejected is one of those feared."""
    rounds = []
    results = [NONSENSE["NaN"](i) if i in liars else honest(i) for i in range(M if liars else 7)]
    _, told = aggregate_of(RobustAggregator(byzantine=4, asked=10, on_round=rounds.append), results)
    assert (rounds[0].outcome, rounds[0].quorum["usable"]) == (outcome, 7)
    assert rounds[0].quorum["needed"] == (6 if liars else 9)
    assert any("more than twice the liars feared, 4" in line for line in told) == (not liars)


def test_what_watches_ends_nothing():
    def fails(_):
        raise RuntimeError("no disk")

    model, told = round_of(RobustAggregator(on_round=fails), [honest(i) for i in range(M)])
    assert model.params["w"].any()
    assert "on_round raised RuntimeError: no disk" in told[-1]


def parts(i, kind=ParamsType.FULL, tensors=False, low=0.0):
    """A model with a variance and a head; `low` is subtracted from one variance."""
    rng = np.random.default_rng(i)
    params = {"w": rng.standard_normal(20), "running_var": 0.01 + 0.001 * rng.random(3), "head.w": rng.random(2)}
    params["running_var"][0] -= low
    params = {name: array.astype(np.float32) for name, array in params.items()}
    params = {name: torch.from_numpy(array).requires_grad_() for name, array in params.items()} if tensors else params
    return FLModel(params_type=kind, params=params, meta={"client_name": f"site-{i}"})


@pytest.mark.parametrize("form", ["arrays", "tensors", "disk"])
@pytest.mark.parametrize("groups", [None, {"statistics": "running*"}])
def test_variances_stay_positive(form, groups, tmp_path):
    results = [parts(i, tensors=form == "tensors", low=0.3 * (i == 2)) for i in range(M)]
    if form == "disk":
        results = [on_disk(one, tmp_path / f"{i}") for i, one in enumerate(results)]
    rounds = []
    model, told = aggregate_of(RobustAggregator("mean", groups=groups, on_round=rounds.append), results)
    assert 0.01 < model.params["running_var"][0] < 0.011
    assert isinstance(model.params["running_var"], np.ndarray if form == "arrays" else torch.Tensor)
    assert "Round 1: raised 1 numbers" in told[0]
    assert rounds[0].corrected == 1
    wanted = None if groups is None else {"statistics": "kept", "rest": "kept"}
    assert [row.groups for row in rounds[0].nodes] == [wanted] * M


def test_heads_stay_where_clients_send_differences():
    made, _ = aggregate_of(RobustAggregator(exclude="head.*"), [parts(i, ParamsType.DIFF) for i in range(M)])
    assert set(made.params) == {"w", "running_var"}
    before = parts(99)
    after = FLModelUtils.update_model(parts(99), made)
    np.testing.assert_array_equal(after.params["head.w"], before.params["head.w"])
    assert (after.params["w"] != before.params["w"]).all()
    for aggregator in (RobustAggregator(exclude="head.*"), RobustAggregator(steps=True)):
        made, told = aggregate_of(aggregator, [parts(i) for i in range(M)])
        assert made.params == {}
        assert "needs the differences from the model that was sent. Let clients send these." in told[-1]


@pytest.mark.parametrize("given", [{"groups": {"head": "heads.*"}}, {"exclude": ["heads.*"]}])
def test_a_pattern_that_fits_nothing_is_told(given):
    liar = FLModel(params_type=ParamsType.DIFF, params={"heads.w": np.ones(2)}, meta={"client_name": "liar"})
    made, told = aggregate_of(RobustAggregator(**given), [liar, *(parts(i, ParamsType.DIFF) for i in range(M))])
    assert made.params == {}
    assert "'heads.*' matches no array of the model. Its arrays are w, running_var, head.w" in told[-1]


@pytest.mark.parametrize("check", [lambda _: False, lambda params: params["none"]])
def test_a_model_that_fails_is_not_adopted(check):
    rounds = []
    model, told = round_of(RobustAggregator(check_model=check, on_round=rounds.append), [honest(i) for i in range(M)])
    np.testing.assert_array_equal(model.params["w"], 0)
    assert "the new model fails check_model" in told[-1]
    assert (rounds[0].outcome, rounds[0].nodes[0].status) == ("kept", "kept")
    model, _ = round_of(RobustAggregator(check_model=lambda params: len(params) == 2), [honest(i) for i in range(M)])
    assert np.abs(model.params["w"] - 1).max() < 0.3
    model, told = round_of(RobustAggregator(check_model=check), [honest(i, ParamsType.DIFF) for i in range(M)])
    assert "check_model needs whole models" in told[-1]


@pytest.mark.parametrize("disk", [False, True])
def test_a_guard_follows_an_honest_minority(disk, tmp_path):
    """Three of ten clients have what the others lack, and the server's own samples say so."""

    def sent(i, folder):
        row = 2.0 * (i < 3) + np.random.default_rng(i).standard_normal(20, np.float32)
        one = FLModel(params={"w": row}, meta={"client_name": f"site-{i}"})
        return on_disk(one, tmp_path / f"{folder}{i}") if disk else one

    def losses(params):
        assert isinstance(params["w"], torch.Tensor if disk else np.ndarray)
        return np.linspace(1, 2, 50) * float((2.0 - params["w"]).mean())

    strict, _ = aggregate_of(RobustAggregator("krum(f=3)"), [sent(i, "strict") for i in range(M)])
    made, _ = aggregate_of(
        RobustAggregator("krum(f=3)", guard=losses, audit=str(tmp_path / "audit.jsonl")),
        [sent(i, "guarded") for i in range(M)],
    )
    assert read(tmp_path / "audit.jsonl")[0].guard["taken"] != "rule"
    assert float(made.params["w"].mean()) > float(strict.params["w"].mean()) + 0.1
    _, told = aggregate_of(RobustAggregator(guard=lambda _: [np.nan]), [honest(i) for i in range(M)])
    assert "Round 1: the guard failed for rule" in told[-1]


def difference(i, steps=10):
    return FLModel(
        params_type=ParamsType.DIFF,
        params={"w": np.full((3, 2), 0.1 * (steps if steps == 30 else 10), np.float32)},
        meta={"client_name": f"site-{i}", "NUM_STEPS_CURRENT_ROUND": steps},
    )


def test_differences_are_divided_by_their_steps():
    """A client that went three times as far in three times the steps counts as the others, but by its samples."""
    model, told = aggregate_of(RobustAggregator(steps=True), [difference(0, 30), *map(difference, range(1, M))])
    np.testing.assert_allclose(model.params["w"], 1, rtol=1e-6)
    assert told == []


@pytest.mark.parametrize(
    "claim", [None, 0, -3, 5e-324, 1e308, float("nan"), float("inf"), "many", [1, 2], 10**400, True]
)
def test_hostile_claims_of_steps(claim):
    results = [difference(i, claim if i in (2, 7) else 10) for i in range(M)]
    if claim is None:
        for i in (2, 7):
            del results[i].meta["NUM_STEPS_CURRENT_ROUND"]
    rounds = []
    model, _ = aggregate_of(RobustAggregator("huber", steps=True, on_round=rounds.append), results)
    np.testing.assert_allclose(model.params["w"], 1, rtol=0.3)
    assert all(rounds[0].nodes[i].reason for i in (2, 7))


def test_the_scale_goes_on_from_round_to_round():
    rounds = []
    aggregator = RobustAggregator("huber", memory=True, on_round=rounds.append)
    forgets = RobustAggregator("huber", on_round=rounds.append)
    for results in (
        [honest(i) for i in range(M)],
        [changed(i, {"w": 1 + 0.3 * (honest(i).params["w"] - 1)}) for i in range(M)],
    ):
        for one in (aggregator, forgets):
            round_of(one, results)
    first, same, remembered, forgotten = (one.scale for one in rounds)
    assert first == same > remembered > forgotten > 0
    with pytest.raises(TypeError, match="median remembers no scale"):
        RobustAggregator("median", memory=True)
    with pytest.raises(TypeError, match="memory is about one geometry"):
        RobustAggregator("huber", memory=True, exclude="head.*")


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
