"""Settings of reasoning-gym's tasks, read from their source."""

from dataclasses import fields

import pytest

from rlrun.plugins.data.task_settings import settings_of

gym = pytest.importorskip("reasoning_gym")


@pytest.mark.parametrize(
    "task", ["chain_sum", "countdown", "basic_arithmetic", "sudoku", "arc_1d", "composite"]
)
def test_settings_are_those_of_the_task_s_configuration(task: str) -> None:
    _, config = gym.factory.DATASETS[task]
    assert settings_of(task) == {field.name for field in fields(config)}


def test_an_unknown_task_has_none() -> None:
    assert settings_of("chain_sun") is None
