"""Run every command of the examples' READMEs as it is written, on a fresh copy of the checkout and in a fresh environment.

    python examples/run_readmes.py                          # all of them: half an hour, 2 GB of downloads and disk
    python examples/run_readmes.py examples/flower-mnist    # those of one example

Each line of a block of shell commands is one command, run in the folder of the copy. What was committed last is what is copied.
Flower ends with exit code 0 when a run failed, so the SuperLink is asked how it ended. Prints a table at the end; the
exit code is 1 where a command failed.
"""

import argparse
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
import venv
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.markup import escape
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parent / "deploy"))

from federation import MARK, free_port, marked

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LONGEST = 1800  # seconds that one command may take


def commands(readme: Path) -> list[str]:
    """The commands in the shell blocks of a README, each on a line of its own unless that ends with a backslash."""
    text = readme.read_text(encoding="utf-8").replace("\\\n", " ")
    return [line for block in BLOCK.findall(text) for line in block.splitlines() if line.strip()]


def environment(folder: Path, mark: str) -> dict[str, str]:
    """The environment of the commands: a virtual environment of their own, and what Flower writes below `folder`."""
    venv.create(folder / "venv", with_pip=True)
    kept = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    return {
        **kept,
        MARK: mark,
        "PATH": os.pathsep.join([str(folder / "venv" / "bin"), os.environ.get("PATH", os.defpath)]),
        "FLWR_HOME": str(folder / "flwr"),
        "FLWR_LOCAL_SUPERLINK_HTTP_API_PORT": str(free_port()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def run(command: str, checkout: Path, variables: dict[str, str]) -> tuple[bool, str]:
    """Run one command; whether it did what it should, and all that it printed."""
    try:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=checkout,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=LONGEST,
        )
    except subprocess.TimeoutExpired as problem:
        return False, f"{problem.stdout}\nnot done after {LONGEST} s"
    printed = done.stdout
    if done.returncode or not command.startswith("flwr run"):
        return not done.returncode, printed
    asked = subprocess.run(
        ["flwr", "ls", "--format", "json"], cwd=checkout, env=variables, capture_output=True, text=True
    )
    runs = json.loads(asked.stdout[asked.stdout.find("{") :])["runs"]
    status = max(runs, key=lambda one: one["pending-at"])["status"]
    return status == "finished:completed", f"{printed}\n{status}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("examples", nargs="*", type=Path, help="folders of examples; all unless given")
    given = parser.parse_args().examples or [
        readme.parent for readme in sorted((ROOT / "examples").glob("*/README.md"))
    ]
    console, mark = Console(highlight=False, soft_wrap=True), secrets.token_hex(8)
    table = Table("example", "command", "seconds", "")
    good = True
    with TemporaryDirectory() as place:
        folder, checkout = Path(place), Path(place) / "checkout"
        checkout.mkdir()
        archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True)
        subprocess.run(["tar", "-x", "-C", str(checkout)], input=archive.stdout, check=True)
        variables = environment(folder, mark)
        try:
            for example in given:
                for command in commands(checkout / example.resolve().relative_to(ROOT) / "README.md"):
                    began = time.monotonic()
                    console.print(f"\n$ {command}", markup=False)
                    well, printed = run(command, checkout, variables)
                    console.print("\n".join(printed.strip().splitlines()[-12 if well else -60 :]), markup=False)
                    table.add_row(
                        example.name,
                        escape(command.partition(" #")[0]),
                        f"{time.monotonic() - began:.0f}",
                        "ran" if well else "FAILED",
                    )
                    good = good and well
        finally:
            for pid in marked(mark):  # the SuperLink that a simulation leaves behind
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
            time.sleep(5)
    console.print(table)
    return int(not good)


if __name__ == "__main__":
    sys.exit(main())
