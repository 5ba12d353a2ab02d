"""Asks the driver how much GPU memory processes use."""

import subprocess
from collections.abc import Collection

_COMMAND = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
_SECONDS = 20.0


def largest_gpu_memory(pids: Collection[int]) -> float:
    """Returns the bytes of GPU memory of the process that uses most; 0 where the driver lists none of them.

    In a container the driver may list processes under other numbers.
    """
    try:
        output = subprocess.run(_COMMAND, capture_output=True, text=True, timeout=_SECONDS, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return 0.0
    return max((memory for pid, memory in used_memory(output).items() if pid in pids), default=0.0)


def used_memory(output: str) -> dict[int, float]:
    """Returns the bytes that each process uses, summed over its GPUs, from the driver's lines `PID, MIB`."""
    used: dict[int, float] = {}
    for line in output.splitlines():
        pid, _, mebibytes = line.partition(",")
        if pid.strip().isdigit() and mebibytes.strip().isdigit():  # `[N/A]` where the driver does not know
            used[int(pid)] = used.get(int(pid), 0.0) + int(mebibytes) * 2**20
    return used
