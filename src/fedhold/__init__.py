"""Federated learning that holds when clients lie."""

from fedhold import bounds, thresholds
from fedhold.aggregation import Aggregation, Client, Clients, aggregate
from fedhold.certificate import Certificate
from fedhold.geometry import Geometry
from fedhold.spec import MIXINGS, RULES
from fedhold.updates import open_update, open_updates, save_update

__all__ = [
    "MIXINGS",
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
