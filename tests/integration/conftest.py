"""One tiny model and one Ray cluster for all whole jobs."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.jobs import Jobs
from tests.tiny_models import make_tiny_model

RAY = """
import sys
import ray
quiet = {"include_dashboard": False, "logging_level": "ERROR"}
context = ray.init(address="local", num_cpus=8, _temp_dir=sys.argv[1], **quiet)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Ray cluster that outlives the jobs, as a user's own would."""
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}  # jobs and cluster must agree
    command = [sys.executable, "-c", RAY, str(tmp_path_factory.mktemp("r"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as head:
        assert head.stdin is not None
        assert head.stdout is not None
        yield head.stdout.readline().strip()
        head.stdin.close()


@pytest.fixture(scope="module")
def jobs(tiny_model: Path, ray_cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Jobs:
    """Runs jobs in a folder of this module's."""
    return Jobs(tmp_path_factory.mktemp("jobs"), tiny_model, ray_cluster)
