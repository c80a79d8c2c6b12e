"""Rules that look at lengths and directions as seen from 0. They are for updates, not models: a common offset changes them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import integer, positive, require
from fedhold.geometry import Geometry, Rescaled, Solved, normalised
from fedhold.kernels import Matrix, Vector, Weights, length
from fedhold.rules.declaration import Bound, declares
from fedhold.rules.m_estimators import huber
from fedhold.rules.selection import equal_weights

__all__ = ["comparative_gradient_elimination", "fl_trust", "fools_gold", "sign_guard"]

SHIFTS = 300  # the most steps of mean shift; most points take fewer than ten
STILL = 1e-3  # bandwidths. A point that moves by less has arrived.
DIGITS = 12  # of proportions, after the point
CERTAIN = 0.99  # the largest trust that FoolsGold's logit is taken of, which would be infinite at 1


@declares(centres=False, from_zero=True, bound=Bound(2, 1), source="Gupta, Liu, Vaidya 2021", also_known_as=("cge",))
def comparative_gradient_elimination(geometry: Geometry, *, f: int) -> Weights:
    """The mean of the m - f shortest updates (CGE).

    (1/(m - f)) sum_i X_i over the m - f clients with the smallest |X_i|, ties to the lower index.

    f  how many liars to withstand

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [2.0], [3.0], [99.0]]), "comparative_gradient_elimination", f=1).value
    array([2.])

    Needs m >= 2f + 1.  Gupta, Liu, Vaidya 2021, who add up the updates and do not divide by m - f. Liars as short as the others
    are not noticed, whatever their direction.
    """
    f, m = integer(f, "f"), geometry.m
    return equal_weights(np.argsort(geometry.lengths(), kind="stable")[: m - f], m)


@declares(centres=False, from_zero=True, source="Xu et al. 2022", needs="liars are less than half of the clients")
def sign_guard(geometry: Geometry, *, shortest: float = 0.1, longest: float = 3.0, quantile: float = 0.5) -> Rescaled:
    """The mean of clients of ordinary length and ordinary signs, none longer than the median length.

    M = median_i |X_i|; the clients kept have shortest M <= |X_i| <= longest M, and belong to the largest group of clients whose
    numbers are above, at and below 0 in similar proportions. The value is the mean of their X_i min(1, M/|X_i|).

    shortest  the least length of a client that is kept, in multiples of M
    longest   the greatest
    quantile  how wide a group is: the mean over clients of the distance to the nearest `quantile` of the clients, as points of
              the three proportions. Groups are found by mean shift

    >>> from fedhold import aggregate
    >>> updates = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [1.0, 1.0], [-1.0, -1.0], [9.0, 9.0]])
    >>> result = aggregate(updates, "sign_guard")
    >>> result.value.round(3), result.clients.with_status("dropped")
    (array([1., 1.]), [4, 5])

    Needs shortest <= 1, longest >= 2, quantile <= 1.  Xu et al. 2022 (SignGuard), who count the signs in a random tenth of
    the columns; ours counts all. Where no client passes both filters, ours averages those of ordinary length.
    """
    low, high = positive(shortest, "shortest", zero=True), positive(longest, "longest")
    # Of an even number of clients, the longer one of the two in the middle can have twice the median length.
    fits, remedy = low <= 1 and high >= 2, "Use 0.1 and 3, as the source does."
    require(fits, "sign_guard", needs="shortest <= 1, longest >= 2", shortest=low, longest=high, remedy=remedy)
    part = positive(quantile, "quantile")
    require(part <= 1, "sign_guard", needs="quantile <= 1", quantile=part, remedy="Lower it.")
    lengths = geometry.lengths()
    middle = float(np.median(lengths))
    ordinary = (low * middle <= lengths) & (lengths <= high * middle)
    signs = geometry.signs()
    shares = np.stack([signs.above, geometry.d - signs.above - signs.below, signs.below], axis=1) / geometry.d
    both = ordinary & _largest_group(shares, part)
    kept = np.flatnonzero(both if both.any() else ordinary)
    factors = np.divide(middle, lengths, out=np.ones(geometry.m), where=lengths > middle)
    return Rescaled(factors, equal_weights(kept, geometry.m))


def _largest_group(points: Matrix, quantile: float) -> NDArray[np.bool_]:
    """The members of the largest cluster that mean shift with a flat kernel finds.  Fukunaga & Hostetler 1975.

    Every point moves to the mean of the points within the bandwidth until it stands still. Where it stops, there is a cluster,
    unless one with more points within the bandwidth is nearer than that. Points belong to the nearest cluster within the
    bandwidth. Proportions are fractions of d, so that ties are common: all numbers are rounded, for the order of the clients is
    not to decide them.
    """
    points, nearest = points.round(DIGITS), max(int(len(points) * quantile), 1)
    width = float(np.partition(_apart(points, points), nearest - 1, axis=1)[:, nearest - 1].mean().round(DIGITS))
    modes = points
    for _ in range(SHIFTS):
        near = _apart(modes, points) <= width
        moved = near @ points / np.maximum(near.sum(axis=1, keepdims=True), 1)
        moved = np.where(near.any(axis=1, keepdims=True), moved, modes).round(DIGITS)
        step, modes = np.linalg.norm(moved - modes, axis=1).max(), moved
        if step <= STILL * width:
            break
    crowd = (_apart(modes, points) <= width).sum(axis=1)
    order = np.lexsort((*modes.T[::-1], crowd))[::-1]
    apart, centres = _apart(modes, modes), list[int]()
    for mode in order:
        if (apart[mode, centres] > width).all():
            centres.append(mode)
    to_centres = _apart(points, modes[centres])
    cluster = np.where(to_centres.min(axis=1) <= width, to_centres.argmin(axis=1), len(centres))
    sizes = np.bincount(cluster, minlength=len(centres) + 1)[:-1]
    members: NDArray[np.bool_] = cluster == sizes.argmax()
    return members


def _apart(points: Matrix, others: Matrix) -> Matrix:
    """The distance of every point to every other one. Coordinates are taken one by one, which saves memory."""
    squares = sum((np.subtract.outer(mine, theirs) ** 2 for mine, theirs in zip(points.T, others.T, strict=True)), 0.0)
    return np.sqrt(squares).round(DIGITS)


@declares(from_zero=True, source="Cao et al. 2021", needs="a sound `root` (without one, as `huber`)")
def fl_trust(geometry: Geometry, *, root: Vector | None = None) -> Rescaled | Solved:
    """The mean of the clients, each as long as the server's own update `root` and weighted by how far it points the same way.

    sum_i t_i (|root| / |X_i|) X_i / sum_i t_i, t_i = max(0, cos(X_i, root)).

    root  the update that the server has computed from a little data of its own. Without one, the Huber aggregate takes its
          place; the rule then trusts whom Huber trusts, and is no longer that of its source

    >>> from fedhold import aggregate
    >>> updates = np.array([[1.0, 0.0], [3.0, 0.0], [-5.0, 0.0], [0.0, 9.0]])
    >>> aggregate(updates, "fl_trust", root=np.array([2.0, 0.0])).value
    array([2., 0.])

    It holds for any number of liars while the root is sound.  Cao et al. 2021. Where no client points the way of the root, ours
    gives the root.
    """
    centre = huber(geometry) if root is None else None
    place = geometry.measure(centre.weights).centre if centre is not None else root
    assert place is not None
    trust = np.maximum(geometry.cosines(place), 0)
    if not trust.any():
        return centre or Solved(np.zeros(geometry.m), origin=place)
    lengths = geometry.lengths()
    factors = np.divide(length(place), lengths, out=np.ones(geometry.m), where=lengths > 0)
    return Rescaled(factors, normalised(trust))


@declares(
    centres=False,
    from_zero=True,
    source="Fung, Yoon, Beschastnikh 2020",
    needs="liars send copies of one update; others are not bounded",
    robust=False,
)
def fools_gold(geometry: Geometry, *, confidence: float = 1.0) -> Weights:
    """The mean of the clients, each with the less weight, the more another client points the same way.

    With c_ij the cosine between clients i and j, and v_i the largest of 0 and all c_ij with j != i, c_ij is multiplied by
    v_i/v_j where v_j > v_i, so that an honest client that resembles a liar is pardoned. Then t_i = 1 - max_j c_ij, within 0
    and 1, divided by the largest of them and at most 0.99; weights are proportional to confidence (ln(t_i/(1 - t_i)) + 1/2),
    within 0 and 1.

    confidence  how steeply the weight rises with t_i

    >>> from fedhold import aggregate
    >>> updates = np.array([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-1.0, -1.0, -1.0], [-1.0, -1.0, -1.0]])
    >>> aggregate(updates, "fools_gold").weights.round(2)
    array([0.33, 0.33, 0.33, 0.  , 0.  ])

    Fung, Yoon, Beschastnikh 2020. It is made for copies of one liar among honest clients that differ; what one liar can do is
    not bounded, and honest clients that agree lose their weight. The source takes the cosines between sums of each client's
    updates over all rounds, and does not divide by the sum of the weights. Here nothing is remembered: keep the sums yourself,
    and apply the weights `aggregate(sums, "fools_gold").weights` to the round's updates; or let clients send momenta, which
    are such sums. Where nobody is trusted, all clients weigh the same.
    """
    steep, m = positive(confidence, "confidence"), geometry.m
    cosines = geometry.pairwise_cosines()
    np.fill_diagonal(cosines, 0)
    closest = cosines.max(axis=1)
    pardoned = np.divide(closest[:, None], closest, out=np.ones((m, m)), where=closest > closest[:, None])
    trust = np.clip(1 - (cosines * pardoned).max(axis=1), 0, 1)
    if not trust.any():
        return np.full(m, 1 / m)
    trust = np.minimum(trust / trust.max(), CERTAIN)
    with np.errstate(divide="ignore"):
        weights = np.clip(steep * (np.log(trust / (1 - trust)) + 0.5), 0, 1)
    return normalised(weights)
