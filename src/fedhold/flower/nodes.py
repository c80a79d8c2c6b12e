"""Nodes of a Flower grid: waiting for them, and choosing among them."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from fedhold.flower.api import Grid, flower_log

__all__ = ["chosen", "living"]

LOOK = 1.0  # seconds between two looks at the grid
TELL = 10.0  # and between two lines in the log about it


def living(grid: Grid, fraction: float, least: int, available: int, wait: float) -> tuple[list[int], int]:
    """The ids of the nodes that are there, in order, and how many of them to ask: the fraction, but no fewer than `least`.

    Waits until `available` nodes, and as many as are to be asked, are there; a TimeoutError after `wait` seconds.
    """
    began = time.monotonic()
    told = -TELL
    while True:
        nodes = sorted(set(grid.get_node_ids()))
        size = max(int(len(nodes) * fraction), least)
        needed = max(available, size)
        if len(nodes) >= needed:
            return nodes, size
        waited = time.monotonic() - began
        if waited >= wait:
            raise TimeoutError(
                f"the round needs {needed} nodes (min_available_nodes = {available}, at least {least} to ask); met "
                f"{len(nodes)} after waiting {wait:g} s. Start more SuperNodes, lower min_available_nodes, or raise wait."
            )
        if waited >= told + TELL:
            flower_log.info("Waiting for nodes: %d of %d are there, %.0f s left.", len(nodes), needed, wait - waited)
            told = waited
        time.sleep(min(LOOK, wait - waited))


def chosen(nodes: Sequence[int], size: int, rng: np.random.Generator) -> list[int]:
    """`size` of the nodes, or all of them where there are no more, in order."""
    size = min(size, len(nodes))
    return [nodes[i] for i in sorted(rng.choice(len(nodes), size, replace=False))] if size else []
