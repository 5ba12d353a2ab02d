"""examples/slime/rollouts.py: slime's rollout dumps become samples that a job trains on."""

import pickle
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from rlrun.plugins.types import Status, VersionSpan
from rlrun.runner.records.run_folder import RunFolder
from rlrun.runner.rollouts.saved_source import SavedSource

SCRIPT = Path(__file__).parents[3] / "examples/slime/rollouts.py"
SAMPLE: dict[str, Any] = {  # Sample.to_dict of slime
    "group_index": 0,
    "index": 0,
    "prompt": [{"role": "user", "content": "2 + 3"}],
    "tokens": [4, 5, 6, 7, 8],
    "response": "five",
    "response_length": 3,
    "label": "5",
    "reward": {"acc": 1.0},
    "loss_mask": [1, 0, 1],
    "weight_versions": ["2", "3"],
    "rollout_log_probs": [-0.5, 0.0, -2.0],
    "remove_sample": False,
    "status": "completed",
    "metadata": {"source": "sums"},
}


def convert(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr("sys.argv", [str(SCRIPT), *map(str, arguments)])
    runpy.run_path(str(SCRIPT), run_name="__main__")


async def test_a_dump_is_trained_on_as_it_was_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = {"loss_mask": None, "weight_versions": ["default"], "status": "truncated", "reward": {"acc": 0.0}}
    samples = [
        {**SAMPLE, "group_index": 1, "tokens": torch.tensor([9, 7]), "response_length": 1, **plain}
        | {"rollout_log_probs": [-1.0], "remove_sample": True},
        SAMPLE,
        {**SAMPLE, **plain},
    ]
    torch.save({"rollout_id": 4, "samples": samples}, tmp_path / "4.pt")
    convert(monkeypatch, tmp_path / "run", tmp_path / "4.pt", "--reward-key", "acc")
    source = SavedSource(RunFolder(tmp_path / "run"), 5, 5, vocab_size=10)
    first, second = (await source.next(5)).groups
    assert [sample.id for group in (first, second) for sample in group.samples] == ["0-0", "0-1", "1-0"]
    assert first.prompt.tokens.tolist() == [4, 5] and first.prompt.row.label == "5"
    one, other = first.samples
    assert one.tokens.tolist() == [6, 7, 8] and one.loss_mask.tolist() == [1, 0, 1]
    assert one.log_probs.tolist() == [-0.5, 0, -2] and (one.reward, other.reward) == (1.0, 0.0)
    assert one.versions == (VersionSpan(2, 0, 3),) and other.versions == (VersionSpan(4, 0, 3),)
    assert (other.status, other.loss_mask.tolist()) == (Status.TRUNCATED, [1, 1, 1])
    assert second.samples[0].loss_mask.tolist() == [0], "slime removed it"


class Code:
    def __reduce__(self) -> tuple[Any, ...]:
        return print, ("the dump ran code",)


def test_a_dump_runs_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({"rollout_id": 0, "samples": [Code()]}, tmp_path / "0.pt")
    with pytest.raises(pickle.UnpicklingError):
        convert(monkeypatch, tmp_path / "run", tmp_path / "0.pt")
    assert "ran code" not in capsys.readouterr().out
