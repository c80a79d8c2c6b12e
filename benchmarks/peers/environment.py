"""A Python environment of its own for the other libraries, in the user's cache, in which the benchmark then runs."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape

import fedhold
from bench import readable

CUDA = ("nvidia-", "cuda-", "triton")  # packages that only a build for graphics cards needs: gigabytes
CPU_ONLY = (
    "pip would fetch a build for CUDA, gigabytes of it. Tell pip where builds for the CPU are, with PIP_EXTRA_INDEX_URL "
    "or PIP_FIND_LINKS as PyTorch's installation page has it, and try again."
)


@dataclass(frozen=True)
class Library:
    """How a library is installed.

    steps        arguments of one `pip install` each, in this order
    size         of what they bring, for the user; '' where it is small
    needs_torch  whether it is of no use without torch
    """

    steps: tuple[tuple[str, ...], ...]
    size: str = ""
    needs_torch: bool = True


TORCH = Library((("torch==2.13.0",),), "about 700 MB")
# Installed after torch, so that none brings another one. ByzFL comes without its dependencies: torchvision and seaborn
# serve its plots, not its rules.
PEERS: dict[str, Library] = {
    "byzfl": Library((("scipy>=1.12",), ("--no-deps", "byzfl>=0.0.11")), "about 110 MB with scipy"),
    "geom-median": Library((("--no-deps", "geom-median>=0.1.0"),)),
    "torchjd": Library((("torchjd>=0.18.0",),)),
    "flwr": Library((("flwr>=1.38",),), "about 200 MB with what it needs", needs_torch=False),
}
NOTES = "left-out.json"  # libraries that could not be installed, and why
ALONE = "Measure our rules alone with: python benchmarks/bench."


def folder() -> Path:
    """Where the environment is; each version of Python has its own."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "fedhold" / f"bench-python{sys.version_info.major}.{sys.version_info.minor}"


def inside(environment: Path) -> bool:
    """Whether this process runs in that environment."""
    return Path(sys.prefix).resolve() == environment.resolve()


def left_out(environment: Path) -> dict[str, str]:
    """Libraries that could not be installed, and why."""
    notes = environment / NOTES
    found: dict[str, str] = json.loads(notes.read_text(encoding="utf-8")) if notes.exists() else {}
    return found


def prepare(environment: Path, console: Console, names: Collection[str] = tuple(PEERS)) -> None:
    """Make the environment, or install what it lacks; libraries that are there already keep their version.

    names  the libraries to install, of PEERS

    What cannot be installed is left out of the comparison, and `left_out` says why.
    """
    python = _python(environment)
    if not python.exists():
        console.print(f"Making an environment for the other libraries: {escape(str(environment))}")
        made = subprocess.run([sys.executable, "-m", "venv", str(environment)], capture_output=True, text=True)
        if made.returncode:
            raise ValueError(
                f"no environment could be made in {environment}: {_last_line(made)}. Install python3-venv. {ALONE}"
            )
    present = _installed(python)
    problems: dict[str, str] = {}
    needs = importlib.metadata.requires("fedhold") or ()
    own = [need for need, _, when in (one.partition(";") for one in needs) if "extra" not in when or "data" in when]
    with console.status("Looking for what fedhold itself needs"):
        done = _pip(python, "install", "--quiet", *own, "matplotlib>=3.8")
    if done.returncode:
        raise ValueError(f"what fedhold needs could not be installed: {_last_line(done)}. {ALONE}")
    if "torch" not in present:
        problem = CPU_ONLY if _brings_cuda(python) else _install(python, console, "torch", TORCH, present)
        problems |= {"torch": problem} if problem else {}
    for name, library in ((name, PEERS[name]) for name in names):
        if library.needs_torch and "torch" in problems:
            problems[name] = "needs torch"
        elif problem := _install(python, console, name, library, present):
            problems[name] = problem
    for name, problem in problems.items():
        console.print(f"{name} is left out: {escape(problem)}")
    others = {name: problem for name, problem in left_out(environment).items() if name not in ("torch", *names)}
    (environment / NOTES).write_text(json.dumps({**others, **problems}), encoding="utf-8")
    size = sum(file.stat().st_size for file in environment.rglob("*") if file.is_file() and not file.is_symlink())
    console.print(f"The other libraries are in {escape(str(environment))}: {readable(size)}; delete it when done.\n")


def run_inside(environment: Path, arguments: Sequence[str], script: Path = Path(__file__).parent) -> int:
    """Run a script again in the environment, with the fedhold that runs here; returns its exit code."""
    copy = _site(environment) / "fedhold"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(Path(fedhold.__file__).parent, copy, ignore=shutil.ignore_patterns("__pycache__"))
    without = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run([_python(environment), str(script), *arguments], env=without).returncode


def _install(python: Path, console: Console, name: str, library: Library, present: set[str]) -> str | None:
    """Install one library, unless it is `present`; returns why that failed, or None."""
    if name in present:
        return None
    words = " ".join(word for step in library.steps for word in step if not word.startswith("--"))
    console.print(f"Installing {escape(words)}" + (f", {library.size}" if library.size else ""))
    for step in library.steps:
        with console.status(f"pip install {escape(' '.join(step))}"):
            done = _pip(python, "install", "--quiet", *step)
        if done.returncode:
            return _last_line(done)
    return None


def _brings_cuda(python: Path) -> bool:
    planned = _pip(python, "install", "--quiet", "--dry-run", "--report", "-", *TORCH.steps[0])
    if planned.returncode:
        return False  # the installation itself will say what is wrong
    names = [entry["metadata"]["name"].lower() for entry in json.loads(planned.stdout)["install"]]
    return any(name.startswith(CUDA) for name in names)


def _pip(python: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([python, "-m", "pip", *words], capture_output=True, text=True)


def _installed(python: Path) -> set[str]:
    listed = _pip(python, "list", "--format", "json")
    rows: list[dict[str, Any]] = json.loads(listed.stdout) if listed.returncode == 0 else []
    return {row["name"].lower().replace("_", "-") for row in rows}


def _last_line(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stderr or done.stdout).splitlines() if line.startswith("ERROR")]
    return (lines or (done.stderr or done.stdout).strip().splitlines() or ["pip gave no reason"])[-1]


def _python(environment: Path) -> Path:
    return environment / ("Scripts/python.exe" if os.name == "nt" else "bin/python")


def _site(environment: Path) -> Path:
    places = sysconfig.get_path("purelib", vars={"base": str(environment), "platbase": str(environment)})
    return Path(places)
