"""The errors that rlrun expects. Any other exception that ends a run is a bug; its traceback is logged."""


class JobError(Exception):
    """The job cannot continue; the message says what failed, why, and what to do. Exit code 3.

    `details` are lines to show after the message, such as the end of a log and its path.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class RunFolderError(ValueError):
    """The command cannot use the run folder that it names; the message says what to do. Exit code 2."""


class EngineError(JobError):
    """An engine cannot be reached, or it refuses a call. In a rollout only the group fails and the job
    continues; anywhere else the error ends the job.
    """


class EngineGone(EngineError):
    """No connection to an engine, or a broken one: it died, it hangs, or it is being started again."""


class BadAnswer(EngineError):
    """An engine's answer does not match the request; another engine may be asked instead."""

    def from_engine(self, engine: str, path: str) -> "BadAnswer":
        """Returns the same error with the name of the engine and the path of the request."""
        return BadAnswer(f"{engine} answered {path} with {self}")


class NodeLost(JobError):
    """A node of the cluster was lost, and no other one took its place in time."""
