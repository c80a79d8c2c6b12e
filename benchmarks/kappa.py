"""Which kappa? The error of Huber with T_i = kappa * median_j(sqrt(n_j) d_j)/sqrt(n_i), over a grid of worlds and attacks.

    python benchmarks/kappa.py

Clients are means of n_i Gaussian samples around a gradient mu with |mu| = 1 spread. For each world the error |g - mu| is
divided by that of the honest clients' mean, which nobody can beat; the table has the mean and the worst over seeds and worlds.
"""

import itertools

import numpy as np

from fedhold import aggregate, thresholds
from fedhold.lab import ATTACKS, Knowledge

KAPPAS = (0.25, 0.5, 0.6, 0.75, 0.9, 1.0, 1.25, 1.5, 2.0)
WORLDS = list(itertools.product(((100, 20), (100, 1000), (500, 50)), ("equal", "unequal"), (0.1, 0.2, 0.3, 0.4)))
COLLUDE = (0.5, 1.0, 3.0, 100.0)
PAPER = ("sign_flip", "krum_attack", "trimmed_mean_attack", "huber_attack")
SEEDS = 3


def world(m, d, sizes, seed):
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.choice(20 * m - 1, m - 1, replace=False)) if sizes == "unequal" else None
    n = np.full(m, 20.0) if cuts is None else np.diff(cuts, prepend=0, append=20 * m)
    n = np.maximum(n, 1)
    mu = rng.standard_normal(d)
    mu *= np.sqrt(d / 20) / np.linalg.norm(mu)
    return mu + rng.standard_normal((m, d)) / np.sqrt(n)[:, None], n, mu, rng


def lies(honest, n, mu, liars, rng, attack):
    """What all clients send when `liars` follow the attack."""
    sent = honest.copy()
    if isinstance(attack, float):
        spread = np.median(np.linalg.norm(honest - mu, axis=1))
        sent[liars] = mu - attack * spread * mu / np.linalg.norm(mu)
    elif attack is not None:
        mask = np.zeros(len(honest), dtype=bool)
        mask[liars] = True
        T = np.array([row.threshold for row in aggregate(honest, "huber", samples=n, sample_cap=None).clients])
        sent[mask] = ATTACKS[attack](Knowledge(honest=honest, byzantine=mask, rng=rng, thresholds=T))
    return sent


def main():
    ratios = {kappa: {} for kappa in KAPPAS}
    for ((m, d), sizes, eps), seed in itertools.product(WORLDS, range(SEEDS)):
        honest, n, mu, rng = world(m, d, sizes, seed)
        liars = rng.choice(m, int(eps * m), replace=False)
        truthful = np.setdiff1d(np.arange(m), liars)
        floor = np.linalg.norm(n[truthful] @ honest[truthful] / n[truthful].sum() - mu)
        for attack in (None, *PAPER, *COLLUDE):
            sent = lies(honest, n, mu, liars, rng, attack)
            for kappa in KAPPAS:
                g = aggregate(sent, "huber", samples=n, sample_cap=None, threshold=thresholds.automatic(kappa)).value
                ratios[kappa].setdefault((attack, eps), []).append(np.linalg.norm(g - mu) / floor)
    print("| attack | eps |" + "".join(f" {kappa} |" for kappa in KAPPAS))
    print("|---|---|" + "---|" * len(KAPPAS))
    for attack, eps in ratios[KAPPAS[0]]:
        name = "none" if attack is None else attack if isinstance(attack, str) else f"collude at {attack:g} spreads"
        print(f"| {name} | {eps} |" + "".join(f" {np.mean(ratios[kappa][attack, eps]):.2f} |" for kappa in KAPPAS))
    for name, of in (("mean", np.mean), ("worst", np.max)):
        print(
            f"| **{name}** | all |"
            + "".join(f" **{of(np.concatenate(list(ratios[k].values()))):.2f}** |" for k in KAPPAS)
        )


if __name__ == "__main__":
    main()
