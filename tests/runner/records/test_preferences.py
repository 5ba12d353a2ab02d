"""Rows of preferences from saved samples."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rlrun.plugins.testing import sample
from rlrun.plugins.types import Group, Sample, Status
from rlrun.runner.records.packed_lines import UnreadableFile, write_lines
from rlrun.runner.records.preferences import preferences_of
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.records.saved_rollouts import map_records, rollout_path, write_records


def saved(folder: RunFolder, step: int, *groups: Sequence[Sample]) -> None:
    folder.rollouts.mkdir(parents=True, exist_ok=True)
    pairs = [(Group(samples[0].prompt, list(samples)), one) for samples in groups for one in samples]
    write_records(rollout_path(folder.rollouts, step), map_records(pairs, whole=False))


def test_a_row_has_the_best_and_the_worst_response_of_its_group(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    cut = sample("cut", reward=9.0, id="7-3", status=Status.TRUNCATED)
    unscored = sample("unscored", id="7-4")
    saved(
        folder,
        2,
        [
            sample("fair", reward=0.5, id="7-0", prompt="p"),
            sample("bad", reward=-1.0, id="7-1", prompt="p"),
            sample("good", reward=1.0, id="7-2", prompt="p"),
            cut,
            unscored,
        ],
        [sample("same", reward=1.0, id="8-0"), sample("as this", reward=1.0, id="8-1")],
        [sample("alone", reward=1.0, id="9-0")],
        [sample("near", reward=0.25, id="10-0"), sample("nearer", reward=0.5, id="10-1")],
    )
    rows = list(preferences_of(folder, 0.0))
    assert rows[0] == {
        "id": "2-7",
        "prompt": "p",
        "response": "good",
        "rejected": "bad",
        "metadata": {"margin": 2.0},
    }
    assert [row["id"] for row in rows] == ["2-7", "2-10"]
    assert [row["id"] for row in preferences_of(folder, 1.0)] == ["2-7"]


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    folder.rollouts.mkdir(parents=True)
    write_lines(rollout_path(folder.rollouts, 1), ['{"id": 3, "status": "completed", "reward": 1}'])
    with pytest.raises(UnreadableFile, match=r"step-1\.jsonl\.zst has a sample that cannot be read"):
        list(preferences_of(folder, 0.0))
