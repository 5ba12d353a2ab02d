"""What the bodies of all the job's processes share. Plain classes; Ray wraps them.

What a process prints goes to its own log, from the first line on. What it raises comes back as a `Failure`:
an exception object may not survive the way.
"""

import faulthandler
import logging
import os
import resource
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import ClassVar, Concatenate, ParamSpec, TypeVar

from rlrun.runner.host.failures import Failure

Self = TypeVar("Self")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def reports_failure(
    method: Callable[Concatenate[Self, Parameters], Result],
) -> Callable[Concatenate[Self, Parameters], Result | Failure]:
    """Return what a method raises, its trace in the log: the boundary to everything a process runs."""

    @wraps(method)
    def guarded(self: Self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result | Failure:
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            failure = Failure.of(error)
            with suppress(OSError):  # the disk is full: that is told by what it raised here
                print(failure.trace, file=sys.stderr, flush=True)
            return failure

    return guarded


class Actor:
    """What all kinds share."""

    pings_aside: ClassVar[bool] = False
    """Whether a ping is answered in a thread of its own, whatever else the process is busy with."""

    def __init__(self, log: str) -> None:
        """Send everything this process prints to the end of `log`."""
        redirect_output(Path(log))

    @reports_failure
    def ping(self) -> tuple[int, float]:
        """The process's id and the most memory it has used, bytes, while all is well."""
        return os.getpid(), peak_memory()

    @reports_failure
    def free_port(self) -> int:
        """A port of this host that is free."""
        with socket.socket() as one:
            one.bind(("", 0))
            return int(one.getsockname()[1])

    @reports_failure
    def missing(self, paths: list[str]) -> list[str]:
        """Which of the paths this host does not see."""
        return [path for path in paths if not Path(path).exists()]


def visible_gpus() -> str:
    """Ids of the GPUs that Ray gives whoever runs this, as it tells CUDA."""
    return os.environ["CUDA_VISIBLE_DEVICES"]


def redirect_output(log: Path) -> None:
    """Append this process's standard output and error to `log`, line by line."""
    log.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)
    sys.stdout = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = os.fdopen(2, "w", buffering=1, closefd=False)
    faulthandler.enable()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s: %(message)s", force=True)


def peak_memory() -> float:
    """Bytes: of the GPU where this process uses one, else of the process."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
