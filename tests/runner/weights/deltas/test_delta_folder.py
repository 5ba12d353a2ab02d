"""The folder of deltas: what engines have to read, whatever they have, and what is removed."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlrun.runner.contracts.weight_updates import Recipient
from rlrun.runner.weights.buckets import WeightSet, plan_buckets
from rlrun.runner.weights.carriers.disk.updates import FolderWeights
from rlrun.runner.weights.deltas.delta_folder import DeltaFolderWriter
from rlrun.runner.weights.deltas.server_path.rlrun_weight_delta import read
from rlrun.runner.weights.form import Form
from rlrun.runner.weights.tensor_slots import SegmentError

FORM = Form(torch.bfloat16)
SHAPES = {f"model.layers.{layer}.mlp.up_proj.weight": (64, 64) for layer in range(4)}
FULL = 4 * 64 * 64 * 2


def weights(*changed: int) -> WeightSet:
    """All ones, but for the first element of some layers."""
    tensors = {name: torch.ones(shape) for name, shape in SHAPES.items()}
    for layer in changed:
        tensors[f"model.layers.{layer}.mlp.up_proj.weight"][0, 0] = 2.0
    return WeightSet(iter(tensors.items()), FORM)


def noise(seed: int) -> WeightSet:
    generator = torch.Generator().manual_seed(seed)
    return WeightSet(
        ((name, torch.randn(shape, generator=generator)) for name, shape in SHAPES.items()), FORM
    )


def make_writer(tmp_path: Path) -> DeltaFolderWriter:
    return DeltaFolderWriter(tmp_path / "weights", plan_buckets(SHAPES, FORM, 2 * 64 * 64 * 2))


@pytest.fixture
def writer(tmp_path: Path) -> DeltaFolderWriter:
    return make_writer(tmp_path)


def layers(update: FolderWeights, held: dict[str, torch.Tensor] | None = None) -> list[float]:
    """The first elements of the layers that an engine has that reads an update."""
    held = held or {}
    if update.folder is not None:
        files = sorted(Path(update.folder).glob("*.safetensors"))
        held = {name: tensor for file in files for name, tensor in load_file(file).items()}
    for delta in update.deltas:
        for file in delta.files:
            for change in read(file, torch.device("cpu")):
                change.write(held[change.name])
    return [float(tensor[0, 0]) for _, tensor in sorted(held.items())]


def test_engines_read_what_they_lack(writer: DeltaFolderWriter) -> None:
    writer.write(weights(), 3)
    writer.write(weights(1), 4)
    update = writer.write(weights(1, 2), 5)
    assert layers(update.for_engine(Recipient(0, 1, None))) == [1, 2, 2, 1]
    assert layers(update.for_engine(Recipient(0, 1, 0))) == [1, 2, 2, 1]
    assert [delta.version for delta in update.for_engine(Recipient(0, 1, 3)).deltas] == [4, 5]
    assert [delta.version for delta in update.for_engine(Recipient(0, 1, 4)).deltas] == [5]
    assert update.for_engine(Recipient(0, 1, 4)).folder is None
    assert 0 < update.size < FULL / 20


def test_only_files_with_changes_are_written(writer: DeltaFolderWriter) -> None:
    writer.write(weights(), 1)
    assert [Path(file).name for file in writer.write(weights(3), 2).deltas[0].files] == [
        "delta-00002.safetensors"
    ]
    same = writer.write(weights(3), 3)
    assert (same.deltas[1].files, same.size) == ((), 0)


def test_a_full_version_is_written_when_deltas_are_as_large(
    writer: DeltaFolderWriter, tmp_path: Path
) -> None:
    writer.write(noise(0), 0)
    for version in (1, 2):
        update = writer.write(noise(version), version)
        assert update.full_version == version
        assert [delta.since for delta in update.deltas] == [version - 1]
        assert update.for_engine(Recipient(0, 1, version - 1)).folder is None
        assert update.for_engine(Recipient(0, 1, None)).deltas == ()
        assert layers(update.for_engine(Recipient(0, 1, None))) == [
            float(tensor[0, 0].bfloat16()) for _, tensor in noise(version)
        ]
    names = {path.name for path in (tmp_path / "weights").iterdir()}
    assert names == {"1", "1-delta", "2", "2-delta"}  # engines may read those of 1 until the next update
    writer.write(weights(), 3)
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {"2", "2-delta", "3", "3-delta"}
    writer.close()
    assert not (tmp_path / "weights").exists()


def test_after_an_update_that_failed_everything_is_written(writer: DeltaFolderWriter) -> None:
    writer.write(weights(), 1)
    with pytest.raises(SegmentError, match="missing"):
        writer.write(WeightSet(iter([]), FORM), 2)
    update = writer.write(weights(2), 3)
    assert (update.full_version, update.deltas, update.size) == (3, (), FULL)
    assert layers(update.for_engine(Recipient(0, 1, 1))) == [1, 1, 2, 1]


def test_a_version_that_is_written_again_is_written_in_full(writer: DeltaFolderWriter) -> None:
    writer.write(weights(), 1)
    assert layers(writer.write(weights(0), 1).for_engine(Recipient(0, 1, 1))) == [2, 1, 1, 1]


def test_folders_of_a_trainer_that_was_killed_are_removed(tmp_path: Path) -> None:
    (tmp_path / "weights" / "99").mkdir(parents=True)
    make_writer(tmp_path).write(weights(), 1)
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {"1"}
