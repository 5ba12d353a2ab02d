"""The example that turns slime's training data into a dump."""

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.runner.conform.comparison import Report, conform
from rlrun.runner.conform.dump import read_dump
from tests.runner.conform.other_trainer import END, SAMPLES, Trainer, batch_of

EXAMPLE = Path(__file__).parents[3] / "examples/conform/slime_dump.py"
OPTIONS = ("--samples-per-prompt", "4", "--end-token-id", str(END))


def save(path: Path, trainer: Trainer) -> Path:
    """Writes a batch as slime's `--save-debug-train-data` does."""
    batch = batch_of(trainer)
    torch.save(
        {
            "format_version": 2,
            "rollout_id": 3,
            "rank": 0,
            "samples": [sample(batch, row) for row in range(SAMPLES)],
            "dp_shards": [],
            "raw_reward": batch["rewards"].tolist(),
        },
        path,
    )
    return path


def sample(batch: dict[str, Any], row: int) -> dict[str, Any]:
    length = int(np.flatnonzero(batch["tokens"][row] == END)[0]) + 1
    return {
        "tokens": torch.tensor([5, 6, 7, *batch["tokens"][row, :length]]),
        "response_lengths": length,
        "total_lengths": length + 3,
        "loss_masks": torch.tensor(batch["mask"][row, :length]).int(),
        "log_probs": torch.tensor(batch["log_probs"][row, :length]),
        "advantages": torch.full((length,), float(batch["advantages"][row])),
        "rollout_position": row,
    }


def converted(source: Path, monkeypatch: pytest.MonkeyPatch, *options: str) -> Report:
    target = source.with_suffix(".npz")
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), str(source), str(target), *OPTIONS, *options])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    dump = read_dump(target)
    assert dump.settings.batch.source == "slime, rollout 3"
    return conform(dump)


def test_masks_and_advantages_of_slime_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = converted(save(tmp_path / "train.pt", Trainer()), monkeypatch)
    statuses = {finding.term: finding.status for finding in report.findings}
    assert (statuses.pop("mask"), statuses.pop("advantages")) == ("equal", "equal")
    assert set(statuses.values()) == {"not compared"}


def test_differences_of_slime_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = Trainer(normalize_std=False, end_token_in_mask=False)
    report = converted(save(tmp_path / "train.pt", trainer), monkeypatch)
    named = [finding.explanations[0].names for finding in report.differences]
    assert named == [("end_token",), ("normalize_std",)]
    report = converted(tmp_path / "train.pt", monkeypatch, "--no-std")
    assert [finding.term for finding in report.differences] == ["mask"]


def test_an_older_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.save({"rollout_id": 3, "rank": 0, "rollout_data": {}}, tmp_path / "train.pt")
    with pytest.raises(SystemExit, match="has format_version None, not 2"):
        converted(tmp_path / "train.pt", monkeypatch)
