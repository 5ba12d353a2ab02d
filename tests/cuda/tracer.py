"""Starts the processes that pretend to have a GPU, and reads what they recorded."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest
import torch

from tests.cuda.budgets import Blocking
from tests.cuda.cases import Case
from tests.cuda.recording import DOWNLOAD, UPLOAD, WAIT
from tests.runner.trainer.trainer_cases import MODELS
from tests.tiny_models import make_tiny_model

STUB = Path(__file__).with_name("stub.c")
ROOT = Path(__file__).parents[2]
COMPILER = os.environ.get("CC", "cc")


def reason_to_skip() -> str | None:
    """Returns why this machine cannot pretend to have a GPU, or None."""
    if torch.version.cuda is None:
        return "torch is a wheel without CUDA: install PyPI's"
    if torch.cuda.is_available():
        return "this machine has a GPU, which the traces would use"
    try:
        subprocess.run([COMPILER, "--version"], capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return "no C compiler: install gcc, or name one in CC"
    return None


def compile_stub(folder: Path) -> Path:
    """Returns the folder with the library of `stub.c`."""
    library = folder / "libcuda.so.1"
    command = [COMPILER, "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), str(STUB)]
    subprocess.run(command, check=True)
    return folder


def start(module: str, libraries: Path, *arguments: str) -> subprocess.Popen[str]:
    """Starts a module in a process of its own on the stub's libraries; it answers line by line."""
    environment = os.environ | {
        "LD_PRELOAD": str(libraries / "libcuda.so.1"),
        "LD_LIBRARY_PATH": str(libraries),
        "OMP_NUM_THREADS": "1",
        "TORCH_LOGS": "-all",
    }
    command = [sys.executable, "-W", "ignore", "-m", module, *arguments]
    return subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


class Tracer:
    """Traces cases one after the other, each in a fork of one process that has everything imported."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None
        self._traces: dict[str, dict[str, Any]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._process is not None:
            self._process.communicate()

    def run(self, case: Case) -> dict[str, Any]:
        """Returns what a case's rank did (`trainer_trace`), which is traced once for all tests."""
        folder = self.model(case.model, case.layers)
        arguments = {"spec": case.spec(folder), "folder": str(folder), "rank": case.rank}
        key = json.dumps(arguments)
        if key not in self._traces:
            self._traces[key] = self.ask("tests.cuda.trainer_trace", **arguments)
        return self._traces[key]

    def ask(self, module: str, **arguments: Any) -> dict[str, Any]:
        """Returns what the `trace` of a module did (`child.answer`)."""
        if self._process is None:
            self._process = start("tests.cuda.child", compile_stub(self._folder))
        question = {"module": module, "arguments": arguments}
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def model(self, name: str, layers: int) -> Path:
        """Returns the folder of a tiny model."""
        folder = self._folder / f"{name}-{layers}"
        if not folder.exists():
            fields = MODELS[name] | {"num_hidden_layers": layers}
            make_tiny_model(folder, pad_token_id=None, **fields)
        return folder


def blocking(counts: dict[str, int]) -> Blocking:
    """Returns a phase's counts of events that block the host."""
    return Blocking(counts.get(WAIT, 0), counts.get(UPLOAD, 0), counts.get(DOWNLOAD, 0))


def lines_of(phase: dict[str, Any]) -> str:
    """Returns what a phase did, and where, for messages."""
    return "\n".join(
        f"    {count:4d} {kind} ({what}) at {line}" for count, kind, what, line in phase["lines"]
    )


needs_pretence = pytest.mark.skipif(reason_to_skip() is not None, reason=str(reason_to_skip()))
