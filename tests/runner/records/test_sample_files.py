from pathlib import Path

import numpy as np
import pytest

from rlrun.plugins.types import Group
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.sample_files import append_groups, read_earlier
from tests.runner.loop_fakes import prompt, sample


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    folder = RunFolder(tmp_path / "run")
    folder.make()
    return folder


def group(index: int) -> Group:
    return Group(prompt(index), [sample(index, number, reward=number / 3, length=4) for number in range(2)])


def test_groups_are_read_back_to_the_bit(folder: RunFolder) -> None:
    append_groups(folder, "sums", [group(0), group(2)])
    append_groups(folder, "words", [group(0)])
    earlier = read_earlier(folder)
    assert [one.prompt.index for one in earlier["sums"]] == [0, 2]
    assert [one.prompt.index for one in earlier["words"]] == [0]
    for before, after in zip(group(2).samples, earlier["sums"][1].samples, strict=True):
        assert (after.id, after.reward, after.text, after.status) == (
            before.id,
            before.reward,
            before.text,
            before.status,
        )
        assert np.array_equal(after.log_probs, before.log_probs)
        assert np.array_equal(after.made, before.made)


def test_a_line_that_a_crash_cut_is_removed_before_others_are_added(folder: RunFolder) -> None:
    append_groups(folder, "sums", [group(0), group(1)])
    folder.evaluated.write_bytes(folder.evaluated.read_bytes()[:-20])
    assert [one.prompt.index for one in read_earlier(folder)["sums"]] == [0]
    append_groups(folder, "sums", [group(1)])
    assert [one.prompt.index for one in read_earlier(folder)["sums"]] == [0, 1]


def test_a_new_run_has_none(folder: RunFolder) -> None:
    assert read_earlier(folder) == {}
    assert not folder.evaluated.exists()
