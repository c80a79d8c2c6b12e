"""The machine a benchmark ran on: processor, memory, load, threads, versions."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TypedDict

from fedhold import __version__

THREAD_SETTINGS = ("OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "OMP_NUM_THREADS", "FEDHOLD_THREADS")
PACKAGES = ("numpy",)
QUIET = 0.5  # the load below which other work is not worth a warning

Machine = TypedDict(
    "Machine",
    {
        "python": str,
        "system": str,
        "processor": str,
        "cores": int | None,
        "memory available": str | None,
        "threads": dict[str, str | int],
        "versions": dict[str, str],
    },
)


def describe(packages: Iterable[str] = ()) -> Machine:
    """Everything that the figures depend on besides the code.

    packages  names of distributions whose versions are listed after fedhold and NumPy, where they are installed
    """
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
            **{name: version for name in (*PACKAGES, *packages) if (version := _version(name)) is not None},
        },
    }


def available_memory() -> int | None:
    """Bytes that a process can have without swapping; None where the system does not tell."""
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
    """The mean number of processes that wanted a core during the last minute; None where the system does not tell."""
    try:
        return round(os.getloadavg()[0], 2)
    except (AttributeError, OSError):
        return None


def busy(before: float | None) -> str:
    """The warning that other work shared the machine, or ''; `before` is the load when the benchmark began."""
    if before is None or before < QUIET:
        return ""
    return f"The machine was busy with other work (a load of {before:g} before the start): these figures are noisy."


def readable(size: float) -> str:
    """A number of bytes in the unit that suits it.

    >>> readable(5_600_000)
    '6 MB'
    """
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
