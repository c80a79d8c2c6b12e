"""make deploy-demo: a SuperLink and six SuperNodes under TLS and node authentication; two of the nodes lie.

FedAvg learns from all six, then fedhold does; then the report of who was held down.
"""

import argparse
import json
import math
import shutil
import signal
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import FrameType
from typing import Any

from federation import Federation, FederationError
from rich.console import Console

from fedhold.audit import read, report_audit
from fedhold.lab import DataError, mnist
from fedhold.report import table_of

APP = Path(__file__).parents[1] / "flower-mnist"
NODES, LIARS, ROUNDS = 6, 2, 5
ATTACK, SCALE = "sign_flip", 5.0


class Demo:
    """The whole demonstration.

    out      the folder for logs, results and the report
    console  where it prints
    """

    def __init__(self, out: Path, console: Console) -> None:
        self.out, self.console, self.began = out.resolve(), console, time.monotonic()

    def say(self, text: str) -> None:
        """Print one line, with the seconds since the start before it."""
        self.console.print(f"[dim]{time.monotonic() - self.began:4.0f} s[/dim]  {text}")

    def play(self) -> None:
        """Start the federation, train with both strategies, end all processes, and show what came out."""
        mnist()  # fetches the images if they are missing, before six nodes try to do so at once
        self.out.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self.out / "federation", ignore_errors=True)  # left by an earlier demo
        for old in self.out.glob("*.jsonl"):
            old.unlink()
        with Federation(self.out / "federation", secure=True) as federation:
            self.say(f"SuperLink on 127.0.0.1:{federation.port}, under TLS, asking for node keys")
            with ThreadPoolExecutor(2) as pool:
                keys = list(pool.map(federation.new_key, (f"node{i}" for i in range(NODES))))
            for i, (key, _) in enumerate(keys):
                federation.start_node(i, of=NODES, key=key)
            federation.wait_for_nodes(NODES)
            self.say(f"{NODES} SuperNodes online, each with a registered key of its own; nodes 0 and 1 lie ({ATTACK})")
            results = {strategy: self.train(federation, strategy) for strategy in ("fedavg", "fedhold")}
        self.say("all processes ended")
        liars = {node for _, node in keys[:LIARS]}
        self.close(results, liars)

    def train(self, federation: Federation, strategy: str) -> list[dict[str, Any]]:
        """Train with this strategy, and print a line per round; returns the results of every round."""
        results = self.out / f"{strategy}.jsonl"
        run = federation.run(
            APP,
            strategy=strategy,
            attackers=LIARS,
            attack=ATTACK,
            attack_scale=SCALE,
            num_server_rounds=ROUNDS,
            min_nodes=NODES,
            results=str(results),
            audit=str(self.out / "audit.jsonl"),
        )
        shown: list[dict[str, Any]] = []

        def tick() -> None:
            lines = results.read_text(encoding="utf-8").splitlines() if results.exists() else []
            for line in lines[len(shown) :]:
                shown.append(json.loads(line))
                self.say(f"{strategy:9} round {shown[-1]['round']} of {ROUNDS}   accuracy {shown[-1]['accuracy']:.3f}")

        status = federation.wait(run, tick=tick)
        if status != "finished:completed" or not shown:
            raise FederationError(f"the run of {strategy} is {status}\n{federation.log(run)}")
        return shown

    def close(self, results: dict[str, list[dict[str, Any]]], liars: set[str]) -> None:
        """Print the table of results, and write the report, with FedAvg's curves beside ours.

        results  the rounds of each strategy
        liars    the ids of the nodes that lied
        """
        numbers = ("accuracy", "loss", "weight of the liars")
        table = table_of("strategy", *numbers, numbers=numbers)
        shares = [
            sum(row.weight or 0.0 for row in record.nodes if row.node in liars and row.phase == "train")
            for record in read(self.out / "audit.jsonl")
        ]
        weights = {"fedavg": LIARS / NODES, "fedhold": sum(shares) / len(shares)}
        for strategy, rounds in results.items():
            end = rounds[-1]
            table.add_row(strategy, f"{end['accuracy']:.3f}", f"{end['loss']:.3g}", f"{weights[strategy]:.3f}")
        beside = {metric: {"FedAvg": curve(results["fedavg"], metric)} for metric in ("accuracy", "loss")}
        page, suspects = report_audit(self.out / "audit.jsonl", beside=beside)
        self.console.print()
        self.console.print(table)
        self.console.print(f"The liars were nodes {' and '.join(sorted(liars))}.")
        self.console.print(f"The audit suspects {' and '.join(sorted(one.node for one in suspects)) or 'nobody'}.")
        self.console.print(f"report: {page}")


def curve(rounds: list[dict[str, Any]], metric: str) -> dict[int, float]:
    """A metric by round, where it is a number; a model that liars own has none. Round 0 is before any training."""
    return {line["round"]: line[metric] for line in rounds if line["round"] > 0 and math.isfinite(line[metric])}


def end_on_signals() -> None:
    """Let SIGTERM and SIGHUP leave `with` blocks in order, as Ctrl-C does. While that happens, further signals are ignored."""
    signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def leave(number: int, _: FrameType | None) -> None:
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    for each in signals:
        signal.signal(each, leave)


def main() -> int:
    """Run the demonstration. Expected errors are printed without a traceback; the exit code after Ctrl-C is 130."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("deploy-demo"), help="where logs, results and report go")
    console = Console(highlight=False, soft_wrap=True)
    end_on_signals()
    try:
        Demo(parser.parse_args().out, console).play()
    except KeyboardInterrupt:
        console.print("stopped; all processes ended")
        return 130
    except (DataError, FederationError) as problem:
        print(problem, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
