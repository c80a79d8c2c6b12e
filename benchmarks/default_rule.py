"""How good is the default rule? One round, over settings and attacks, in errors of the honest clients' mean.

    python benchmarks/default_rule.py                         # the held-out half: settings and seeds that chose nothing
    python benchmarks/default_rule.py --half development      # the half on which the constants of spectral_huber were chosen
    python benchmarks/default_rule.py --half unequal          # development draws of clients with unequal numbers of samples
    python benchmarks/default_rule.py --rules huber spectral_huber --seeds 5

Honest clients are drawn around 0, so that the length of an aggregate is its error. It is divided by the error of the honest
clients' own mean, weighted by their samples (root mean squares over draws): 1 is as good as knowing the liars. Each attack
knows all honest updates. Most have a length, and the one that harms the rule most is taken for every draw. Where clients have
unequal n_i, the liars' are drawn as the others' are, or they claim ten times the median; the worse for the rule counts. The
first table has, for each share of liars, the worst attack of each setting, and the geometric mean of that over settings; the
second one has the settings one by one. Rules that need f are told how many lie; where nobody lies, a fifth of the clients.
"""

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # The matrices are small, and the machine may be shared.

import numpy as np

from fedhold import RULES, aggregate

SHARES = (0.1, 0.2, 0.3, 0.4)
LENGTHS = (0.1, 0.2, 0.3, 0.45, 0.6, 0.8, 1.0, 1.4, 2.0, 3.0, 6.0)  # in median distances of the honest to their mean
COMPARED = ("spectral_huber", "huber", "spectral_filter", "nearest_neighbour_mixing | trimmed_mean", "geometric_median")
CLAIM = 10.0  # medians: what liars claim to have where clients have unequal numbers of samples
REFERENCE_DRAWS = 300
QUIET_DRAWS = 400  # without an attack, where rules differ by a few per cent; 60 left half a per cent to chance

Draw = Callable[[np.random.Generator, int, int], np.ndarray]


@dataclass(frozen=True)
class Setting:
    """How honest clients are drawn.

    name     what sets it apart
    m, d     how many clients and numbers there are
    draw     (rng, clients, d) -> their updates around 0, for one sample each
    unequal  the deviation of ln n_i; 0 where all clients have as many samples
    skewed   whether the honest data is skewed or clustered, so that a location along a direction is biased
    """

    name: str
    m: int
    d: int
    draw: Draw
    unequal: float = 0.0
    skewed: bool = False

    def clients(self, rng: np.random.Generator, honest: int) -> tuple[np.ndarray, np.ndarray]:
        """The updates of the honest clients, and the n_i of all m: the liars' come first."""
        n = np.exp(self.unequal * rng.standard_normal(self.m))
        n /= np.median(n)
        return self.draw(rng, honest, self.d) / np.sqrt(n[self.m - honest :])[:, None], n


def normal(rng, m, d):
    return rng.standard_normal((m, d))


def decaying(rng, m, d, *, power):
    return rng.standard_normal((m, d)) * np.arange(1.0, d + 1) ** -power


def student(rng, m, d, *, freedom):
    return rng.standard_normal((m, d)) / np.sqrt(rng.chisquare(freedom, (m, 1)) / freedom)


def student_columns(rng, m, d, *, freedom):
    return rng.standard_t(freedom, (m, d))


def gamma(rng, m, d, *, shape):
    return (rng.gamma(shape, size=(m, d)) - shape) / np.sqrt(shape)


def skewed_factor(rng, m, d, *, size):
    return rng.standard_normal((m, d)) + size * (rng.exponential(size=(m, 1)) - 1)


def clusters(rng, m, d, *, shares, apart):
    centres = apart * rng.standard_normal((len(shares), d))
    centres -= np.array(shares) @ centres
    return centres[rng.choice(len(shares), m, p=shares)] + rng.standard_normal((m, d))


def labels(rng, m, d, *, alpha, classes, apart):
    centres = apart * rng.standard_normal((classes, d))
    centres -= centres.mean(axis=0)
    return rng.dirichlet(np.full(classes, alpha), m) @ centres + rng.standard_normal((m, d))


def factors(rng, m, d, *, rank, size):
    return rng.standard_normal((m, d)) + size * rng.standard_normal((m, rank)) @ rng.standard_normal((rank, d))


DEVELOPMENT = (
    Setting("normal, m 50, d 1000", 50, 1000, normal),
    Setting("normal, m 100, d 20", 100, 20, normal),
    Setting("normal, m 10, d 100", 10, 100, normal),
    Setting("normal, m 20, d 20", 20, 20, normal),
    Setting("normal, m 30, d 2", 30, 2, normal),
    Setting("spectrum 1/j, m 50, d 200", 50, 200, partial(decaying, power=1.0)),
    Setting("Student 3, m 50, d 100", 50, 100, partial(student, freedom=3)),
    Setting("3 factors, m 30, d 200", 30, 200, partial(factors, rank=3, size=1.0)),
    Setting("unequal n_i, m 50, d 100", 50, 100, normal, unequal=0.7),
    Setting("gamma 0.5, m 60, d 50", 60, 50, partial(gamma, shape=0.5), skewed=True),
    Setting("skewed factor, m 50, d 100", 50, 100, partial(skewed_factor, size=0.5), skewed=True),
    Setting("labels 0.1, m 50, d 200", 50, 200, partial(labels, alpha=0.1, classes=10, apart=1.5), skewed=True),
    Setting("clusters 70:30, m 50, d 100", 50, 100, partial(clusters, shares=(0.7, 0.3), apart=1.0), skewed=True),
    Setting("clusters 50:50, m 40, d 100", 40, 100, partial(clusters, shares=(0.5, 0.5), apart=1.0), skewed=True),
)
HELD_OUT = (
    Setting("normal, m 30, d 300", 30, 300, normal),
    Setting("normal, m 150, d 50", 150, 50, normal),
    Setting("normal, m 80, d 500", 80, 500, normal),
    Setting("normal, m 5, d 50", 5, 50, normal),
    Setting("normal, m 15, d 1000", 15, 1000, normal),
    Setting("normal, m 40, d 1", 40, 1, normal),
    Setting("spectrum 1/sqrt(j), m 60, d 400", 60, 400, partial(decaying, power=0.5)),
    Setting("Student 4 by column, m 40, d 60", 40, 60, partial(student_columns, freedom=4)),
    Setting("5 factors, m 60, d 100", 60, 100, partial(factors, rank=5, size=0.7)),
    Setting("unequal n_i, m 30, d 200", 30, 200, normal, unequal=1.0),
    Setting("gamma 1, m 40, d 30", 40, 30, partial(gamma, shape=1.0), skewed=True),
    Setting("skewed factor, m 100, d 50", 100, 50, partial(skewed_factor, size=0.4), skewed=True),
    Setting("labels 0.3, m 60, d 100", 60, 100, partial(labels, alpha=0.3, classes=5, apart=1.5), skewed=True),
    Setting("labels 0.1, m 20, d 300", 20, 300, partial(labels, alpha=0.1, classes=10, apart=1.0), skewed=True),
    Setting("clusters 60:40, m 60, d 200", 60, 200, partial(clusters, shares=(0.6, 0.4), apart=0.8), skewed=True),
    Setting("clusters 50:30:20, m 60, d 60", 60, 60, partial(clusters, shares=(0.5, 0.3, 0.2), apart=1.0), skewed=True),
)
UNEQUAL = (
    Setting("m 20, d 50, deviation 1", 20, 50, normal, unequal=1.0),
    Setting("m 50, d 100, deviation 0.7", 50, 100, normal, unequal=0.7),
    Setting("m 30, d 300, deviation 1.5", 30, 300, normal, unequal=1.5),
    Setting("m 12, d 20, deviation 0.7", 12, 20, normal, unequal=0.7),
    Setting("labels, m 40, d 100, deviation 1", 40, 100, partial(labels, alpha=0.3, classes=5, apart=1.0), unequal=1.0),
)
HALVES = {"development": (DEVELOPMENT, 1), "held-out": (HELD_OUT, 2), "unequal": (UNEQUAL, 7)}
"""name -> its settings, and the first number of every seed."""


def attacks(honest: np.ndarray, f: int, rng: np.random.Generator) -> Iterator[tuple[str, list[np.ndarray]]]:
    """The name of every attack, and what its f liars send at each of its lengths."""
    d, mean = honest.shape[1], honest.mean(axis=0)
    away = honest - mean
    unit = np.median(np.linalg.norm(away, axis=1))
    one, other = (v / np.linalg.norm(v) for v in rng.standard_normal((2, d)))
    other = other - other @ one * one if d > 1 else -one
    top = np.linalg.svd(away, full_matrices=False)[2][0]
    top = top if ((away @ top) ** 3).sum() >= 0 else -top
    deviations = away.std(axis=0)
    alie = -deviations / np.linalg.norm(deviations)
    noise, drawn = rng.standard_normal((f, d)) * deviations, away[rng.integers(0, len(honest), f)]
    second, fifth = (np.arange(f)[:, None] % k == 0 for k in (2, 5))
    along = rng.uniform(0, 2, (f, 1))

    def searched(lie: Callable[[float], np.ndarray]) -> list[np.ndarray]:
        return [mean + np.broadcast_to(lie(length * unit), (f, d)) for length in LENGTHS]

    yield "in one point", searched(lambda a: a * one)
    yield "in one point on the top axis", searched(lambda a: a * top)
    yield "in one point on the top axis, backwards", searched(lambda a: -a * top)
    yield "a little is enough", searched(lambda a: a * alie)
    yield "honest draws, shifted", searched(lambda a: drawn + a * one)
    yield "honest draws, shifted along the top axis", searched(lambda a: drawn + a * top)
    yield "half of the noise, shifted", searched(lambda a: noise / 2 + a * one)
    yield "spread along a line", searched(lambda a: a * along * one)
    yield "two groups", searched(lambda a: a * np.where(second, one, other))
    yield "a fifth against the others", searched(lambda a: a * np.where(fifth, -3 * one, one))
    yield "a fifth across the others", searched(lambda a: a * np.where(fifth, 3 * other, one))
    yield "mimics the farthest on the top axis", [np.tile(honest[np.argmax(away @ top)], (f, 1))]
    yield "noise", [mean + 10 * noise]
    yield "far away", [mean + 1e6 * unit * np.tile(one, (f, 1)), mean + 1e3 * unit * rng.standard_normal((f, d))]


def spec(rule: str, f: int) -> str:
    """The rule and its mixings, each told f if it takes one."""
    parts = [part.strip() for part in rule.split("|")]
    told = ("nearest_neighbour_mixing", "spectral_filter", "trimmed_mean", "multi_krum", "median_of_means")
    return " | ".join(f"{part}(f={f})" if part in told else part for part in parts)


def length(rule: str, updates: np.ndarray, n: np.ndarray, f: int) -> float:
    """The error of a rule: the length of its aggregate."""
    return float(np.linalg.norm(aggregate(updates, spec(rule, f), samples=n).value))


def root_mean_square(numbers: list[float]) -> float:
    return float(np.sqrt(np.mean(np.square(numbers))))


def honest_error(setting: Setting, honest: int, base: int) -> float:
    """The error of the honest clients' own mean."""
    errors = []
    for k in range(REFERENCE_DRAWS):
        X, n = setting.clients(np.random.default_rng([base, 1, k, setting.m, setting.d]), honest)
        own = n[setting.m - honest :]
        errors.append(float(np.linalg.norm(own @ X / own.sum())))
    return root_mean_square(errors)


def without_attack(setting: Setting, rule: str, base: int) -> float:
    """The error of the rule where nobody lies, divided by that of the mean on the same draws."""
    errors, means = [], []
    for k in range(QUIET_DRAWS):
        X, n = setting.clients(np.random.default_rng([base, 2, k, setting.m, setting.d]), setting.m)
        errors.append(length(rule, X, n, setting.m // 5))
        means.append(float(np.linalg.norm(n @ X / n.sum())))
    return root_mean_square(errors) / root_mean_square(means)


def worst_case(setting: Setting, rule: str, share: float, base: int, seeds: int) -> tuple[float, str] | None:
    """The error under the attack that harms the rule most, and its name; None where the share is less than one client."""
    f = int(share * setting.m + 1e-9)
    if not f:
        return None
    found = dict[str, list[float]]()
    for k in range(seeds):
        rng = np.random.default_rng([base, 3, k, setting.m, setting.d, f])
        honest, n = setting.clients(rng, setting.m - f)
        claims = [n, np.concatenate([np.full(f, CLAIM), n[f:]])] if setting.unequal else [n]
        for name, lies in attacks(honest, f, rng):
            errors = [length(rule, np.concatenate([lie, honest]), claim, f) for lie in lies for claim in claims]
            found.setdefault(name, []).append(max(errors))
    name, errors = max(found.items(), key=lambda item: root_mean_square(item[1]))
    return root_mean_square(errors) / honest_error(setting, setting.m - f, base), name


def geometric_mean(numbers: list[float]) -> float:
    return float(np.exp(np.mean(np.log(numbers)))) if numbers else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--half", choices=HALVES, default="held-out", help="which settings and seeds")
    parser.add_argument("--rules", nargs="+", default=COMPARED, metavar="RULE", help=f"of {', '.join(RULES)}")
    parser.add_argument("--seeds", type=int, default=2, help="draws of every setting under attack")
    parser.add_argument("--only", default="", metavar="WORD", help="settings with this in their names")
    given = parser.parse_args()
    settings, base = HALVES[given.half]
    settings = tuple(setting for setting in settings if given.only in setting.name)
    quiet, worst = dict[tuple[str, str], float](), dict[tuple[str, str, float], tuple[float, str]]()
    print(
        f"Settings of the {given.half} half\n\n| setting | rule | none |"
        + "".join(f" {e} |" for e in SHARES)
        + " worst at 0.4 |"
    )
    print("|---|---|---|" + "---|" * (len(SHARES) + 1))
    for setting in settings:
        for rule in given.rules:
            quiet[setting.name, rule] = without_attack(setting, rule, base)
            for share in SHARES:
                if (found := worst_case(setting, rule, share, base, given.seeds)) is not None:
                    worst[setting.name, rule, share] = found
            cells = [worst.get((setting.name, rule, share)) for share in SHARES]
            shown = "".join(f" {'-' if cell is None else f'{cell[0]:.2f}'} |" for cell in cells)
            attack = cells[-1][1] if cells[-1] else "-"
            print(
                f"| {setting.name} | {rule.replace(' |', ',')} | {quiet[setting.name, rule]:.3f} |{shown} {attack} |",
                flush=True,
            )
    print(f"\nGeometric means over the {given.half} half\n")
    print("| rule | none | none, skewed or clustered |" + "".join(f" {share} |" for share in SHARES) + " all |")
    print("|---|---|---|" + "---|" * (len(SHARES) + 1))
    for rule in given.rules:
        calm, skewed = ([quiet[s.name, rule] for s in settings if s.skewed is kind] for kind in (False, True))
        means = [
            geometric_mean([cell[0] for (_, name, e), cell in worst.items() if (name, e) == (rule, share)])
            for share in SHARES
        ]
        cells = [f"{geometric_mean(calm):.3f}", f"{geometric_mean(skewed):.3f}", *(f"{mean:.2f}" for mean in means)]
        print(f"| {rule.replace(' |', ',')} | " + " | ".join(cells) + f" | **{geometric_mean(means):.2f}** |")


if __name__ == "__main__":
    main()
