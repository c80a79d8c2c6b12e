"""A Flower federation on this machine: a SuperLink and its SuperNodes, real processes on loopback.

    with Federation(folder, secure=True) as federation:
        for i in range(6):
            key, _ = federation.new_key(f"node{i}")
            federation.start_node(i, of=6, key=key)
        federation.wait_for_nodes(6)
        run = federation.run("examples/flower-mnist", attackers=2)
        federation.wait(run)

It listens on ports that were free, and what Flower writes goes below `folder`. Leaving the block ends every process that was
started in it, and those that they started, each by its process id.
"""

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self, TypeVar

import credentials

MARK = "FEDHOLD_FEDERATION"  # in the environment of every process of ours, to find also those that lost their parent
LINK = "federation"  # the name of the connection in Flower's config.toml
HOST = "127.0.0.1"
T = TypeVar("T")


class FederationError(RuntimeError):
    """A process did not start or did not end; the message ends with the last lines of its log."""


class Federation:
    """One SuperLink, started on entry, and the nodes that are started with start_node().

    folder       for logs, keys and all that Flower writes
    secure       use TLS, and demand a registered key of every node
    database     a file that keeps runs and nodes across a restart of the SuperLink; without it they are in its memory
    environment  variables that the processes get beside those of this process, such as FEDHOLD_DATA
    """

    def __init__(
        self,
        folder: Path,
        *,
        secure: bool = False,
        database: Path | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.folder, self.secure, self.database = Path(folder).resolve(), secure, database
        self.port = free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.mark = secrets.token_hex(8)
        self.environment = {
            **os.environ,
            **(environment or {}),
            MARK: self.mark,
            # The SuperLink and its nodes start their helpers by name.
            "PATH": os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)]),
            "FLWR_HOME": str(self.folder / "flwr"),
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
            # There are more processes than cores, so that threads of BLAS would only wait for each other.
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
        }

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> None:
        home = self.folder / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        (self.folder / "logs").mkdir(exist_ok=True)
        link = [f"[superlink.{LINK}]", f'address = "{HOST}:{self.port}"']
        if self.secure:
            self.tls = credentials.make_certificates(self.folder / "certificates")
            link.append(f'root-certificates = "{self.tls.ca}"')
        else:
            link.append("insecure = true")
        (home / "config.toml").write_text("\n".join(link) + "\n", encoding="utf-8")
        self.start_superlink()

    def start_superlink(self) -> subprocess.Popen[bytes]:
        """Start the SuperLink: done on entry, and to be called again after it was killed."""
        arguments = ["--host", HOST, "--port", str(self.port)]
        if self.secure:
            arguments += ["--ssl-certfile", str(self.tls.certificate), "--ssl-keyfile", str(self.tls.key)]
            arguments += ["--ssl-ca-certfile", str(self.tls.ca), "--enable-supernode-auth"]
        else:
            arguments += ["--insecure"]
        if self.database:
            arguments += ["--database", str(self.database)]
        process = self.start("superlink", "flower-superlink", *arguments)
        self._until(lambda: listening(self.port), 60, "superlink", "the SuperLink did not open its port")
        return process

    def start_node(self, partition: int, *, of: int, key: Path | None = None, name: str = "") -> str:
        """Start a SuperNode, and return its name among `processes`.

        partition  which part of the data it holds
        of         the number of parts
        key        the file with its private key; None without node authentication
        name       its name; node0, node1, ... by its partition unless given
        """
        name = name or f"node{partition}"
        arguments = ["--superlink", f"{HOST}:{self.port}", "--host", HOST, "--port", str(free_port())]
        arguments += ["--root-certificates", str(self.tls.ca)] if self.secure else ["--insecure"]
        if key is not None:
            arguments += ["--auth-supernode-private-key", str(key)]
        self.start(
            name, "flower-supernode", *arguments, "--node-config", f"partition-id={partition} num-partitions={of}"
        )
        return name

    def new_key(self, name: str) -> tuple[Path, str]:
        """Make a key for a node, and register its public half; returns the file with the private half, and the node's id."""
        private, public = credentials.make_node_key(self.folder / "keys", name)
        return private, str(self.ask("supernode", "register", str(public), LINK)["node-id"])

    def nodes(self) -> list[dict[str, Any]]:
        """The nodes as the SuperLink lists them."""
        return list(self.ask("supernode", "list", LINK)["nodes"])

    def wait_for_nodes(self, number: int, seconds: float = 120) -> None:
        """Wait until this many nodes are online; a FederationError after `seconds`."""

        def enough() -> bool:
            return [node["status"] for node in self.patient(self.nodes) or []].count("online") >= number

        self._until(enough, seconds, "superlink", f"fewer than {number} nodes came online", pause=1)

    def run(self, app: Path, **config: str | float) -> str:
        """Start a run, and return its id.

        app     the folder of the app
        config  entries of its run config, with _ in place of -
        """
        words = " ".join(f"{name.replace('_', '-')}={json.dumps(value)}" for name, value in config.items())
        answer = self.ask("run", str(app), LINK, *(["--run-config", words] if words else []))
        return str(answer["run-id"])

    def status(self, run: str) -> str:
        """The status of a run, such as "running" or "finished:completed"."""
        return str(self.ask("ls", LINK, "--run-id", run)["runs"][0]["status"])

    def wait(self, run: str, seconds: float = 300, *, tick: Callable[[], object] = lambda: None) -> str:
        """Wait until the run has ended, and return its last status.

        seconds  the time after which it is a FederationError
        tick     called about twice a second while it waits
        """
        status, asked, end = "", 0.0, time.monotonic() + seconds
        while not status.startswith("finished"):
            tick()
            if time.monotonic() > end:
                raise FederationError(f"run {run} is {status!r} after {seconds:.0f} s\n{self.tail('superlink')}")
            # A call of flwr costs a second of processor time, so ask rarely while the ServerApp is at work.
            if time.monotonic() - asked > (20 if self.pids("flwr-serverapp") else 3):
                status, asked = self.patient(lambda: self.status(run)) or "", time.monotonic()
            else:
                time.sleep(0.5)
        tick()
        return status

    def patient(self, question: Callable[[], T]) -> T | None:
        """The answer to a question; None where flwr cannot reach a SuperLink that is alive, as on a busy machine."""
        try:
            return question()
        except FederationError:
            if self.processes["superlink"].poll() is not None:
                raise
            return None

    def log(self, run: str) -> str:
        """The log of a run's ServerApp."""
        return self.flwr("log", run, LINK, "--show")

    def flwr(self, *arguments: str) -> str:
        """What the command `flwr` prints; a FederationError with all of it where the command fails."""
        done = subprocess.run(
            [command("flwr"), *arguments], env=self.environment, cwd=self.folder, capture_output=True, text=True
        )
        if done.returncode:
            raise FederationError(
                f"flwr {' '.join(arguments)} ended with {done.returncode}\n{done.stdout}{done.stderr}"
            )
        return done.stdout

    def ask(self, *arguments: str) -> dict[str, Any]:
        """The answer of `flwr` as JSON. Flower may report a failure there and still end with exit code 0."""
        text = self.flwr(*arguments, "--format", "json")
        answer = dict(json.loads(text[text.find("{") :]))
        if not answer.get("success"):
            raise FederationError(f"flwr {' '.join(arguments)}: {answer.get('error-message', answer)}")
        return answer

    def start(self, name: str, program: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a program as a process of this federation, with its output in logs/<name>.log."""
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [command(program), *arguments],
                env=self.environment,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C then reaches this process alone, which ends the others in order
            )
        self.processes[name] = process
        return process

    def tail(self, name: str, lines: int = 15) -> str:
        """The last lines of a process's log."""
        text = (self.folder / "logs" / f"{name}.log").read_text(encoding="utf-8", errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def pids(self, word: str = "") -> list[int]:
        """The ids of this federation's processes whose command line has the word; found through /proc, so on Linux only."""
        return [pid for pid in marked(self.mark) if word in _read(pid, "cmdline").replace("\0", " ")]

    def kill(self, name: str) -> None:
        """kill -9 of one process."""
        self.processes[name].kill()
        self.processes[name].wait()

    def stop(self) -> None:
        """End every process: ask the nodes, then the SuperLink, to end; then kill those that are left."""
        for process in reversed(self.processes.values()):
            process.terminate()
        end = time.monotonic() + 8
        for process in self.processes.values():
            try:
                process.wait(timeout=max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for sent in (signal.SIGTERM, signal.SIGKILL):
            for pid in self.pids():
                _signal(pid, sent)
            end = time.monotonic() + 5
            while self.pids() and time.monotonic() < end:
                time.sleep(0.1)
        self.processes.clear()

    def _until(self, holds: Callable[[], bool], seconds: float, name: str, problem: str, pause: float = 0.1) -> None:
        end = time.monotonic() + seconds
        while not holds():
            ended = self.processes[name].poll()
            if ended is not None or time.monotonic() > end:
                why = f"{name} ended with {ended}" if ended is not None else f"waited {seconds:.0f} s"
                raise FederationError(f"{problem}: {why}. Its log ends with\n{self.tail(name)}")
            time.sleep(pause)


def free_port() -> int:
    """A port that no process listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def listening(port: int) -> bool:
    """Whether a process listens on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex((HOST, port)) == 0


def command(name: str) -> str:
    """The path of a program that was installed with the packages of this interpreter."""
    path = Path(sysconfig.get_path("scripts")) / name
    if not path.exists():
        raise FederationError(
            f"{name} is not installed beside {sys.executable}. From a checkout of fedhold: pip install '.[flower]'"
        )
    return str(path)


def marked(mark: str) -> Iterator[int]:
    """The ids of all processes with this mark in their environment."""
    wanted = f"{MARK}={mark}"
    for entry in Path("/proc").glob("[0-9]*"):
        if wanted in _read(int(entry.name), "environ").split("\0"):
            yield int(entry.name)


def _read(pid: int, what: str) -> str:
    """A file of /proc about a process; "" for one that has ended or is another user's."""
    try:
        return Path(f"/proc/{pid}/{what}").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
