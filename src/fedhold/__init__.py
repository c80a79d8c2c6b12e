"""Federated learning that holds when clients lie.

A server hands `aggregate` what m clients sent, an m x d matrix that is never built. A rule sees one of two views of it:

    geometry   distances between clients, and to any weighted centre  ->  m weights  ->  weights @ updates
    columns    one block of columns at a time                         ->  one row

`aggregate(updates, "huber", samples=n)` returns an `Aggregation`: the value, one row per client, and a certificate.
`fedhold.flower` and `fedhold.nvflare` put it into servers, `fedhold.lab` is the laboratory to study it in.
"""

from fedhold import bounds, sampling, thresholds
from fedhold.aggregation import aggregate
from fedhold.buffer import Buffer
from fedhold.certificate import Certificate
from fedhold.diagnosis import Diagnosis, diagnose
from fedhold.geometry import Geometry
from fedhold.result import Aggregation, Client, Clients, Guarded
from fedhold.spec import MIXINGS, RULES
from fedhold.updates import open_update, open_updates, save_update

__all__ = [
    "MIXINGS",
    "RULES",
    "Aggregation",
    "Buffer",
    "Certificate",
    "Client",
    "Clients",
    "Diagnosis",
    "Geometry",
    "Guarded",
    "aggregate",
    "bounds",
    "diagnose",
    "open_update",
    "open_updates",
    "sampling",
    "save_update",
    "thresholds",
]

__version__ = "0.1.0"


def __dir__() -> list[str]:
    """The public names, for help() and for the completion of names; of the packages those that have been imported."""
    packages = [name for name in ("flower", "lab", "nvflare") if name in globals()]
    return sorted([*__all__, "__version__", *packages])
