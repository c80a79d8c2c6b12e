"""The paper's figures 1 to 5, as experiments.

Zhao, Yu, Wan: A Huber Loss Minimization Approach to Byzantine Robust Federated Learning, section 7. Its baselines know
the number of liars; Huber does not. Beside the paper's T, every figure has Huber with the automatic threshold.
What the paper leaves open is in `fedhold.lab.paper.readings`; a plan says which reading is run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache

from fedhold.errors import integer, require
from fedhold.lab import Experiment, liars
from fedhold.lab.paper.readings import (
    HLMA,
    KA,
    MAIN,
    MNIST_ROUNDS,
    MNIST_STEP,
    SYNTHESIZED_ROUNDS,
    SYNTHESIZED_STEP,
    TMA,
    Reading,
)

CLIENTS = 500
VARIANCE = 0.2  # of the clients' own true models, where they have such
QUICK_MNIST_ROUNDS = 4  # enough to see that everything works; nothing has been learnt by then

PAPER_T, AUTOMATIC_T = "huber, paper's T", "huber, automatic T"
BASELINES = ("krum", "median_of_means", "median", "trimmed_mean")
# Our rules for them, and for the mean, where f of the clients lie.
SPECS = {
    "mean": "mean",
    "krum": "krum(f={f})",
    "median_of_means": "median_of_means(f={f})",
    "median": "median",
    "trimmed_mean": "trimmed_mean(f={f})",
}
METHODS = ("mean", *BASELINES, PAPER_T, AUTOMATIC_T)
# The paper's names, with ours beside them.
NAMES = {
    "mean": "mean (not in the paper)",
    "krum": "Krum (krum)",
    "median_of_means": "GMM (median_of_means)",
    "median": "CWM (median)",
    "trimmed_mean": "CWTM (trimmed_mean)",
    PAPER_T: f"our method ({PAPER_T})",
    AUTOMATIC_T: f"{AUTOMATIC_T} (not in the paper)",
}
ATTACK_NAMES = {"sign_flip": "Sign-flip", KA: "KA", TMA: "TMA", HLMA: "HLMA"}
FOUR_ATTACKS = ("sign_flip", KA, TMA, HLMA)


@dataclass(frozen=True)
class Plan:
    """How much to run: the reading, the number of seeds, and the rounds on MNIST.

    seeds, mnist_seeds  what every curve begins with; on MNIST a second seed of all 63 curves would take 19 minutes of two
                        cores, and most claims need one of a few of them
    most, most_mnist    how many seeds a comparison may have, where those do not decide it
    """

    seeds: int = 3
    mnist_seeds: int = 1
    most: int = 20
    most_mnist: int = 6
    mnist_rounds: int = MNIST_ROUNDS
    reading: Reading = MAIN

    @classmethod
    def of(cls, seeds: int | None = None, mnist_seeds: int | None = None, *, quick: bool = False) -> Plan:
        """A plan that begins with this number of seeds for synthesized data and for MNIST (3 and 1 by default).

        quick  one seed of each by default and no more of them where these do not decide, and few rounds on MNIST
        """
        usual = cls(1, 1, most=1, most_mnist=1, mnist_rounds=QUICK_MNIST_ROUNDS) if quick else cls()
        first = integer(usual.seeds if seeds is None else seeds, "seeds", at_least=1)
        on_mnist = integer(usual.mnist_seeds if mnist_seeds is None else mnist_seeds, "mnist_seeds", at_least=1)
        return cls(first, on_mnist, max(usual.most, first), max(usual.most_mnist, on_mnist), usual.mnist_rounds)

    def seeds_for(self, data: str) -> range:
        """The seeds of runs on this data."""
        return range(self.mnist_seeds if data == "mnist" else self.seeds)

    def with_seeds(self, count: int) -> Plan:
        """The same with so many seeds for all data: no fewer than it begins with, no more than there may be."""
        seeds, mnist_seeds = max(count, self.seeds), max(count, self.mnist_seeds)
        return replace(self, seeds=min(seeds, self.most), mnist_seeds=min(mnist_seeds, self.most_mnist))

    @property
    def widest(self) -> Plan:
        """The same with all seeds that a comparison may have."""
        return replace(self, seeds=self.most, mnist_seeds=self.most_mnist)


def baseline_rules(q: int, m: int) -> dict[str, str]:
    """Label -> spec of the methods the paper compares with, which know that q of m clients lie; and the mean."""
    require(m >= 2 * q + 3, "krum", needs="m >= 2q + 3", remedy="Lower epsilon, or leave Krum out.", m=m, q=q)
    return {label: spec.format(f=q) for label, spec in SPECS.items()}


@dataclass(frozen=True)
class Subfigure:
    """One chart of the paper, with everything that its curves have in common.

    name       fig1a, ...
    data, attack, epsilon, partition    as for Experiment
    threshold  the paper's T, as in a spec
    """

    name: str
    data: str
    attack: str
    epsilon: float
    threshold: str
    partition: str = "balanced"

    @property
    def variance(self) -> float | None:
        """That of the clients' own true models; None where all clients have the same."""
        return VARIANCE if self.data == "heterogeneous" else None

    @property
    def watched(self) -> bool:
        """Whether the automatic Huber run with the first seed keeps every client's weight and a certificate for q liars."""
        return self.attack == TMA or self.name == "fig4a"

    @property
    def title(self) -> str:
        unequal = ", unbalanced" if self.partition != "balanced" else ""
        spread = f", variance {self.variance:g}" if self.variance is not None else ""
        return f"{self.name}: {self.data}{unequal}{spread}, {self.attack}, epsilon {self.epsilon:g}"

    @property
    def metric(self) -> str:
        return "accuracy" if self.data == "mnist" else "rmse"

    def curve(self, label: str, plan: Plan) -> tuple[Experiment, ...]:
        """One experiment of a method per seed."""
        return _curve(self, label, plan)


@cache  # an experiment checks itself when it is made, and curves are asked for again and again
def _curve(subfigure: Subfigure, label: str, plan: Plan) -> tuple[Experiment, ...]:
    q, ours = (
        liars(subfigure.epsilon, CLIENTS),
        {PAPER_T: f"huber(threshold={subfigure.threshold})", AUTOMATIC_T: "huber"},
    )
    rule, runs = {**baseline_rules(int(plan.reading.told * q), CLIENTS), **ours}[label], []
    for run in _runs(subfigure, rule, plan):
        if subfigure.attack == HLMA and label not in ours:
            # The liars assume the T of the paper's Huber server, whatever rule they meet, so that all meet the same lies.
            run = replace(run, attack=f"{HLMA}(threshold={subfigure.threshold})")
        watched = subfigure.watched and label == AUTOMATIC_T and run.seed == 0
        watching = (("keep_weights", 1), ("certify", q)) if watched else ()
        runs.append(plan.reading.of(replace(run, options=watching)))
    return tuple(runs)


@cache
def attack_free(subfigure: Subfigure, plan: Plan) -> tuple[Experiment, ...]:
    """The mean without liars on the same data: the reference that the cost of an attack is measured against."""
    runs = _runs(subfigure, "mean", plan)
    return tuple(plan.reading.of(replace(run, attack=None, epsilon=0.0, partition="balanced")) for run in runs)


def _runs(subfigure: Subfigure, rule: str, plan: Plan) -> list[Experiment]:
    """One experiment per seed, as the main reading has it."""
    on_mnist = subfigure.data == "mnist"
    return [
        Experiment(
            data=subfigure.data if subfigure.variance is None else f"{subfigure.data}(variance={subfigure.variance})",
            rule=rule,
            attack=subfigure.attack,
            epsilon=subfigure.epsilon,
            seed=seed,
            m=CLIENTS,
            partition=subfigure.partition,
            rounds=plan.mnist_rounds if on_mnist else SYNTHESIZED_ROUNDS,
            step=MNIST_STEP if on_mnist else SYNTHESIZED_STEP,
        )
        for seed in plan.seeds_for(subfigure.data)
    ]


def _four(figure: str, data: str, epsilon: float, threshold: str) -> tuple[Subfigure, ...]:
    lettered = zip("abcd", FOUR_ATTACKS, strict=True)
    return tuple(Subfigure(f"{figure}{letter}", data, attack, epsilon, threshold) for letter, attack in lettered)


FIGURES: dict[str, tuple[Subfigure, ...]] = {
    "fig1": _four("fig1", "synthesized", 0.2, "1"),
    "fig2": _four("fig2", "mnist", 0.2, "0.2"),
    "fig3": _four("fig3", "mnist", 0.4, "0.2"),
    "fig4": (  # T_i = 2/sqrt(n_i)
        Subfigure("fig4a", "synthesized", HLMA, 0.2, "by_samples(0, 2)", "random_cuts"),
        Subfigure("fig4b", "mnist", HLMA, 0.2, "by_samples(0, 2)", "random_cuts"),
    ),
    "fig5": (
        Subfigure("fig5a", "heterogeneous", KA, 0.2, "1"),
        Subfigure("fig5b", "heterogeneous", TMA, 0.2, "1"),
    ),
}
SUBFIGURES = {subfigure.name: subfigure for figure in FIGURES.values() for subfigure in figure}


def experiments(figure: str, plan: Plan) -> list[Experiment]:
    """All runs of a figure, and the runs without liars that its claims are measured against; runs of one seed together."""
    runs = [
        run
        for subfigure in FIGURES[figure]
        for line in (*(subfigure.curve(label, plan) for label in METHODS), attack_free(subfigure, plan))
        for run in line
    ]
    return sorted(dict.fromkeys(runs), key=lambda run: (run.data, run.partition, run.seed))
