"""Real SGLang servers on a machine without a GPU, from an environment of their own (`make sglang`)."""

from pathlib import Path

import pytest

from rlrun.runner.engines.process.sglang_router import RouterSetup
from rlrun.runner.engines.sglang.setup import SglangSetup
from tests.waiting import PATIENCE

HERE = Path(__file__).parent
PYTHON = HERE.parents[1] / ".venv-sglang" / "bin" / "python"

ENVIRONMENT = {
    "PYTHONPATH": str(HERE / "stand_ins"),
    "SGLANG_USE_CPU_ENGINE": "1",
    "TORCHDYNAMO_DISABLE": "1",  # it would compile with the triton that is not there
    "OMP_NUM_THREADS": "1",  # more take ten times as long on a busy core
}

ARGUMENTS = {
    "attention_backend": "torch_native",
    "sampling_backend": "pytorch",
    # Of the memory that is free when a server starts; it gives up where others take the rest meanwhile.
    "mem_fraction_static": 0.5,
    "skip_server_warmup": True,
}


def python() -> str:
    """The interpreter; the test fails where `make sglang` has not been run."""
    if not PYTHON.exists():
        pytest.fail("SGLang is not installed for the tests: run `make sglang`")
    return str(PYTHON)


def tiny_setup(folder: Path, model: Path, **fields: object) -> SglangSetup:
    """A server of a tiny model, its log in `folder`."""
    given: dict[str, object] = {
        "python": python(),
        "model_folder": str(model),
        "dtype": "float32",
        "max_running": 32,
        "max_cache_tokens": 8192,
        "max_length": 512,
        "log": folder / "server.log",
        "secrets": folder / "server.keys.yaml",
        "api_key": "sesame",
        "arguments": ARGUMENTS,
        "environment": ENVIRONMENT,
        "start_timeout": 300.0,
    }
    return SglangSetup(**(given | fields))  # type: ignore[arg-type]


def router_setup(folder: Path, interpreter: str | None = None, **arguments: object) -> RouterSetup:
    """A router, its log in `folder`."""
    return RouterSetup(
        python=interpreter or python(),
        log=folder / "router.log",
        secrets=folder / "router.key.json",
        api_key="open",
        request_timeout=PATIENCE,
        arguments=arguments,
    )
