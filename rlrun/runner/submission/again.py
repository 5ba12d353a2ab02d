"""Decides whether a job is started again after an attempt; pure."""

import signal
from collections.abc import Sequence
from enum import Enum

from rlrun.runner.contracts.exit_codes import ExitCode
from rlrun.runner.submission.folder import Attempt

_WORTH_ANOTHER = (ExitCode.START_AGAIN, ExitCode.MACHINES_FAILED, -signal.SIGUSR1)
"""The last: asked before it had a handler."""


class Next(Enum):
    """What follows an attempt."""

    END = "end"
    """The job is done, failed, or was stopped by its user or the scheduler."""
    AGAIN = "again"
    IDLE = "idle"
    """It would be started again, but too many attempts have saved no new step."""


def after_attempt(attempts: Sequence[Attempt], *, idle_attempts: int, ended_from_outside: bool) -> Next:
    """Returns what follows the last attempt.

    `ended_from_outside`: the scheduler or the user ends the job itself, and decides what happens to it.
    """
    if ended_from_outside or attempts[-1].code not in _WORTH_ANOTHER:
        return Next.END
    steps = [0, *(attempt.step for attempt in attempts)]
    recent = steps[-idle_attempts - 1 :]
    idle = len(attempts) >= idle_attempts and recent[0] == recent[-1]
    return Next.IDLE if idle else Next.AGAIN
