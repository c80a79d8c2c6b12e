"""The machine a benchmark ran on: cores, memory, threads, versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from fedhold import __version__

__all__ = ["available_memory", "busy", "describe", "load", "readable"]

THREAD_SETTINGS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "FEDHOLD_THREADS")
QUIET = 0.5
PACKAGES = ("numpy", "numba", "torch", "byzfl", "flwr", "geom-median", "torchjd")


def available_memory() -> int | None:
    """Bytes that can be had without swapping; None where the system does not say."""
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        rows = dict(line.split(":", 1) for line in meminfo.read_text(encoding="ascii").splitlines())
        if "MemAvailable" in rows:
            return int(rows["MemAvailable"].split()[0]) * 1024
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def load() -> float | None:
    """Processes that wanted a core during the last minute; None where the system does not say."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def busy(before: float | None) -> str:
    """A warning where other work shared the machine; `before` is the load when the benchmark began."""
    if before is None or before < QUIET:
        return ""
    return f"The machine was busy with other work (a load of {before:g} before the start): these figures are noisy."


def describe() -> dict[str, Any]:
    """All that figures depend on besides the code."""
    memory = available_memory()
    torch = sys.modules.get("torch")
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory available": None if memory is None else readable(memory),
        "threads": {
            **{name: os.environ.get(name, "not set") for name in THREAD_SETTINGS},
            **({} if torch is None else {"torch": torch.get_num_threads()}),
        },
        "versions": {
            "fedhold": __version__,
            **{name: version for name in PACKAGES if (version := _version(name)) is not None},
        },
    }


def readable(size: float) -> str:
    """Bytes, for people."""
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
