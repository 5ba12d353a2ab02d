"""The types of failures: which error has which, and what an exit status means."""

import pytest

from rlrun.plugins.failures import Failure, InfrastructureError, PolicyError, failure_of
from rlrun.plugins.rollouts.agent.command_agent import error_of_status


def caused_by(cause: BaseException) -> Exception:
    error = TimeoutError()
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (InfrastructureError("down"), Failure.SERVICE),
        (InfrastructureError("gone", Failure.SANDBOX), Failure.SANDBOX),
        (PolicyError("it deleted its own files"), Failure.POLICY),
        (TimeoutError(), Failure.LATE),
        (caused_by(InfrastructureError("down")), Failure.SERVICE),
        (KeyError("city"), Failure.ERROR),
    ],
)
def test_an_error_has_a_type(error: Exception, failure: Failure) -> None:
    assert failure_of(error) is failure


@pytest.mark.parametrize("failure", [Failure.POLICY, Failure.ERROR, Failure.LATE, Failure.ENGINE])
def test_an_infrastructure_error_cannot_be_of_the_policy(failure: Failure) -> None:
    with pytest.raises(ValueError, match="is not a failure of the infrastructure: sandbox, service"):
        InfrastructureError("no", failure)


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (-9, Failure.PREEMPTED),
        (143, Failure.PREEMPTED),
        (75, Failure.PREEMPTED),
        (69, Failure.SERVICE),
        (71, Failure.SANDBOX),
        (72, Failure.IMAGE),
        (65, Failure.POLICY),
        (1, Failure.ERROR),
        (-11, Failure.ERROR),
    ],
)
def test_a_program_says_by_its_status_how_it_failed(status: int, failure: Failure) -> None:
    error = error_of_status("python", status, "the last line", {})
    assert failure_of(error) is failure
    assert str(error) == f"python ended with status {status}: the last line"


@pytest.mark.parametrize(("printed", "reward"), [({}, 0.0), ({"reward": -1.0}, -1.0), ({"reward": "x"}, 0.0)])
def test_a_program_may_print_the_reward_of_a_policy_error(printed: dict[str, object], reward: float) -> None:
    error = error_of_status("python", 65, "", printed)
    assert isinstance(error, PolicyError)
    assert error.info() == {"reward": reward, "policy_error": 1}
