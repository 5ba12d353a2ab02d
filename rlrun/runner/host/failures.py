"""What went wrong in a process of the job, and which of several failures was the first cause.

When one rank dies, the others fail too, in the collectives they wait in; what a person needs is the first.
"""

import asyncio
import errno as errno_names
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from rlrun.runner.contracts.errors import JobError
from rlrun.runner.host.background import cancel_all
from rlrun.specs.paths import display_path

Result = TypeVar("Result")

LOG_LINES = 20
_GRACE_SECONDS = 2.0
"""How long the other processes of a call get to say what they know, once one has failed."""
_CONSEQUENCES = ("gloo", "nccl", "connection closed by peer", "connection reset by peer", "broken pipe")
_OF_THE_DEVICE = "cuda error"


@dataclass(frozen=True, slots=True)
class Failure:
    """An exception of another process, as it crosses the border: plain text, so that it always can."""

    error: str
    """Type and message."""
    trace: str
    errno: int | None
    """Of the OSError at the root, if it was one."""
    told: bool = False
    """A ValueError of rlrun's own: its message says what is wrong, and its trace nothing more."""

    @classmethod
    def of(cls, error: BaseException) -> "Failure":
        """Describe the exception being handled."""
        root = _os_error(error)
        trace, told = "".join(traceback.format_exception(error)), _is_ours(error)
        text = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return cls(str(error) if told else text, trace, root.errno if root else None, told)


class ProcessFailure(JobError):
    """A process of the job died, or what it was asked to do failed there."""

    def __init__(
        self,
        process: str,
        kind: Literal["died", "hung", "raised"],
        what: str,
        log: Path,
        errno: int | None = None,
        *,
        told: bool = False,
    ) -> None:
        """`told`: `what` says it all, and the end of the log is not shown."""
        verb = {"died": "died", "hung": "hangs", "raised": "failed"}[kind]
        super().__init__(
            f"{process} {verb}: {what}" if what else f"{process} {verb}",
            place_of(log) if told else log_end(log),
        )
        self.kind = kind
        self.errno = errno

    @property
    def rank(self) -> int:
        """How likely it is the consequence of another failure; 0 is a cause."""
        if self.kind != "raised":
            return 0
        return 2 if any(word in str(self).lower() for word in _CONSEQUENCES) else 1

    @property
    def may_pass(self) -> bool:
        """Whether another try may go well: the process is gone, hangs, or lost the others or its device."""
        return self.rank != 1 or _OF_THE_DEVICE in str(self).lower()

    def raise_os_error(self) -> None:
        """Raise the OSError of the other process as this process's own, if it was one."""
        if self.errno is not None:
            raise OSError(self.errno, f"{errno_names.errorcode.get(self.errno, 'error')}: {self}") from self


def log_end(log: Path) -> str:
    """The last lines of a log, and where the whole of it is."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-LOG_LINES:]
    except OSError:
        return f"(its log would be {display_path(log)})"
    return "\n".join([*(f"  {line}" for line in lines), place_of(log)])


def place_of(log: Path) -> str:
    """Where the whole of a log is."""
    return f"  (whole log: {display_path(log)})"


def first_cause(failures: Sequence[BaseException]) -> BaseException:
    """The failure to show: a death before an error, an error before a broken connection; then the first."""
    return min(failures, key=lambda failure: failure.rank if isinstance(failure, ProcessFailure) else 1)


async def run_watched(
    work: Coroutine[Any, Any, None],
    watching_over: Coroutine[Any, Any, None],
    diagnose: Callable[[], Awaitable[ProcessFailure | None]],
) -> None:
    """Run `work` while those watched over are well; the first cause of whatever goes wrong.

    `diagnose` names a process that is gone, which explains whatever else failed.
    """
    working = asyncio.create_task(work)
    watching = asyncio.create_task(watching_over)
    try:
        await asyncio.wait([working, watching], return_when=asyncio.FIRST_COMPLETED)
        failures = [error for one in (watching, working) if one.done() and (error := one.exception())]
        if failures:
            if (death := await diagnose()) is not None:
                failures.append(death)
            raise first_cause(failures)
    finally:
        await cancel_all([working, watching])


async def gather_or_first_cause(calls: Sequence[Awaitable[Result]]) -> list[Result]:
    """The results of all calls, in order; when some fail, the failure that explains the others."""
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


def _is_ours(error: BaseException) -> bool:
    """Whether it is a ValueError with a message that was raised in rlrun's own code."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    module = frames[-1].f_globals.get("__name__", "") if frames else ""
    return isinstance(error, ValueError) and bool(str(error)) and module.startswith("rlrun.")


def _os_error(error: BaseException) -> OSError | None:
    """The OSError that `error` is or was raised from."""
    current: BaseException | None = error
    while current is not None:
        if isinstance(current, OSError) and current.errno is not None:
            return current
        current = current.__cause__
    return None
