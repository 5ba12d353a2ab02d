"""Tiny models whose checkpoints have a layer that predicts the token after the next one."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from rlrun.models.config_json import read_architecture, with_mtp_layer
from rlrun.models.tensor_names import mtp_tensors
from tests.tiny_models import make_tiny_model


def make_mtp_model(folder: Path, family: str, **fields: Any) -> Path:
    """Writes a random model with its MTP layer, and returns `folder`."""
    make_tiny_model(folder, family, num_nextn_predict_layers=1, **fields)
    model = with_mtp_layer(read_architecture(folder))
    generator = torch.Generator().manual_seed(1)
    further = {
        tensor.name: 0.1 * torch.randn(tensor.shape, generator=generator)
        + tensor.name.endswith("norm.weight")
        for tensor in mtp_tensors(model)
    }
    policy = load_file(folder / "model.safetensors")
    save_file(policy | further, folder / "model.safetensors", {"format": "pt"})
    return folder
