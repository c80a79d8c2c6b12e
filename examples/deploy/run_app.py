"""Run a Flower app on this machine as it would be deployed: a SuperLink and SuperNodes under TLS, each with a key of its own.

    python examples/deploy/run_app.py examples/flower-hospitals --nodes 4 --run-config 'liar="va"'

Prints the ServerApp's log. The exit code is 0 where the run completed.
"""

import argparse
import sys
import tomllib
from pathlib import Path
from tempfile import TemporaryDirectory

from demo import end_on_signals
from federation import Federation, FederationError


def deploy(app: Path, nodes: int, config: dict[str, str | float]) -> str:
    """Start a federation of so many nodes, run the app in it, print its log, end all processes; return how the run ended."""
    with TemporaryDirectory() as folder, Federation(Path(folder), secure=True) as federation:
        for i in range(nodes):
            key, _ = federation.new_key(f"node{i}")
            federation.start_node(i, of=nodes, key=key)
        federation.wait_for_nodes(nodes)
        run = federation.run(app.resolve(), **config)
        status = federation.wait(run, seconds=1200)
        print(federation.log(run))
        return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("app", type=Path, help="the folder of the app")
    parser.add_argument("--nodes", type=int, default=4, help="how many SuperNodes")
    parser.add_argument("--run-config", default="", help="as for flwr run: word=value word=value")
    given = parser.parse_args()
    end_on_signals()
    config = tomllib.loads("\n".join(given.run_config.split()))
    try:
        status = deploy(given.app, given.nodes, config)
    except FederationError as problem:
        print(problem, file=sys.stderr)
        return 1
    print(status)
    return int(status != "finished:completed")


if __name__ == "__main__":
    sys.exit(main())
