"""Knows the speed and memory of devices, from the makers' figures for dense bfloat16 products."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from rlrun.specs.problems.spelling import nearest

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or the CPU of one host."""

    name: str
    memory: int
    """Bytes."""
    flops: float
    """Operations per second in dense bfloat16 matrix products."""
    bandwidth: float
    """Bytes per second to and from its memory."""
    link: float
    """Bytes per second to the other devices of its node, in one direction."""
    capability: tuple[int, int] | None = None
    """CUDA's compute capability; None for a CPU."""


def _gpu(name: str, capability: tuple[int, int], memory: float, flops: float, *rates: float) -> Device:
    """Returns a GPU, from GiB, TFLOP/s, and TB/s and GB/s of its memory and its link."""
    bandwidth, link = rates
    return Device(name, int(memory * GIB), flops * 1e12, bandwidth * 1e12, link * 1e9, capability)


GPUS: Mapping[str, Device] = {
    device.name: device
    for device in (
        _gpu("L4", (8, 9), 22, 121, 0.30, 32),
        _gpu("RTX-4090", (8, 9), 23.5, 165, 1.0, 32),
        _gpu("L40S", (8, 9), 44, 362, 0.86, 32),
        _gpu("A100-40GB", (8, 0), 39, 312, 1.55, 300),
        _gpu("A100-80GB", (8, 0), 79, 312, 2.0, 300),
        _gpu("H100-80GB", (9, 0), 79, 989, 3.35, 450),
        _gpu("H200", (9, 0), 139, 989, 4.8, 450),
        _gpu("B200", (10, 0), 178, 2250, 8.0, 900),
    )
}
"""The GPUs that rlrun knows; `memory` is what a process finds free on an idle one."""


def format_bytes(count: float) -> str:
    """Formats a number of bytes, as in `3.5 GiB`."""
    if count < 0.1 * GIB:
        return f"{count / 2**20:.3g} MiB"
    return f"{count / GIB:.3g} GiB" if count < 1000 * GIB else f"{count / GIB:,.0f} GiB"


DEFAULT_GPU = "H100-80GB"
CORE_FLOPS, CPU_BANDWIDTH = 1e11, 2e10
"""Speed of one CPU thread and of a host's memory: those of modest server CPUs."""


def find_gpu(name: str) -> Device:
    """Returns the GPU with this name, or the only one whose name starts with it; else raises ValueError.

    Case, hyphens and blanks do not count: `rtx4090` is RTX-4090.
    """
    prefix = _plain(name)
    matches = [gpu for gpu in GPUS.values() if _plain(gpu.name).startswith(prefix)]
    exact = [gpu for gpu in matches if _plain(gpu.name) == prefix]
    if exact or len(matches) == 1:
        return (exact or matches)[0]
    suggestion = nearest(name, GPUS)
    hint = f"did you mean {suggestion}? " if suggestion else ""
    raise ValueError(f"unknown GPU {name}; {hint}known GPUs: {', '.join(GPUS)}")


def _plain(name: str) -> str:
    return re.sub(r"[\s_-]", "", name).upper()


def driver_gpus() -> list[str]:
    """Returns the names that the driver gives this host's GPUs; empty without a driver."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return output.splitlines()


def local_gpu() -> Device | None:
    """Returns the first GPU of this host; None if there is none or rlrun does not know it."""
    words = " ".join(driver_gpus()[:1]).replace("-", " ").split()
    matches = [gpu for gpu in GPUS.values() if gpu.name.split("-")[-1 if "RTX" in gpu.name else 0] in words]
    same_size = [gpu for gpu in matches if gpu.name.partition("-")[2] in "".join(words)]
    return (same_size or matches)[-1] if matches else None


def local_cpu(threads: int) -> Device:
    """Returns the CPU of this host as a device, for processes that have `threads` threads together."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(f"CPU, {threads} threads", memory, CORE_FLOPS * threads, CPU_BANDWIDTH, CPU_BANDWIDTH)
