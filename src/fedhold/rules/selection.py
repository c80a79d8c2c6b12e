"""Rules that choose clients by how near they are to each other, or to a place: Krum and its kin, least diameter, MoNNA."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedhold.errors import integer, require
from fedhold.geometry import Geometry, Solved
from fedhold.kernels import Matrix, Vector, Weights, columns
from fedhold.rules.declaration import Bound, declares
from fedhold.rules.m_estimators import huber
from fedhold.updates import Columnwise

__all__ = [
    "bulyan",
    "equal_weights",
    "krum",
    "krum_scores",
    "minimum_diameter_averaging",
    "monna",
    "multi_krum",
]

SORTED = 64  # rows sorted at a time, so that the sort takes little memory
WORN = 1e-6  # A score that subtractions have reduced to less than this part is mostly rounding, and is computed anew.

SEARCHED = 10_000  # sets of clients that minimum_diameter_averaging looks at before it takes the best one found
READ = 4096  # pairs that its search reads at a time


def krum_scores(squared_distances: Matrix, f: int) -> Vector:
    """The sum of the m - f - 2 smallest squared distances to other clients, for every client.

    squared_distances  of these clients to all; 0 to itself
    f                  how many liars to withstand
    """
    others = np.sort(squared_distances, axis=1)[:, 1:]  # a client's distance 0 to itself sorts first
    neighbours = max(squared_distances.shape[1] - f - 2, 1)
    scores: Vector = others[:, :neighbours].sum(axis=1)
    return scores


@declares(pairs=True, bound=Bound(2, 3), source="Blanchard et al. 2017")
def krum(geometry: Geometry, *, f: int) -> Weights:
    """Keep the client closest to its neighbours.

    score_i = sum of |x_i - x_j|^2 over the m - f - 2 nearest j != i; the smallest score wins, ties to the lower index.

    f  how many liars to withstand

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [1.1], [1.3], [1.6], [99.0]]), "krum", f=1).value
    array([1.1])

    Needs m >= 2f + 3.  Blanchard et al. 2017.
    """
    return multi_krum(geometry, f=f, keep=1)


def _check_keep(m: int, *, f: int, keep: int | None = None) -> None:
    if keep is not None:
        kept = integer(keep, "keep", at_least=1)
        require(kept <= m - f, "multi_krum", needs="keep <= m - f", m=m, f=f, keep=kept, remedy="Lower keep.")


@declares(pairs=True, bound=Bound(2, 3), check=_check_keep, source="Blanchard et al. 2017", also_known_as=("mkrum",))
def multi_krum(geometry: Geometry, *, f: int, keep: int | None = None) -> Weights:
    """The plain mean of the clients with the smallest Krum scores.

    f     how many liars to withstand
    keep  how many clients to average; by default m - f. Where fewer are left after rejections, all of them

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [1.1], [1.2], [1.3], [99.0]]), "multi_krum", f=1).value
    array([1.15])

    Needs m >= 2f + 3 and keep <= m - f.  Blanchard et al. 2017.
    """
    f, m = integer(f, "f"), geometry.m
    scores = geometry.over_pairs(lambda rows: krum_scores(rows, f))
    return equal_weights(np.argsort(scores, kind="stable")[: m - f][:keep], m)


@declares(pairs=True, bound=Bound(4, 3), source="El Mhamdi et al. 2018")
def bulyan(geometry: Geometry, *, f: int) -> Columnwise:
    """Choose m - 2f clients by Krum, one after the other; then take the mean around the median of every column of the chosen.

    Each run of Krum is among the clients not yet chosen. Of the m - 2f chosen, each column averages the m - 4f values nearest
    to their median.

    f  how many liars to withstand

    >>> from fedhold import aggregate
    >>> aggregate(np.array([[1.0], [1.1], [1.2], [1.3], [1.4], [1.5], [99.0]]), "bulyan", f=1).value.round(3)
    array([1.2])

    Needs m >= 4f + 3.  El Mhamdi et al. 2018.
    """
    f, m = integer(f, "f"), geometry.m
    chosen = _one_by_one(geometry.squared_distances, f, m - 2 * f)
    return Columnwise(partial(columns.mean_around_median, keep=m - 4 * f), np.sort(chosen))


def _one_by_one(squares: Matrix, f: int, count: int) -> NDArray[np.intp]:
    """The winners of Krum, `count` times, each time among the clients not yet chosen.

    When a client leaves, each other client loses one neighbour from its score: the one that left if it was among the nearest,
    and otherwise the farthest of them. So one sort of the distances serves all runs.
    """
    m = len(squares)
    line, ordered = np.arange(m), np.empty((m, m))
    order, place = (np.empty((m, m), dtype=np.min_scalar_type(m)) for _ in range(2))
    for rows in np.array_split(line, -(-m // SORTED)):
        others = squares[rows]
        others[np.arange(len(rows)), rows] = np.inf
        sorted_ = np.argsort(others, axis=1)  # Ties count the same in any order.
        np.put_along_axis(place[rows[0] : rows[-1] + 1], sorted_, line[None].astype(place.dtype), axis=1)
        order[rows], ordered[rows] = sorted_, np.take_along_axis(others, sorted_, axis=1)
    # In the order of distances, the neighbours that count for client i come before end[i].
    left, end = np.ones(m, dtype=bool), np.full(m, m - f - 2)
    scores = ordered[:, : m - f - 2].sum(axis=1)
    exact, chosen = scores.copy(), list[int]()
    while len(chosen) < count and (neighbours := m - len(chosen) - f - 2) > 1:
        winner = int(np.argmin(np.where(left, scores, np.inf)))
        chosen.append(winner)
        left[winner] = False
        near, farthest = place[:, winner] < end, end - 1
        while (passed := left & ~near & ~left[order[line, farthest]]).any():
            farthest[passed] -= 1
        scores = scores - np.where(near, squares[:, winner], ordered[line, farthest])
        end = np.where(near, end, farthest)
        for i in np.flatnonzero(left & (scores < WORN * exact)):
            scores[i] = exact[i] = ordered[i][left[order[i]]][: neighbours - 1].sum()
    rest = np.flatnonzero(left)
    # With one neighbour each, two clients can tie exactly, and the rounding of subtractions would hide the tie.
    while len(chosen) < count:
        winner = int(np.argmin(krum_scores(squares[np.ix_(rest, rest)], f)))
        chosen.append(int(rest[winner]))
        rest = np.delete(rest, winner)
    return np.array(chosen)


@declares(pairs=True, bound=Bound(2, 1), source="Rousseeuw 1985; El Mhamdi et al. 2018", also_known_as=("mda",))
def minimum_diameter_averaging(geometry: Geometry, *, f: int) -> Solved:
    """The mean of the m - f clients with the smallest diameter, which is the largest distance between two of them (MDA).

    Of several such sets, the one whose second largest distance is the smallest is taken, and so on.

    f  how many liars to withstand

    >>> from fedhold import aggregate
    >>> result = aggregate(np.array([[1.0], [1.1], [1.3], [99.0]]), "minimum_diameter_averaging", f=1)
    >>> result.value.round(3), result.clients.with_status("dropped")
    (array([1.133]), [3])

    Needs m >= 2f + 1.  Rousseeuw 1985; El Mhamdi et al. 2018. The search is exact, and looks at 2^f sets at most: of the two
    clients farthest from each other, one has to go. After 10,000 sets it ends with the best one found, and `converged` is
    False.
    """
    f, m = integer(f, "f"), geometry.m
    search = _LeastDiameter(geometry.squared_distances)
    chosen = search.run(f)
    return Solved(equal_weights(np.flatnonzero(chosen), m), None, search.seen <= SEARCHED, search.seen)


class _LeastDiameter:
    """A search for the clients whose distances, compared from the largest one down, are the smallest."""

    def __init__(self, squares: Matrix) -> None:
        """`squares` are the squared distances of all pairs."""
        first, second = np.triu_indices(len(squares), 1)
        order = np.argsort(-squares[first, second], kind="stable")
        self.first, self.second = first[order], second[order]
        self.squares = squares[self.first, self.second]
        self.sums = squares.sum(axis=1)
        self.seen = 0

    def run(self, f: int) -> NDArray[np.bool_]:
        """The best set without f clients; True for its members."""
        best, shortest = None, np.empty(0)
        waiting = [(np.ones(len(self.sums), dtype=bool), f, 0)]  # clients left, how many have to go, first pair left
        while waiting:
            left, excess, pair = waiting.pop()
            self.seen += 1
            pair = self._next(left, pair)
            if excess == 0:
                distances = self.squares[pair:][self._both(left, pair, len(self.squares))]
                if best is None or distances.tolist() < shortest.tolist():
                    best, shortest = left, distances
            elif best is None or not self._hopeless(left, excess, pair, shortest[0]):
                # The client that is farther from everybody goes first: a good set found early spares the search of others.
                for client in sorted((self.first[pair], self.second[pair]), key=lambda i: self.sums[i]):
                    fewer = left.copy()
                    fewer[client] = False
                    waiting.append((fewer, excess - 1, pair))
            if best is not None and self.seen > SEARCHED:
                break
        assert best is not None
        return best

    def _both(self, left: NDArray[np.bool_], start: int, stop: int) -> NDArray[np.bool_]:
        """Whether both clients are left, for the pairs from start to stop."""
        return left[self.first[start:stop]] & left[self.second[start:stop]]

    def _next(self, left: NDArray[np.bool_], pair: int) -> int:
        """The first pair from this one on of which both clients are left; the number of all pairs if there is none."""
        while pair < len(self.squares):
            both = self._both(left, pair, pair + READ)
            place = int(both.argmax())
            if both[place]:
                return pair + place
            pair += READ
        return len(self.squares)

    def _hopeless(self, left: NDArray[np.bool_], excess: int, pair: int, shortest: float) -> bool:
        """Whether a pair farther apart than this stays, whoever goes: the clients in most such pairs are not in all of them."""
        stop = int(np.searchsorted(-self.squares, -shortest, side="left"))
        far = pair + np.flatnonzero(self._both(left, pair, stop))
        pairs_of = np.bincount(np.concatenate([self.first[far], self.second[far]]), minlength=len(left))
        return bool(np.sort(pairs_of)[-excess:].sum() < len(far))


@declares(bound=Bound(2, 1), source="Farhadkhani et al. 2023", needs="a sound `root` (without one, as `huber`)")
def monna(geometry: Geometry, *, f: int, root: Vector | None = None) -> Weights:
    """The mean of the m - f clients nearest to the server's own update `root` (MoNNA: mixing with nearest neighbours).

    (1/(m - f)) sum_i X_i over the m - f clients with the smallest |X_i - root|, ties to the lower index.

    f     how many liars to withstand
    root  the update of somebody who is trusted: the server's own, or that of a client. Without one, the Huber aggregate takes
          its place

    >>> from fedhold import aggregate
    >>> updates = np.array([[1.0], [2.0], [3.0], [5.0], [99.0]])
    >>> aggregate(updates, "monna", f=2, root=updates[0]).value
    array([2.])

    Needs m >= 2f + 1.  Farhadkhani et al. 2023, where every client does this for itself, with its own update as the root.
    """
    f, m = integer(f, "f"), geometry.m
    distances = geometry.distances(huber(geometry).weights) if root is None else geometry.distances_to(root)
    return equal_weights(np.argsort(distances, kind="stable")[: m - f], m)


def equal_weights(chosen: NDArray[np.intp], m: int) -> Weights:
    """Equal weights for the chosen of m clients, 0 for the others."""
    weights = np.zeros(m)
    weights[chosen] = 1 / len(chosen)
    return weights
