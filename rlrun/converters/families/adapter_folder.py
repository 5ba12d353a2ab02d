"""Reads and writes an adapter of the trainer as a folder in peft's layout.

    adapter_config.json ─▶ rank, alpha, targets      adapter_model.safetensors ─▶ two factors per matrix

`rlrun.converters.families.lora` merges such a folder into a model; this module is for training it.
"""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from rlrun.converters.families.expected_tensors import STRICT, check_shapes
from rlrun.converters.families.model_folder import write_safetensors
from rlrun.converters.families.stored_adapter import ADAPTER_CONFIG, ADAPTER_WEIGHTS, read_adapter_config
from rlrun.converters.tensors.content import plain
from rlrun.converters.tensors.safetensors_format import TensorInfo, read_header
from rlrun.converters.tensors.stored import OpenFiles
from rlrun.models.adapters import Adapter, AnyAdapter, ExpertAdapter, LoraShape, adapter_tensors
from rlrun.models.checked_values import file_inside


class AdapterFolder(OpenFiles):
    """The factors of a folder in peft's layout; a context manager."""

    def __init__(self, folder: Path, adapters: list[AnyAdapter], lora: LoraShape) -> None:
        """Opens the folder. Raises ValueError if its settings, names or shapes are not those expected."""
        super().__init__()
        check_adapter_config(folder, lora)
        self._tensors = read_header(file_inside(folder, ADAPTER_WEIGHTS))
        expected = {tensor.name: tensor.shape for tensor in adapter_tensors(adapters)}
        shapes = {name: tensor.shape for name, tensor in self._tensors.items()}
        check_shapes(expected, shapes, f"{folder} (the adapters that [trainer.lora] describes)", STRICT)

    def read(self, name: str) -> torch.Tensor:
        """Returns a factor, by peft's name, in float32."""
        tensor = self._tensors[name]
        return plain(tensor).rows(self._files, 0, tensor.shape[0]).float()


def check_adapter_config(folder: Path, lora: LoraShape) -> None:
    """Raises ValueError if the folder's rank, alpha or rsLoRA differ from `lora`."""
    config = read_adapter_config(folder)
    for key, value, name in (
        ("r", lora.rank, "rank"),
        ("lora_alpha", lora.alpha, "alpha"),
        ("use_rslora", lora.rslora, "rslora"),
    ):
        stored = config.get(key, False)
        if stored != value:
            raise ValueError(
                f"{folder} was trained with {name} = {json.dumps(stored)}, and trainer.lora.{name} is "
                f"{json.dumps(value)}: set it to {json.dumps(stored)}"
            )
    for key in ("rank_pattern", "alpha_pattern"):
        if config.get(key):
            raise ValueError(f"{folder} sets {key}, but every adapter of a run has the same rank and alpha")


def write_adapter(
    folder: Path,
    base: str,
    adapters: list[AnyAdapter],
    lora: LoraShape,
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> None:
    """Writes a folder that peft loads: the adapters' `tensors`, in order, in float32, and their settings.

    `base` is the model that they adapt: its folder or its id on the hub.
    """
    folder.mkdir(parents=True, exist_ok=True)
    described = {tensor.name: TensorInfo(torch.float32, tensor.shape) for tensor in adapter_tensors(adapters)}
    write_safetensors(folder / ADAPTER_WEIGHTS, described, iter(tensors))
    config = {"base_model_name_or_path": base, **peft_config(adapters, lora)}
    (folder / ADAPTER_CONFIG).write_text(json.dumps(config, indent=2) + "\n")


def peft_config(adapters: Sequence[AnyAdapter], lora: LoraShape) -> dict[str, Any]:
    """Returns the settings that peft keeps with these adapters."""
    alpha = int(lora.alpha) if float(lora.alpha).is_integer() else lora.alpha
    of_experts = dict.fromkeys(adapter.target for adapter in adapters if isinstance(adapter, ExpertAdapter))
    # peft nests the modules in the order of this list
    stacked = {"target_parameters": [f"mlp.{target}" for target in of_experts]} if of_experts else {}
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": lora.rank,
        "lora_alpha": alpha,
        "target_modules": list(
            dict.fromkeys(adapter.target for adapter in adapters if isinstance(adapter, Adapter))
        ),
        **stacked,
        "use_rslora": lora.rslora,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
