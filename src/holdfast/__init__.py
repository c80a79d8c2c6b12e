"""Federated learning that holds when clients lie."""

from holdfast import bounds, thresholds
from holdfast.aggregate import aggregate
from holdfast.aggregation import Aggregation, Client, Clients
from holdfast.certificate import Certificate
from holdfast.geometry import Geometry
from holdfast.spec import MIXING, RULES

__all__ = [
    "MIXING",
    "RULES",
    "Aggregation",
    "Certificate",
    "Client",
    "Clients",
    "Geometry",
    "aggregate",
    "bounds",
    "thresholds",
]

__version__ = "0.1.0"
