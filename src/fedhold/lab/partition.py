"""Partitions: which client holds which samples, as m arrays of indices; every sample once, no client empty."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import integer, positive, require

Indices = NDArray[np.intp]
Labels = NDArray[Any] | Sequence[int]


def balanced(labels: Labels | int, m: int, rng: np.random.Generator) -> list[Indices]:
    """Shuffle, then deal out equally.

    n_i = N/m; where m does not divide N, the first N mod m clients hold one sample more.

    labels  the class of every sample, or the number of samples
    m       the number of clients
    rng     the generator that shuffles

    Needs 1 <= m <= N.  Paper, section 7.1.

    >>> [part.size for part in balanced(10, 4, np.random.default_rng(0))]
    [3, 3, 2, 2]
    """
    total = _count("balanced", labels, m)
    return np.array_split(rng.permutation(total), m)


def random_cuts(labels: Labels | int, m: int, rng: np.random.Generator) -> list[Indices]:
    """Shuffle, then cut at m - 1 random places: n_i/N follows a Beta(1, m - 1) law (the paper says Beta(1, m)).

    0 = b_0 < b_1 < ... < b_m = N; client i holds the shuffled samples b_i <= j < b_(i+1).

    labels  the class of every sample, or the number of samples
    m       the number of clients
    rng     the generator that shuffles and cuts

    Needs 1 <= m <= N.  Paper, section 7.3; its cuts come from 0..N-1 and its last inequality reads j <= b_(i+1), which
    leaves client 0 empty when 0 is drawn and gives a sample at a cut to two clients. Ours come from 1..N-1.

    >>> sum(part.size for part in random_cuts(10, 4, np.random.default_rng(0)))
    10
    """
    total = _count("random_cuts", labels, m)
    shuffled = rng.permutation(total)
    cuts = np.sort(rng.choice(total - 1, size=m - 1, replace=False)) + 1
    return np.split(shuffled, cuts)


def dirichlet(labels: Labels, m: int, rng: np.random.Generator, *, alpha: float = 0.5) -> list[Indices]:
    """Divide every class among the clients in random proportions of its own.

    p_c ~ Dirichlet(alpha, ..., alpha) for each class c; client i gets the share p_ci of the class's samples.

    labels  the class of every sample
    m       the number of clients
    rng     the generator that decides
    alpha   the smaller, the fewer classes a client has; a large one gives every client all classes

    Needs 1 <= m <= N and alpha > 0.  Yurochkin et al. 2019; Hsu et al. 2019. There a client may stay empty, or everything is
    drawn again until none is; here every client first gets one sample, drawn from all classes.

    >>> labels = np.repeat([0, 1], 50)
    >>> sum(part.size for part in dirichlet(labels, 4, np.random.default_rng(0), alpha=0.1))
    100
    """
    given = _labels("dirichlet", labels, m)
    alpha = positive(alpha, "dirichlet's alpha")
    shuffled = rng.permutation(given.size)
    first, rest = shuffled[:m], shuffled[m:]
    held: list[list[Indices]] = [[sample] for sample in np.split(first, m)]
    for label in np.unique(given):
        members = rest[given[rest] == label]
        # The last piece ends with the class by construction: the shares may sum to 1 with a rounding error.
        cuts = (np.cumsum(rng.dirichlet(np.full(m, alpha)))[:-1] * members.size).astype(np.intp)
        for mine, piece in zip(held, np.split(members, cuts), strict=True):
            mine.append(piece)
    return [np.concatenate(mine) for mine in held]


def by_class(labels: Labels, m: int, rng: np.random.Generator, *, shards: int = 2) -> list[Indices]:
    """Sort by label, cut into equal shards and deal out `shards` of them to each client: few classes per client.

    m * shards pieces of N / (m * shards) samples, or one more.

    labels  the class of every sample
    m       the number of clients
    rng     the generator that shuffles and deals
    shards  how many pieces a client gets; with 1 nearly every client sees one class

    Needs m >= 1, shards >= 1 and m * shards <= N.  McMahan et al. 2017, section 3.

    >>> labels = np.repeat([0, 1, 2, 3], 5)
    >>> sorted(labels[part].tolist() for part in by_class(labels, 4, np.random.default_rng(0), shards=1))
    [[0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [2, 2, 2, 2, 2], [3, 3, 3, 3, 3]]
    """
    given = _labels("by_class", labels, m)
    integer(shards, "by_class's shards", at_least=1)
    require(
        m * shards <= given.size,
        "by_class",
        needs="m * shards <= N",
        remedy="Ask for fewer shards or fewer clients.",
        m=m,
        shards=shards,
        N=given.size,
    )
    # Shuffled before the stable sort, so that the samples of a class are dealt to shards at random too.
    shuffled = rng.permutation(given.size)
    pieces = np.array_split(shuffled[np.argsort(given[shuffled], kind="stable")], m * shards)
    return [np.concatenate([pieces[k] for k in hand]) for hand in rng.permutation(m * shards).reshape(m, shards)]


PARTITIONS: dict[str, Callable[..., list[Indices]]] = {
    function.__name__: function for function in (balanced, random_cuts, dirichlet, by_class)
}


def _count(name: str, labels: Labels | int, m: int) -> int:
    total = int(labels) if isinstance(labels, int | np.integer) else len(labels)
    integer(m, f"{name}'s m", at_least=1)
    remedy = "Use fewer clients or more samples."
    require(m <= total, name, needs="m <= N, so that no client is empty", remedy=remedy, m=m, N=total)
    return total


def _labels(name: str, labels: Labels, m: int) -> NDArray[Any]:
    given = np.asarray(labels)
    require(
        given.ndim == 1 and given.dtype.kind in "iub",
        name,
        needs="one integer label per sample",
        remedy="Without classes use balanced or random_cuts.",
        shape=given.shape,
        dtype=given.dtype,
    )
    _count(name, given, m)
    return given
