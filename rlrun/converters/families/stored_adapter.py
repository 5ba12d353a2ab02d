"""Reads the settings of a LoRA adapter in peft's layout and the shapes of its factors, without torch.

adapter_config.json ─▶ rank, alpha, rsLoRA, base        adapter_model.safetensors ─▶ names and shapes
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlrun.models.adapters import EXPERT_TARGETS, AnyAdapter, LoraShape, adapters
from rlrun.models.architecture import Architecture
from rlrun.models.checked_values import abbreviated, file_inside
from rlrun.models.json_files import read_json_object, tensor_shapes

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
_REFUSED = ("use_dora", "fan_in_fan_out", "layer_replication", "use_qalora")
_PATTERNS = ("rank_pattern", "alpha_pattern")
_MERGE = "merge it into its model instead: rlrun convert hf-to-hf SRC DST --lora ADAPTER"


@dataclass(frozen=True, slots=True)
class StoredAdapter:
    """A folder with a LoRA adapter."""

    folder: Path
    lora: LoraShape
    """Rank and alpha; `targets` are those of experts only."""
    shapes: Mapping[str, tuple[int, ...]]
    """The shape of each factor, by peft's name."""
    base: str
    """The model that it was trained on, a folder or an id on the hub; may be empty."""
    lists_targets: bool
    """Whether its settings list the names of the adapted matrices, which SGLang reads, not a pattern."""

    def matrices(self, model: Architecture) -> list[AnyAdapter]:
        """Returns the adapters that the folder has for the matrices of a model.

        Raises ValueError if a factor does not belong to a matrix of the model, or has another shape.
        """
        candidates = adapters(model, LoraShape(self.lora.rank, self.lora.alpha))
        if self.lora.targets:
            candidates += adapters(model, self.lora)
        known = {tensor.name: tensor.shape for adapter in candidates for tensor in (adapter.down, adapter.up)}
        if unknown := [name for name in self.shapes if name not in known]:
            raise ValueError(
                f"{self.folder} has {abbreviated(unknown)}, and the {model.family} model has no matrix for "
                f"it that can have an adapter; {_MERGE}"
            )
        for name, shape in self.shapes.items():
            if shape != known[name]:
                raise ValueError(
                    f"{self.folder} belongs to another model: {name} has the shape {shape}, and this model "
                    f"needs {known[name]}"
                )
        matching = [
            adapter for adapter in candidates if {adapter.down.name, adapter.up.name} & self.shapes.keys()
        ]
        for adapter in matching:
            if missing := [name for name in (adapter.down.name, adapter.up.name) if name not in self.shapes]:
                raise ValueError(f"{self.folder} has no {missing[0]}, the other factor of {adapter.target}")
        return matching

    def check_fits_into(self, model: Architecture, lora: LoraShape) -> None:
        """Raises ValueError if a policy's adapters of the shape `lora` cannot hold this one."""
        known_factors = {adapter.down.name: adapter for adapter in adapters(model, lora)}
        outside = sorted(
            {adapter.target for adapter in self.matrices(model) if adapter.down.name not in known_factors}
        )
        larger = self.lora.rank > lora.rank
        if not larger and not outside:
            return
        reason = (
            f"has rank {self.lora.rank}, and trainer.lora.rank is {lora.rank}"
            if larger
            else f"adapts {', '.join(outside)}, and trainer.lora.targets does not"
        )
        raise ValueError(
            f"{self.folder} {reason}: the policy's adapters cannot hold it. Set teacher.path to the model's "
            "folder, so that the trainer loads it once more with the adapter merged into it"
        )


def read_stored_adapter(folder: Path) -> StoredAdapter:
    """Returns the settings and shapes of an adapter. Raises ValueError if it is of a kind that cannot be
    served or trained.
    """
    config = read_adapter_config(folder)
    if used := [key for key in _PATTERNS if config.get(key)]:
        reason = f"sets {used[0]}, but every matrix must have the same rank and alpha"
        raise ValueError(f"{folder} {reason}; {_MERGE}")
    rank = config.get("r")
    if not isinstance(rank, int) or rank < 1 or not isinstance(config["lora_alpha"], int | float):
        raise ValueError(f"{folder / ADAPTER_CONFIG} needs the numbers r and lora_alpha")
    lora = LoraShape(rank, config["lora_alpha"], stacked_targets(config), bool(config.get("use_rslora")))
    shapes = dict(tensor_shapes(file_inside(folder, ADAPTER_WEIGHTS)))
    base = str(config.get("base_model_name_or_path") or "")
    return StoredAdapter(folder, lora, shapes, base, isinstance(config.get("target_modules"), list))


def stacked_targets(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Returns the experts' matrices that an adapter's settings name, such as `experts.down_proj`."""
    return tuple(target.rpartition("mlp.")[2] for target in config.get("target_parameters") or ())


def read_adapter_config(adapter: Path) -> dict[str, Any]:
    """Returns the settings of an adapter; ValueError if it is of a kind that is not supported."""
    config = read_json_object(file_inside(adapter, ADAPTER_CONFIG))
    if config.get("peft_type") != "LORA" or "lora_alpha" not in config:
        raise ValueError(f"{adapter} is not a LoRA adapter: its peft_type is {config.get('peft_type')!r}")
    if used := [key for key in _REFUSED if config.get(key)]:
        raise ValueError(f"{adapter} uses {', '.join(used)}, which merging does not support")
    stacked = stacked_targets(config)
    if any(target not in EXPERT_TARGETS for target in stacked):
        raise ValueError(
            f"{adapter} has target_parameters {', '.join(stacked)}; only {' and '.join(EXPERT_TARGETS)} are "
            "supported"
        )
    if config.get("bias", "none") != "none":
        raise ValueError(f"{adapter} trains biases (bias = {config['bias']!r}), which is not supported")
    return config
