"""Peak memory beside the input: under a quarter of it, in whatever form it came. `benchmarks/memory.py` tells how much."""

import tracemalloc

import numpy as np
import pytest

from fedhold import aggregate

M, D, F = 500, 25_450, 99  # the paper's federation: one matrix of all pairs in float64 is 4 % of it
QUARTER = M * D  # bytes

RULES = (
    *(
        "mean",
        "spectral_huber",
        "huber",
        "geometric_median",
        "median",
        f"trimmed_mean(f={F})",
        f"krum(f={F})",
        f"multi_krum(f={F})",
    ),
    *(f"bulyan(f={F})", f"nearest_neighbour_mixing(f={F}) | trimmed_mean(f={F})"),
)


@pytest.fixture(scope="module")
def forms():
    X = np.random.default_rng(0).standard_normal((M, D), dtype=np.float32)
    X[: M // 5] += 2
    broken = X.copy()
    broken[-1] = np.nan
    return {"matrix": X, "around an offset": X + 3, "list": list(X), "one rejected": broken}


@pytest.mark.parametrize("rule", ["mean", "huber", "median"])
def test_few_clients_of_narrow_floats_cost_three_updates(rule):
    """The centre in float32, which is as large as two of them, and the value."""
    X = np.random.default_rng(0).standard_normal((4, 2_500_000), dtype=np.float32).astype(np.float16)
    aggregate(X, rule)
    tracemalloc.start()
    try:
        aggregate(X, rule)
        assert tracemalloc.get_traced_memory()[1] < 3.2 * X[0].nbytes
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", ["matrix", "around an offset", "list", "one rejected"])
@pytest.mark.parametrize("rule", RULES)
def test_no_copy_of_the_input(forms, rule, form):
    _ = aggregate(forms[form], rule).certificate  # once for what is imported and compiled
    tracemalloc.start()
    try:
        result = aggregate(forms[form], rule)
        if rule in ("huber", "spectral_huber"):
            assert 0 < result.certificate.radius(F) < np.inf
        assert tracemalloc.get_traced_memory()[1] < QUARTER
    finally:
        tracemalloc.stop()
