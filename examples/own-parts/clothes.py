"""Parts of one's own, one function each: a network, a rule, an attack and a partition, tried on images of clothes.

`grid.toml` beside this file names them as clothes:cnn, clothes:nearest_neighbours, and so on. Run it with
`fedhold run examples/own-parts/grid.toml`.
"""

import numpy as np
import torch
from torch import nn

from fedhold.rules import by_columns, declares


def cnn(*, width=8):
    """A model: two convolutions and a linear layer. Cross-entropy is the usual loss; `return module, loss` sets another."""
    return nn.Sequential(
        nn.Unflatten(1, (1, 28, 28)),  # a sample comes as a row of 784 pixels from 0 to 1
        nn.Conv2d(1, width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * width * 7 * 7, 10),
    )


@declares(pairs=True)  # so that the distances between all pairs come out of the first pass over the updates
def nearest_neighbours(geometry, *, f):
    """A rule that weighs clients: the mean of the m - f that are nearest to each other in the median."""
    typical = np.median(geometry.squared_distances, axis=1)
    nearest = np.argsort(typical, kind="stable")[: geometry.m - f]
    return np.isin(np.arange(geometry.m), nearest) / len(nearest)


@by_columns
def interquartile_mean(block):
    """A rule that maps a block of columns to a row: the mean of the middle half of every column."""
    cut = len(block) // 4
    return np.sort(block, axis=0)[cut : len(block) - cut].mean(axis=0)


def sign_majority(geometry):
    """A rule that looks at whole updates in blocks: clients whose share of positive numbers is far from the median are out."""
    share = geometry.sum_over_columns(lambda block, _: (block > 0).sum(axis=1)) / geometry.d
    off = abs(share - np.median(share))
    agrees = off <= 3 * np.median(off) + 1e-3
    return agrees / agrees.sum()


def hidden_push(knowledge, *, spread=0.5):
    """An attack: all liars half a standard deviation from the honest mean, against its sign."""
    honest = knowledge.benign
    row = honest.mean(axis=0) - spread * np.sign(knowledge.mean) * honest.std(axis=0)
    return np.broadcast_to(row, (knowledge.f, row.size))


def one_favourite(labels, m, rng, *, share=0.5):
    """A partition: client i gets this share of its samples from class i mod 10, and the rest from all classes."""
    order = rng.permutation(len(labels))
    mine = [[] for _ in range(m)]
    for sample in order:
        fans = range(int(labels[sample]), m, 10)
        favoured = len(fans) > 0 and rng.random() < share
        mine[fans[rng.integers(len(fans))] if favoured else rng.integers(m)].append(sample)
    return [np.array(part) for part in mine]


def few_clothes(*, samples=1000):
    """Data: samples to train and to test on, each a torch Dataset, or simply (inputs, targets)."""
    from fedhold.lab import fashion_mnist

    images = fashion_mnist()
    chosen = torch.as_tensor(images.train.inputs[:samples]), torch.as_tensor(images.train.targets[:samples])
    return torch.utils.data.TensorDataset(*chosen), (images.test.inputs[:2000], images.test.targets[:2000])
