"""Specs: the text of a stage says all of its parameters, and is read back to the same stage."""

import numpy as np
import pytest

from fedhold import MIXINGS, RULES, aggregate, thresholds
from fedhold.lab import ATTACKS
from fedhold.rules import declaration_of
from fedhold.spec import THRESHOLDS, Part, function_named, parse

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


# Names

MEANT = {
    **{"trmean": "trimmed_mean", "TrMean": "trimmed_mean", "trimmedmean": "trimmed_mean", "cwtm": "trimmed_mean"},
    **{"fedavg": "mean", "FedAvg": "mean", "cwmed": "median", "coordinate_median": "median"},
    **{"meamed": "mean_around_median", "mda": "minimum_diameter_averaging", "rfa": "geometric_median"},
    **{"geomed": "geometric_median", "gmm": "median_of_means", "caf": "covariance_agnostic_filter"},
    **{"cge": "comparative_gradient_elimination", "dnc": "divide_and_conquer", "multi-krum": "multi_krum"},
    **{"multikrum": "multi_krum", "cc": "centered_clipping", "fltrust": "fl_trust", "foolsgold": "fools_gold"},
    **{"signguard": "sign_guard", "nnm": "nearest_neighbour_mixing", "arc": "adaptive_clipping"},
}


@pytest.mark.parametrize(("name", "meant"), MEANT.items())
def test_a_name_from_the_literature_leads_to_its_rule_and_is_no_spelling_of_it(name, meant):
    with pytest.raises(ValueError, match=rf"unknown rule .*Did you mean '{meant}'\?") as problem:
        function_named(name, "rule", RULES)
    assert ("is a mixing: write it before a rule" in str(problem.value)) == (meant in MIXINGS)


@pytest.mark.parametrize("spec", ["multi-krum(f=1)", "multi krum", "nnm(f=1) | multi-krum", "Multi-Krum(f=1)"])
def test_other_signs_between_the_words_of_a_name(spec):
    with pytest.raises(ValueError, match=r"Did you mean '(multi_krum|nearest_neighbour_mixing)'\? "):
        aggregate(np.eye(7), spec)


def test_no_two_rules_have_one_name_in_the_literature():
    known = {**RULES, **MIXINGS}
    names = [name.replace("_", "") for rule in known for name in (rule, *declaration_of(known[rule]).also_known_as)]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("name", ["maen", "meann", "means", "trmeen", "fedagv", "fool_gold", "fools_gld"])
def test_letters_alone_lead_to_no_rule_that_is_not_robust(name):
    with pytest.raises(ValueError, match="unknown rule") as problem:
        aggregate(np.eye(3), name)
    assert "'mean'" not in str(problem.value)
    assert "Did you mean 'fools_gold'" not in str(problem.value)


def test_a_rule_in_place_of_a_mixing():
    with pytest.raises(ValueError, match=r"unknown mixing 'median'\. Known.*it is a rule: write it last"):
        aggregate(np.eye(3), "median | median")
    with pytest.raises(ValueError, match=r"unknown rule 'screen'\. Known.*it is a mixing: write it before a rule"):
        aggregate(np.eye(3), "bucketing | screen")


def test_other_registries_suggest_by_letters():
    with pytest.raises(ValueError, match=r"unknown attack 'imp'\. Did you mean 'ipm'"):
        function_named("imp", "attack", ATTACKS)


# Parts


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("ipm", Part("ipm", {})),
        (" ipm( scale = 2 ) ", Part("ipm", {"scale": 2})),
        ("mine:ring(sides=[1, 2])", Part("mine:ring", {"sides": [1, 2]})),
        ("mnist(hidden=-4, name='a:b(c=1)')", Part("mnist", {"hidden": -4, "name": "a:b(c=1)"})),
        ("huber(threshold=inf)", Part("huber", {"threshold": np.inf})),
    ],
)
def test_a_part_is_read_and_written(text, part):
    assert Part.read(text, "part") == part
    assert Part.read(str(part), "part") == part if "inf" not in text else str(part) == text


DEEP = ["ipm(scale=" + "-" * depth + "1)" for depth in (300, 900, 5000)]


@pytest.mark.parametrize(
    "text", [*DEEP, "ipm(2)", "ipm(scale=1, scale=2)", "ipm(**x)", "ipm.x", "a | b", "ipm(", "", "ipm(scale=x)"]
)
def test_what_is_no_part_is_refused(text):
    with pytest.raises(ValueError, match=r"cannot read .*Write"):
        Part.read(text, "attack")
