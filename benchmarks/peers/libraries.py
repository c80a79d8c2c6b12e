"""The other libraries: which of them has which of our rules, how it is called, and how much memory that takes.

A library is imported when its first rule is called. Each is given the same array as our rules; those of torch get a tensor
on the same memory. Flower's strategies run their own aggregate_train on real messages whose arrays need no
deserialisation, so that only the aggregation is timed.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import logging
import math
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bench import Contender, bucketed

Array = NDArray[np.float32]
NOBODY = {  # sender and receiver of a Flower message, which a running federation would fill in
    **{"run_id": 0, "src_node_id": 0, "dst_node_id": 0, "created_at": 0.0, "ttl": 1e9},
    **{"message_id": "", "reply_to_message_id": "", "group_id": ""},
}
Call = Callable[[], Any]


def byzfl(module: str) -> Any:
    """Import byzfl.aggregators or byzfl.attacks, without torchvision and seaborn, which `import byzfl` needs for its plots."""
    if "byzfl" not in sys.modules:
        spec = importlib.util.find_spec("byzfl")
        if spec is None or spec.submodule_search_locations is None:
            raise ModuleNotFoundError("No module named 'byzfl'")
        package = ModuleType("byzfl")
        package.__path__ = list(spec.submodule_search_locations)
        package.__spec__ = importlib.machinery.ModuleSpec("byzfl", None, is_package=True)
        sys.modules["byzfl"] = package
    return importlib.import_module(f"byzfl.{module}")


def _tensor(X: Array) -> Any:
    return importlib.import_module("torch").from_numpy(X)


def _byzfl(
    rule: str,
    torch: bool,
    memory: Callable[[int, int], float],
    name: str,
    *,
    stops: str = "",
    differs: str = "",
    **own: Any,
) -> Contender:
    """A rule of ByzFL. `name` is its class, `own` its arguments as functions of (X, f)."""

    def make(X: Array, f: int) -> Callable[[], Call]:
        function = getattr(byzfl("aggregators"), name)
        vectors = _tensor(X) if torch else X
        arguments = {key: value(X, f) for key, value in own.items()}

        def prepared() -> Call:
            aggregator = function(**arguments)  # a new one for each call: CenteredClipping starts where it stopped last
            return lambda: aggregator(vectors)

        return prepared

    return Contender(rule, "ByzFL torch" if torch else "ByzFL", make, memory, stops, differs)


def _byzfl_bucketing(torch: bool) -> Contender:
    def make(X: Array, f: int) -> Callable[[], Call]:
        library, vectors = byzfl("aggregators"), _tensor(X) if torch else X
        mix, trim = library.Bucketing(s=2), library.TrMean(f=bucketed(len(X), f))
        return lambda: lambda: trim(mix(vectors))

    return Contender("bucketing", "ByzFL torch" if torch else "ByzFL", make, lambda *_: 4)


def _byzfl_clipping(torch: bool) -> Contender:
    def make(X: Array, f: int) -> Callable[[], Call]:
        library = byzfl("aggregators")
        clip, mean = library.Clipping(c=_radius(X, f)), library.Average()

        def prepared() -> Call:
            vectors = _tensor(X.copy()) if torch else X.copy()  # It overwrites what it is given.
            return lambda: mean(clip(vectors))

        return prepared

    return Contender("clipping", "ByzFL torch" if torch else "ByzFL", make, lambda *_: 3)


def _byzfl_mixing(torch: bool) -> Contender:
    def make(X: Array, f: int) -> Callable[[], Call]:
        library, vectors = byzfl("aggregators"), _tensor(X) if torch else X
        mix, trim = library.NNM(f=f), library.TrMean(f=f)
        return lambda: lambda: trim(mix(vectors))

    # It gathers the m - f neighbours of every client before it takes their mean.
    return Contender("nearest_neighbour_mixing", "ByzFL torch" if torch else "ByzFL", make, lambda m, f: m - f + 2)


def _geom_median(torch: bool) -> Contender:
    def make(X: Array, f: int) -> Callable[[], Call]:  # noqa: ARG001
        kind = "torch" if torch else "numpy"
        function = importlib.import_module(f"geom_median.{kind}").compute_geometric_median
        points = list(_tensor(X) if torch else X)
        return lambda: lambda: function(points).median

    library = "geom-median torch" if torch else "geom-median"
    stops = "100 steps, or a change of the objective below 1e-20 of it"  # maxiter and ftol, by default
    return Contender("geometric_median", library, make, lambda *_: 1 if torch else 4, stops)


def _torchjd(rule: str, name: str, memory: float, **own: Callable[[Array, int], int]) -> Contender:
    def make(X: Array, f: int) -> Callable[[], Call]:
        function = getattr(importlib.import_module("torchjd.aggregation"), name)
        aggregator, matrix = function(**{key: value(X, f) for key, value in own.items()}), _tensor(X)
        return lambda: lambda: aggregator(matrix)

    return Contender(rule, "torchjd", make, lambda *_: memory)


def _flower(rule: str, name: str, memory: float, *, differs: str = "", **own: Callable[[Array, int], Any]) -> Contender:
    """A strategy of Flower. It empties the messages it is given, so that every call needs new ones."""

    def make(X: Array, f: int) -> Callable[[], Call]:
        os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
        app = importlib.import_module("flwr.app")
        strategy = getattr(importlib.import_module("flwr.serverapp.strategy"), name)(
            **{key: value(X, f) for key, value in own.items()}
        )
        logging.getLogger("flwr").setLevel(logging.ERROR)

        class InMemory(app.Array):
            """An array that is in memory already, so that reading it costs nothing."""

            def __init__(self, row: Array) -> None:
                super().__init__(str(row.dtype), row.shape, "numpy.ndarray", b"")
                self.row = row

            def numpy(self) -> Array:
                return self.row

        def reply(row: Array) -> Any:
            arrays = app.ArrayRecord()
            arrays["w"] = InMemory(row)  # the constructor of ArrayRecord would turn it into a plain Array
            content = app.RecordDict({"arrays": arrays, "metrics": app.MetricRecord({"num-examples": 1})})
            return app.Message(content=content, metadata=app.Metadata(message_type="train", **NOBODY))

        def prepared() -> Call:
            replies = [reply(row) for row in X]

            def call() -> Any:
                arrays, _ = strategy.aggregate_train(1, replies)
                if arrays is None:
                    raise RuntimeError(f"{name} refused the round")
                return arrays["w"]

            return call

        return prepared

    return Contender(rule, "Flower", make, lambda *_: memory, differs=differs)


def _f(X: Array, f: int) -> int:  # noqa: ARG001
    return f


def _kept(X: Array, f: int) -> int:
    return len(X) - f


def _share(X: Array, f: int) -> float:
    return f / len(X)


def _five(X: Array, f: int) -> int:  # noqa: ARG001
    return 5


def _radius(X: Array, f: int) -> float:  # noqa: ARG001
    return math.sqrt(X.shape[1])


def _of_both(rule: str, name: str, numpy: float, torch: float, **own: Any) -> list[Contender]:
    return [
        _byzfl(rule, False, lambda *_: numpy, name, **own),
        _byzfl(rule, True, lambda *_: torch, name, **own),
    ]


THREE_STEPS = "3 steps from 0, and distances below 0.1 are taken for 0.1"
ONE_MORE = "the m - f - 1 nearest others count, where the source counts m - f - 2"
OTHER_BULYAN = "it differs from the source's rule by 11 to 39 % of the distance to the mean"

PACKAGES = ("torch", "byzfl", "flwr", "geom-median", "torchjd")
LIBRARIES = ("ByzFL", "ByzFL torch", "Flower", "geom-median", "geom-median torch", "torchjd")
PEERS: tuple[Contender, ...] = (
    *_of_both("mean", "Average", 0, 0),
    _flower("mean", "FedAvg", 1),
    _torchjd("mean", "Mean", 0),
    *_of_both("geometric_median", "GeometricMedian", 4, 4, stops="3 steps from 0", differs=THREE_STEPS),
    _geom_median(torch=False),
    _geom_median(torch=True),
    *_of_both("median", "Median", 2, 4),
    _flower("median", "FedMedian", 3.3),
    *_of_both("trimmed_mean", "TrMean", 3, 4, f=_f),
    _flower("trimmed_mean", "FedTrimmedAvg", 3.3, beta=_share),
    _torchjd("trimmed_mean", "TrimmedMean", 4, trim_number=_f),
    *_of_both("mean_around_median", "Meamed", 4, 4, f=_f),
    *_of_both("krum", "Krum", 5, 1, f=_f, differs=ONE_MORE),
    _flower("krum", "Krum", 3.3, num_malicious_nodes=_f),
    _torchjd("krum", "Krum", 1, n_byzantine=_f),
    *_of_both("multi_krum", "MultiKrum", 5, 2, f=_f, differs=ONE_MORE),
    _flower("multi_krum", "MultiKrum", 3.3, num_malicious_nodes=_f, num_nodes_to_select=_kept),
    _torchjd("multi_krum", "Krum", 1, n_byzantine=_f, n_selected=_kept),
    _flower("bulyan", "Bulyan", 6, num_malicious_nodes=_f, differs=OTHER_BULYAN),
    _byzfl_mixing(torch=False),
    _byzfl_mixing(torch=True),
    _byzfl_bucketing(torch=False),
    _byzfl_bucketing(torch=True),
    _byzfl_clipping(torch=False),
    _byzfl_clipping(torch=True),
    *_of_both("centered_clipping", "CenteredClipping", 3, 3, L=_five, tau=_radius),
)
