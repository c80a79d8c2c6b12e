"""The NVFlare aggregator, driven as NVFlare's FedAvg does, with its own classes."""

import numpy as np
import pytest
import torch
from nvflare.app_common.abstract.fl_model import FLModel, ParamsType
from nvflare.app_common.utils.fl_model_utils import FLModelUtils
from nvflare.app_opt.pt.lazy_tensor_dict import LazyTensorDict
from safetensors.torch import save_file

from fedhold import aggregate
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
    model, told = round_of(RobustAggregator(rule), results)
    assert np.abs(model.params["w"] - 1).max() < 0.3
    assert model.params["w"].dtype == np.float32
    assert model.params["steps"] == 7
    assert model.metrics["loss"] == pytest.approx(0.5)
    assert not any("site-3" in line for line in told)
    if name in NAMED:
        assert sum("site-2" in line for line in told) == 1
        assert sum("site-7" in line for line in told) == 1


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
    assert [line.split(" ")[0] for line in told] == ["site-4"]


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


def test_differences_are_divided_by_their_steps():
    """A client that went three times as far in three times the steps counts as the others, but by its samples."""

    def difference(i, steps=10):
        row = {"w": np.full((3, 2), 0.1 * steps, np.float32)}
        return FLModel(
            params_type=ParamsType.DIFF,
            params=row,
            meta={"client_name": f"site-{i}", "NUM_STEPS_CURRENT_ROUND": steps},
        )

    model, told = round_of(RobustAggregator(steps=True), [difference(0, 30), *map(difference, range(1, M))])
    np.testing.assert_allclose(model.params["w"], 1, rtol=1e-6)
    assert told == []
    model, told = round_of(RobustAggregator(steps=True), [honest(i) for i in range(M)])
    assert (model.params["w"] == 0).all()
    assert told == ["the model is kept: steps divide differences, and clients sent whole models. Send differences."]


def test_the_scale_goes_on_from_round_to_round():
    aggregator = RobustAggregator("huber", memory=True)
    round_of(aggregator, [honest(i) for i in range(M)])
    first = aggregator.scale
    round_of(aggregator, [honest(0) for _ in range(M)])
    assert aggregator.scale == 0
    aggregator.scale = 2 * first
    round_of(aggregator, [honest(i) for i in range(M)])
    assert first < aggregator.scale <= 2 * first
    with pytest.raises(TypeError, match="median remembers no scale"):
        RobustAggregator("median", memory=True)
