"""Watches Ray's own processes: those that this process started, and whether Ray still works.

Ray's C++ code ends this process without an exception when the GCS has been gone for
`RAY_gcs_rpc_server_reconnect_timeout_s`. Until then calls between the job's processes still work, because
they go directly from one process to another, so there is time to save the job.
"""

import atexit
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from rlrun.runner.cluster.ray_environment import ray
from rlrun.runner.host.child_processes import end_or_kill

_ESSENTIAL = {"gcs_server": "Ray's GCS", "raylet": "Ray's raylet"}
_REACHED_SECONDS = 5.0
_LOG_LINES = 10
_TRIES = 3
"""A cluster whose GCS refuses so many connections in a row is lost."""


class _OwnSession(ray._private.services.ConsolePopen):
    """Starts a process of Ray in its own session, and records it.

    A Ctrl-C or a closed terminal signals the whole process group of the driver. Ray's processes must survive
    that, because the job needs them to save its state.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if _given_up.is_set():
            raise RuntimeError("the launch has given up its Ray")
        super().__init__(*args, **kwargs, start_new_session=True)
        _started.append(self)
        for note in _notes:
            note(self.pid)


_started: list[subprocess.Popen[bytes]] = []
_notes: list[Callable[[int], None]] = []
_given_up = threading.Event()
"""Set when a start of Ray was given up that cannot be interrupted: it must not start anything else."""
ray._private.services.ConsolePopen = _OwnSession


def note_sessions(note: Callable[[int], None]) -> None:
    """Calls `note` with the id of every session that a process of Ray begins from now on."""
    _notes[:] = [note]


def take_started() -> list[subprocess.Popen[bytes]]:
    """Returns the processes of Ray that this process started; their death is no longer reported."""
    processes = _started[:]
    _started.clear()
    return processes


def end_ray(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Kills processes of Ray that this process started, and their children."""
    below: list[psutil.Process] = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            below += psutil.Process(process.pid).children(recursive=True)
        process.kill()
    for process in processes:
        process.wait()
    end_or_kill(below, wait=0.0)  # last: their parents do not wait for them


def give_up_ray() -> None:
    """Kills every process of Ray that this process started, while a call to Ray hangs.

    The call cannot be interrupted, so neither it nor the end of this process may call Ray again: both would
    wait for the processes that are gone, or abort this process.
    """
    _given_up.set()
    atexit.unregister(ray.shutdown)
    end_ray(take_started())


def dead_server() -> str | None:
    """Returns which of Ray's essential processes died, and how; None while all of them run.

    A dead process is left as a zombie on purpose: workers end as soon as the raylet's process id is gone.
    """
    for process in _started[:]:
        what = _ESSENTIAL.get(_program(process))
        if what is not None and (ended := _ended(process.pid)) is not None:
            killed = ended.si_code != os.CLD_EXITED
            how = signal.Signals(ended.si_status).name if killed else f"exit code {ended.si_status}"
            return f"{what} (process {process.pid}) died: {how}"
    return None


def _program(process: subprocess.Popen[bytes]) -> str:
    return os.path.basename(process.args[0])  # type: ignore[index, arg-type]  # noqa: PTH119


def servers_log(folder: Path) -> str:
    """Returns the last lines that Ray's essential processes wrote into Ray's `folder`; empty without any."""
    parts = []
    for name, what in _ESSENTIAL.items():
        logs = folder.glob(f"session_latest/logs/{name}.*")
        lines = [line for log in sorted(logs) for line in log.read_text(errors="replace").splitlines()]
        if lines:
            parts += [f"the last lines of {what}:", *(f"  {line}" for line in lines[-_LOG_LINES:])]
    return "\n".join(parts)


def _ended(pid: int) -> os.waitid_result | None:
    """Returns how a child ended, and leaves it as a zombie; None while it runs."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:  # Ray has reaped it, as it does where the job ends
        return None


class JoinedCluster:
    """Checks whether the GCS of a cluster that the job joined can be reached."""

    def __init__(self, address: str) -> None:
        """`address`: `HOST:PORT` of its GCS."""
        self._address = address
        self._failed = 0

    def lost(self) -> str | None:
        """Tries once; returns what is wrong after several failures in a row, else None."""
        host, _, port = self._address.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), timeout=_REACHED_SECONDS).close()
            self._failed = 0
        except OSError as error:
            self._failed += 1
            if self._failed >= _TRIES:
                return f"the GCS of the Ray cluster at {self._address} cannot be reached: {error}"
        return None
