"""The errors that rlrun expects. Any other exception that ends a run is a bug; its traceback is logged."""

from rlrun.specs.problems.codes import Code


class JobError(Exception):
    """The job cannot continue; the message says what failed, why, and what to do. Exit code 3.

    `details` are lines to show after the message, such as the end of a log and its path. `code` replaces the
    code of the class.
    """

    code = Code.JOB

    def __init__(self, message: str, details: str = "", *, code: Code | None = None) -> None:
        super().__init__(message)
        self.details = details
        if code is not None:
            self.code = code


class RunFolderError(ValueError):
    """The command cannot use the run folder that it names; the message says what to do. Exit code 2."""

    code = Code.RUN_FOLDER


class DumpError(ValueError):
    """A dump of another trainer cannot be read; the message names the file and the cure. Exit code 2."""

    code = Code.DUMP


class LaunchRefused(ValueError):
    """A launch cannot start: no process was started, and no run was claimed or changed. Exit code 2.

    `code` is the kind of problem, which `rlrun explain` explains.
    """

    def __init__(self, message: str, code: Code) -> None:
        super().__init__(message)
        self.code = code


class EngineError(JobError):
    """An engine cannot be reached, or it refuses a call. In a rollout only the group fails and the job
    continues; anywhere else the error ends the job.
    """

    code = Code.CALL


class EngineGone(EngineError):
    """No connection to an engine, or a broken one: it died, it hangs, or it is being started again."""


class BadAnswer(EngineError):
    """An engine's answer does not match the request; another engine may be asked instead."""

    def from_engine(self, engine: str, path: str) -> "BadAnswer":
        """Returns the same error with the name of the engine and the path of the request."""
        return BadAnswer(f"{engine} answered {path} with {self}")


class MachinesFailed(JobError):
    """A machine or Ray failed, not the job: the same launch may succeed later. Exit code 69."""

    code = Code.CLUSTER


class NodeLost(MachinesFailed):
    """A node of the cluster was lost, and no other one took its place in time."""

    code = Code.NODE
