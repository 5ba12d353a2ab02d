"""The exit codes of `rlrun launch`, which schedulers and scripts decide by."""

from enum import IntEnum


class ExitCode(IntEnum):
    """How a launch ended. The numbers above 63 are those of sysexits.h with the same meaning."""

    DONE = 0
    WRONG = 2
    """The spec or the command is wrong; nothing was started."""
    FAILED = 3
    """The job failed, and would fail again."""
    MACHINES_FAILED = 69
    """A node or Ray was lost: the same command, with --resume, may succeed (EX_UNAVAILABLE)."""
    START_AGAIN = 75
    """A scheduler asked for its machines, and the job saved: launch again with --resume (EX_TEMPFAIL)."""
    INTERRUPTED = 130
    """The user asked the job to stop, and it saved."""
