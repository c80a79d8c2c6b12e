"""What a guard of a few samples is worth where honest clients differ, on Fashion-MNIST: accuracy in percent.

    python benchmarks/guard.py minority          # 20 clients, of whom five alone hold three classes; four others lie
    python benchmarks/guard.py dirichlet         # ten clients, a CNN, Dirichlet .1, one local epoch; two flip labels
    python benchmarks/guard.py minority --seeds 103 104

The server holds 100 samples. docs/choose.md has the tables.
"""

from __future__ import annotations

import argparse
import os
import time

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np

from fedhold import aggregate
from fedhold.lab import Knowledge, Mlp, Samples, dirichlet, fashion_mnist, federate, shard

M, LIARS, MINORITY, HELD = 20, 4, 5, 100
RULES = {"mean": {}, "huber": {}, "spectral_huber": {}, "guarded": {"rule": "spectral_huber", "guard": HELD}}


def hidden_push(knowledge: Knowledge, *, length: float = 1.0) -> np.ndarray:
    """Every liar's own honest answer, pushed against the truth by a typical client's distance from the mean."""
    truth, typical = knowledge.truth, float(np.linalg.norm(knowledge.benign.std(axis=0)))
    push = length * typical / max(float(np.linalg.norm(truth)), 1e-30) * truth
    return (knowledge.honest[knowledge.byzantine] - push).astype(knowledge.honest.dtype)


ATTACKED = ("sign_flip", "ipm(scale=0.1)", "ipm(scale=0.5)", "alie", "label_flip", hidden_push)


def minority(seed: int, rounds: int, samples: int) -> dict[str, dict[str, float]]:
    """The five hold only the three classes, and nobody else holds any of them. Ten local steps of SGD, a small MLP."""
    rng, data = np.random.default_rng(seed), fashion_mnist()
    kept = rng.permutation(len(data.train))[:samples]
    train = Samples(data.train.inputs[kept], data.train.targets[kept])
    rare = np.isin(train.targets, rng.permutation(10)[:3])
    few, many = rng.permutation(np.flatnonzero(rare)), rng.permutation(np.flatnonzero(~rare))
    shards = shard(train, [*np.array_split(few, MINORITY), *np.array_split(many, M - MINORITY)])
    lying = np.zeros(M, bool)
    lying[MINORITY + rng.permutation(M - MINORITY)[:LIARS]] = True
    task = Mlp(Samples(data.test.inputs[:4000], data.test.targets[:4000]))
    common = {"rounds": rounds, "step": 0.1, "batch": 32, "local_steps": 10, "seed": seed, "evaluate_every": rounds}
    found: dict[str, dict[str, float]] = {}
    for attack in (None, *ATTACKED):
        name = "nobody lies" if attack is None else getattr(attack, "__name__", attack)
        for rule, given in RULES.items():
            lies = {} if attack is None else {"attack": attack, "byzantine": lying}
            learnt = federate(task, shards, **{"rule": rule, **common, **given, **lies})
            found.setdefault(rule, {})[name] = 100 * learnt.history[-1].metrics["accuracy"]
    return found


def flippers(seed: int, rounds: int, samples: int) -> dict[str, dict[str, float]]:
    """The setting of a published table (Lolli, Ferretti 2025), with fewer images and rounds: clients 3 and 5 flip labels."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    data, rng = fashion_mnist(), np.random.default_rng(seed)

    def pixels(rows: np.ndarray) -> torch.Tensor:
        unit = 255 if rows.dtype == np.uint8 else 1
        return ((torch.from_numpy(rows.astype(np.float32)) / unit - 0.1307) / 0.3081).reshape(-1, 1, 28, 28)

    order = rng.permutation(len(data.train))
    held, kept = order[:HELD], order[HELD : HELD + samples]
    inputs, labels = data.train.inputs[kept], data.train.targets[kept].astype(np.int64)
    parts = dirichlet(labels, 10, rng, alpha=0.1)
    shards = [rng.permutation(part)[: max(1, int(0.8 * len(part)))] for part in parts]
    own, classes = pixels(data.train.inputs[held]), torch.from_numpy(data.train.targets[held].astype(np.int64))
    tested, right = pixels(data.test.inputs), torch.from_numpy(data.test.targets.astype(np.int64))

    def network() -> nn.Module:
        first = nn.Sequential(nn.Conv2d(1, 16, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
        second = nn.Sequential(nn.Conv2d(16, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2))
        return nn.Sequential(first, second, nn.Flatten(), nn.Linear(1568, 128), nn.ReLU(), nn.Linear(128, 10))

    torch.manual_seed(seed)
    net = network()
    first = nn.utils.parameters_to_vector(net.parameters()).detach()

    def outputs(w: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
        nn.utils.vector_to_parameters(w, net.parameters())
        with torch.no_grad():
            return torch.cat([net(part) for part in images.split(1000)])

    def trained(w: torch.Tensor, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        nn.utils.vector_to_parameters(w.clone(), net.parameters())
        steps = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
        for batch in torch.randperm(len(images)).split(32):
            top, left = (int(n) for n in torch.randint(0, 9, (2,)))  # a crop and a flip that a batch shares
            x = nn.functional.pad(images[batch], (4,) * 4, value=-0.1307 / 0.3081)[
                :, :, top : top + 28, left : left + 28
            ]
            x = x.flip(-1) if torch.rand(()) < 0.5 else x
            steps.zero_grad()
            nn.functional.cross_entropy(net(x), targets[batch]).backward()
            steps.step()
        return nn.utils.parameters_to_vector(net.parameters()).detach().clone()

    def guard(w: np.ndarray) -> np.ndarray:
        return nn.functional.cross_entropy(outputs(torch.from_numpy(w), own), classes, reduction="none").numpy()

    found: dict[str, dict[str, float]] = {}
    given = {"mean": {"sample_cap": None}, "spectral_huber": {}, "guarded": {"guard": guard}}
    for name, liars in (("nobody lies", ()), ("two flip labels", (3, 5))):
        images = [pixels(inputs[part]) for part in shards]
        targets = [torch.from_numpy(labels[part]) for part in shards]
        for i in liars:
            targets[i] = torch.where((targets[i] == 2) | (targets[i] == 9), targets[i], 2)
        for rule, more in given.items():
            torch.manual_seed(seed)
            w, taken = first, []
            for _ in range(rounds):
                sent = np.stack([trained(w, x, y).numpy() for x, y in zip(images, targets, strict=True)])
                called = "spectral_huber" if rule == "guarded" else rule
                result = aggregate(sent, called, samples=[len(part) for part in shards], **more)
                w = torch.from_numpy(result.value)
                taken += [result.guard.taken] if result.guard else []
            found.setdefault(rule, {})[name] = 100 * float((outputs(w, tested).argmax(1) == right).float().mean())
            if taken:
                print(name, seed, {one: taken.count(one) for one in dict.fromkeys(taken)}, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("setting", choices=["minority", "dirichlet"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[100, 101, 102])
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--samples", type=int)
    given = parser.parse_args()
    measure = flippers if given.setting == "dirichlet" else minority
    rounds = given.rounds or (15 if measure is flippers else 60)
    samples, began = given.samples or (10_000 if measure is flippers else 12_000), time.perf_counter()
    tables = [measure(seed, rounds, samples) for seed in given.seeds]
    columns = list(tables[0]["mean"])
    print(f"| {rounds} rounds, seeds {given.seeds} | {' | '.join(columns)} | worst |")
    print("|---|" + "---|" * (len(columns) + 1))
    for rule in tables[0]:
        means = [float(np.mean([table[rule][column] for table in tables])) for column in columns]
        print(f"| {rule} | {' | '.join(f'{mean:.1f}' for mean in means)} | {min(means[1:]):.1f} |")
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
