"""Federated learning that holds when clients lie."""

from holdfast import bounds, thresholds
from holdfast.aggregate import aggregate
from holdfast.aggregation import Aggregation, Client, Clients
from holdfast.certificate import Certificate
from holdfast.geometry import Geometry
from holdfast.saved import save_update
from holdfast.spec import MIXING, RULES
from holdfast.stored import open_update, open_updates

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
    "open_update",
    "open_updates",
    "save_update",
    "thresholds",
]

__version__ = "0.1.0"
