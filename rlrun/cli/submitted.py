"""What commands about runs show and do for a job that was submitted to a scheduler."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.cli.run_states import split_folder
from rlrun.runner.submission.folder import SubmissionFolder, SubmittedJob

if TYPE_CHECKING:
    from rlrun.plugins.protocols import Launcher
    from rlrun.plugins.submission import SubmittedState

_POLL_S = 0.5


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job that was submitted, and its launcher."""

    folder: SubmissionFolder
    job: SubmittedJob
    launcher: "Launcher"

    @property
    def state(self) -> "SubmittedState":
        """What the scheduler says now. Raises SchedulerError if its tools do not work here."""
        return self.launcher.state(self.job.id, self.folder.path)

    @property
    def output(self) -> Path:
        """What the job has printed, over all attempts."""
        return self.launcher.output(self.folder.path)

    def describe(self, state: "SubmittedState") -> str:
        """Returns a line about the job: what the scheduler says, and how many attempts have ended."""
        ended = len(self.folder.read_attempts())
        attempts = f", {ended} attempt{'' if ended == 1 else 's'} ended" if ended else ""
        return f"{self.job.launcher} job {self.job.id}: {state.about}{attempts}"

    def end(self, seconds: float) -> bool:
        """Ends the job: one that runs saves first, one that waits is cancelled.

        Returns whether it has ended within `seconds`.
        """
        self.folder.stop.touch()
        if self.state.phase == "waiting":
            self.launcher.cancel(self.job.id, self.folder.path)
        deadline = time.monotonic() + seconds
        while self.state.phase != "ended":
            if time.monotonic() >= deadline:
                return False
            time.sleep(_POLL_S)
        return True


def find_submitted(runs_dir: Path, name: str | None) -> Submitted | None:
    """Returns the job of a run that was submitted; None if the run was not."""
    if name is None:
        return None
    folder = SubmissionFolder(*split_folder(runs_dir, name))
    job = folder.read_job()
    if job is None:
        return None
    from rlrun.plugins.registry import build

    return Submitted(folder, job, build("launchers", job.launcher, job.params))
