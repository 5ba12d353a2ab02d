"""Watches Ray's own processes: those that this process started, and whether Ray still works.

Ray's C++ code ends this process without an exception when the GCS has been gone for
`RAY_gcs_rpc_server_reconnect_timeout_s`. Until then calls between the job's processes still work, because
they go directly from one process to another, so there is time to save the job.
"""

import os
import signal
import socket
import subprocess
from contextlib import suppress
from typing import Any

import psutil

from rlrun.runner.cluster.ray_environment import ray
from rlrun.runner.host.child_processes import end_or_kill

_ESSENTIAL = {"gcs_server": "Ray's GCS", "raylet": "Ray's raylet"}
_REACHED_SECONDS = 5.0
_TRIES = 3
"""A cluster whose GCS refuses so many connections in a row is lost."""


class _OwnSession(ray._private.services.ConsolePopen):
    """Starts a process of Ray in its own session, and records it.

    A Ctrl-C or a closed terminal signals the whole process group of the driver. Ray's processes must survive
    that, because the job needs them to save its state.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, start_new_session=True)
        _started.append(self)


_started: list[subprocess.Popen[bytes]] = []
ray._private.services.ConsolePopen = _OwnSession


def end_ray() -> None:
    """Kills every process of Ray that this process started, and their children."""
    for process in _started:
        with suppress(psutil.NoSuchProcess):
            end_or_kill([*psutil.Process(process.pid).children(recursive=True)], wait=0.0)
        process.kill()
        process.wait()
    _started.clear()


def dead_server() -> str | None:
    """Returns which of Ray's essential processes died, and how; None while all of them run.

    A dead process is left as a zombie on purpose: workers end as soon as the raylet's process id is gone.
    """
    for process in _started:
        what = _ESSENTIAL.get(os.path.basename(process.args[0]))  # type: ignore[index, arg-type]  # noqa: PTH119
        if what is not None and (ended := _ended(process.pid)) is not None:
            killed = ended.si_code != os.CLD_EXITED
            how = signal.Signals(ended.si_status).name if killed else f"exit code {ended.si_status}"
            return f"{what} (process {process.pid}) died: {how}"
    return None


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
