"""Federated learning that holds when clients lie."""

from fedhold import bounds, thresholds
from fedhold.aggregation import Aggregation, Client, Clients, aggregate
from fedhold.certificate import Certificate
from fedhold.geometry.view import Geometry
from fedhold.spec import MIXING, RULES
from fedhold.updates.files import open_update, open_updates
from fedhold.updates.saving import save_update

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
