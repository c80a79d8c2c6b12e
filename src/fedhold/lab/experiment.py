"""Experiments: what is fixed, what came out; one file per result; run many, interrupt, resume."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import platform
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold import __version__
from fedhold.errors import integer, listed, positive, require
from fedhold.kernels import numba_version
from fedhold.lab.federation import Federated, Round, chance, federate
from fedhold.lab.processes import bar, in_processes
from fedhold.lab.rsa import RSA_LOOP, rsa, rsa_parameters
from fedhold.lab.world import LOOP, check, cost, prepare, split
from fedhold.spec import parse
from fedhold.storage import write_whole

__all__ = ["Experiment", "MissingResult", "Result", "Store", "environment", "liars", "run", "run_all"]

FORMAT = 4  # of keys and files: raise it when the same experiment would give other numbers
BYZANTINE = 100  # purpose of the generator that draws the liars; those below are the round loop's and the data's

Option = float | int | str | None


@dataclass(frozen=True)
class Experiment:
    """One run, described by what can be written down; equal experiments have equal results.

    data       a key of world.DATA: synthesized, heterogeneous, mnist, fashion_mnist
    rule       a spec for aggregate(), or "rsa(penalty=...)"
    attack     a key of ATTACKS; None with epsilon 0
    epsilon    floor(epsilon * m) clients lie, drawn once per run
    partition  a key of PARTITIONS
    options    further arguments by name, in any order:
               of federate()   batch, momentum, local_steps, participation, sample_cap, certify, radius, evaluate_every
               of the data     samples, d, variance (regression); samples, hidden (images)
               of the attack   attack_scale, attack_z, ...; attack_threshold: what T huber_attack reckons with, a number or
                               "by_samples(0, 2)" or "automatic"; the rule's own unless given
               of partition    partition_alpha, partition_shards
               keep_weights    1: keep every client's weight in every round
    """

    data: str
    rule: str
    attack: str | None
    epsilon: float
    seed: int
    m: int = 500
    partition: str = "balanced"
    rounds: int = 200
    step: float = 0.02
    options: tuple[tuple[str, Option], ...] = ()

    def __post_init__(self) -> None:
        names = [name for name, _ in self.options]
        twice = listed(sorted({name for name in names if names.count(name) > 1}))
        require(twice == "none", "options", needs="each name once", remedy="Leave one away.", twice=twice)
        for name, value in (
            ("epsilon", positive(self.epsilon, "epsilon", zero=True)),
            ("step", positive(self.step, "step")),
            ("seed", integer(self.seed, "seed")),
            ("m", integer(self.m, "m", at_least=1)),
            ("rounds", integer(self.rounds, "rounds", at_least=1)),
            ("options", tuple(sorted({name: _plain(value) for name, value in self.options}.items()))),
        ):
            object.__setattr__(self, name, value)
        consensus = rsa_parameters(self.rule) is not None
        if not consensus:
            parse(self.rule, {})
        require(self.epsilon < 1, "epsilon", needs="epsilon < 1", remedy="It is a fraction.", epsilon=self.epsilon)
        if self.attack is None:
            require(self.epsilon == 0, "no attack", needs="epsilon = 0", remedy="Name one.", epsilon=self.epsilon)
        loop = RSA_LOOP if consensus else LOOP
        check(self.data, self.partition, self.attack, names, loop)
        split(dict(self.options))  # reads what is a spec among them

    @property
    def liars(self) -> int:
        """The paper's q."""
        return liars(self.epsilon, self.m)

    def key(self) -> str:
        """The same for equal experiments on every machine; the name of the result's file."""
        text = json.dumps({"format": FORMAT, **asdict(self)}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:20]

    def __str__(self) -> str:
        lies = f"{self.attack}, epsilon {self.epsilon:g}" if self.attack else "no attack"
        more = "".join(f", {name} {value}" for name, value in self.options)
        where = f"{self.data}, {self.m} clients, {self.partition}"
        return f"{self.rule} on {where}; {lies}; {self.rounds} rounds of step {self.step:g}, seed {self.seed}{more}"


def liars(epsilon: float, m: int) -> int:
    """floor(epsilon * m), which is 29 for 0.29 of 100 even though 0.29 * 100 is a little less in floats."""
    return int(np.floor(positive(epsilon, "epsilon", zero=True) * integer(m, "m") + 1e-9))


def _plain(value: Option) -> Option:
    """2.0 as 2, true as 1: equal options must give equal keys."""
    whole = isinstance(value, bool) or (isinstance(value, float) and value.is_integer())
    return int(value) if whole and value is not None else value


@dataclass(frozen=True, eq=False)
class Result:
    """What came out of an experiment.

    series       one number per round of: rmse or accuracy, loss, error, clipped, rejected, liar_weight, radius; None where
                 there is none (rules without weights, rounds without evaluation)
    byzantine    the clients that lied
    weights      (rounds, m) in units of an equal share, for runs that keep them
    seconds      of the last sitting
    environment  what it was computed with
    """

    experiment: Experiment
    series: dict[str, list[float | None]]
    byzantine: list[int]
    weights: NDArray[np.float16] | None
    seconds: float
    environment: dict[str, str]


class MissingResult(KeyError):  # noqa: N818
    """Nobody has run this experiment yet, or its file is damaged."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the quotes


class Store:
    """Results in a directory, one file per experiment, each there whole or not at all.

    command  what to type to have missing results made, for the error that says so
    """

    def __init__(self, root: Path, command: str | None = None) -> None:
        self.root = Path(root)
        self.command = command or f"fedhold reproduce all --out {root}"

    def path(self, experiment: Experiment) -> Path:
        return self.root / f"{experiment.key()}.json"

    def checkpoint(self, experiment: Experiment) -> Path:
        """Where a run in progress keeps its state."""
        return self.root / f"{experiment.key()}.ckpt"

    def has(self, experiment: Experiment) -> bool:
        return self._read(experiment) is not None

    def get(self, experiment: Experiment) -> Result:
        """The stored result; MissingResult where there is none."""
        result = self._read(experiment)
        if result is None:
            damaged = " (its file is damaged)" if self.path(experiment).exists() else ""
            raise MissingResult(f"no result{damaged} in {self.root} for: {experiment}. Make it with: {self.command}")
        return result

    def all(self) -> list[Result]:
        """Every result that is there whole."""
        found = (_recorded(path) for path in sorted(self.root.glob("*.json")))
        return [result for of in found if of is not None and (result := self._read(of)) is not None]

    def put(self, result: Result) -> None:
        record = {**vars(result), "experiment": asdict(result.experiment), "weights": _packed(result.weights)}
        write_whole(self.path(result.experiment), json.dumps({"format": FORMAT, **record}).encode())

    def _read(self, experiment: Experiment) -> Result | None:
        try:
            record = json.loads(self.path(experiment).read_bytes())
            series, weights = record["series"], _unpacked(record["weights"], (experiment.rounds, experiment.m))
            whole = record["format"] == FORMAT and record["experiment"] == json.loads(json.dumps(asdict(experiment)))
        except (FileNotFoundError, ValueError, KeyError, TypeError, zlib.error):
            return None
        if not whole or any(len(values) != experiment.rounds for values in series.values()):
            return None
        return Result(experiment, series, record["byzantine"], weights, record["seconds"], record["environment"])


def _packed(weights: NDArray[np.float16] | None) -> str | None:
    """An array of half floats as text, for JSON."""
    return None if weights is None else base64.b64encode(zlib.compress(weights.astype("<f2").tobytes())).decode()


def _unpacked(text: str | None, shape: tuple[int, int]) -> NDArray[np.float16] | None:
    """And back."""
    if text is None:
        return None
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), "<f2").reshape(shape).astype(np.float16)


def _recorded(path: Path) -> Experiment | None:
    """The experiment that a file says it is of."""
    try:
        fields = json.loads(path.read_bytes())["experiment"]
        return Experiment(**{**fields, "options": tuple(map(tuple, fields["options"]))})
    except (ValueError, KeyError, TypeError):
        return None


def run(
    experiment: Experiment, checkpoint: Path | None = None, on_round: Callable[[Round], None] | None = None
) -> Result:
    """Run one experiment here and now."""
    begun = time.perf_counter()
    options = split(dict(experiment.options))
    world = prepare(experiment.data, experiment.partition, experiment.m, experiment.seed, options)
    byzantine = np.zeros(experiment.m, dtype=bool)
    byzantine[chance(experiment.seed, BYZANTINE, 0).permutation(experiment.m)[: experiment.liars]] = True
    common: dict[str, Any] = {
        **{"attack": experiment.attack, "attack_parameters": options.attack, "byzantine": byzantine},
        **{"rounds": experiment.rounds, "step": experiment.step, "seed": experiment.seed, "checkpoint": checkpoint},
        **{"on_round": on_round, **options.loop},
    }
    consensus = rsa_parameters(experiment.rule)
    if consensus is not None:
        learnt = rsa(world.task, world.shards, **consensus, **common)
    else:
        learnt = federate(world.task, world.shards, rule=experiment.rule, **common)
    weights = None if learnt.weights is None or not options.keep_weights else learnt.weights.astype(np.float16)
    return Result(
        experiment=experiment,
        series=_series(learnt),
        byzantine=np.flatnonzero(byzantine).tolist(),
        weights=weights,
        seconds=time.perf_counter() - begun,
        environment=environment(),
    )


def _series(learnt: Federated) -> dict[str, list[float | None]]:
    """The history by columns; NaN, which no comparison can hold against a run, becomes None."""
    metrics = dict.fromkeys(name for row in learnt.history for name in row.metrics)
    columns: dict[str, list[float | None]] = {
        name: [row.metrics.get(name) for row in learnt.history] for name in metrics
    }
    for name in ("error", "clipped", "rejected", "liar_weight", "radius"):
        columns[name] = [getattr(row, name) for row in learnt.history]
    return {
        name: [None if value is None or np.isnan(value) else value for value in values]
        for name, values in columns.items()
    }


def environment() -> dict[str, str]:
    """What the numbers were computed with."""
    return {
        "fedhold": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "numba": numba_version(),
        "platform": platform.platform(),
        "blas_threads": os.environ.get("OPENBLAS_NUM_THREADS", "as many as cores"),
    }


def run_all(experiments: Sequence[Experiment], store: Store, *, jobs: int = 2, progress: bool = True) -> list[Result]:
    """The results of all experiments, in their order; those not in the store are run first, `jobs` at a time.

    Runs are done by processes of their own with one thread for BLAS, so that `jobs` changes no bit of a result. Interrupt
    them as you like: what is finished is stored, what is not goes on from its last round when you call again.
    """
    integer(jobs, "jobs", at_least=1)
    missing = [experiment for experiment in dict.fromkeys(experiments) if not store.has(experiment)]
    missing.sort(key=lambda e: (-_cost(e), e.data, e.partition, e.m, e.seed))  # neighbours share their data
    failures = []
    with (
        closing(in_processes(_work, [(experiment, store) for experiment in missing], jobs)) as events,
        bar([_cost(experiment) for experiment in missing], shown=progress) as reached,
    ):
        for number, kind, what in events:
            if kind == "news":
                reached(number, what / missing[number].rounds)
            elif kind == "done":
                reached(number, 1.0)
            else:
                failures.append(f"{missing[number]}:\n{what}")
    if failures:
        raise RuntimeError(f"{len(failures)} of {len(missing)} experiments failed. The first, {failures[0]}")
    return [store.get(experiment) for experiment in experiments]


def _work(task: tuple[Experiment, Store], tell: Callable[[int], None]) -> None:
    """Run one experiment in a worker process, and store it."""
    experiment, store = task
    checkpoint = store.checkpoint(experiment)
    store.put(run(experiment, checkpoint, lambda row: tell(row.round)))
    checkpoint.unlink(missing_ok=True)


def _cost(experiment: Experiment) -> float:
    return cost(experiment.data, experiment.rounds, split(dict(experiment.options)))
