from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rlrun.plugins.types import Group, Status
from rlrun.runner.contracts.errors import RunFolderError
from rlrun.runner.records.compared_evaluations import compare, read_evaluation
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.sample_files import SampleFiles
from tests.runner.loop_fakes import prompt, sample


def evaluated(path: Path, rewards: Mapping[int, Sequence[float | None]], *, step: int = 0) -> RunFolder:
    """Returns a run that evaluated these prompts; None is a sample that failed."""
    folder = RunFolder(path)
    folder.make()
    groups = [
        Group(
            prompt(index),
            [
                sample(index, number, reward=float("nan"), status=Status.FAILED)
                if reward is None
                else sample(index, number, reward=reward)
                for number, reward in enumerate(of_prompt)
            ],
        )
        for index, of_prompt in rewards.items()
    ]
    SampleFiles(folder, keeps_every=True).write_evaluation(step, {"sums": groups})
    return folder


def test_two_models_are_compared_on_the_prompts_that_both_answered(tmp_path: Path) -> None:
    first = evaluated(tmp_path / "first", {0: [0, 0], 1: [0, 1], 2: [0, None], 3: [1, 1], 4: [1]})
    second = evaluated(tmp_path / "second", {0: [0, 1], 1: [1, 1], 2: [None, None], 3: [1, 1], 5: [1]})
    before, after = compare([read_evaluation(first), read_evaluation(second)])
    assert before.difference is None
    assert before.estimate is not None and after.estimate is not None
    assert before.estimate.mean == pytest.approx(4 / 8)
    assert (before.failed, after.failed) == (1, 2)
    difference = after.difference
    assert difference is not None
    assert difference.mean == pytest.approx((0.5 + 0.5 + 0) / 3)  # prompts 0, 1 and 3
    assert (difference.prompts, difference.left_out, after.only_in_one) == (3, 1, 2)


def test_a_row_that_changed_is_another_prompt(tmp_path: Path) -> None:
    first, second = (read_evaluation(evaluated(tmp_path / name, {0: [0.0]})) for name in ("first", "second"))
    changed = replace(second, rewards={"sums": {"another row": [0.0]}})
    _, after = compare([first, changed])
    assert after.difference is None
    assert after.only_in_one == 2


def test_the_last_evaluation_of_a_run_or_that_of_a_step(tmp_path: Path) -> None:
    evaluated(tmp_path / "run", {0: [0.0], 1: [0.0]})
    folder = evaluated(tmp_path / "run", {0: [1.0], 1: [1.0]}, step=5)
    for step, mean in ((None, 1.0), (0, 0.0)):
        [comparison] = compare([read_evaluation(folder, step)])
        assert comparison.estimate is not None
        assert comparison.estimate.mean == mean
    with pytest.raises(RunFolderError, match="no saved evaluation of step 3: it has those of steps 0, 5"):
        read_evaluation(folder, 3)


def test_values_that_json_does_not_have_are_null(tmp_path: Path) -> None:
    folder = evaluated(tmp_path / "run", {0: [1.0]})
    [comparison] = compare([read_evaluation(folder)])
    assert comparison.as_json()["estimate"] == {
        "mean": 1.0,
        "low": None,
        "high": None,
        "prompts": 1,
        "samples": 1,
    }
