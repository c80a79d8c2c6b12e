"""Our rules, mixings and attacks beside ByzFL's: the same numbers where definitions are the same, and where they are not.

    python benchmarks/agreement.py                        # prints the table
    python benchmarks/agreement.py docs/agreement.md      # writes it as a document, too

ByzFL is installed into the environment that benchmarks/peers makes. Each row compares values over random inputs in float64;
differences are in units of the median distance of clients to their mean. The script fails where a row that is to agree does
not.
"""

from __future__ import annotations

import importlib.metadata
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

sys.path.insert(0, str(Path(__file__).parent))

from fedhold import aggregate
from fedhold.lab import Knowledge, alie, ipm, mimic, non_finite, optimal_alie, optimal_ipm
from peers import environment
from peers.libraries import byzfl

Array = NDArray[np.float64]
CLOSE = 1e-5  # in median distances: rows that are to agree do so within this
SEEDS = range(40)
HEAD = """\
# Agreement with ByzFL

`python benchmarks/agreement.py docs/agreement.md`, in an environment of its own: {made_with}.

A row has up to {inputs} random inputs: 5 to 12 clients, 1, 3 and 20 columns, every f that both take, and in a fifth of them f
clients far away. Differences are in units of the median distance of the clients to their mean. Rows that are to agree do so to
1e-5, or the script fails. Where a definition differs, ours is that of the source which the docstring names.

| ours | ByzFL | inputs | largest difference | |
|---|---|---|---|---|"""


@dataclass(frozen=True)
class Pair:
    """One of ours and one of theirs.

    ours, theirs    their names, as a reader would write them
    values          (X, f) -> our value and theirs; None for an input that the row does not speak about
    agrees          whether they are to agree
    note            where the definitions differ, or what is to be known
    columns         the numbers of columns that inputs have
    """

    ours: str
    theirs: str
    values: Callable[[Array, int], tuple[Array, Array] | None]
    agrees: bool = True
    note: str = ""
    columns: tuple[int, ...] = (1, 3, 20)


def ours(rule: str, X: Array, **parameters: Any) -> Array:
    """Our value; the n_i are equal, as ByzFL knows none."""
    return np.asarray(aggregate(X, rule, **parameters).value)


def theirs(name: str, X: Array, **parameters: Any) -> Array:
    """The value of a rule of ByzFL. It gets a copy, for its clippings write into what they are given."""
    return np.asarray(getattr(byzfl("aggregators"), name)(**parameters)(X.copy()))


def plain(rule: str, name: str, takes_f: bool = True) -> Callable[[Array, int], tuple[Array, Array]]:
    """A rule that takes f, or takes nothing, in both."""

    def values(X: Array, f: int) -> tuple[Array, Array]:
        given = {"f": f} if takes_f else {}
        return ours(rule, X, **given), theirs(name, X, **given)

    return values


def geometric_median(X: Array, f: int) -> tuple[Array, Array] | None:  # noqa: ARG001
    """Where the minimiser is not a client itself: there, ByzFL's steps would take for ever."""
    value = ours("geometric_median", X, tol=1e-9)
    if np.linalg.norm(X - value, axis=1).min() < 1e-2:
        return None
    return value, theirs("GeometricMedian", X, nu=1e-9, T=3000)


def geometric_median_as_it_comes(X: Array, f: int) -> tuple[Array, Array]:  # noqa: ARG001
    return ours("geometric_median", X), theirs("GeometricMedian", X)


def krum(X: Array, f: int) -> tuple[Array, Array] | None:
    return (ours("krum", X, f=f), theirs("Krum", X, f=f + 1)) if len(X) >= 2 * f + 3 else None


def krum_with_the_same_f(X: Array, f: int) -> tuple[Array, Array] | None:
    return (ours("krum", X, f=f), theirs("Krum", X, f=f)) if len(X) >= 2 * f + 3 else None


def multi_krum(X: Array, f: int) -> tuple[Array, Array] | None:
    if len(X) < 2 * f + 3:
        return None
    return ours("multi_krum", X, f=f, keep=len(X) - f - 1), theirs("MultiKrum", X, f=f + 1)


def centered_clipping(X: Array, f: int) -> tuple[Array, Array]:  # noqa: ARG001
    start = np.zeros(X.shape[1])
    value = ours("centered_clipping", X, start=start, radius=1.5, iterations=4)
    return value, theirs("CenteredClipping", X, L=4, tau=1.5)


def least_diameter(X: Array, f: int) -> tuple[Array, Array] | None:
    distances = np.linalg.norm(X[:, None] - X, axis=2)
    diameters = sorted(distances[np.ix_(S, S)].max() for S in combinations(range(len(X)), len(X) - f))
    if len(diameters) > 1 and diameters[1] - diameters[0] < 1e-9:
        return None
    return ours("minimum_diameter_averaging", X, f=f), theirs("MDA", X, f=f)


def monna(X: Array, f: int) -> tuple[Array, Array]:
    return ours("monna", X, f=f, root=X[2]), theirs("MoNNA", X, f=f, idx=2)


def filter_(X: Array, f: int) -> tuple[Array, Array] | None:
    return (ours("covariance_agnostic_filter", X, f=f), theirs("CAF", X, f=f)) if f else None


def filter_of_those_left(X: Array, f: int) -> tuple[Array, Array] | None:
    """With one column, where the largest score is never that of a client that has lost all its weight."""
    weights = np.ones(len(X))
    while weights.sum() > len(X) - 2 * f:
        scores = (X[:, 0] - weights @ X[:, 0] / weights.sum()) ** 2
        if weights[scores.argmax()] == 0:
            return None
        weights *= 1 - scores / scores.max()
    return filter_(X, f)


def mixed(mixing: str, rule: str, *names: Callable[[int], tuple[str, dict[str, Any]]]) -> Callable[[Array, int], Any]:
    """A mixing before a rule; `names` are ByzFL's, one after the other, with their parameters."""

    def values(X: Array, f: int) -> tuple[Array, Array]:
        other = X
        for name, given in (call(f) for call in names):
            other = theirs(name, other, **given)
        return ours(f"{mixing.format(f=f)} | {rule.format(f=f)}", X), other

    return values


def adaptive(X: Array, f: int) -> tuple[Array, Array] | None:
    """Where ByzFL's int(2 f/m (m - f)) is the whole number that it means."""
    m = len(X)
    if int(2 * f / m * (m - f)) != 2 * f * (m - f) // m:
        return None
    return ours(f"adaptive_clipping(f={f}) | mean", X), theirs("ARC", X, f=f).mean(axis=0)


# Attacks: the first f clients lie, and the value is what each of them sends.


def known(X: Array, f: int, server: Callable[[Array], Array] | None = None) -> Knowledge:
    return Knowledge(X, np.arange(len(X)) < f, np.random.default_rng(0), server=server)


def attack(name: str, honest: Array, **parameters: Any) -> Array:
    return np.asarray(getattr(byzfl("attacks"), name)(**parameters)(honest.copy()))


def sent(lies: Callable[[Knowledge], Array], name: str, **parameters: Any) -> Callable[[Array, int], Any]:
    def values(X: Array, f: int) -> tuple[Array, Array] | None:
        if f == 0:
            return None
        return np.asarray(lies(known(X, f))[0]), attack(name, X[f:], **parameters)

    return values


def little(X: Array, f: int) -> tuple[Array, Array] | None:
    """ByzFL's deviation divides by k - 1 for k truthful clients, and is added."""
    k = len(X) - f
    if f == 0 or k < 2:
        return None
    return np.asarray(alie(known(X, f), z=-1.5 * math.sqrt(k / (k - 1)))[0]), attack("ALittleIsEnough", X[f:], tau=1.5)


def searched(lies: Callable[[Knowledge], Array], name: str) -> Callable[[Array, int], Any]:
    """The damage that the lies found do to the trimmed mean: equal damage is a difference of 0."""

    def values(X: Array, f: int) -> tuple[Array, Array] | None:
        if f == 0 or len(X) - f < 2:
            return None
        library = byzfl("aggregators")
        knowledge = known(X, f, lambda sent: ours("trimmed_mean", sent, f=f))
        other = attack(name, X[f:], agg=library.TrMean(f=f), pre_agg_list=[], f=f)
        return np.array([knowledge.damage(lies(knowledge))]), np.array([knowledge.damage(other)])

    return values


SAME = "the same definition"
PAIRS = (
    Pair("mean", "Average", plain("mean", "Average", takes_f=False), note=SAME),
    Pair(
        *("median", "Median", plain("median", "Median", takes_f=False)),
        note=f"{SAME}; on torch tensors, ByzFL takes the lower one of two middle values",
    ),
    Pair("trimmed_mean(f)", "TrMean(f)", plain("trimmed_mean", "TrMean"), note=SAME),
    Pair("mean_around_median(f)", "Meamed(f)", plain("mean_around_median", "Meamed"), note=SAME),
    Pair(
        *("geometric_median", "GeometricMedian(nu=1e-9, T=3000)", geometric_median),
        note="the same minimiser, once ByzFL is given 3,000 steps",
        columns=(3, 20),  # of an even number of points on a line, every point between the middle two is a minimiser
    ),
    Pair(
        *("geometric_median", "GeometricMedian()", geometric_median_as_it_comes, False),
        note="by default ByzFL makes 3 steps from 0, and takes distances below 0.1 for 0.1",
    ),
    Pair(
        *("krum(f)", "Krum(f + 1)", krum),
        note="the same once f is shifted: ours counts the m - f - 2 nearest others, as the source does",
    ),
    Pair("krum(f)", "Krum(f)", krum_with_the_same_f, False, note="ByzFL counts the m - f - 1 nearest others"),
    Pair("multi_krum(f, keep=m - f - 1)", "MultiKrum(f + 1)", multi_krum, note="as for krum"),
    Pair(
        *("centered_clipping(radius, iterations, start=0)", "CenteredClipping(tau, L)", centered_clipping),
        note="the same from one start: ByzFL begins at 0, then where its last call ended; ours at `start`",
    ),
    Pair(
        *("minimum_diameter_averaging(f)", "MDA(f)", least_diameter),
        note="the same where one set has the smallest diameter; of several, ByzFL takes the first, ours compares on",
    ),
    Pair(
        "monna(f, root=X[i])", "MoNNA(f, idx=i)", monna, note=f"{SAME}; without a root, ours takes the Huber aggregate"
    ),
    Pair(
        *("covariance_agnostic_filter(f)", "CAF(f), d = 1", filter_of_those_left),
        note="the same while the largest score is a client's with weight; ByzFL divides by the largest of all, ours of these",
        columns=(1,),
    ),
    Pair(
        *("covariance_agnostic_filter(f)", "CAF(f), d > 1", filter_, False),
        note="besides, ByzFL's eigenvector is one power step from a random vector, other in every call; ours is exact",
        columns=(3, 20),
    ),
    Pair(
        *("smea(f)", "SMEA(f), d = 1", plain("smea", "SMEA")),
        note=f"{SAME}; with one column, ByzFL's eigenvalue is exact",
        columns=(1,),
    ),
    Pair(
        *("smea(f)", "SMEA(f), d > 1", plain("smea", "SMEA"), False),
        note="as for CAF: one power step from a random vector",
        columns=(3, 20),
    ),
    Pair(
        *("nearest_neighbour_mixing(f), mean", "NNM(f), Average"),
        mixed("nearest_neighbour_mixing(f={f})", "mean", lambda f: ("NNM", {"f": f}), lambda _: ("Average", {})),
        note=SAME,
    ),
    Pair(
        *("nearest_neighbour_mixing(f), trimmed_mean(f)", "NNM(f), TrMean(f)"),
        mixed(
            *("nearest_neighbour_mixing(f={f})", "trimmed_mean(f={f})"),
            *(lambda f: ("NNM", {"f": f}), lambda f: ("TrMean", {"f": f})),
        ),
        note=SAME,
    ),
    Pair(
        *("bucketing(size=1), trimmed_mean(f)", "Bucketing(s=1), TrMean(f)"),
        mixed(
            "bucketing(size=1)",
            "trimmed_mean(f={f})",
            lambda _: ("Bucketing", {"s": 1}),
            lambda f: ("TrMean", {"f": f}),
        ),
        note="larger buckets are drawn at random, by ByzFL from NumPy's global generator, by ours from `rng`",
    ),
    Pair(
        *("clipping(radius), mean", "Clipping(c), Average"),
        mixed("clipping(radius=2.0)", "mean", lambda _: ("Clipping", {"c": 2.0}), lambda _: ("Average", {})),
        note=f"{SAME}; ByzFL overwrites the vectors that it is given",
    ),
    Pair(
        *("adaptive_clipping(f), mean", "ARC(f), Average", adaptive),
        note=f"{SAME}; where 2f(m - f)/m is whole, ByzFL's rounding may clip one vector less (m = 242, f = 33: 56, not 57)",
    ),
    Pair(
        "ipm(scale)",
        "InnerProductManipulation(tau)",
        sent(lambda k: ipm(k, scale=0.7), "InnerProductManipulation", tau=0.7),
        note=SAME,
    ),
    Pair(
        *("ipm(scale=1)", "SignFlipping()", sent(lambda k: ipm(k, scale=1.0), "SignFlipping")),
        note="ByzFL's liars send minus the mean of the truthful; our `sign_flip` is each liar's own gradient, as in the paper",
    ),
    Pair(
        *("alie(z)", "ALittleIsEnough(tau)", little),
        note="the same for z = -tau sqrt(k/(k - 1)), k truthful clients: ByzFL adds the deviation, and divides by k - 1",
    ),
    Pair("mimic(client)", "Mimic(epsilon)", sent(lambda k: mimic(k, client=1), "Mimic", epsilon=1), note=SAME),
    Pair(
        *("non_finite(value=inf)", "Inf()"),
        sent(lambda k: np.sign(non_finite(k, value=math.inf)), "Inf"),
        False,
        note="the same rows of infinities, of which no difference can be taken",
    ),
    Pair(
        *(
            "optimal_alie, damage",
            "Optimal_ALittleIsEnough, damage",
            searched(optimal_alie, "Optimal_ALittleIsEnough"),
            False,
        ),
        note="damage to the trimmed mean; ours searches on both sides of the mean, ByzFL's on one",
    ),
    Pair(
        *("optimal_ipm, damage", "Optimal_InnerProductManipulation, damage"),
        searched(optimal_ipm, "Optimal_InnerProductManipulation"),
        False,
        note="damage to the trimmed mean; ByzFL's search makes steps of another length",
    ),
)


@dataclass(frozen=True)
class Row:
    """A pair that was compared.

    inputs   over how many inputs
    largest  the largest difference, in median distances
    ahead    in how many of them our number is at least 99 % of theirs, where the values are one number: damages
    """

    pair: Pair
    inputs: int
    largest: float
    ahead: int = 0

    @property
    def holds(self) -> bool:
        """Whether the pair is as its table says."""
        return self.inputs > 0 and (not self.pair.agrees or self.largest <= CLOSE)


def compared(pair: Pair) -> Row:
    """The pair over random inputs: 5 to 12 clients, a fifth of the inputs with liars far away."""
    differences, ahead = list[float](), 0
    for seed in SEEDS:
        for d in pair.columns:
            rng = np.random.default_rng([seed, d])
            m = int(rng.integers(5, 13))
            f = int(rng.integers(0, (m - 1) // 2 + 1))
            X = rng.standard_normal(d) + rng.standard_normal((m, d))
            if seed % 5 == 0:
                X[:f] += 10 * rng.standard_normal(d)
            np.random.seed(seed)  # noqa: NPY002  # ByzFL draws from it
            found = pair.values(X, f)
            if found is not None:
                spread = np.median(np.linalg.norm(X - X.mean(axis=0), axis=1))
                differences.append(float(np.linalg.norm(found[0] - found[1]) / spread))
                ahead += bool(found[0].size == 1 and found[0][0] >= 0.99 * found[1][0])
    return Row(pair, len(differences), max(differences, default=math.nan), ahead)


def document(rows: list[Row]) -> str:
    """The table, and what it was made with."""
    made_with = f"byzfl {importlib.metadata.version('byzfl')}, NumPy {np.__version__}, float64"
    lines = [HEAD.format(made_with=made_with, inputs=3 * len(SEEDS))]
    for row in rows:
        size = "-" if not math.isfinite(row.largest) else f"{row.largest:.1e}"
        shown = size if row.pair.agrees else f"differs, {size}"
        if "damage" in row.pair.ours:
            shown = f"{size}; ours does as much in {row.ahead}"
        lines.append(f"| {row.pair.ours} | {row.pair.theirs} | {row.inputs} | {shown} | {row.pair.note} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str]) -> int:
    """Compare, print the table, write it to the path in the arguments if there is one."""
    console, place = Console(highlight=False), environment.folder()
    if not environment.inside(place):
        environment.prepare(place, console, ("byzfl",))
        return environment.run_inside(place, arguments, Path(__file__))
    rows = [compared(pair) for pair in PAIRS]
    text = document(rows)
    console.print(text, markup=False, soft_wrap=True)
    for path in arguments:
        Path(path).write_text(text, encoding="utf-8")
    wrong = [row for row in rows if not row.holds]
    for row in wrong:
        console.print(f"{row.pair.ours} and {row.pair.theirs} do not agree: {row.largest:.1e} over {row.inputs} inputs")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
