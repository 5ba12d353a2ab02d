"""Settings of reasoning-gym's tasks, read from their source."""

from dataclasses import fields

import pytest

from rlrun.plugins.data.reasoning_gym import is_of_type, settings_of

gym = pytest.importorskip("reasoning_gym")


@pytest.mark.parametrize(
    "task", ["chain_sum", "countdown", "basic_arithmetic", "sudoku", "arc_1d", "composite"]
)
def test_settings_are_those_of_the_task_s_configuration(task: str) -> None:
    _, config = gym.factory.DATASETS[task]
    assert (settings_of(task) or {}).keys() == {field.name for field in fields(config)}


def test_an_unknown_task_has_none() -> None:
    assert settings_of("chain_sun") is None


@pytest.mark.parametrize(
    ("value", "annotation", "fits"),
    [
        pytest.param(3, "int", True, id="a whole number"),
        pytest.param("3", "int", False, id="a string for a number"),
        pytest.param(True, "int", False, id="a truth value for a number"),
        pytest.param(3, "float", True, id="a whole number for a float"),
        pytest.param(3, "Optional[int]", True, id="an optional number"),
        pytest.param(["a"], "list[str]", True, id="strings"),
        pytest.param([1], "list[str]", False, id="numbers for strings"),
        pytest.param("anything", "TaskType", True, id="a type of the library's own"),
    ],
)
def test_types_of_settings(value: object, annotation: str, *, fits: bool) -> None:
    assert is_of_type(value, annotation) == fits


def test_the_defaults_of_every_task_have_their_types() -> None:
    wrong = {
        (task, name)
        for task, (_, config) in gym.factory.DATASETS.items()
        for name, annotation in (settings_of(task) or {}).items()
        if not is_of_type(getattr(config(), name), annotation)
    }
    assert not wrong
