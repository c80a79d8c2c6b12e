"""The formulas, literally: slow, float64, one loop per sum sign. The fast code must agree with these."""

from itertools import combinations, pairwise

import numpy as np


def mean(X, n=None):
    n = np.ones(len(X)) if n is None else np.asarray(n, float)
    return sum(n_i * x for n_i, x in zip(n, X, strict=True)) / n.sum()


def phi(u, T):
    """Paper, eq. (6)."""
    return u**2 / 2 if u <= T else T * u - T**2 / 2


def huber_objective(s, X, T, n):
    """Paper, eq. (5)."""
    return sum(n_i * phi(np.linalg.norm(s - x), T_i) for x, T_i, n_i in zip(X, T, n, strict=True))


def huber_gradient(s, X, T, n):
    """Paper, eq. (phigrad), summed with the n_i."""
    total = np.zeros_like(s, dtype=float)
    for x, T_i, n_i in zip(X, T, n, strict=True):
        u = np.linalg.norm(s - x)
        total += n_i * (s - x) * (1.0 if u <= T_i else T_i / u)
    return total


def huber(X, T, n=None, steps=20_000, tol=1e-13):
    """Paper, eq. (implement) with the forgotten n_i: c <- sum n_i min(1, T_i/|c - X_i|) X_i / sum of the same."""
    X = np.asarray(X, float)
    n = np.ones(len(X)) if n is None else np.asarray(n, float)
    T = np.broadcast_to(np.asarray(T, float), (len(X),))
    c = np.median(X, axis=0)
    for _ in range(steps):
        d = np.linalg.norm(X - c, axis=1)
        w = n * np.where(d <= T, 1.0, T / np.where(d == 0, 1.0, d))
        step = w @ X / w.sum() - c
        c = c + step
        if np.linalg.norm(step) <= tol * np.median(d):
            break
    return c


def geometric_median(X, n=None, steps=50_000, tol=1e-13):
    """argmin_s sum n_i |s - X_i| by Weiszfeld, after asking each client's own place whether it is the answer."""
    X = np.asarray(X, float)
    n = np.ones(len(X)) if n is None else np.asarray(n, float)
    for k in range(len(X)):
        d = np.linalg.norm(X - X[k], axis=1)
        here = d == 0
        pull = sum(
            (n_i * (x - X[k]) / d_i for n_i, x, d_i in zip(n, X, d, strict=True) if d_i > 0), np.zeros(X.shape[1])
        )
        if np.linalg.norm(pull) <= n[here].sum():
            return X[k].copy()
    c = np.median(X, axis=0)
    for _ in range(steps):
        d = np.maximum(np.linalg.norm(X - c, axis=1), 1e-300)
        w = n / d
        step = w @ X / w.sum() - c
        c = c + step
        if np.linalg.norm(step) <= tol * np.median(d):
            break
    return c


def squared_distances(X):
    X = np.asarray(X, float)
    return np.array([[np.sum((x - y) ** 2) for y in X] for x in X])


def krum_scores(X, f):
    """Blanchard et al. 2017: the sum of the m - f - 2 smallest squared distances to others."""
    D = squared_distances(X)
    m = len(X)
    return np.array([sum(sorted(D[i, j] for j in range(m) if j != i)[: m - f - 2]) for i in range(m)])


def krum(X, f):
    return np.asarray(X, float)[np.argmin(krum_scores(X, f))]


def multi_krum(X, f, keep):
    return np.asarray(X, float)[np.argsort(krum_scores(X, f), kind="stable")[:keep]].mean(axis=0)


def bulyan(X, f):
    """El Mhamdi et al. 2018: Krum m - 2f times, each time without the winners; then the mean around the median."""
    X = np.asarray(X, float)
    rest = list(range(len(X)))
    chosen = []
    for _ in range(len(X) - 2 * f):
        neighbours = max(len(rest) - f - 2, 1)
        D = squared_distances(X[rest])
        scores = [sum(sorted(D[i, j] for j in range(len(rest)) if j != i)[:neighbours]) for i in range(len(rest))]
        chosen.append(rest.pop(int(np.argmin(scores))))
    return mean_around_median(X[chosen], len(chosen) - 2 * f)


def mean_around_median(X, keep):
    X = np.asarray(X, float)
    out = []
    for column in X.T:
        middle = np.median(column)
        nearest = sorted(column, key=lambda value: (abs(value - middle), value))[:keep]
        out.append(np.mean(nearest))
    return np.array(out)


def median(X):
    out = []
    for column in np.asarray(X, float).T:
        s = sorted(column)
        k = len(s)
        out.append(s[k // 2] if k % 2 else (s[k // 2 - 1] + s[k // 2]) / 2)
    return np.array(out)


def trimmed_mean(X, f):
    return np.array([np.mean(sorted(column)[f : len(column) - f]) for column in np.asarray(X, float).T])


def centered_clipping(X, start, radius, iterations):
    """Karimireddy et al. 2021: v <- v + mean_i (X_i - v) min(1, radius/|X_i - v|)."""
    X = np.asarray(X, float)
    v = np.asarray(start, float)
    for _ in range(iterations):
        v = v + sum((x - v) * min(1.0, radius / max(np.linalg.norm(x - v), 1e-300)) for x in X) / len(X)
    return v


def median_of_means(X, batches):
    """Chen et al. 2017: the geometric median of the batch means."""
    X = np.asarray(X, float)
    return geometric_median(np.array([X[list(batch)].mean(axis=0) for batch in batches]))


def spectral_filter(X, f):
    """Diakonikolas et al. 2017: while less than 2f clients' weight is gone, scale every weight down by its squared
    deviation along the top eigenvector of the weighted covariance, relative to the largest one still present. The last step
    is shortened, so that the weight of m - 2f clients is left."""
    X = np.asarray(X, float)
    m = len(X)
    w = np.ones(m)
    while w.sum() > m - 2 * f + 1e-9:
        mu = w @ X / w.sum()
        values, vectors = np.linalg.eigh((X - mu).T @ (w[:, None] * (X - mu)))
        scores = ((X - mu) @ vectors[:, -1]) ** 2
        top = scores[w > 0].max()
        if values[-1] <= 0 or top == 0:
            break
        taken = w * np.minimum(scores / top, 1.0)
        w = w - min(1.0, (w.sum() - (m - 2 * f)) / taken.sum()) * taken
    return w @ X / w.sum()


def huber_automatic(X, n, kappa, steps=20_000):
    """eq. (implement) with the n_i, and T_i = kappa median_j(sqrt(n_j) d_j) / sqrt(n_i) at every step: centre and weights."""
    c = np.median(X, axis=0)
    for _ in range(steps):
        d = np.linalg.norm(X - c, axis=1)
        T = kappa * np.median(np.sqrt(n) * d) / np.sqrt(n)
        w = np.array([n_i if d_i <= T_i else n_i * T_i / d_i for n_i, d_i, T_i in zip(n, d, T, strict=True)])
        w = w / w.sum()
        before, c = c, w @ X
        if np.linalg.norm(c - before) <= 1e-13 * np.median(d):
            break
    return c, w


def huber_on_a_line(p, n, T):
    """The middle of all x at which sum_i n_i psi_i(p_i - x) is 0, looked for between each two kinks of the sum."""

    def pull(x):
        return sum(n_i * min(max(p_i - x, -T_i), T_i) for p_i, n_i, T_i in zip(p, n, T, strict=True))

    kinks = sorted({*(p - T), *(p + T)})
    least = 1e-12 * sum(n * T)
    zeros = [x for x in kinks if abs(pull(x)) <= least]
    for a, b in pairwise(kinks):
        if pull(a) > least and pull(b) < -least:
            zeros.append(a + (b - a) * pull(a) / (pull(a) - pull(b)))
    return (min(zeros) + max(zeros)) / 2


def spectral_huber(X, n=None):
    """Ours, step by step as its docstring numbers them."""
    X = np.asarray(X, float)
    m = len(X)
    n = np.ones(m) if n is None else np.asarray(n, float)
    centre, w = huber_automatic(X, np.ones(m), 0.75)
    d = np.linalg.norm(X - centre, axis=1)
    s = np.median(d)
    if s == 0:
        return centre
    if (n != n[0]).any():
        scale = np.median(np.sqrt(n) * d)
        b = [min(n[i], (scale / max(d[i], 1e-9 * s)) ** 2) for i in range(m)]
        w = np.array([b[i] * min(1, 0.75 * scale / np.sqrt(b[i]) / max(d[i], 1e-9 * s)) for i in range(m)])
        w = w / w.sum()
    near = [i for i in range(m) if d[i] <= 4 * s or m < 7]
    directions = 0 if m < 7 else 2 if m >= 40 else 1
    X, d, w, m = X[near], d[near], w[near] / sum(w[near]), len(near)
    c = w @ X
    A = np.array([(X[i] - c) * min(1, s / (2 * d[i])) for i in range(m)])
    values, V = np.linalg.svd(A, full_matrices=False)[1:]
    x = np.zeros(X.shape[1])
    for value, v in list(zip(values, V, strict=True))[:directions]:
        p = (X - c) @ v
        T = 0.5 * np.median(np.abs(p - np.median(p)))
        place = huber_on_a_line(p, np.ones(m), np.full(m, T))
        error = 1.25 * value / m
        x = x + v * (place * max(1 - (error / place) ** 2, 0) if place else 0)
    r = np.linalg.norm(x)
    t = [r - (X[i] - c) @ x / (r or 1) for i in range(m)]

    def along(h):
        new = np.array([w[i] * (1 if t[i] <= h else h / t[i]) for i in range(m)])
        return new / new.sum()

    value = c
    if r > 1e-9 * s:
        low, high = 1e-9 * r, max(t)
        for _ in range(200):
            h = np.sqrt(low * high)
            low, high = (low, h) if along(h) @ t > 0 else (h, high)
        value = along(high) @ X
    length = np.linalg.norm(value - centre)
    return centre + (value - centre) * (min(1, s / length) if length else 1)


def divide_and_conquer(X, f, columns, c=1.0):
    """Shejwalkar & Houmansadr 2021, Algorithm 2, given the columns drawn in each iteration."""
    X = np.asarray(X, float)
    good = set(range(len(X)))
    for chosen in columns:
        sub = X[:, chosen] - X[:, chosen].mean(axis=0)
        v = np.linalg.svd(sub, full_matrices=False)[2][0]
        scores = (sub @ v) ** 2
        good &= set(np.argsort(scores, kind="stable")[: len(X) - int(c * f)].tolist())
    return X[sorted(good)].mean(axis=0)


def nearest_neighbour_mixing(X, f):
    """Allouah et al. 2023: each vector becomes the mean of its m - f nearest, itself among them."""
    X = np.asarray(X, float)
    D = squared_distances(X)
    return np.array([X[np.argsort(row, kind="stable")[: len(X) - f]].mean(axis=0) for row in D])


def minimum_diameter_averaging(X, f):
    """El Mhamdi et al. 2018: of all sets of m - f vectors, the mean of the one with the smallest diameter. Where several have
    it, the next largest distances decide."""
    X = np.asarray(X, float)
    D = np.sqrt(squared_distances(X))
    best = min(
        combinations(range(len(X)), len(X) - f),
        key=lambda S: sorted((D[i, j] for i, j in combinations(S, 2)), reverse=True),
    )
    return X[list(best)].mean(axis=0)


def monna(X, root, f):
    """Farhadkhani et al. 2023: the mean of the m - f vectors nearest to one's own."""
    X = np.asarray(X, float)
    nearest = sorted(range(len(X)), key=lambda i: np.linalg.norm(X[i] - root))
    return X[nearest[: len(X) - f]].mean(axis=0)


def phocas(X, f):
    """Xie, Koyejo, Gupta 2018: the mean of the m - f values nearest to the trimmed mean, column by column."""
    out = []
    for column, middle in zip(np.asarray(X, float).T, trimmed_mean(X, f), strict=True):
        nearest = sorted(column, key=lambda value: (abs(value - middle), value))[: len(column) - f]
        out.append(np.mean(nearest))
    return np.array(out)


def covariance_agnostic_filter(X, f):
    """Allouah, Guerraoui, Stephan 2025: the loop of the spectral filter; the mean whose covariance has the smallest top
    eigenvalue of all means met on the way. As in the spectral filter, the largest score is that of a client with weight."""
    X = np.asarray(X, float)
    m = len(X)
    w = np.ones(m)
    best, least = X.mean(axis=0), np.inf
    while w.sum() > m - 2 * f + 1e-9:
        mu = w @ X / w.sum()
        values, vectors = np.linalg.eigh((X - mu).T @ (w[:, None] * (X - mu)) / w.sum())
        if values[-1] < least:
            best, least = mu, values[-1]
        scores = ((X - mu) @ vectors[:, -1]) ** 2
        top = scores[w > 0].max()
        if top == 0:
            break
        w = w * (1 - np.minimum(scores / top, 1.0))
    return best


def smea(X, f):
    """Allouah et al. 2023: the mean of the m - f vectors whose covariance has the smallest top eigenvalue."""
    X = np.asarray(X, float)

    def stretch(S):
        deviations = X[list(S)] - X[list(S)].mean(axis=0)
        return np.linalg.eigvalsh(sum(np.outer(x, x) for x in deviations) / len(S))[-1]

    return X[list(min(combinations(range(len(X)), len(X) - f), key=stretch))].mean(axis=0)


def comparative_gradient_elimination(X, f):
    """Gupta, Liu, Vaidya 2021: the m - f shortest gradients; their mean, where the source takes their sum."""
    X = np.asarray(X, float)
    shortest = sorted(range(len(X)), key=lambda i: np.linalg.norm(X[i]))[: len(X) - f]
    return sum(X[i] for i in shortest) / (len(X) - f)


def mean_shift(points, bandwidth):
    """Comaniciu & Meer 2002 with a flat kernel, as scikit-learn has it: seeds at all points, clusters in the order of how many
    points are within the bandwidth, one label per point, -1 for those beyond the bandwidth of all clusters. Numbers are rounded
    to 12 digits, so that ties are ties."""

    def apart(a, b):
        return round(float(np.linalg.norm(np.subtract(a, b))), 12)

    points, bandwidth = points.round(12), round(float(bandwidth), 12)
    ends = []
    for point in points:
        place = point
        for _ in range(300):
            moved = np.mean([p for p in points if apart(p, place) <= bandwidth], axis=0).round(12)
            step, place = np.linalg.norm(moved - place), moved
            if step <= 1e-3 * bandwidth:
                break
        ends.append((sum(apart(p, place) <= bandwidth for p in points), tuple(place)))
    centres = []
    for _, place in sorted(ends, reverse=True):
        if all(apart(place, centre) > bandwidth for centre in centres):
            centres.append(place)
    labels = []
    for point in points:
        distances = [apart(point, centre) for centre in centres]
        labels.append(int(np.argmin(distances)) if min(distances) <= bandwidth else -1)
    return labels


def sign_guard(X, low=0.1, high=3.0, quantile=0.5):
    """Xu et al. 2022, Algorithm 2, with all columns in place of a random tenth."""
    X = np.asarray(X, float)
    norms = [np.linalg.norm(x) for x in X]
    M = np.median(norms)
    S1 = {i for i, norm in enumerate(norms) if low * M <= norm <= high * M}
    signs = np.array([[np.mean(x > 0), np.mean(x == 0), np.mean(x < 0)] for x in X])
    k = max(int(len(X) * quantile), 1)
    bandwidth = np.mean([sorted(np.linalg.norm(signs - s, axis=1))[k - 1] for s in signs])
    labels = mean_shift(signs, bandwidth)
    largest = max(sorted(set(labels) - {-1}), key=labels.count)
    S2 = {i for i, label in enumerate(labels) if label == largest}
    chosen = S1 & S2 or S1
    return sum(X[i] * min(1, M / norms[i]) for i in chosen) / len(chosen)


def fl_trust(X, root):
    """Cao et al. 2021: the mean of the clients made as long as the root update, weighted by ReLU(cosine)."""
    X, root = np.asarray(X, float), np.asarray(root, float)
    size = np.linalg.norm(root)
    trust = [max(0.0, x @ root / (np.linalg.norm(x) * size)) for x in X]
    return sum(t * size / np.linalg.norm(x) * x for t, x in zip(trust, X, strict=True)) / sum(trust)


def fools_gold(X, confidence=1.0):
    """Fung, Yoon, Beschastnikh 2020, Algorithm 1 in one round; the mean, where the source takes the sum."""
    X = np.asarray(X, float)
    m = len(X)
    cs = np.array([[x @ y / (np.linalg.norm(x) * np.linalg.norm(y)) for y in X] for x in X]) - np.eye(m)
    v = cs.max(axis=1)
    for i in range(m):
        for j in range(m):
            if v[j] > v[i]:
                cs[i, j] *= v[i] / v[j]
    alpha = np.clip(1 - cs.max(axis=1), 0, 1)
    if not alpha.any():  # The source divides by 0 where nobody is trusted.
        return X.mean(axis=0)
    alpha = np.minimum(alpha / alpha.max(), 0.99)
    with np.errstate(divide="ignore"):
        alpha = np.clip(confidence * (np.log(alpha / (1 - alpha)) + 0.5), 0, 1)
    return sum(a * x for a, x in zip(alpha, X, strict=True)) / alpha.sum()


def adaptive_clipping(X, f):
    """Allouah et al. 2025, Algorithm 2 (ARC): clip the floor(2 (f/m) (m - f)) longest vectors to the length of the next one."""
    X = np.asarray(X, float)
    m = len(X)
    k = 2 * f * (m - f) // m
    longest_first = sorted((np.linalg.norm(x) for x in X), reverse=True)
    C = longest_first[k]
    return np.array([x * min(1.0, C / np.linalg.norm(x)) for x in X])
