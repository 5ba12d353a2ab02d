"""Describes what went wrong in a process of the job, and finds the first cause among several failures.

When one rank dies, the others fail too, in the collectives that they wait in. A user needs the first one.
"""

import asyncio
import errno as errno_names
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from rlrun.models.foreign_files import open_regular
from rlrun.runner.contracts.errors import JobError, NodeLost
from rlrun.runner.host.background import cancel_all
from rlrun.specs.paths import display_path
from rlrun.specs.problems.codes import Code

Result = TypeVar("Result")

LOG_LINES = 20
_GRACE_SECONDS = 2.0
"""Once one call has failed, the others have this long to report their own failure, which may be its cause."""
_CONSEQUENCES = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "broken pipe")
"""Words in the errors of a rank that lost its peers."""
_DEVICE_ERROR = "cuda error"


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of another process, as plain text, because not every exception can be pickled."""

    error: str
    """Type and message."""
    trace: str
    errno: int | None
    """The number of the OSError that is the root cause; None for other causes."""
    explained: bool = False
    """Whether rlrun's own code raised it as a ValueError: its message explains it without a trace."""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Describes the exception that is being handled."""
        root = _os_error(error)
        trace, explained = "".join(traceback.format_exception(error)), _is_own_value_error(error)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return cls(str(error) if explained else text, trace, root.errno if root else None, explained)


class ProcessFailure(JobError):
    """A process of the job died or hangs, or a call in it failed."""

    code = Code.PROCESS

    def __init__(
        self,
        process: str,
        kind: Literal["died", "hung", "raised"],
        message: str,
        log: Path,
        errno: int | None = None,
        *,
        explained: bool = False,
    ) -> None:
        """`explained`: `message` is enough, and the end of the log is not shown."""
        verb = {"died": "died", "hung": "hangs", "raised": "failed"}[kind]
        super().__init__(
            f"{process} {verb}: {message}" if message else f"{process} {verb}",
            log_location(log) if explained else log_end(log),
        )
        self.kind = kind
        self.errno = errno

    @property
    def distance_from_cause(self) -> int:
        """0: the process died or hangs; 1: an error; 2: its connection to others broke."""
        if self.kind != "raised":
            return 0
        return 2 if any(word in str(self).lower() for word in _CONSEQUENCES) else 1

    @property
    def has_waited(self) -> bool:
        """Whether a deadline ended a wait: of a call, or of a rank for its peers. Another process may be the
        one that hangs.
        """
        return self.kind == "hung" or self.distance_from_cause == 2

    @property
    def is_transient(self) -> bool:
        """Whether another try may succeed: the process died, hangs, or lost its peers or its device."""
        return self.distance_from_cause != 1 or _DEVICE_ERROR in str(self).lower()

    def raise_os_error(self) -> None:
        """Raises an OSError like that of the other process, if that was the cause."""
        if self.errno is not None:
            raise OSError(self.errno, f"{errno_names.errorcode.get(self.errno, 'error')}: {self}") from self


def log_end(log: Path) -> str:
    """Returns the last lines of a log, and the path of the whole log."""
    try:
        with open_regular(log) as file:
            lines = file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return f"(its log would be {display_path(log)})"
    return "\n".join([*(f"  {line}" for line in lines), log_location(log)])


def log_location(log: Path) -> str:
    """Returns a line with the path of a log."""
    return f"  (whole log: {display_path(log)})"


def first_cause(failures: Sequence[BaseException]) -> BaseException:
    """Returns the failure to show: a lost node before a death, a death before an error, an error before a
    broken connection, and the earlier one of two of the same kind.
    """
    return min(failures, key=_distance_from_cause)


def _distance_from_cause(error: BaseException) -> int:
    if isinstance(error, NodeLost):
        return -1
    return error.distance_from_cause if isinstance(error, ProcessFailure) else 1


async def run_watched(
    work: Coroutine[Any, Any, None],
    watching_over: Coroutine[Any, Any, None],
    diagnose: Callable[[], Awaitable[ProcessFailure | None]],
) -> None:
    """Runs `work` until it ends or `watching_over` reports a failure; raises the first cause of a failure.

    `diagnose` returns the death of a process, if one died: it explains every other failure.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(watching_over)
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        failures = [error for task in (watching, working) if task.done() and (error := task.exception())]
        if failures:
            if (death := await diagnose()) is not None:
                failures.append(death)
            raise first_cause(failures)
    finally:
        await cancel_all([working, watching])


async def gather_or_first_cause(calls: Sequence[Awaitable[Result]]) -> list[Result]:
    """Returns the results of all calls, in order. Raises the first cause when some of them fail."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    if not tasks:
        return []
    try:
        _, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        if waiting:
            await asyncio.wait(waiting, timeout=_GRACE_SECONDS)
        failures = [error for task in tasks if task.done() and (error := task.exception())]
        if failures:
            raise first_cause(failures)
        return [task.result() for task in tasks]
    finally:
        await cancel_all(tasks)


def _is_own_value_error(error: BaseException) -> bool:
    """Whether the error is a ValueError with a message that rlrun's own code raised."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = frames[-1].f_globals.get("__name__", "") if frames else ""
    return isinstance(error, ValueError) and bool(str(error)) and module.startswith("rlrun.")


def _os_error(error: BaseException) -> OSError | None:
    """Returns the OSError that `error` is or was raised from; None if there is none."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, OSError) and current.errno is not None:
            return current
        current = current.__cause__
    return None
