"""The memory of this host and its GPUs: how much there is, and which of a job's processes hold it.

The kernel and Ray kill a process when memory runs out, and neither says which processes took it. So the
driver looks while little is left, and keeps what it saw for the message of the failure.
"""

import asyncio
import logging
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

import psutil

from rlrun.runner.contracts.errors import JobError
from rlrun.runner.host.background import in_background
from rlrun.specs.problems.codes import Code

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 1.0
_SCARCE = 0.85
"""Used share of the memory from which the processes are looked at; Ray kills a process at 0.95."""
_RECENT_SECONDS = 30.0
"""A failure within this time after memory was scarce may have been caused by it."""
_CGROUP = Path("/sys/fs/cgroup")
_GPU_PROCESSES = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
_NVIDIA_SMI_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Memory:
    """The memory of a host or of the container around this process, in bytes."""

    used: int
    total: int

    @property
    def share(self) -> float:
        """Returns the share that is used."""
        return self.used / self.total


def host_memory(cgroup: Path = _CGROUP) -> Memory:
    """Returns the memory of this host, or the limit of its container where that is smaller."""
    host = psutil.virtual_memory()
    with suppress(OSError, ValueError):  # no limit is the word `max`
        limit = int((cgroup / "memory.max").read_text())
        used = int((cgroup / "memory.current").read_text())
        cache = next(
            int(line.split()[1])
            for line in (cgroup / "memory.stat").read_text().splitlines()
            if line.startswith("inactive_file ")
        )
        if limit < host.total:
            return Memory(used - cache, limit)
    return Memory(host.total - host.available, host.total)


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """The processes of one kind."""

    name: str
    processes: int
    resident: int
    """Bytes."""


def memory_by_group(
    processes: Iterable[psutil.Process], group_of: Callable[[psutil.Process], str]
) -> list[GroupMemory]:
    """Returns the resident memory of processes by their groups, the largest group first."""
    numbers: defaultdict[str, list[int]] = defaultdict(list)
    for process in processes:
        with suppress(psutil.Error):
            numbers[group_of(process)].append(process.memory_info().rss)
    groups = [GroupMemory(name, len(sizes), sum(sizes)) for name, sizes in numbers.items()]
    return sorted(groups, key=lambda group: -group.resident)


def describe(memory: Memory, groups: Iterable[GroupMemory]) -> str:
    """Returns a sentence about memory that is scarce, and about the processes that hold it."""
    held = ", ".join(
        f"{group.name} {_gibibytes(group.resident)}"
        + (f" in {group.processes} processes" if group.processes > 1 else "")
        for group in groups
    )
    return f"memory was scarce ({_gibibytes(memory.used)} of {_gibibytes(memory.total)} used): {held}"


def job_memory(names: Mapping[int, str], others: str) -> list[GroupMemory]:
    """Returns the resident memory of this process and all below it.

    `names`: the group of a process by its id; processes below it belong to its group. `others`: the group of
    the rest.
    """
    driver = psutil.Process()
    groups = {driver.pid: "driver", **names}
    below = driver.children(recursive=True)

    def group_of(process: psutil.Process) -> str:
        if process.pid in groups:
            return groups[process.pid]
        parents = takewhile(lambda parent: parent.pid != driver.pid, process.parents())
        return next((groups[parent.pid] for parent in parents if parent.pid in groups), others)

    return memory_by_group([driver, *below], group_of)


class MemoryWatch:
    """Looks at the job's processes while memory is scarce."""

    def __init__(self, look: Callable[[], list[GroupMemory]]) -> None:
        """`look` returns the memory of the job's processes on this host."""
        self._look = look
        self._seen: tuple[float, str] | None = None

    async def run(self) -> None:
        """Never returns."""
        while True:
            await in_background(self.look_once)
            await asyncio.sleep(_LOOK_SECONDS)

    def look_once(self, memory: Memory | None = None) -> None:
        """Notes which processes hold the memory, if it is scarce."""
        memory = memory or host_memory()
        if memory.share >= _SCARCE:
            text = describe(memory, self._look())
            if not self.recent():
                logger.warning("%s", text)
            self._seen = (time.monotonic(), text)

    @contextmanager
    def named_in_failures(self) -> Iterator[None]:
        """Adds what was seen a moment ago to the message of an error that ends the block."""
        try:
            yield
        except (JobError, MemoryError) as error:
            if not (seen := self.recent()):
                raise
            details, code = getattr(error, "details", ""), getattr(error, "code", Code.JOB)
            raise JobError(f"{str(error) or 'MemoryError'}; {seen}", details, code=code) from error

    def recent(self) -> str:
        """Returns what was seen last, if that was a moment ago; empty otherwise."""
        if self._seen is None or time.monotonic() - self._seen[0] > _RECENT_SECONDS:
            return ""
        return self._seen[1]


def _gibibytes(count: int) -> str:
    return f"{count / 2**30:.1f} GiB"


def largest_gpu_memory(pids: Collection[int]) -> float:
    """Returns the bytes of GPU memory of the process that uses most; 0 where the driver lists none of them.

    In a container the driver may list processes under other numbers.
    """
    try:
        output = subprocess.run(
            _GPU_PROCESSES, capture_output=True, text=True, timeout=_NVIDIA_SMI_SECONDS, check=True
        ).stdout
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
