"""Folders of weights: complete, small where little changed, and gone in time."""

from pathlib import Path

import torch
from safetensors.torch import load_file

from rlrun.runner.contracts.weight_updates import Recipient
from rlrun.runner.weights.buckets import WeightSet, plan_buckets
from rlrun.runner.weights.carriers.disk.folder_writer import FolderWriter
from rlrun.runner.weights.form import Form

FORM = Form(torch.float32)
SHAPES = {f"model.layers.{layer}.mlp.up_proj.weight": (16, 16) for layer in range(4)}


def weights(**changed: float) -> WeightSet:
    values = {name: torch.full(shape, float(changed.get(name[13], 0))) for name, shape in SHAPES.items()}
    return WeightSet(iter(values.items()), FORM)


def writer(folder: Path, changed_only: bool = True) -> FolderWriter:
    return FolderWriter(folder, plan_buckets(SHAPES, FORM, 2048), changed_only=changed_only)


def layers(folder: str | None) -> dict[str, float]:
    assert folder is not None
    files = sorted(Path(folder).glob("*.safetensors"))
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    return {name[13]: float(tensor[0, 0]) for name, tensor in found.items()}


def test_only_files_that_changed_are_written_and_told_of(tmp_path: Path) -> None:
    made = writer(tmp_path / "weights")
    first = made.write(weights(), 3)
    assert (first.changed, first.size) == (None, 4096)
    second = made.write(weights(**{"2": 7.0}), 4)
    assert second.changed_since == 3
    assert layers(second.changed) == {"2": 7.0, "3": 0.0}
    assert layers(second.for_engine(Recipient(0, 1, 3)).folder) == layers(second.changed)
    assert layers(second.folder) == {"0": 0.0, "1": 0.0, "2": 7.0, "3": 0.0}
    same = [Path(one.folder, "model-00001-of-00002.safetensors").stat().st_ino for one in (first, second)]
    assert same[0] == same[1]


def test_where_nothing_changed_there_is_still_a_file_to_load(tmp_path: Path) -> None:
    made = writer(tmp_path)
    made.write(weights(), 1)
    assert layers(made.write(weights(), 2).changed) == {"0": 0.0, "1": 0.0}


def test_old_folders_go_and_the_last_two_stay(tmp_path: Path) -> None:
    made = writer(tmp_path / "weights")
    (tmp_path / "weights" / "99").mkdir(parents=True)  # of a trainer that was killed
    for version in range(5):
        made.write(weights(**{"0": float(version)}), version)
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {"3", "3-changed", "4", "4-changed"}
    made.write(weights(), 4)
    assert layers(str(tmp_path / "weights" / "4"))["0"] == 0.0
    made.close()
    assert not (tmp_path / "weights").exists()


def test_all_tensors_are_listed_unless_only_changes_are_requested(tmp_path: Path) -> None:
    made = writer(tmp_path, changed_only=False)
    for version in range(2):
        update = made.write(weights(), version)
    assert update.changed is None
    assert update.for_engine(Recipient(0, 1, 0)).folder == update.folder
