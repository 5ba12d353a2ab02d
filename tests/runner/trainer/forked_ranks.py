"""Ranks as forks of one process that has imported the trainer: importing it takes 8 CPU seconds."""

import functools
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import psutil

from rlrun.runner.cluster.forked_worker_program import ask

ROOT = Path(__file__).parents[3]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",  # numpy would start threads, which a fork does not have
    "GLOO_SOCKET_IFNAME": "lo",
    "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "tests", ROOT / "tests/runner/trainer"))),
}
IMPORTED = "tests.runner.trainer.trainer_cases"


class ForkedRank:
    """One rank, with those methods of subprocess.Popen that waiting for it needs."""

    def __init__(self, pid: int | None, connection: socket.socket) -> None:
        """`pid`: None if it has ended already."""
        self._pid = pid
        self._connection = connection
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code; None while it runs."""
        self._connection.setblocking(False)
        return self._ended()

    def wait(self) -> int | None:
        """Waits for its end."""
        self._connection.setblocking(True)
        return self._ended()

    def kill(self) -> None:
        """Kills it, unless it has ended."""
        if self.poll() is None and self._pid is not None:
            os.kill(self._pid, signal.SIGKILL)

    def _ended(self) -> int | None:
        if self._code is None:
            try:
                self._code = (self._connection.recv(1) or b"\xff")[0]
            except BlockingIOError:
                return None
        return self._code


class RankServer:
    """The process that is forked: that of a job (rlrun.runner.cluster.fork_server_program)."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ranks-")
        self._socket = str(Path(self._folder.name) / "fork")
        program = "rlrun.runner.cluster.fork_server_program"
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", program, self._socket, IMPORTED],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            env=os.environ | ENVIRONMENT,
        )
        assert self._process.stdout is not None
        assert self._process.stdout.read(1), "the modules of ranks cannot be imported, or start threads"

    def start(self, arguments: Sequence[str], log: Path) -> ForkedRank:
        """Starts `python ARGUMENTS`, which writes to the log."""
        before = {child.pid for child in psutil.Process(self._process.pid).children()}
        connection = socket.socket(socket.AF_UNIX)
        with log.open("w") as file, Path(os.devnull).open() as nothing:
            streams = nothing.fileno(), file.fileno(), file.fileno()
            assert ask(connection, self._socket, arguments, os.environ | ENVIRONMENT, streams)
        new = {child.pid for child in psutil.Process(self._process.pid).children()} - before
        return ForkedRank(next(iter(new), None), connection)

    def close(self) -> None:
        """Ends the server, whose forks have ended before."""
        self._process.kill()
        self._process.wait()
        self._folder.cleanup()


@functools.cache
def rank_server() -> RankServer:
    """The server of this process's tests; a fixture ends it."""
    return RankServer()
