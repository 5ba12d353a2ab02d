"""How executions and rewards fail: the errors that plugins raise, and the types that are counted.

InfrastructureError ──▶ run again, at most fault_tolerance.execution_retries times ──▶ lost, never a reward
PolicyError         ──▶ the sample is trained, with the reward that the error has
any other error     ──▶ lost: it may be a mistake of the policy or of the environment, so it is not repeated
"""

from enum import StrEnum


class Failure(StrEnum):
    """Why an execution or a reward has no result, counted as `rollout/failed/<type>`."""

    SANDBOX = "sandbox"
    """The sandbox, container or machine of the environment could not be started, or is gone."""
    SERVICE = "service"
    """A service that the environment or the reward needs did not answer."""
    PREEMPTED = "preempted"
    """The program was killed from outside: a preempted machine, or memory that ran out."""
    IMAGE = "image"
    """The image, or another file that the environment starts from, is missing."""
    ENGINE = "engine"
    """An engine of the policy failed, after the request had been repeated on the others."""
    LATE = "late"
    """The time was up, and there was no answer to keep."""
    POLICY = "policy"
    """The policy made it impossible to continue, and the rollout kept none of its answers."""
    ERROR = "error"
    """Any other error: the type of the exception does not say whose mistake it is."""

    @property
    def is_infrastructure(self) -> bool:
        """Whether the policy cannot have caused it, so that the execution may run again."""
        return self in (Failure.SANDBOX, Failure.SERVICE, Failure.PREEMPTED, Failure.IMAGE)

    @property
    def is_of_environment(self) -> bool:
        """Whether the environment fails as a whole if all executions end like this."""
        return self.is_infrastructure or self in (Failure.ERROR, Failure.LATE)


class InfrastructureError(RuntimeError):
    """The environment failed, whatever the policy did. The execution runs again, and never has a reward.

    Example: `raise InfrastructureError("the container is gone", Failure.SANDBOX)`
    """

    def __init__(self, message: str, failure: Failure = Failure.SERVICE) -> None:
        """Raises ValueError for a type that is not one of the infrastructure."""
        if not failure.is_infrastructure:
            names = ", ".join(kind for kind in Failure if kind.is_infrastructure)
            raise ValueError(f"{failure!r} is not a failure of the infrastructure: {names}")
        super().__init__(message)
        self.failure = failure


class PolicyError(Exception):
    """The policy made it impossible to continue, for instance by destroying its own environment.

    Rollouts that keep its answers train on them, with `reward` in the samples' `info`, where the reward
    `noted` reads it; otherwise the policy could avoid low rewards by failing.
    """

    failure = Failure.POLICY

    def __init__(self, message: str, reward: float = 0.0) -> None:
        super().__init__(message)
        self.reward = reward

    def info(self) -> dict[str, float]:
        """Returns what the samples of the execution note."""
        return {"reward": self.reward, "policy_error": 1}


def failure_of(error: BaseException) -> Failure:
    """Returns the type of a failure: that of the error, or of the error that caused it."""
    for each in (error, error.__cause__):
        failure = getattr(each, "failure", None)
        if isinstance(failure, Failure):
            return failure
    return Failure.LATE if isinstance(error, TimeoutError) else Failure.ERROR
