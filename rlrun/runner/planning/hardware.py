"""What devices can do: makers' figures of dense bfloat16 products, memory and its bandwidth."""

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from rlrun.specs.problems.spelling import nearest

GIB = 2**30


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU, or one host's CPU."""

    name: str
    memory: int
    """Bytes."""
    flops: float
    """Dense bfloat16 products, operations a second."""
    bandwidth: float
    """Of its memory, bytes a second."""
    link: float
    """To the other devices of its node, bytes a second one way."""


def _gpu(name: str, gib: float, tera_flops: float, tera_bytes: float, giga_link: float) -> Device:
    return Device(name, int(gib * GIB), tera_flops * 1e12, tera_bytes * 1e12, giga_link * 1e9)


GPUS: Mapping[str, Device] = {
    device.name: device
    for device in (
        _gpu("L4", 22, 121, 0.30, 32),
        _gpu("RTX-4090", 23.5, 165, 1.0, 32),
        _gpu("L40S", 44, 362, 0.86, 32),
        _gpu("A100-40GB", 39, 312, 1.55, 300),
        _gpu("A100-80GB", 79, 312, 2.0, 300),
        _gpu("H100-80GB", 79, 989, 3.35, 450),
        _gpu("H200", 139, 989, 4.8, 450),
        _gpu("B200", 178, 2250, 8.0, 900),
    )
}
"""Memory is what a process finds free on an idle one."""


def gib(count: float) -> str:
    """Bytes as people read them."""
    if count < 0.1 * GIB:
        return f"{count / 2**20:.3g} MiB"
    return f"{count / GIB:.3g} GiB" if count < 1000 * GIB else f"{count / GIB:,.0f} GiB"


USUAL_GPU = "H100-80GB"
CORE_FLOPS, CPU_BANDWIDTH = 1e11, 2e10
"""Of one CPU thread, and of a host's memory: modest server CPUs."""


def find_gpu(name: str) -> Device:
    """The GPU of that name, or the only one whose name begins so. ValueError for another."""
    wanted = name.upper()
    fitting = [gpu for gpu in GPUS.values() if gpu.name.startswith(wanted)]
    if exact := [gpu for gpu in fitting if gpu.name == wanted] or (fitting if len(fitting) == 1 else []):
        return exact[0]
    meant = nearest(name, GPUS)
    guess = f"did you mean {meant}? " if meant else ""
    raise ValueError(f"no GPU is known as {name}; {guess}known: {', '.join(GPUS)}")


def driver_gpus() -> list[str]:
    """The GPUs of this host by their driver's names; none where there is no driver."""
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return found.splitlines()


def this_gpu() -> Device | None:
    """The GPU of this host; None where there is none or it is not known."""
    words = " ".join(driver_gpus()[:1]).replace("-", " ").split()
    fitting = [gpu for gpu in GPUS.values() if gpu.name.split("-")[-1 if "RTX" in gpu.name else 0] in words]
    sized = [gpu for gpu in fitting if gpu.name.partition("-")[2] in "".join(words)]
    return (sized or fitting)[-1] if fitting else None


def this_host(threads: int) -> Device:
    """The CPU of this host, for processes of that many threads in all."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Device(f"CPU, {threads} threads", memory, CORE_FLOPS * threads, CPU_BANDWIDTH, CPU_BANDWIDTH)
