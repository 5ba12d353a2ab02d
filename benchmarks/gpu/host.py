"""This host: torch and the driver, and the measurements of `rlrun doctor --gpu`."""

import platform
import subprocess
from collections.abc import Mapping

import torch

from benchmarks.gpu.models import ON_GPU
from benchmarks.gpu.results import Case, Goal, Measurement
from rlrun.runner.doctor import measurements
from rlrun.runner.doctor.gpu import GOOD_SHARE, measure_collectives
from rlrun.runner.planning.hardware import local_gpu


def environment() -> Measurement:
    """Reports versions, and what nvidia-smi says of the GPUs."""
    figures: dict[str, object] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "gpus": torch.cuda.device_count(),
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if ON_GPU else None,
        "cudnn": torch.backends.cudnn.version() if ON_GPU else None,
    }
    if ON_GPU:
        query = "--query-gpu=name,driver_version,memory.total,power.limit,clocks.max.sm"
        command = ["nvidia-smi", query, "--format=csv,noheader"]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        figures["nvidia_smi"] = output.splitlines()
    return Measurement(figures)


def speed() -> Measurement:
    """Measures products and copies of the first GPU, as shares of the maker's figures."""
    figures = measurements.speed()
    gpu = local_gpu()
    if gpu is None:
        return Measurement(figures)
    shares = {
        "product_share": figures["flops"] / gpu.flops,
        "copy_share": figures["within"] / gpu.bandwidth,
    }
    goals = tuple(Goal(name, ">=", GOOD_SHARE) for name in shares)
    return Measurement(figures | shares, goals)


def shared_buffer() -> Measurement:
    """Another process opens a buffer as an SGLang server does: over CUDA IPC on a GPU."""
    figures = measurements.shared_buffer()
    return Measurement(figures, (Goal("read", "==", figures["written"]),))


def collectives() -> Measurement:
    """NCCL (gloo on the CPU) over all GPUs."""
    ranks = max(torch.cuda.device_count(), 1)
    answer = measure_collectives(ranks)
    if isinstance(answer, str):
        raise RuntimeError(answer)
    return Measurement({"ranks": ranks, **answer})


CASES: Mapping[str, Case] = {
    "environment": environment,
    "shared buffer": shared_buffer,
    "collectives": collectives,
    "speed": speed,
    "peer access": lambda: Measurement(measurements.peers()),
}
