"""The laboratory and the servers never meet: what a server process loads when it imports fedhold's part of it."""

import subprocess
import sys

import pytest

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
