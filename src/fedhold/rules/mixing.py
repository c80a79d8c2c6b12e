"""Mixing: what may be done to the clients before a rule sees them. Each function gives the matrix that makes the new rows.

In a spec a mixing stands before the rule: "nearest_neighbour_mixing(f=10) | trimmed_mean(f=10)".
"""

from __future__ import annotations

import numpy as np

from fedhold.errors import integer, positive
from fedhold.geometry import Geometry, Solved
from fedhold.kernels import Matrix, Vector
from fedhold.rules.declaration import Bound, declares
from fedhold.rules.m_estimators import huber, means_of

__all__ = ["adaptive_clipping", "bucketing", "clipping", "nearest_neighbour_mixing", "screen"]


@declares(pairs=True, bound=Bound(2, 1), source="Allouah et al. 2023", also_known_as=("nnm", "nearest_neighbor_mixing"))
def nearest_neighbour_mixing(geometry: Geometry, *, f: int) -> Matrix:
    """Replace each client by the mean of its m - f nearest clients, itself included.

    f  how many liars to withstand

    >>> from fedhold import aggregate
    >>> updates = np.array([[1.0], [1.1], [1.2], [99.0]])
    >>> aggregate(updates, "nearest_neighbour_mixing(f=1) | median").value.round(1)
    array([1.1])

    Needs m >= 2f + 1.  Allouah et al. 2023 (NNM).
    """
    f, m = integer(f, "f"), geometry.m
    squares = geometry.squared_distances
    farthest = np.partition(squares, m - f - 1, axis=1)[:, m - f - 1, None]
    nearer, ties = squares < farthest, squares == farthest
    room = m - f - nearer.sum(axis=1, keepdims=True)
    # Ties go to the lower index.
    among = nearer | (ties & (np.cumsum(ties, axis=1, dtype=np.min_scalar_type(m)) <= room))
    return among / (m - f)


def _buckets(m: int, size: int = 2) -> int:
    """How many buckets m clients fill."""
    return -(-m // integer(size, "size", at_least=1))


@declares(
    centres=False,
    rows=_buckets,
    source="Karimireddy et al. 2022",
    needs="what the rule after it needs, of buckets",
    also_known_as=("resampling",),
)
def bucketing(geometry: Geometry, *, size: int = 2, rng: np.random.Generator) -> Matrix:
    """Replace the clients by the means of random buckets.

    size  how many clients are in a bucket; the last bucket may have fewer
    rng   draws the buckets; from the operating system unless the caller of aggregate() gives one

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [2.0], [3.0], [4.0], [5.0], [99.0]]), "bucketing(size=2) | median", rng=0).value
    array([3.5])

    Karimireddy et al. 2022.
    """
    return means_of(np.array_split(rng.permutation(geometry.m), range(size, geometry.m, size)))


@declares(
    centres=False,
    from_zero=True,
    accuses=True,
    source="Sun et al. 2019",
    also_known_as=("norm_clipping", "norm_bounding"),
)
def clipping(geometry: Geometry, *, radius: float) -> Matrix:
    """Shorten each update longer than `radius` to that length: x_i min(1, radius/|x_i|).

    radius  the greatest length that an update keeps

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[3.0, 4.0], [0.0, 1.0], [300.0, 400.0]]), "clipping(radius=5) | mean").value.round(6)
    array([2., 3.])

    Norm clipping: Sun et al. 2019.
    """
    return _shortened(geometry.lengths(), float(geometry.read(positive(radius, "radius"))))


@declares(
    centres=False,
    from_zero=True,
    bound=Bound(2, 1),
    source="Allouah et al. 2025",
    also_known_as=("arc", "adaptive_robust_clipping"),
)
def adaptive_clipping(geometry: Geometry, *, f: int) -> Matrix:
    """Shorten the longest updates to the length of the longest one left (ARC).

    The k = floor(2 f (m - f) / m) longest updates become x_i C/|x_i|, where C is the length of the (k + 1)-th longest.

    f  how many liars to withstand

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [2.0], [3.0], [99.0]]), "adaptive_clipping(f=1) | mean").value
    array([2.25])

    Needs m >= 2f + 1.  Allouah et al. 2025 (adaptive robust clipping).
    """
    f, m = integer(f, "f"), geometry.m
    lengths = geometry.lengths()
    return _shortened(lengths, float(np.sort(lengths)[m - 1 - 2 * f * (m - f) // m]))


def _shortened(lengths: Vector, reach: float) -> Matrix:
    """The matrix that shortens updates of these lengths to `reach` where they are longer."""
    return np.diag(np.divide(reach, lengths, out=np.ones(len(lengths)), where=lengths > reach))


@declares(accuses=True, source="ours, after Zhao, Yu, Wan 2024", needs="as `huber`")
def screen(geometry: Geometry, *, beyond: float = 2.5) -> Matrix:
    """Drop obvious outliers: clients whose scaled distance sqrt(n_i) d_i is more than `beyond` times the median.

    Distances are taken to the Huber aggregate with the automatic threshold. No more than half of the clients can be dropped.

    beyond  the limit as a multiple of the median, at least 1

    >>> from fedhold import aggregate
    >>> result = aggregate(np.array([[1.0], [1.1], [1.2], [99.0]]), "screen | mean")
    >>> result.value.round(1), result.clients.with_status("dropped")
    (array([1.1]), [3])

    The paper's section 8 proposes such a filter; the rule is ours.
    """
    limit = positive(beyond, "beyond")
    if limit < 1:
        raise ValueError(f"beyond must be at least 1, got {beyond}: it is a multiple of the median distance.")
    solved: Solved = huber(geometry, tol=1e-3)
    scaled: Vector = np.sqrt(geometry.samples) * geometry.distances(solved.weights)
    return np.eye(geometry.m)[scaled <= limit * np.median(scaled)]
