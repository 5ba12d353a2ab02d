"""Examines this host's GPUs: driver, speed, access between them, NCCL, CUDA IPC and SGLang's start."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from rlrun.runner.doctor.check import Check
from rlrun.runner.doctor.gpu_verdicts import (
    Answer,
    check_collectives,
    check_driver,
    check_peers,
    check_sglang_start,
    check_shared_memory_of_gpus,
    check_speed,
)
from rlrun.runner.doctor.installation import ask_torch, check_torch_and_gpus
from rlrun.runner.doctor.sglang_start import start_sglang
from rlrun.runner.planning.hardware import driver_gpus, local_gpu
from rlrun.specs.reading.engine_types import is_installed
from rlrun.specs.safe_python import own_python

_SECONDS = 120.0
"""How long one measurement may take, the import of torch included."""


def examine_gpus(sglang_python: str | None) -> Iterator[Check]:
    """Yields every check of this host's GPUs; on a host without any, only that of the driver.

    `sglang_python` is an interpreter whose environment has SGLang; None: this one, if it has it.
    """
    driver = driver_gpus()
    yield check_driver(driver, _driver_version())
    if not driver:
        return
    torch = ask_torch()
    yield from (check for check in check_torch_and_gpus(torch, driver) if check.subject != "NCCL")
    if isinstance(torch, str) or not torch["cuda"]:
        return
    gpu, gpus = local_gpu(), torch["gpus"]
    assert isinstance(gpus, list)
    for index in range(len(gpus)):
        yield from check_speed(index, measure("speed", str(index)), gpu)
    yield check_peers(measure("peers"), len(gpus))
    yield check_shared_memory_of_gpus(measure("shared_buffer"))
    yield check_collectives(measure_collectives(len(gpus)), len(gpus), _version(torch["nccl"]), gpu)
    if sglang_python is None and not is_installed("sglang"):
        cure = "--sglang-python names the environment that has it (engine.python in a spec)"
        yield Check("SGLang start", "note", "not tried: SGLang is not installed here", cure)
    else:
        yield check_sglang_start(start_sglang(sglang_python or sys.executable))


def measure(name: str, *arguments: str) -> Answer:
    """Returns what a measurement found, or the reason why it failed."""
    [answer] = _run([[name, *arguments]])
    return answer


def measure_collectives(ranks: int) -> Answer:
    """Returns the bus bandwidth of a sum over this many ranks, each on a GPU of its own."""
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        answers = _run([["all_reduce", str(rank), str(ranks), store] for rank in range(ranks)])
    failed = [answer for answer in answers if isinstance(answer, str)]
    return failed[0] if failed else answers[0]


def _run(commands: Sequence[Sequence[str]]) -> list[Answer]:
    """Runs measurements at the same time, each in its own process."""
    module = "rlrun.runner.doctor.measurements"
    processes = [
        subprocess.Popen(
            own_python("-m", module, *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for words in commands
    ]
    return [_answer(process) for process in processes]


def _answer(process: subprocess.Popen[str]) -> Answer:
    try:
        output, errors = process.communicate(timeout=_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return f"no answer within {_SECONDS:.0f} s"
    if process.returncode:
        return (errors.strip() or f"ended with exit code {process.returncode}").splitlines()[-1]
    answer: dict[str, Any] = json.loads(output.splitlines()[-1])
    return answer


def _driver_version() -> str:
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout.split()[
            0
        ]
    except (OSError, subprocess.SubprocessError, IndexError):
        return ""


def _version(nccl: object) -> str:
    return ".".join(map(str, nccl)) if isinstance(nccl, list) else "without a version"
