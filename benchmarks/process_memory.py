"""Measures the memory of a command and of all processes that it starts."""

import subprocess
import threading
from collections.abc import Mapping, Sequence

import psutil

_SECONDS = 2.5
"""Between two looks: to add up the pages of a process takes 0.1 s of a core and stops its page faults."""


def run_measured(command: Sequence[str], env: Mapping[str, str], timeout: float) -> tuple[str, float]:
    """Returns the command's standard output and its peak memory in GiB; SystemExit if it fails.

    Memory is the sum of each process's proportional share (PSS), so that shared pages count once.
    """
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env
    ) as process:
        peak = _Peak(process.pid)
        sampler = threading.Thread(target=peak.sample_until_done)
        sampler.start()
        try:
            output, errors = process.communicate(timeout=timeout)
        finally:
            process.kill()
            peak.done.set()
            sampler.join()
    if process.returncode:
        raise SystemExit(f"{' '.join(command[:4])} failed:\n{output[-2000:]}{errors[-3000:]}")
    return output, peak.bytes / 2**30


class _Peak:
    def __init__(self, root: int) -> None:
        self.bytes, self.done = 0, threading.Event()
        self._root = psutil.Process(root)

    def sample_until_done(self) -> None:
        """Keeps the largest sum of all processes below the root."""
        while not self.done.wait(_SECONDS):
            self.bytes = max(self.bytes, sum(map(_share, self._processes())))

    def _processes(self) -> list[psutil.Process]:
        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def _share(process: psutil.Process) -> int:
    try:
        return int(process.memory_full_info().pss)
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return 0
