"""Gives a machine of a submitted job back to a scheduler that takes it away."""

import time
from contextlib import suppress

from rlrun.runner.submission.folder import SubmissionFolder
from rlrun.runner.submission.node import TAKEN

_POLL_S = 0.2


def release_machine(folder: SubmissionFolder, seconds: float) -> bool:
    """Asks the attempt that runs to save, and waits until it has ended.

    Returns whether it has within `seconds`.
    """
    controls = folder.controls()
    for control in controls:
        with suppress(OSError):  # it may have ended since
            (control / TAKEN).touch()
    deadline = time.monotonic() + seconds
    while any(control.exists() for control in controls):
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)
    return True
