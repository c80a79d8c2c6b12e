"""Does a scale that remembers help where clients send gradients and classes are skewed? Accuracies for docs/threshold.md.

    python benchmarks/memory_of_scale.py [--seeds 100 101] [--rules huber "huber, memory" ...] [--worlds ...] [--attacks ...]

Honest clients hold parts of Fashion-MNIST, and send the gradient of one batch of 32 images per round; the liars, a fifth of all
clients, come beside them and hold images of all classes. A row is one run: world, attack, rule, seed, accuracy (the mean of
the last five readings, ten rounds apart).
"""

import argparse
import json
import time

import numpy as np

from fedhold import thresholds
from fedhold.lab import Mlp, Samples, balanced, by_class, dirichlet, fashion_mnist, federate, shard

ROUNDS, STEP, BATCH, HIDDEN = 300, 0.3, 32, 32
SAMPLES, TESTED = 12_000, 2_000


def minority(labels, m, rng):
    """A quarter of the clients hold the last three classes, and nobody else does."""
    few = np.flatnonzero(labels >= 7)
    many = np.flatnonzero(labels < 7)
    return [many[p] for p in balanced(len(many), m - m // 4, rng)] + [few[p] for p in balanced(len(few), m // 4, rng)]


WORLDS = {
    "label-sorted": (20, lambda labels, m, rng: by_class(labels, m, rng, shards=1)),
    "one class each": (10, lambda labels, m, _: [np.flatnonzero(labels == k) for k in range(m)]),
    "two classes each": (20, by_class),
    "Dirichlet .1": (20, lambda labels, m, rng: dirichlet(labels, m, rng, alpha=0.1)),
    "a quarter holds three classes": (20, minority),
}
ATTACKS = (None, "ipm", "ipm(scale=10)", "alie", "label_flip", "sign_flip", "mimic")
RULES = (
    "mean",
    "huber",
    "spectral_huber",
    "huber, memory",
    "spectral_huber, memory",
    *(f"centered_clipping(radius={radius}, iterations=1)" for radius in (1.0, 3.0, 10.0)),
    *(f"huber(threshold={T})" for T in (0.3, 1.0, 3.0)),
)


def taken(samples, rows):
    """Some images, of 14 x 14 pixels."""
    pooled = samples.inputs[rows].reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4))
    return Samples(pooled.reshape(-1, 196).astype(samples.inputs.dtype), samples.targets[rows])


def run(data, world, attack, rule, seed):
    """The accuracy at the end of one federation."""
    rng = np.random.default_rng([seed, list(WORLDS).index(world)])
    chosen = taken(data.train, np.sort(rng.choice(len(data.train), SAMPLES, replace=False)))
    tested = taken(data.test, np.arange(TESTED))
    honest, deal = WORLDS[world]
    parts = deal(chosen.targets, honest, rng)
    liars = 0 if attack is None else honest // 4
    parts += [rng.choice(SAMPLES, SAMPLES // honest, replace=False) for _ in range(liars)]
    name, _, memory = rule.partition(", memory")
    if ":" in memory:
        thresholds.DECAY, thresholds.MOST = map(float, memory.removeprefix(":").split("/"))
    done = federate(
        Mlp(tested, hidden=HIDDEN),
        shard(chosen, parts),
        attack=attack,
        byzantine=None if attack is None else np.arange(honest + liars) >= honest,
        rule=name,
        memory=", memory" in rule,
        rounds=ROUNDS,
        step=STEP,
        batch=BATCH,
        seed=seed,
        evaluate_every=10,
    )
    read = [row.metrics["accuracy"] for row in done.history if row.metrics]
    return float(np.mean(read[-5:]))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", nargs="+", type=int, default=[100, 101])
    parser.add_argument("--rules", nargs="+", default=RULES)
    parser.add_argument("--worlds", nargs="+", default=list(WORLDS))
    parser.add_argument("--attacks", nargs="+", default=ATTACKS)
    asked = parser.parse_args()
    data = fashion_mnist()
    for seed in asked.seeds:
        for world in asked.worlds:
            for rule in asked.rules:
                for attack in asked.attacks:
                    attack = None if attack == "none" else attack
                    began = time.perf_counter()
                    accuracy = round(run(data, world, attack, rule, seed), 4)
                    seconds = round(time.perf_counter() - began, 1)
                    print(json.dumps([world, attack or "none", rule, seed, accuracy, seconds]), flush=True)


if __name__ == "__main__":
    main()
