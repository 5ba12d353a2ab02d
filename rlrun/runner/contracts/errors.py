"""How a run ends other than well. Everything else that escapes is a bug and keeps its traceback."""


class JobError(Exception):
    """The job cannot go on; the message says what failed, why, and what to do. Exit code 3.

    `details` are lines worth seeing after the message: the end of a log, where the whole of it is.
    """

    def __init__(self, message: str, details: str = "") -> None:
        super().__init__(message)
        self.details = details


class RunFolderError(ValueError):
    """The command asks for a run folder that it cannot have; the message says the cure. Exit code 2."""


class EngineError(JobError):
    """An engine cannot be reached or refuses a call. A rollout's group fails with it, and the job goes on;
    anywhere else it ends the job.
    """


class EngineGone(EngineError):
    """The connection to an engine broke, or none can be made: it died, hangs, or is being started again."""


class BadAnswer(EngineError):
    """An engine answered, but not with what it was asked for; the same may be asked of another engine."""

    def from_engine(self, engine: str, path: str) -> "BadAnswer":
        """The same, once it is known which engine answered so."""
        return BadAnswer(f"{engine} answered {path} with {self}")
