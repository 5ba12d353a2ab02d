"""Starts Ray on this host for one job, or joins a cluster; and keeps Ray away from our signals and terminal.

Ray's processes end with the thread that started them. That thread has to live as long as the job; the
processes then end with the driver, even if the driver is killed.
"""

import logging
import os
import secrets
import shutil
import signal
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.runner.cluster.ray_environment import ray
from rlrun.runner.cluster.ray_health import end_ray, take_started
from rlrun.runner.contracts.errors import MachinesFailed

logger = logging.getLogger(__name__)

_REACHED_SECONDS = 10.0
"""Deadline for a connection to the cluster's host."""
_TRIES = 3
"""How often Ray is started before rlrun gives up. On an overloaded host a try fails after 30 seconds."""


class _WithoutFolders(ray.job_config.JobConfig):
    """Ray puts the driver's current folder on the path of its workers, before the installed packages: a
    `triton.py` there would run in each process of the job. This configuration has no such folders.
    """

    @property
    def _py_driver_sys_path(self) -> list[str]:
        return []

    @_py_driver_sys_path.setter
    def _py_driver_sys_path(self, folders: Sequence[str]) -> None:
        """Ignores the folders; Ray's own `__init__` sets an empty list."""


def start_here(cores: int, folder: Path) -> None:
    """Starts Ray on this host, with its files in `folder`. Raises MachinesFailed if it fails in every try."""
    _stay_on_loopback(True)
    _ask_for_a_token()
    for remaining in reversed(range(_TRIES)):
        try:
            _init(cores, folder)
            return
        except Exception as error:  # Ray raises a plain Exception when its raylet is not up after 30 s
            _take_back_start(folder)
            if isinstance(error, ValueError) or not remaining:
                raise MachinesFailed(not_started(error, os.getloadavg()[0], os.cpu_count() or 1)) from error
            logger.warning("Ray did not start (%s); trying again", error)


def _init(cores: int, folder: Path) -> None:
    ray.init(
        address="local",
        num_cpus=cores,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        job_config=_WithoutFolders(),
        _temp_dir=str(folder),
    )


def _take_back_start(folder: Path) -> None:
    """Ends the processes of a failed start, and empties the folder for the next try."""
    started = take_started()
    ray.shutdown()
    end_ray(started)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def not_started(error: Exception, load: float, cores: int) -> str:
    """Returns why Ray did not start and what to do; `load` is the load average of the last minute."""
    message = f"Ray could not be started on this host: {error}"
    if isinstance(error, ValueError):
        return message
    busy = f"load average {load:.0f} on {cores} cores"
    if load > cores:
        return (
            f"{message} ({_TRIES} tries). The host is overloaded ({busy}): end other work on it, wait until "
            "it is less busy, or join a running Ray cluster (cluster.address)"
        )
    return (
        f"{message} ({_TRIES} tries; {busy}). Check that the host has free memory, space in its temporary "
        "folder (TMPDIR) and room for more processes (ulimit -u), then launch again"
    )


def _ask_for_a_token() -> None:
    """Makes Ray refuse connections without a token. The token is random and never written to a file.

    A mode and a token in the environment are replaced: they belong to other clusters, whose users know them.
    """
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    ray._raylet.Config.initialize("")  # Ray read the mode when it was imported
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def join(address: str) -> None:
    """Joins the cluster at an address. Raises MachinesFailed if that fails."""
    try:
        _check_that_somebody_listens(address)
        _stay_on_loopback(False)
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR}
        ray.init(address=address, job_config=_WithoutFolders(), **quiet)
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        raise MachinesFailed(
            f"the Ray cluster at cluster.address = {address!r} could not be joined: {error}; "
            "check the address and, if the cluster requires a token, RAY_AUTH_MODE and RAY_AUTH_TOKEN"
        ) from error


def _check_that_somebody_listens(address: str) -> None:
    """Raises OSError if no process listens at a `HOST:PORT`; Ray itself would retry for 15 minutes."""
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_REACHED_SECONDS):
            pass


def _stay_on_loopback(local: bool) -> None:
    """Makes Ray listen on 127.0.0.1 only (or, if not `local`, on the network), as on macOS."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0" if local else "1"
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = not local


def take_back_signals() -> None:
    """Restores Python's signal handlers: Ray's own handler treats SIGTERM as a crash and aborts."""
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if handler is not None:
            signal.signal(number, handler)


def _start_nothing(node: Any, **options: Any) -> None:
    """Takes the place of methods that start servers that no job asks anything of."""


# A dashboard's server, which `ray.init` waits for although no page is asked for; the autoscaler's, which has
# no nodes to add; and one that follows workers' logs for the driver's terminal. Without them, Ray starts in
# half of the time.
for _name in ("start_api_server", "start_monitor", "start_log_monitor"):
    assert hasattr(ray._private.node.Node, _name), f"Ray {ray.__version__} has no Node.{_name}"
    setattr(ray._private.node.Node, _name, _start_nothing)


def _log_message(data: Mapping[str, Any], ignore_prefix: bool) -> None:
    logger.info("Ray says: %s", " ".join(data["lines"]))


# Ray prints a long message on the terminal when a process dies; rlrun reports it itself, with the log.
ray._private.worker.print_to_stdstream = _log_message
