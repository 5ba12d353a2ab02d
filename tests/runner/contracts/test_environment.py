"""When an execution runs again, and when an environment fails as a whole."""

from collections.abc import Sequence

import pytest

from rlrun.plugins.failures import Failure
from rlrun.runner.contracts.environment import Environment, fails_as_a_whole, name_of
from rlrun.runner.contracts.errors import JobError
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.rollout import RolloutFunctionSpec

DOWN, OK = Failure.SERVICE, None


@pytest.mark.parametrize(
    ("endings", "fails"),
    [
        ([DOWN] * 31, False),
        ([DOWN] * 32, True),
        ([DOWN] * 29 + [OK] * 3, True),
        ([DOWN] * 28 + [OK] * 4, False),
        ([Failure.ERROR] * 16 + [Failure.LATE] * 16, True),
        ([Failure.POLICY] * 32, False),
    ],
)
def test_nearly_all_of_the_newest_executions_must_fail(
    endings: Sequence[Failure | None], fails: bool
) -> None:
    assert fails_as_a_whole(endings) is fails


@pytest.mark.parametrize(
    ("failure", "attempt", "runs_again"),
    [
        (Failure.SERVICE, 0, True),
        (Failure.IMAGE, 1, True),
        (Failure.SERVICE, 2, False),
        (Failure.ERROR, 0, False),
        (Failure.ENGINE, 0, False),
        (Failure.LATE, 0, False),
        (Failure.POLICY, 0, False),
    ],
)
def test_only_failures_of_the_infrastructure_run_again(
    failure: Failure, attempt: int, runs_again: bool
) -> None:
    pause = Environment(retries=2).pause_before_retry(failure, attempt)
    assert (pause is not None) is runs_again


def test_pauses_grow() -> None:
    first, second = (Environment(retries=2).pause_before_retry(DOWN, attempt) for attempt in (0, 1))
    assert first is not None and second is not None
    assert 1 <= first <= 3
    assert 5 <= second <= 15


def test_the_error_names_the_environment_and_its_last_errors() -> None:
    environment = Environment("the agent 'browser'", retries=2)
    for _ in range(40):
        environment.record(None)
    with pytest.raises(JobError) as caught:
        for number in range(40):
            environment.record(Failure.ENGINE, "says nothing about the environment")
            environment.record(DOWN, f"InfrastructureError: port {number % 4}")
    assert "the agent 'browser' fails as a whole: of the last 32 executions 29 failed (29 service)" in str(
        caught.value
    )
    assert caught.value.details.splitlines() == [f"InfrastructureError: port {port}" for port in (2, 3, 0)]
    assert caught.value.code is Code.ENVIRONMENT


@pytest.mark.parametrize(
    ("function", "name"),
    [
        ({"type": "single_turn"}, "the rollout 'single_turn'"),
        ({"type": "agent", "agent": {"type": "browser"}}, "the agent 'browser'"),
        ({"type": "agent", "command": ["python", "a.py"]}, "the agent's program 'python a.py'"),
    ],
)
def test_an_environment_is_named_as_in_the_spec(function: dict[str, object], name: str) -> None:
    assert name_of(RolloutFunctionSpec.model_validate(function)) == name
