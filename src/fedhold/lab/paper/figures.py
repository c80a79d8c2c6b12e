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
QUICK_MNIST_ROUNDS = 4  # enough to see that everything works; nothing has been learnt by then

PAPER_T, AUTOMATIC_T = "huber, paper's T", "huber, automatic T"
BASELINES = ("krum", "median_of_means", "median", "trimmed_mean")
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
    """How much to run: the reading, the seeds, and the rounds on MNIST.

    seeds, mnist_seeds  what every curve begins with; on MNIST a second seed of all 63 curves would take 19 minutes of two
                        cores, and most claims need one of a few of them
    most, most_mnist    how many seeds a comparison may have, where those do not decide it
    """

    seeds: tuple[int, ...] = (0, 1, 2)
    mnist_seeds: tuple[int, ...] = (0,)
    most: int = 20
    most_mnist: int = 6
    mnist_rounds: int = MNIST_ROUNDS
    reading: Reading = MAIN

    @classmethod
    def of(cls, seeds: int | None = None, mnist_seeds: int | None = None, *, quick: bool = False) -> Plan:
        """A plan that begins with this number of seeds for synthesized data and for MNIST (3 and 1 by default).

        quick  one seed of each by default and no more of them where these do not decide, and few rounds on MNIST
        """
        whole = cls((0,), (0,), most=1, most_mnist=1, mnist_rounds=QUICK_MNIST_ROUNDS) if quick else cls()
        if seeds is not None:
            whole = replace(whole, seeds=tuple(range(integer(seeds, "seeds", at_least=1))))
        if mnist_seeds is not None:
            whole = replace(whole, mnist_seeds=tuple(range(integer(mnist_seeds, "mnist_seeds", at_least=1))))
        return replace(
            whole, most=max(whole.most, len(whole.seeds)), most_mnist=max(whole.most_mnist, len(whole.mnist_seeds))
        )

    def seeds_for(self, data: str) -> tuple[int, ...]:
        """The seeds of runs on this data."""
        return self.mnist_seeds if data == "mnist" else self.seeds

    def with_seeds(self, count: int) -> Plan:
        """The same with the first so many seeds for all data: no fewer than it begins with, no more than there may be."""
        seeds, mnist_seeds = (
            tuple(range(min(max(count, len(first)), most)))
            for first, most in ((self.seeds, self.most), (self.mnist_seeds, self.most_mnist))
        )
        return replace(self, seeds=seeds, mnist_seeds=mnist_seeds)

    @property
    def widest(self) -> Plan:
        """The same with all seeds that a comparison may have."""
        return self.with_seeds(max(self.most, self.most_mnist))


def baseline_rules(q: int, m: int) -> dict[str, str]:
    """Label -> spec of the methods the paper compares with, which know that q of m clients lie; and the mean."""
    require(m >= 2 * q + 3, "krum", needs="m >= 2q + 3", remedy="Lower epsilon, or leave Krum out.", m=m, q=q)
    return {
        "mean": "mean",
        "krum": f"krum(f={q})",
        "median_of_means": f"median_of_means(f={q})",
        "median": "median",
        "trimmed_mean": f"trimmed_mean(f={q})",
    }


@dataclass(frozen=True)
class Subfigure:
    """One chart of the paper, with everything that its curves have in common.

    name       fig1a, ...
    data, attack, epsilon, partition    as for Experiment
    threshold  the paper's T, as in a spec
    variance   of the clients' own true models; None where all clients have the same
    watched    the automatic Huber run with the first seed keeps every client's weight and a certificate for q liars
    """

    name: str
    data: str
    attack: str
    epsilon: float
    threshold: str
    partition: str = "balanced"
    variance: float | None = None
    watched: bool = False

    @property
    def title(self) -> str:
        unequal = ", unbalanced" if self.partition != "balanced" else ""
        spread = f", variance {self.variance:g}" if self.variance is not None else ""
        return f"{self.name}: {self.data}{unequal}{spread}, {self.attack}, epsilon {self.epsilon:g}"

    @property
    def metric(self) -> str:
        return "accuracy" if self.data == "mnist" else "rmse"

    @property
    def liars(self) -> int:
        """The paper's q."""
        return liars(self.epsilon, CLIENTS)

    def rule(self, label: str, told: float = 1.0) -> str:
        """The spec of a method; `told` is the number of liars that baselines are told, in multiples of the true one."""
        ours = {PAPER_T: f"huber(threshold={self.threshold})", AUTOMATIC_T: "huber"}
        return {**baseline_rules(int(told * self.liars), CLIENTS), **ours}[label]

    def curve(self, label: str, plan: Plan) -> tuple[Experiment, ...]:
        """One experiment per seed."""
        return _curve(self, label, plan)


@cache  # an experiment checks itself when it is made, and curves are asked for again and again
def _curve(subfigure: Subfigure, label: str, plan: Plan) -> tuple[Experiment, ...]:
    rule, runs = subfigure.rule(label, plan.reading.told), []
    for run in _runs(subfigure, rule, plan):
        if subfigure.attack == HLMA and label not in (PAPER_T, AUTOMATIC_T):
            # The liars assume the T of the paper's Huber server, whatever rule they meet, so that all meet the same lies.
            run = replace(run, attack=f"{HLMA}(threshold={subfigure.threshold})")
        watched = subfigure.watched and label == AUTOMATIC_T and run.seed == 0
        watching = (("keep_weights", 1), ("certify", subfigure.liars)) if watched else ()
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
    return tuple(
        Subfigure(f"{figure}{letter}", data, attack, epsilon, threshold, watched=attack == TMA)
        for letter, attack in zip("abcd", FOUR_ATTACKS, strict=True)
    )


def _unbalanced(name: str, data: str, *, watched: bool = False) -> Subfigure:
    by_samples = "by_samples(0, 2)"  # T_i = 2/sqrt(n_i)
    return Subfigure(name, data, HLMA, 0.2, by_samples, partition="random_cuts", watched=watched)


def _heterogeneous(name: str, attack: str, *, watched: bool = False) -> Subfigure:
    return Subfigure(name, "heterogeneous", attack, 0.2, "1", variance=0.2, watched=watched)


FIGURES: dict[str, tuple[Subfigure, ...]] = {
    "fig1": _four("fig1", "synthesized", 0.2, "1"),
    "fig2": _four("fig2", "mnist", 0.2, "0.2"),
    "fig3": _four("fig3", "mnist", 0.4, "0.2"),
    "fig4": (_unbalanced("fig4a", "synthesized", watched=True), _unbalanced("fig4b", "mnist")),
    "fig5": (
        _heterogeneous("fig5a", KA),
        _heterogeneous("fig5b", TMA, watched=True),
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
