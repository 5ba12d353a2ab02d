"""Adapters for SGLang servers in folders that all nodes see."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from rlrun.runner.weights.carriers.disk.updates import FolderAdapters
from tests.runner.weights.adapter_trainer import LORA, ROOM, Trainer
from tests.tiny_models import make_tiny_model


def test_a_folder_has_the_factors_of_its_version_in_the_engines_precision(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model", vocab=512)
    trainer = Trainer(model, tmp_path / "weights", weight_sync="disk", dtype="bfloat16")
    for version in (3, 4, 5):
        update = trainer.write(version)
        assert isinstance(update, FolderAdapters)
        assert (update.version, update.room) == (version, ROOM)
        assert update.base is not None
        [file] = Path(update.folder).glob("*.safetensors")
        stored = load_file(file)
        assert stored.keys() == trainer.factors.keys()
        assert all(torch.equal(stored[name], trainer.factors[name].bfloat16()) for name in stored)
        assert update.size == sum(tensor.nbytes for tensor in stored.values())
    config = json.loads(Path(update.folder, "adapter_config.json").read_text())
    assert config["lora_alpha"] / config["r"] == pytest.approx(LORA.scale)
    assert {path.name for path in (tmp_path / "weights").iterdir()} == {"4", "5"}
    trainer.writer.close()
    assert not (tmp_path / "weights").exists()
