"""Peak memory beside the input, as a share of the input, for each rule and form of input.

    python benchmarks/memory.py [--m 50] [--d 1000000]

Promised: under 25 % for huber and its certificate, geometric_median, median, trimmed_mean, krum, multi_krum, bulyan, and
nearest-neighbour mixing before trimmed_mean, when m >= 50.
"""

import argparse
import tracemalloc

import numpy as np

from fedhold import aggregate

RULES = (
    *("mean", "huber", "huber + certificate", "geometric_median", "median", "trimmed_mean(f={f})", "krum(f={f})"),
    *("multi_krum(f={f})", "bulyan(f={f})", "nearest_neighbour_mixing(f={f}) | trimmed_mean(f={f})"),
)


def peak(updates, rule, f):
    """The most bytes that the call has allocated at a time; `f` is the number of liars for rules that need it."""
    tracemalloc.start()
    result = aggregate(updates, rule.partition(" + ")[0].format(f=f))
    if rule.endswith("certificate"):
        result.certificate.radius(f)
    top = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return top


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--m", type=int, default=50)
    parser.add_argument("--d", type=int, default=1_000_000)
    options = parser.parse_args()
    X = np.random.default_rng(0).standard_normal((options.m, options.d), dtype=np.float32)
    X[: options.m // 5] += 0.5
    forms = {
        "matrix": X,
        "list": list(X),
        "dicts": [{"a": x[: options.d // 2], "b": x[options.d // 2 :]} for x in X],
        "one rejected": np.concatenate([X[:-1], np.full((1, options.d), np.nan, np.float32)]),
    }
    print(f"m = {options.m}, d = {options.d:,}, float32: {X.nbytes / 1e6:,.0f} MB")
    print("| rule |" + "".join(f" {form} |" for form in forms))
    print("|---|" + "---|" * len(forms))
    for rule in RULES:
        peak(X, rule, (options.m - 4) // 5)  # One call before: imports must not count.
        shares = [peak(updates, rule, (options.m - 4) // 5) / X.nbytes for updates in forms.values()]
        print(
            f"| {rule.replace('(f={f})', '').replace(' |', ',')} |" + "".join(f" {share:.1%} |" for share in shares),
            flush=True,
        )


if __name__ == "__main__":
    main()
