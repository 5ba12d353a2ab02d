"""When an execution runs again, and when an environment fails as a whole."""

from collections.abc import Sequence

import pytest

from rlrun.plugins.failures import Failure
from rlrun.runner.contracts.environment import Environment, name_of
from rlrun.runner.contracts.errors import JobError
from rlrun.specs.problems.codes import Code
from rlrun.specs.sections.rollout import RolloutFunctionSpec

DOWN, OK = Failure.SERVICE, None


def ended(environment: Environment, endings: Sequence[Failure | None]) -> bool:
    """Returns whether executions that end like this, in the order in which they began, end the job."""
    numbers = [environment.begin() for _ in endings]
    try:
        for number, failure in zip(numbers, endings, strict=True):
            environment.record(number, failure)
    except JobError:
        return True
    return False


@pytest.mark.parametrize(
    ("endings", "fails"),
    [
        ([DOWN] * 31, False),
        ([DOWN] * 32, True),
        ([DOWN] * 29 + [OK] * 3, True),
        ([DOWN] * 28 + [OK] * 4, False),
        ([OK] * 64 + [DOWN] * 32, True),
        ([Failure.ERROR] * 16 + [Failure.LATE] * 16, True),
        ([Failure.POLICY] * 32, False),
        ([Failure.ENGINE] * 32, False),
    ],
)
def test_nearly_all_of_a_row_of_executions_must_fail(endings: Sequence[Failure | None], fails: bool) -> None:
    assert ended(Environment(), endings) is fails


def test_all_executions_of_a_few_prompts_may_fail() -> None:
    assert not ended(Environment(samples_per_prompt=16), [DOWN] * 16 * 3)
    assert ended(Environment(samples_per_prompt=16), [DOWN] * 16 * 4)


def test_executions_that_fail_at_once_wait_for_those_that_began_with_them() -> None:
    """Of 1,000 executions one in ten fails at once, before any other one ends."""
    environment = Environment()
    numbers = [environment.begin() for _ in range(1000)]
    for number in [*numbers[::10], *(number for number in numbers if number % 10)]:
        environment.record(number, DOWN if number % 10 == 0 else OK)


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
    with pytest.raises(JobError) as caught:
        for port in range(32):
            environment.record(environment.begin(), DOWN, f"InfrastructureError: port {port % 4}")
    assert str(caught.value).startswith(
        "the agent 'browser' fails as a whole: of 32 executions in a row 32 failed (32 service), though "
        "executions run up to 2 more times. Repair"
    )
    assert caught.value.details.splitlines() == [f"InfrastructureError: port {port}" for port in (1, 2, 3)]
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
