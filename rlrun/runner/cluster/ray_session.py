"""A Ray of the job's own on this host, or a cluster that it joins; and keeping Ray to itself.

Ray's processes are tied to the life of the thread that starts them: with one that lives as long as the job,
they end with the driver even when it is killed.
"""

import logging
import os
import secrets
import shutil
import signal
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.runner.cluster.ray_environment import ray
from rlrun.runner.cluster.ray_health import end_ray
from rlrun.runner.contracts.errors import JobError

logger = logging.getLogger(__name__)

_REACHED_SECONDS = 10.0
"""For a cluster's host to take a connection."""
_TRIES = 3
"""Starts of Ray. Each takes half a minute at most where the host is too busy."""


def start_here(cores: int, folder: Path) -> None:
    """Start Ray on this host, its files in `folder`. JobError where it does not start in several tries."""
    _stay_on_loopback(True)
    _ask_for_a_token()
    for remaining in reversed(range(_TRIES)):
        try:
            _init(cores, folder)
            return
        except Exception as error:  # Ray raises a bare one when its raylet is not up after 30 s
            _take_back_start(folder)
            if isinstance(error, ValueError) or not remaining:
                raise JobError(not_started(error, os.getloadavg()[0], os.cpu_count() or 1)) from error
            logger.warning("Ray did not start (%s); trying again", error)


def _init(cores: int, folder: Path) -> None:
    ray.init(
        address="local",
        num_cpus=cores,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        _temp_dir=str(folder),
    )


def _take_back_start(folder: Path) -> None:
    """End what a start that failed has left, and empty the folder for the next one."""
    ray.shutdown()
    end_ray()
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def not_started(error: Exception, load: float, cores: int) -> str:
    """Why Ray did not start, and what to do; `load` is the load average of the last minute."""
    message = f"Ray could not be started on this host: {error}"
    if isinstance(error, ValueError):
        return message
    busy = f"load average {load:.0f} on {cores} cores"
    if load > cores:
        return (
            f"{message} ({_TRIES} tries). The host is overloaded ({busy}): end other work on it, wait until "
            "it has less to do, or join a Ray that runs already (cluster.address)"
        )
    return (
        f"{message} ({_TRIES} tries; {busy}). See that the host has memory, space in its temporary folder "
        "(TMPDIR) and processes to spare (ulimit -u), and launch again"
    )


def _ask_for_a_token() -> None:
    """Have Ray refuse everybody who does not know a token, which is drawn here and kept in no file.

    The environment's mode and token are meant for other clusters, whose users know that token.
    """
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    ray._raylet.Config.initialize("")  # it has read the mode when it was imported
    ray._raylet.AuthenticationTokenLoader.instance().reset_cache()


def join(address: str) -> None:
    """Join a cluster. JobError where that fails."""
    try:
        _check_that_somebody_listens(address)
        _stay_on_loopback(False)
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ray.exceptions.RayError, OSError, RuntimeError, ValueError) as error:
        raise JobError(
            f"the Ray cluster at cluster.address = {address!r} could not be joined: {error}; "
            "check the address, and RAY_AUTH_MODE and RAY_AUTH_TOKEN where the cluster asks for a token"
        ) from error


def _check_that_somebody_listens(address: str) -> None:
    """OSError where nobody does at a `HOST:PORT`: Ray would go on asking for a quarter of an hour."""
    host, _, port = address.rpartition(":")
    if port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_REACHED_SECONDS):
            pass


def _stay_on_loopback(local: bool) -> None:
    """Have Ray listen on 127.0.0.1 alone, which it does for a cluster of one on macOS."""
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0" if local else "1"
    ray._private.ray_constants.ENABLE_RAY_CLUSTER = not local


def take_back_signals() -> None:
    """Put Python's handlers back: Ray's own takes SIGTERM for a crash and aborts."""
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if handler is not None:
            signal.signal(number, handler)


def _log_message(data: Mapping[str, Any], ignore_prefix: bool) -> None:
    logger.info("Ray says: %s", " ".join(data["lines"]))


# Ray would print at length on the terminal that a process died; we say so, once and with its log.
ray._private.worker.print_to_stdstream = _log_message
