"""Specs: the text of a stage says all of its parameters, and is read back to the same stage."""

import numpy as np
import pytest

from fedhold import aggregate, thresholds
from fedhold.spec import THRESHOLDS, parse

N = np.array([4000.0, 6000.0, 10_000.0])
D = np.array([1.0, 2.0, 30.0])
THEORY = {"sigma": 1.0, "d": 5, "N": 20_000, "delta": 0.05}


@pytest.mark.parametrize(
    "threshold",
    [
        thresholds.by_samples(0, 20),
        thresholds.by_samples(np.float64(5), 2000),
        thresholds.fixed(2),
        thresholds.fixed([1, 2.5, np.inf]),
        thresholds.automatic(),
        thresholds.automatic(kappa=0.5),
        thresholds.from_theory(**THEORY),
        thresholds.from_theory(**THEORY, theorem=3, epsilon=0.1, sigma_mu=0.5),
        "automatic",
        2.0,
        np.float64(2.0),
        np.inf,
        [1.0, np.inf, 3.0],
        np.arange(2000.0),
    ],
    ids=lambda threshold: str(parse("huber", {"threshold": threshold})[0])[:40],
)
def test_a_threshold_in_the_text_of_a_stage_is_read_back(threshold):
    (stage,) = parse("huber", {"threshold": threshold})
    (again,) = parse(str(stage), {})
    assert str(again) == str(stage)
    one, other = (s.parameters["threshold"] for s in (stage, again))
    if callable(threshold):
        np.testing.assert_array_equal(one(D, N), other(D, N))
    else:
        np.testing.assert_array_equal(one, other)


def test_other_parameters_are_another_text():
    texts = {
        str(parse(f"huber(threshold={threshold})", {})[0])
        for threshold in (
            "by_samples(0, 20)",
            "by_samples(5, 2000)",
            "fixed(1)",
            "fixed(2)",
            "automatic(0.5)",
            "automatic()",
        )
    }
    assert len(texts) == 6
    assert "huber(threshold=by_samples(T0=0.0, M=20.0))" in texts


def test_every_threshold_function_is_named_by_its_registry():
    given = {"fixed": (1.0,), "by_samples": (0.0, 1.0), "from_theory": (1.0, 5, 20_000, 0.05)}
    for name, function in THRESHOLDS.items():
        assert function(*given.get(name, ())).__qualname__.startswith(f"{name}(")


def test_functions_of_ones_own_have_their_names():
    class Own:
        def __call__(self, distances, samples):  # noqa: ARG002
            return np.ones_like(distances)

    assert "Own" in aggregate(np.eye(3), "huber", threshold=Own()).rule
    assert str(parse("huber", {"threshold": np.maximum.reduce})[0]) == "huber(threshold=ufunc.reduce)"
