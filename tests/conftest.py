"""Fixtures and settings that several parts of the tests use."""

import ast
import gc
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from rlrun.runner.host.instruction_sets import limit_libraries
from tests.integration.jobs import Ended, Jobs

# CI tries the same examples each time, so that a change is judged by what it changed; elsewhere they vary.
# No example has a deadline, because a busy machine would miss it.
settings.register_profile(
    "tests",
    derandomize=bool(os.environ.get("CI")),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("tests")

# A test's jobs and the Ray cluster that they join must agree, and Ray reads this when it is imported.
os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}

# RLRUN_CPU_ISA pretends another processor for torch in this process and in those that tests start.
limit_libraries()

if sys.version_info < (3, 11, 8):
    # A collection of garbage inside ast.parse may format a traceback, which parses, too; or another thread
    # may. The depths are then mixed up, which is a SystemError (https://github.com/python/cpython/issues/106905).
    _parse = ast.parse

    def _parse_without_collection(*args: Any, **kwargs: Any) -> ast.AST:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return _parse(*args, **kwargs)
        finally:
            if enabled:
                gc.enable()

    ast.parse = _parse_without_collection  # type: ignore[assignment]

InstallPlugin = Callable[..., Path]


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Restores the environment after each test: commands that run in this process set variables for jobs."""
    before = dict(os.environ)
    yield
    for name in os.environ.keys() - before.keys():
        del os.environ[name]
    os.environ |= {name: text for name, text in before.items() if os.environ.get(name) != text}


@pytest.fixture
def install_plugin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> InstallPlugin:
    """`install_plugin(kind, name, "module:Class", source)`: a distribution of one plugin, as installed."""

    def install(kind: str, name: str, target: str, source: str = "", distribution: str = "acme") -> Path:
        folder = tmp_path / f"site-{distribution}"
        info = folder / f"{distribution}-1.0.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n")
        with (info / "entry_points.txt").open("a") as file:
            file.write(f"[rlrun.{kind}]\n{name} = {target}\n")
        module = target.partition(":")[0]
        (folder / f"{module}.py").write_text(dedent(source))
        monkeypatch.syspath_prepend(str(folder))
        sys.modules.pop(module, None)
        return folder

    return install


RAY = """
import sys
import ray
quiet = {"include_dashboard": False, "logging_level": "ERROR"}
context = ray.init(address="local", num_cpus=16, num_gpus=4, _temp_dir=sys.argv[1], **quiet)
print(context.address_info["gcs_address"], flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all whole jobs."""
    from tests.tiny_models import make_tiny_model  # most tests need no torch

    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="session")
def ray_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Address of a Ray cluster that outlives the jobs, as a user's own would."""
    os.environ |= {"RAY_worker_niceness": "0"}  # as where a job starts Ray
    # As where an administrator told Ray to leave CUDA's variable alone, in a container with half of the GPUs.
    gpus = {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1", "CUDA_VISIBLE_DEVICES": "4,5,6,7"}
    command = [sys.executable, "-c", RAY, str(tmp_path_factory.mktemp("r"))]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, env=os.environ | gpus, **pipes) as head:
        assert head.stdin is not None
        assert head.stdout is not None
        yield head.stdout.readline().strip()
        head.stdin.close()


@pytest.fixture(scope="session")
def reference(tiny_model: Path, ray_cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """The job of tests.integration.jobs from its start to its end, in turns, and nothing happens to it."""
    return Jobs(tmp_path_factory.mktemp("reference"), tiny_model, ray_cluster).run("reference")
