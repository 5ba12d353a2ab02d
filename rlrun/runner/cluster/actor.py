"""The base class of all processes of a job. The classes are plain; Ray wraps them.

Everything that a process prints goes to its own log, from the first line on. An exception is returned to the
driver as a `Failure`, because the exception object itself may not be picklable there.
"""

import faulthandler
import logging
import os
import resource
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import ClassVar, Concatenate, ParamSpec, TypeVar

from rlrun.runner.host.failures import Failure
from rlrun.runner.host.log_lines import LineFormatter
from rlrun.runner.host.network import free_port
from rlrun.runner.host.stacks import write_when_asked

Self = TypeVar("Self")
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def reports_failure(
    method: Callable[Concatenate[Self, Parameters], Result],
) -> Callable[Concatenate[Self, Parameters], Result | Failure]:
    """Makes a method return its exceptions as Failures, with the traceback in the log.

    This is the boundary around everything that a process runs, so it catches every exception.
    """

    @wraps(method)
    def guarded(self: Self, /, *args: Parameters.args, **kwargs: Parameters.kwargs) -> Result | Failure:
        try:
            return method(self, *args, **kwargs)
        except BaseException as error:
            failure = Failure.of(error)
            with suppress(OSError):  # the log's disk may be full; the failure itself still says so
                print(failure.trace, file=sys.stderr, flush=True)
            return failure

    return guarded


class Actor:
    """The methods that every process has."""

    called_aside: ClassVar[frozenset[str]] = frozenset()
    """Names of the methods that run in a separate thread, also while the process is busy."""
    imports: ClassVar[str | None] = None
    """The module that `start` imports if that takes seconds; a fork server imports it beforehand."""

    def __init__(self, log: str, secrets: Mapping[str, str]) -> None:
        """Appends everything that this process prints to `log`. `secrets` are further environment variables:
        Ray writes those that a process starts with to its own logs.
        """
        redirect_output(Path(log))
        os.environ.update(secrets)

    @reports_failure
    def ping(self) -> tuple[int, float]:
        """Returns the process's id and its peak memory in bytes; a Failure if the process is unhealthy."""
        return os.getpid(), peak_memory()

    @reports_failure
    def free_port(self) -> int:
        """Returns a free port of this host."""
        return free_port("")

    @reports_failure
    def missing(self, paths: list[str]) -> list[str]:
        """Returns those of the paths that do not exist on this host."""
        return [path for path in paths if not Path(path).exists()]


def visible_gpus() -> str:
    """Returns the ids of the GPUs that are reserved for this process, which sees no others; "" on CPU."""
    return os.environ["CUDA_VISIBLE_DEVICES"]


def redirect_output(log: Path) -> None:
    """Appends this process's standard output and error to `log`, line by line."""
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
    write_when_asked()
    handler = logging.StreamHandler()
    handler.setFormatter(LineFormatter())
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)


def peak_memory() -> float:
    """Returns the peak memory in bytes: of the GPU if this process uses one, else of the host."""
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return float(torch.cuda.max_memory_allocated())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
