"""The machine a benchmark ran on: cores, memory, threads, versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

from holdfast import __version__

__all__ = ["available_memory", "describe", "readable"]

THREAD_SETTINGS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "HOLDFAST_THREADS")
PACKAGES = ("numpy", "torch", "byzfl", "flwr", "geom-median", "torchjd")


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
            "holdfast": __version__,
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
