"""Results: what came out of an experiment, the directory that keeps one file per result, and verdicts on claims."""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import platform
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedhold import __version__
from fedhold.errors import visible
from fedhold.lab.experiment import FORMAT, Experiment
from fedhold.storage import write_whole

Half = NDArray[np.float16]


@dataclass(frozen=True, eq=False)
class Result:
    """What came out of an experiment.

    series       one number per round of: rmse or accuracy, loss, error, clipped, rejected, liar_weight, radius; None where
                 there is none (rules without weights, rounds without evaluation)
    byzantine    the numbers of the clients that lied
    weights      (rounds, m) in units of an equal share, for runs that keep them
    seconds      how long the run took since it was last resumed
    environment  the versions and the machine it was computed with
    infeasible   why the experiment cannot be run, such as a rule's bound on m and f; "" where it was. The series are then empty
    samples      the clients' n_i, for runs that keep their weights
    constant     the accuracy of the same answer for every test sample, the most frequent class; None where there are no classes
    """

    experiment: Experiment
    series: dict[str, list[float | None]]
    byzantine: list[int]
    weights: Half | None
    seconds: float
    environment: dict[str, str]
    infeasible: str = ""
    samples: list[int] | None = None
    constant: float | None = None

    @property
    def metric(self) -> str:
        """The series to judge the result by: accuracy or rmse where there is one of them, else the first."""
        return next((name for name in ("accuracy", "rmse", *self.series) if name in self.series), "")

    @property
    def end(self) -> float | None:
        """The last value of the metric that was measured; None where the run diverged or cannot be run."""
        values = self.series.get(self.metric, [])
        return values[-1] if values else None


def environment() -> dict[str, str]:
    """The versions and the machine that results are computed with."""
    return {
        "fedhold": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "platform": platform.platform(),
        "blas_threads": "1",  # in worker processes as in federate()
    }


@dataclass(frozen=True)
class Verdict:
    """What results say about a claim.

    says     the claim, a sentence
    where    its source
    outcome  holds, fails, depends (on how the source is read) or undecided
    numbers  how the claim was read, and the comparisons that decided
    quoted   whether the sentence is the source's own, and not ours
    """

    says: str
    where: str
    outcome: str
    numbers: str
    quoted: bool = True


class MissingResult(KeyError):  # noqa: N818
    """The experiment has not been run yet, or the file of its result is damaged."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show the quotes


class Store:
    """Results in a directory, one file per experiment. A file that is not whole, or whose checksum is wrong, counts as none.

    root     the directory; it is made when the first result is stored
    command  the command that makes missing results, for the error that says so

    >>> import tempfile
    >>> store = Store(Path(tempfile.mkdtemp()))
    >>> store.has(Experiment("synthesized", "mean", None, 0.0, 0))
    False
    """

    def __init__(self, root: Path, command: str | None = None) -> None:
        self.root = Path(root)
        self.command = command or f"fedhold reproduce all --out {root}"

    def path(self, experiment: Experiment) -> Path:
        """The file of a result."""
        return self.root / f"{experiment.key()}.json"

    def checkpoint(self, experiment: Experiment) -> Path:
        """The file in which a run in progress keeps its state."""
        return self.root / f"{experiment.key()}.ckpt"

    def has(self, experiment: Experiment) -> bool:
        """Whether the result is there, whole."""
        return self.find(experiment) is not None

    def get(self, experiment: Experiment) -> Result:
        """The stored result; raises MissingResult where there is none."""
        result = self.find(experiment)
        if result is None:
            damaged = " (its file is damaged)" if self.path(experiment).exists() else ""
            raise MissingResult(f"no result{damaged} in {self.root} for: {experiment}. Make it with: {self.command}")
        return result

    def all(self) -> list[Result]:
        """Every result that is there whole; the log says how many files are not."""
        paths = sorted(self.root.glob("*.json"), key=lambda path: (path.stat().st_mtime, path.name))
        found = [result for path in paths if (result := self._read(path)) is not None]
        if len(found) < len(paths):
            logging.getLogger("fedhold").warning(
                "%s holds %d files that are damaged, or of another version; they are left out. The command that made "
                "them makes them anew.",
                *(visible(self.root), len(paths) - len(found)),
            )
        # A part of the user's own may have changed between two runs of one experiment; the last of them counts.
        return list({result.experiment: result for result in found}.values())

    def put(self, result: Result) -> None:
        """Store a result; its file appears whole or not at all."""
        record = {**vars(result), "experiment": asdict(result.experiment), "weights": _packed(result.weights)}
        whole = {"format": FORMAT, **record}
        write_whole(self.path(result.experiment), json.dumps({**whole, CHECKSUM: _checksum(whole)}).encode())

    def find(self, experiment: Experiment) -> Result | None:
        """The stored result; None where there is none, or none that is whole."""
        result = self._read(self.path(experiment))
        return result if result is not None and result.experiment == experiment else None

    def _read(self, path: Path) -> Result | None:
        """The result in a file; None for one that is damaged or of another format. No name in it is looked up or imported."""
        try:
            record = json.loads(path.read_bytes())
            checksum, version = record.pop(CHECKSUM), record["format"]
            if checksum != _checksum(record) or version != FORMAT:
                return None
            del record["format"]
            experiment = Experiment.recorded(record["experiment"])
            weights = _unpacked(record["weights"], (experiment.rounds, experiment.m))
            result = Result(**{**record, "experiment": experiment, "weights": weights})
            samples, constant, rounds = result.samples, result.constant, experiment.rounds
            whole = bool(result.series) != bool(result.infeasible)
            whole = whole and (samples is None or len(samples) == experiment.m)
            whole = whole and (constant is None or 0 < constant <= 1)
            return result if whole and all(_curve(line, rounds) for line in result.series.values()) else None
        except (OSError, RecursionError, AttributeError, KeyError, TypeError, ValueError, zlib.error):
            return None


CHECKSUM = "sha256"


def _checksum(record: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def _curve(values: object, rounds: int) -> bool:
    """Whether these are the values of a series: one number, or None, per round."""
    return (
        isinstance(values, list)
        and len(values) == rounds
        and all(value is None or isinstance(value, int | float) for value in values)
    )


def _packed(weights: Half | None) -> str | None:
    """An array of half floats as text, for JSON."""
    return None if weights is None else base64.b64encode(zlib.compress(weights.astype("<f2").tobytes())).decode()


def _unpacked(text: str | None, shape: tuple[int, int]) -> Half | None:
    """The array from the text that _packed made of it."""
    if text is None:
        return None
    size = 2 * shape[0] * shape[1]
    packed = zlib.decompressobj().decompress(base64.b64decode(text), size + 1)  # no more, whatever the text inflates to
    return np.frombuffer(packed, "<f2").reshape(shape).astype(np.float16)
