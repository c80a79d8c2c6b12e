"""Peak memory beside the input, in whatever form it came: under a quarter of it, and the tiles that two threads work on.

`benchmarks/memory.py` tells how much.
"""

import tracemalloc

import numpy as np
import pytest
import torch

from fedhold import aggregate

M, D, F = 500, 25_450, 99  # the paper's federation: one matrix of all pairs in float64 is 4 % of it
QUARTER, TILES = M * D, 2**25  # bytes. Tiles and sums do not grow with the columns.

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


def narrow(dtype, m, offset):
    """m clients of 2.5 million numbers, as a NumPy array of float16 or a list of torch's bfloat16."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((m, 2_500_000), dtype=np.float32)
    X += np.float32(offset) * rng.standard_normal(2_500_000, dtype=np.float32)
    return X.astype(np.float16) if dtype == "float16" else [torch.from_numpy(x).to(torch.bfloat16) for x in X]


@pytest.mark.parametrize("offset", [0, 16])
@pytest.mark.parametrize(("dtype", "m"), [("float16", 4), ("float16", 8), ("bfloat16", 8)])
def test_few_clients_in_half_precision_cost_a_few_updates(dtype, m, offset, monkeypatch):
    """A row in float32 is as large as two updates: the centre, its copy for the proof, the value, and what two threads read."""
    monkeypatch.setenv("FEDHOLD_THREADS", "2")
    X, update = narrow(dtype, m, offset), 2 * 2_500_000
    for rule in ("mean", "huber", "spectral_huber", "median", "trimmed_mean(f=1)", "krum(f=0)", "geometric_median"):
        _ = aggregate(X, rule).certificate
        tracemalloc.start()
        try:
            result = aggregate(X, rule)
            assert tracemalloc.get_traced_memory()[1] < 8 * update, rule
            assert tracemalloc.get_traced_memory()[0] < 5.2 * update, rule
            _ = result.certificate
            assert tracemalloc.get_traced_memory()[1] < 10 * update, rule
        finally:
            tracemalloc.stop()


@pytest.mark.parametrize("form", ["matrix", "around an offset", "list", "one rejected"])
@pytest.mark.parametrize("rule", RULES)
def test_no_copy_of_the_input(forms, rule, form, monkeypatch):
    monkeypatch.setenv("FEDHOLD_THREADS", "2")
    _ = aggregate(forms[form], rule).certificate  # once for what is imported and compiled
    tracemalloc.start()
    try:
        result = aggregate(forms[form], rule)
        if rule in ("huber", "spectral_huber"):
            assert 0 < result.certificate.radius(F) < np.inf
        assert tracemalloc.get_traced_memory()[1] < QUARTER + TILES
    finally:
        tracemalloc.stop()
