"""Passes per solve, over a grid of friendly and hostile clients, with and without Anderson mixing.

python benchmarks/passes.py [--plain]
"""

import argparse

import numpy as np

import fedhold.geometry.solver
from fedhold import aggregate, thresholds

SHAPES = ((500, 2000), (100, 1000), (50, 10), (101, 1), (20, 5000), (10, 3), (3, 2))
KINDS = ("none", "far", "together", "near", "on the centre", "one line", "one point")
RULES = {
    "automatic": {},
    "kappa 0.5": {"threshold": thresholds.automatic(0.5)},
    "kappa 1": {"threshold": thresholds.automatic(1.0)},
    "T = 1": {"threshold": 1.0},
    "T = 0.001": {"threshold": 1e-3},
    "T = 0": {"threshold": 0.0},
}


def clients(kind, m, d, eps, rng):
    """Gaussian clients, a fraction eps of whom lie."""
    X = rng.standard_normal((m, d))
    f = int(eps * m)
    honest = X[f:].mean(axis=0)
    if kind == "far":
        X[:f] = 1e30 * rng.standard_normal((f, d))
    elif kind == "together":
        X[:f] = honest + 3
    elif kind == "near":
        X[:f] = honest + 0.3 * rng.standard_normal(d)
    elif kind == "on the centre":
        X[:f] = honest
    elif kind == "one line":
        X = np.outer(rng.standard_normal(m), rng.standard_normal(d))
    elif kind == "one point":
        X[: m // 2 + 1] = X[-1]
    return X


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plain", action="store_true", help="plain fixed-point steps: no mixing, no Newton")
    if parser.parse_args().plain:
        fedhold.geometry.solver.ALIKE, fedhold.geometry.solver.PATIENCE = np.inf, 10**9
        del RULES["T = 0.001"], RULES["T = 0"]  # thousands of passes: the answer sits on a client
    print("| clients | eps |" + "".join(f" {rule} |" for rule in RULES))
    print("|---|---|" + "---|" * len(RULES))
    worst, everything, open_ = {}, {}, 0
    for kind in KINDS:
        for eps in (0.2, 0.45):
            cells = []
            for rule, parameters in RULES.items():
                counts = []
                for m, d in SHAPES:
                    for dtype in (np.float64, np.float32):
                        X = clients(kind, m, d, eps, np.random.default_rng(m + d)).astype(dtype)
                        result = aggregate(X, "huber", max_iterations=300, **parameters)
                        counts.append(result.iterations)
                        open_ += not result.converged
                everything.setdefault(rule, []).extend(counts)
                worst[rule] = max(worst.get(rule, 0), *counts)
                cells.append(f"{np.mean(counts):.1f}, at most {max(counts)}")
            print(f"| {kind} | {eps} |" + "".join(f" {cell} |" for cell in cells), flush=True)
    print("| **all** | |" + "".join(f" **{np.mean(everything[r]):.1f}, at most {worst[r]}** |" for r in RULES))
    print(
        f"\nNot converged in 300: {open_} of {sum(map(len, everything.values()))}. The first iteration is "
        "also the pass that checks the\nnumbers. One pass more verifies the end where the steps themselves do not prove it."
    )


if __name__ == "__main__":
    main()
