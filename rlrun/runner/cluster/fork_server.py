"""Starts the job's processes of this host as forks of one that has imported what they need.

    driver ── starts ──▶ fork server: imports torch, torchtitan, …, then listens ── forks ──▶ rank, engine
                                ▲ arguments, environment, streams
    Ray ── starts ──▶ forked_worker_program

Importing what a trainer rank needs takes 8 CPU seconds. The server does so once, while Ray starts, for all
ranks and native engines, and for those that take the place of a dead one. It serves processes on CPUs only:
a fork cannot use a GPU that a module has touched when it was imported.
"""

import logging
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlrun.runner.host.background import in_background, with_deadline
from rlrun.specs.safe_python import own_python

logger = logging.getLogger(__name__)

CAN_FORK = hasattr(os, "pidfd_open")
"""Whether this host has what the server needs: it is Linux."""
_IMPORT_SECONDS = 600.0
"""Deadline for the modules to be imported, on a busy host."""
_PLACE = {"RANK", "WORLD_SIZE"}
"""Variables by which the ranks of a job differ. No module reads them while it is imported."""
_OWN = {"OPENBLAS_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
"""Variables of the server itself: numpy would start threads when it is imported, and a fork has one; and
modules may look for GPUs, which processes on CPUs do not see.
"""
_WORKER = Path(__file__).with_name("forked_worker_program.py")


class ForkServer:
    """The process whose forks are the processes of a job."""

    def __init__(self, folder: Path, modules: Sequence[str], environment: Mapping[str, str]) -> None:
        """Starts it, for processes with `environment` beside the variables of this process. `folder` is
        closed to other users.
        """
        self._socket = folder / "fork"
        self._environment = _imported(environment)
        self._listens = False
        self._messages = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        program = "rlrun.runner.cluster.fork_server_program"
        self.process = subprocess.Popen(
            own_python("-m", program, str(self._socket), *modules),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            env={**os.environ, **self._environment, **_OWN},
            start_new_session=True,  # signals of the terminal do not reach it
        )

    def suits(self, environment: Mapping[str, str]) -> bool:
        """Returns whether a process with these variables would import what the server has imported."""
        return _imported(environment) == self._environment

    async def executable(self) -> str | None:
        """Returns what Ray has to start instead of Python, as soon as the modules are imported; None where
        the server has ended, so that each process has to import for itself.
        """
        if not self._listens:
            try:
                self._listens = await with_deadline(in_background(self._wait), _IMPORT_SECONDS)
            except TimeoutError:
                self.process.kill()
                await in_background(self.process.wait)
        if self.process.poll() is not None:
            self._messages.seek(0)
            reason = self._messages.read().strip().rpartition("\n")[2]
            logger.warning("each process imports for itself; the fork server has ended: %s", reason)
            return None
        return shlex.join([sys.executable, "-I", "-S", str(_WORKER), str(self._socket)])

    def close(self) -> None:
        """Kills the server, not its forks."""
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self._messages.close()

    def _wait(self) -> bool:
        """Waits until the server listens or ends; returns whether it listens."""
        assert self.process.stdout is not None
        if self.process.stdout.read(1):
            return True
        self.process.wait()
        return False


def _imported(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the variables that modules may read while they are imported."""
    return {name: value for name, value in environment.items() if name not in _PLACE}
