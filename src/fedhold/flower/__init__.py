"""Flower: a strategy for every rule, which one bad client can neither stop nor capture."""

from fedhold.flower.quarantine import Quarantine
from fedhold.flower.strategy import RobustStrategy

__all__ = ["Quarantine", "RobustStrategy"]
