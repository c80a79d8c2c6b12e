"""How many modules of a package one `aggregate(X)` and one Flower round pass through, and how often they change module.

    python benchmarks/module_changes.py [fedhold]

A module counts if one of its functions runs. The calling thread is always in one module of the package: the one whose
function was called last and has not returned yet; calls of other packages in between do not change it. A change is a call
or a return after which that module is another one. The first call enters the package and counts; the last return does not.
Code that dataclasses generate has no file, and does not count.

aggregate(X)   X is a 100 x 1,000 float32 array of standard normal numbers, the rule is the default.
Flower round   RobustStrategy.start with an audit and a checkpoint, one round of training and evaluation, on the 10 nodes
               and the model with counters of tests/flower_grid.py.

Each runs once before it is counted, so that no import is counted. The package may be any that has `aggregate` and
`flower.RobustStrategy`. Before it was rebuilt from one flat folder (commit 30a959d), this package had 19 modules and 335
changes for aggregate(X), 35 modules and 1,659 changes for the Flower round.
"""

import argparse
import importlib
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import numpy as np

CLIENTS, NUMBERS = 100, 1000
NODES = 10


@dataclass(frozen=True)
class Passage:
    """What a call passed through.

    modules  the modules of the package, sorted
    changes  how often the call went from one of them to another
    """

    modules: tuple[str, ...]
    changes: int


def passage(package: Path, call: Callable[[], object]) -> Passage:
    """Count the modules in the folder `package` that `call` passes through, and its changes of module."""
    folder = f"{package}{os.sep}"
    stack: list[str] = []
    seen: set[str] = set()
    changes = 0

    def on_event(frame, event, _):
        nonlocal changes
        file = frame.f_code.co_filename
        if not file.startswith(folder):
            return
        before = stack[-1] if stack else ""
        if event == "call":
            stack.append(file)
            seen.add(file)
        elif event == "return" and stack:
            stack.pop()
        changes += bool(stack) and stack[-1] != before

    sys.setprofile(on_event)
    try:
        call()
    finally:
        sys.setprofile(None)
    names = (".".join(Path(file).relative_to(folder).with_suffix("").parts) for file in seen)
    return Passage(tuple(sorted(names)), changes)


def flower_round(package: str, folder: Path) -> Callable[[], object]:
    """Prepare one Flower round in this process, whose audit and checkpoint go to `folder`."""
    from flower_grid import LocalGrid, client_app, model

    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    robust_strategy = importlib.import_module(f"{package}.flower").RobustStrategy
    strategy = robust_strategy(audit=folder / "audit.jsonl", checkpoint=folder / "checkpoint")
    grid, arrays = LocalGrid(client_app(), NODES), model()
    return lambda: strategy.start(grid=grid, initial_arrays=arrays, num_rounds=1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", nargs="?", default="fedhold")
    parser.add_argument("--list", action="store_true", help="also print the name of every module")
    options = parser.parse_args()
    package = importlib.import_module(options.package)
    place = Path(package.__file__).parent
    X = np.random.default_rng(0).standard_normal((CLIENTS, NUMBERS), dtype=np.float32)
    with tempfile.TemporaryDirectory() as first, tempfile.TemporaryDirectory() as second:
        package.aggregate(X)
        flower_round(options.package, Path(first))()
        found = {
            "aggregate(X)": passage(place, lambda: package.aggregate(X)),
            "one Flower round": passage(place, flower_round(options.package, Path(second))),
        }
    for name, passed in found.items():
        print(f"{name}: {len(passed.modules)} modules, {passed.changes:,} changes")
        if options.list:
            print("  " + "\n  ".join(passed.modules))


if __name__ == "__main__":
    main()
