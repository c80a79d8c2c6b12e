"""A file with the numbers of the last round in the format of OpenMetrics, for Prometheus and Grafana."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedhold.audit.records import RoundRecord, number_of
from fedhold.audit.suspects import judge_round
from fedhold.errors import visible
from fedhold.storage import write_whole

MOST_NODES = 1000  # that a file names, and metrics: what clients send must not grow it without limit
LONGEST_LABEL = 80  # characters


class OpenMetrics:
    """Pass it as `on_round=`: after every round the file has the numbers of that round, whole or not at all.

    path   the file, such as "metrics.prom"

    >>> import tempfile
    >>> from pathlib import Path
    >>> from fedhold.audit import NodeRecord, OpenMetrics, RoundRecord
    >>> nodes = (NodeRecord("7", "train", "kept", weight=1.0, samples=5),)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "metrics.prom"
    ...     OpenMetrics(file)(RoundRecord("run", 3, "", "huber", "aggregated", nodes))
    ...     print(file.read_text().splitlines()[2])
    fedhold_round{rule="huber"} 3
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)

    def __call__(self, record: RoundRecord) -> None:
        """Write the file for one round."""
        seen = list(judge_round(record).values())[:MOST_NODES]
        labels = {one.node: {"node": one.node} | ({"name": one.name} if one.name else {}) for one in seen}
        phases = [
            ({"phase": phase, "metric": name}, value)
            for phase, metrics in record.metrics.items()
            for name, value in list(metrics.items())[:MOST_NODES]
        ]
        families: list[tuple[str, str, Iterable[tuple[Mapping[str, str], Any]]]] = [
            ("round", "The last round", [({"rule": record.rule}, record.round)]),
            ("aggregated", "Whether the round made a new model", [({}, int(record.outcome == "aggregated"))]),
            ("quorum", "Clients asked, usable and needed", [({"of": k}, n) for k, n in (record.quorum or {}).items()]),
            ("seconds", "Seconds of the round", [({"part": part}, n) for part, n in record.seconds.items()]),
            ("radius", "The proven radius", [({}, (record.certificate or {}).get("radius"))]),
            ("metric", "Averages over the clients", phases),
            ("node_share", "A client's weight in units of its fair part", [(labels[o.node], o.share) for o in seen]),
            ("node_held_down", "Whether a client was held down", [(labels[one.node], int(one.held)) for one in seen]),
            (
                "node_rejected",
                "Whether a client's reply was rejected",
                [(labels[one.node], int(one.status == "rejected")) for one in seen],
            ),
        ]
        lines = []
        for name, help_text, values in families:
            # By its labels, as they are written: the format allows no series twice, and names that are cut may become equal.
            known = {_braces(names): number for names, value in values if (number := number_of(value)) is not None}
            if known:
                lines += [f"# TYPE fedhold_{name} gauge", f"# HELP fedhold_{name} {help_text}."]
                lines += [f"fedhold_{name}{labelled} {number:.17g}" for labelled, number in known.items()]
        write_whole(Path(self.path), "\n".join([*lines, "# EOF\n"]).encode("utf-8", errors="replace"), sync=False)


def _braces(labels: Mapping[str, str]) -> str:
    """Labels as the format writes them. Clients chose some of the values."""
    parts = [f'{name}="{_escaped(value)}"' for name, value in labels.items()]
    return f"{{{','.join(parts)}}}" if parts else ""


def _escaped(value: object) -> str:
    shown = visible(value, LONGEST_LABEL)
    return shown.replace("\\", "\\\\").replace('"', '\\"')
