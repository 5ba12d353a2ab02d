"""The folder of a submission, `RUNS_DIR/.submitted/NAME/`, beside the folders of runs.

submission.json   launcher, its parameters, the job's id     attempts.jsonl   how each attempt ended
spec.toml         the spec as it was submitted               stop             exists: the user wants it to end
job.sbatch, …     the launcher's files                       attempt-XXXX/    what an attempt's nodes share
"""

import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from rlrun.models.foreign_files import read_bytes
from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.host.atomic_files import write_text
from rlrun.runner.records.run_folder import PRIVATE, RunFolder
from rlrun.specs.paths import display_path

_FOLDER = ".submitted"
_CONTROL = "attempt-"
_MAX_BYTES = 4 << 20


class SubmittedJob(BaseModel):
    """The contents of submission.json."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    launcher: str
    params: dict[str, Any]
    """The launcher's parameters, as the spec has them."""
    id: str
    """The job's id, as the scheduler knows it."""
    submitted: str = Field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))


class Attempt(BaseModel):
    """A line of attempts.jsonl."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    id: str
    code: int
    """The exit code of `rlrun launch`, negative for a signal."""
    step: int
    """The newest step that is saved."""


class SubmissionFolder:
    """The paths of one submission."""

    def __init__(self, runs_dir: Path, name: str) -> None:
        self.path = runs_dir.absolute() / _FOLDER / name
        self.run = RunFolder(runs_dir.absolute() / name)
        self.spec = self.path / "spec.toml"
        self.attempts = self.path / "attempts.jsonl"
        self.stop = self.path / "stop"
        self._job = self.path / "submission.json"

    def make(self) -> None:
        """Creates the folder, if it does not exist."""
        self.path.parent.mkdir(mode=PRIVATE, parents=True, exist_ok=True)
        self.path.mkdir(mode=PRIVATE, exist_ok=True)

    def make_control(self) -> Path:
        """Creates the folder that the nodes of an attempt share, until the attempt ends."""
        return Path(tempfile.mkdtemp(prefix=_CONTROL, dir=self.path))

    def controls(self) -> list[Path]:
        """Returns the folders of the attempts that run, or were killed."""
        return sorted(self.path.glob(f"{_CONTROL}*"))

    def write_job(self, job: SubmittedJob) -> None:
        """Notes how the job was submitted."""
        write_text(self._job, job.model_dump_json())

    def read_job(self) -> SubmittedJob | None:
        """Returns how the job was submitted; None if it was not. Raises RunFolderError for a bad file."""
        try:
            return SubmittedJob.model_validate_json(read_bytes(self._job, _MAX_BYTES))
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise RunFolderError(
                f"{display_path(self._job)} does not say how a job was submitted ({error}); move it away"
            ) from None

    def read_attempts(self) -> list[Attempt]:
        """Returns how the attempts ended, the first one first."""
        if not self.attempts.exists():
            return []
        return [Attempt.model_validate_json(line) for line in self.attempts.read_text().splitlines()]

    def add_attempt(self, attempt: Attempt) -> None:
        """Notes how an attempt ended."""
        with self.attempts.open("a") as file:
            file.write(attempt.model_dump_json() + "\n")
