"""Machine code for the column rules, made by numba: order statistics of 64 columns at once, without sorting any of them.

Rows of 64 numbers are compared lane by lane: every loop here is a few vector instructions. Up to NETWORK clients run through a
sorting network, cut down to what the wanted ranks depend on. More are counted: how many numbers are at most a pivot tells on
which side of it a rank lies, and pivots guessed from such counts soon close in on it. What is not finite gives nonsense, in
bounded time. All is in one file because numba compiles anew when the file has changed, and looks at no other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

__all__ = ["NETWORK", "SAMPLE", "means_around_medians", "trimmed_means"]

LANES = 64  # columns at a time, known to the compiler; 100 rows of them fit in L1, 500 in L2
NEAR = 2048  # rows of them to load at once: longer runs of memory are read faster, and half of L2 holds them
NETWORK = 128  # clients, at most: there a network costs a third more than counting for a median, and a sixth less for two ranks
SAMPLE = 31  # rows, sorted, that give the first pivots: no liar can stretch these as he can the extremes
PROBES, JUMP = 3, 4  # such pivots: where the rank should be in the sample, so many places farther, and between
CLOSER = 12  # pivots between two looks at which numbers are left; only a look sees that they are all equal
STEPS = 200  # at most; every third one bisects, and a float64 takes 11 of these for its exponent and 53 for its digits


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiled when first called, kept on disk where there is a place for it; other threads run meanwhile."""
    try:
        return numba.njit(nogil=True, cache=True, error_model="numpy")(function)
    except RuntimeError:  # neither here nor in the user's cache
        return numba.njit(nogil=True, error_model="numpy")(function)


@_compiled
def trimmed_means(line, apart, m, f, comparators, row):
    """For every column; its mean without the f lowest and the f highest, or its median where no more than two are left."""
    loaded, means = np.empty((max(NEAR // m, 1), m, LANES), line.dtype), np.empty(LANES)
    low, high = np.empty(LANES, line.dtype), np.empty(LANES, line.dtype)
    for group in range((len(row) + LANES - 1) // LANES):
        if group % len(loaded) == 0:
            _load(line, apart, group * LANES, len(row), loaded)
        keys = loaded[group % len(loaded)]
        _ranks(keys, f, m - 1 - f, comparators, low, high)
        if m - 2 * f <= 2:
            for j in range(LANES):  # halves first: two numbers near the largest float have no sum
                means[j] = np.float64(low[j]) / 2 + np.float64(high[j]) / 2
        else:
            _clipped_sums(keys, low, high, m - 2 * f, means)
            for j in range(LANES):
                means[j] += low[j] - f * ((np.float64(high[j]) - np.float64(low[j])) / (m - 2 * f))
        for j in range(min(LANES, len(row) - group * LANES)):
            row[group * LANES + j] = means[j]


@_compiled
def _clipped_sums(keys, low, high, count, sums):
    """sum_i (x_i - low) / count, all numbers clipped: f of them at `low`, f at `high`, whatever ties there are."""
    share, m = 1.0 / count, len(keys)
    for j in range(LANES):
        sums[j] = 0.0
    for i in range(m % 4):
        for j in range(LANES):
            sums[j] += (np.float64(min(max(keys[i, j], low[j]), high[j])) - low[j]) * share
    for i in range(m % 4, m, 4):
        for j in range(LANES):
            a, b, base = low[j], high[j], np.float64(low[j])
            total = np.float64(min(max(keys[i, j], a), b)) - base
            total += np.float64(min(max(keys[i + 1, j], a), b)) - base
            total += np.float64(min(max(keys[i + 2, j], a), b)) - base
            total += np.float64(min(max(keys[i + 3, j], a), b)) - base
            sums[j] += total * share


@_compiled
def means_around_medians(line, apart, m, keep, middle, last, row):
    """For every column; the mean of the `keep` numbers nearest to its median."""
    loaded, away = np.empty((max(NEAR // m, 1), m, LANES), line.dtype), np.empty((m, LANES))
    low, high = np.empty(LANES, line.dtype), np.empty(LANES, line.dtype)
    centre, reach, means = np.empty(LANES), np.empty(LANES), np.empty(LANES)
    for group in range((len(row) + LANES - 1) // LANES):
        if group % len(loaded) == 0:
            _load(line, apart, group * LANES, len(row), loaded)
        keys = loaded[group % len(loaded)]
        _ranks(keys, (m - 1) // 2, m // 2, middle, low, high)
        for j in range(LANES):
            centre[j] = np.float64(low[j]) / 2 + np.float64(high[j]) / 2
        for i in range(m):
            for j in range(LANES):
                away[i, j] = abs(keys[i, j] - centre[j])
        _ranks(away, keep - 1, keep - 1, last, reach, reach)
        _near_means(keys, centre, reach, keep, means)
        for j in range(min(LANES, len(row) - group * LANES)):
            row[group * LANES + j] = means[j]


@_compiled
def _near_means(keys, centre, reach, keep, means):
    """The mean of the `keep` numbers within reach of the centre; of those at its edge, the lower first."""
    inside, lower = np.empty(LANES, np.int64), np.empty(LANES, np.int64)
    for j in range(LANES):
        means[j], inside[j], lower[j] = 0.0, 0, 0
    for i in range(len(keys)):
        for j in range(LANES):
            way = keys[i, j] - centre[j]
            near = abs(way) < reach[j]
            means[j] += way if near else 0.0
            inside[j] += near
            lower[j] += way == -reach[j]
    for j in range(LANES):
        edge = keep - inside[j]
        down = min(edge, lower[j])
        means[j] = centre[j] + (means[j] + (edge - 2 * down) * reach[j]) / keep


@_compiled
def _load(line, apart, start, stop, loaded):
    """Columns from start on, 64 by 64; in lanes past the last, the last again."""
    for i in range(loaded.shape[1]):
        for group in range(len(loaded)):
            first, width = start + group * LANES, min(LANES, stop - start - group * LANES)
            place = np.uint64(i * apart + first)  # unsigned: an index that may be negative is looked up one by one
            for j in range(width):
                loaded[group, i, j] = line[place + np.uint64(j)]
            for j in range(max(width, 0), LANES if width > 0 else 0):
                loaded[group, i, j] = line[np.uint64(i * apart + stop - 1)]


@_compiled
def _ranks(keys, low, high, comparators, lows, highs):
    """Every lane's numbers of ranks `low` <= `high`, counted from 0. May put a lane's numbers in another order."""
    m = len(keys)
    if m <= NETWORK:
        _sort(keys, comparators)
        for j in range(LANES):
            lows[j], highs[j] = keys[low, j], keys[high, j]
        return
    sample = np.empty((SAMPLE, LANES), keys.dtype)
    for i in range(SAMPLE):
        for j in range(LANES):
            sample[i, j] = keys[(2 * i + 1) * m // (2 * SAMPLE), j]
    _sort(sample, comparators)
    for second in range(2 if high > low + 1 else 1):  # a loop, so that the search is compiled once
        _select(keys, sample, high if second else low, highs if second else lows)
    if high == low + 1:
        _next(keys, low, lows, highs)
    elif high == low:
        for j in range(LANES):
            highs[j] = lows[j]


@_compiled
def _sort(keys, comparators):
    for c in range(len(comparators)):
        a, b = comparators[c, 0], comparators[c, 1]
        for j in range(LANES):
            x, y = keys[a, j], keys[b, j]
            keys[a, j] = x if x < y else y
            keys[b, j] = y if x < y else x


@_compiled
def _select(keys, sample, k, found):
    """The number of rank k: in (lo, hi], where `under` numbers are at most lo and `upto` > k at most hi. Tells its steps."""
    values, counts = np.empty((5, LANES), keys.dtype), np.empty((6, LANES), np.int32)
    lo, hi, start, end, pivot = values[0], values[1], values[2], values[3], values[4]  # pivots are from [start, hi)
    under, upto, count, first, after, probe = counts[0], counts[1], counts[2], counts[3], counts[4], counts[5]
    for j in range(LANES):
        lo[j], start[j], hi[j], under[j], upto[j] = -np.inf, -np.inf, np.inf, 0, len(keys)
        first[j], after[j], probe[j] = -1, SAMPLE, k * SAMPLE // len(keys)
    busy = 1
    for step in range(STEPS):
        outside = 0
        if step == PROBES:
            for j in range(LANES):
                outside += (first[j] < 0) | (after[j] == SAMPLE)
        if outside or not busy or (step and step % CLOSER == 0):
            _look(keys, lo, hi, start, end)
            left = 0
            for j in range(LANES):
                hi[j] = end[j]
                found[j] = start[j] if under[j] == k else end[j]
                left += (under[j] != k) & (upto[j] != k + 1) & (start[j] < end[j])
            if not left:
                return step
        if step < PROBES:
            for j in range(LANES):
                pivot[j] = sample[probe[j], j]
        elif step % 3 == 2:
            _bisect(start, hi, pivot)
        else:
            _interpolate(start, hi, under, upto, k, pivot)
        _count(keys, pivot, count)
        busy = _narrow(lo, hi, start, under, upto, pivot, count, k)
        for j in range(LANES if step < PROBES else 0):
            place, high = probe[j], count[j] > k
            after[j] = place if high else after[j]
            first[j] = first[j] if high else place
            place += -JUMP if high else JUMP
            middle = max((first[j] + after[j]) >> 1, 0)
            probe[j] = place if (step == 0) & (place > first[j]) & (place < after[j]) else middle
    return STEPS


@_compiled
def _count(keys, pivot, count):
    """How many numbers are at most the pivot. Eight rows at a time: counts are loaded and stored as seldom."""
    m = len(keys)
    for j in range(LANES):
        count[j] = 0
    for i in range(m % 8):
        for j in range(LANES):
            count[j] += np.int32(keys[i, j] <= pivot[j])
    for i in range(m % 8, m, 8):
        for j in range(LANES):
            p = pivot[j]
            four = np.int32(keys[i, j] <= p) + np.int32(keys[i + 1, j] <= p)
            four += np.int32(keys[i + 2, j] <= p) + np.int32(keys[i + 3, j] <= p)
            more = np.int32(keys[i + 4, j] <= p) + np.int32(keys[i + 5, j] <= p)
            more += np.int32(keys[i + 6, j] <= p) + np.int32(keys[i + 7, j] <= p)
            count[j] += four + more


@_compiled
def _narrow(lo, hi, start, under, upto, pivot, count, k):
    """Move the ends to the pivots; how many lanes still have numbers on both sides of the wanted one."""
    busy = np.int32(0)
    for j in range(LANES):
        c, p = count[j], pivot[j]
        high = c > k
        hi[j] = p if high else hi[j]
        lo[j] = lo[j] if high else p
        start[j] = start[j] if high else p
        a, b = under[j] if high else c, c if high else upto[j]
        under[j], upto[j] = a, b
        busy += np.int32((a != k) & (b != k + 1))
    return busy


@_compiled
def _look(keys, lo, hi, least, most):
    """The least and the greatest number in (lo, hi]."""
    m, inf = len(keys), keys.dtype.type(np.inf)
    for j in range(LANES):
        least[j], most[j] = inf, -inf
    for i in range(m % 2):
        for j in range(LANES):
            x = keys[i, j]
            least[j] = x if (x > lo[j]) & (x < least[j]) else least[j]
            most[j] = x if (x <= hi[j]) & (x > most[j]) else most[j]
    for i in range(m % 2, m, 2):
        for j in range(LANES):
            x, y = keys[i, j], keys[i + 1, j]
            x, y = (x if x > lo[j] else inf), (y if y > lo[j] else inf)
            x = x if x < y else y
            least[j] = x if x < least[j] else least[j]
        for j in range(LANES):
            x, y = keys[i, j], keys[i + 1, j]
            x, y = (x if x <= hi[j] else -inf), (y if y <= hi[j] else -inf)
            x = x if x > y else y
            most[j] = x if x > most[j] else most[j]


@_compiled
def _interpolate(start, hi, under, upto, k, pivot):
    """Where a little past the rank would be, on the side where more numbers are left, were they spread evenly."""
    kind = start.dtype.type  # of every constant: a pivot of more digits may round to hi, and narrow nothing
    for j in range(LANES):
        left, rank = kind(upto[j] - under[j]), kind(k - under[j]) + kind(0.5)
        past = kind(0.3) * np.sqrt(left)
        part = (rank - past if rank + rank > left else rank + past) / left
        p = start[j] * (kind(1) - part) + hi[j] * part
        p = p if p > start[j] else start[j]
        pivot[j] = p if p < hi[j] else start[j]


@_compiled
def _bisect(start, hi, pivot):
    """Halfway: by exponents first, then by digits."""
    kind = start.dtype.type
    for j in range(LANES):
        a, b = start[j], hi[j]
        near, far = min(abs(a), abs(b)), max(abs(a), abs(b))
        near = near if near > 0 else kind(np.finfo(start.dtype).tiny)
        wide = np.sqrt(near) * np.sqrt(far)
        p = a * kind(0.5) + b * kind(0.5) if far <= kind(4) * near else wide if b > 0 else -wide
        p = kind(0) if (a < 0) & (b > 0) else p
        p = p if p > a else a
        pivot[j] = p if p < b else a


@_compiled
def _next(keys, k, low, high):
    """The number of rank k + 1, after that of rank k."""
    count, most = np.empty(LANES, np.int32), np.empty(LANES, keys.dtype)
    _count(keys, low, count)
    _look(keys, low, low, high, most)
    for j in range(LANES):
        high[j] = low[j] if count[j] > k + 1 else high[j]
