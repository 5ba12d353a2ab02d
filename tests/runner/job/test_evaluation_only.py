"""What an evaluation says before it starts."""

from types import SimpleNamespace
from typing import Any

import pytest

from rlrun.runner.job.evaluation_only import evaluation_notes


@pytest.mark.parametrize(
    ("prompts", "samples", "expected"),
    [
        pytest.param(512, 1, "models whose pass rates differ by 0.088 or more are told apart", id="many"),
        pytest.param(3, 4, "too few to tell two models apart", id="few"),
        pytest.param(1, 4, "too few to tell two models apart", id="one"),
    ],
)
def test_the_smallest_difference_is_said_before_the_start(prompts: int, samples: int, expected: str) -> None:
    dataset: Any = SimpleNamespace(
        name="rows", prompts=[None] * prompts, settings=SimpleNamespace(samples=samples)
    )
    [line] = evaluation_notes([dataset])
    assert line.startswith(f"rows: {prompts} prompts × {samples} = {prompts * samples} samples; ")
    assert expected in line
