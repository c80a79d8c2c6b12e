"""The laboratory and the servers never meet: what a server process loads when it imports fedhold's part of it."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import fedhold

LABORATORY = ("fedhold.lab", "fedhold.cli")
DOWNLOADERS = ("urllib.request", "requests", "pooch", "httpx", "ftplib")
FLOWER = (
    "import flwr.app, flwr.serverapp, flwr.serverapp.strategy, flwr.superlink.grid"  # as a ServerApp's process has them
)
NVFLARE = "import nvflare.app_common.abstract.fl_model, nvflare.app_common.aggregators.model_aggregator"


def loaded(statement):
    """The modules of a fresh process after this statement."""
    code = f"{statement}\nimport sys\nprint(*sys.modules, sep='\\n')"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(run.stdout.splitlines())


@pytest.mark.parametrize(
    ("ours", "framework"),
    [("fedhold.flower", FLOWER), ("fedhold.nvflare", NVFLARE), ("fedhold.audit", "pass")],
    ids=["flower", "nvflare", "what both use"],
)
def test_a_server_loads_no_attack_no_data_set_and_no_downloader(ours, framework):
    """A downloader that the framework itself loads is its own affair; Flower loads urllib.request and httpx."""
    brought = loaded(f"import {ours}") - loaded(framework)
    assert ours in brought
    assert [name for name in sorted(brought) if name.startswith(LABORATORY)] == []
    assert brought.isdisjoint(DOWNLOADERS)


def test_a_server_loads_nothing_to_draw_or_print_with():
    """flwr itself loads rich and click; fedhold adds nothing of the kind until a page is asked for."""
    brought = loaded("import fedhold.flower") - loaded(FLOWER)
    assert {name.partition(".")[0] for name in brought}.isdisjoint({"jinja2", "rich", "click", "matplotlib"})


# Names of Flower that are not public

PUBLIC = {"flwr.app", "flwr.serverapp", "flwr.serverapp.strategy"}
SOURCE = Path(fedhold.__file__).parent


def borrowed():
    """(module, name) of all that flower/ and transport/ import from flwr, and from what comes with it."""
    trees = [
        ast.parse(path.read_text(encoding="utf-8"))
        for f in ("flower", "transport")
        for path in (SOURCE / f).glob("*.py")
    ]
    imports = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    return {
        (node.module, alias.name)
        for node in imports
        for alias in node.names
        if node.module.partition(".")[0] in ("flwr", "httpx")
    }


PRIVATE = sorted((module, name) for module, name in borrowed() if module not in PUBLIC)

WITHOUT = """
import importlib, json, sys
sys.path[:0] = sys.argv[2:]
import flower_grid
from flwr.superlink.grid import HttpGrid

grid = HttpGrid("127.0.0.1:1", insecure=True, token="token")
grid.get_node_ids = lambda: [1, 2, 3]
grid.push_messages = lambda messages: sys.exit("something was sent")

def attempt():
    for name in [name for name in sys.modules if name.startswith(("fedhold.flower", "fedhold.transport"))]:
        del sys.modules[name]
    flower = importlib.import_module("fedhold.flower")
    local = flower_grid.LocalGrid(flower_grid.client_app(), 3)
    flower.RobustStrategy(fraction_evaluate=0.0, min_train_nodes=3).start(local, flower_grid.model(), num_rounds=1)
    try:
        flower.RobustStrategy(fraction_evaluate=0.0).start(grid, flower_grid.model(), num_rounds=1)
    except RuntimeError as problem:
        return str(problem)

told = []
borrowed = [(importlib.import_module(module), name) for module, name in json.loads(sys.argv[1])]
client = type(grid._runtime_client)
borrowed += [(HttpGrid, "_runtime_client")]
borrowed += [(cls, name) for name in ("PullMessages", "PullObject", "ConfirmMessageReceived")
             for cls in client.__mro__ if name in vars(cls)]
for holder, name in borrowed:
    there = vars(holder)[name]
    delattr(holder, name)
    told.append((name, attempt()))
    setattr(holder, name, there)
print(json.dumps(told))
"""


def test_a_private_name_of_flower_that_moves_stops_neither_the_import_nor_a_simulation():
    """One after the other is missing. With a SuperLink it is an error before anything is sent, which names it."""
    assert ("flwr.supercore.inflatable.inflatable_utils", "inflate_object_from_contents") in PRIVATE
    tests = Path(__file__).parents[1]
    arguments = [sys.executable, "-c", WITHOUT, json.dumps(PRIVATE), str(tests)]
    run = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=300)
    assert run.returncode == 0, run.stderr
    answers = json.loads(run.stdout.splitlines()[-1])
    assert {"_runtime_client", "PullMessages", "PullObject", "ConfirmMessageReceived"} <= {name for name, _ in answers}
    for name, told in answers:
        assert "cannot fetch replies from the SuperLink of flwr" in told
        assert name in told
        assert "install one of these, or a newer fedhold" in told


def test_private_names_are_used_in_one_place():
    tree = ast.parse((SOURCE / "transport" / "link.py").read_text(encoding="utf-8"))
    there = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert {module for module, _ in PRIVATE} <= there
