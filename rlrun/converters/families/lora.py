"""Merges a LoRA adapter (arXiv:2106.09685) in peft's file layout into the weights that it adapts."""

import math
import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from rlrun.converters.families.merged_weights import MergedWeight, experts_of, merge_experts
from rlrun.converters.families.model_folder import WeightFolder
from rlrun.converters.families.stored_adapter import ADAPTER_WEIGHTS, read_adapter_config, stacked_targets
from rlrun.converters.tensors.base_blocks import BaseKind, decode, encode
from rlrun.converters.tensors.content import Cast, Content, RowByRow, cast, plain
from rlrun.converters.tensors.safetensors_format import read_header
from rlrun.converters.tensors.stored import Files, StoredTensor
from rlrun.models.adapters import PEFT_PREFIX, quantised_matrices
from rlrun.models.architecture import Architecture
from rlrun.models.checked_values import abbreviated, file_inside
from rlrun.models.config_json import architecture
from rlrun.models.tensor_names import text_tensors

LORA_SCALE = "lora.scale"
"""The name of the factor of adapters in a run's checkpoint."""
LORA_BASE = "lora.base"
"""The name of the base's precision in a run's checkpoint, an index of `BASE_KINDS`; absent without one."""
BASE_KINDS: tuple[BaseKind, ...] = ("nf4", "int8")
_DOWN, _UP = ".lora_a", ".lora_b"

_EXPERTS = re.compile(r"(?P<module>.+\.mlp\.experts)(?P<inner>\.base_layer)?")


@dataclass(frozen=True, slots=True)
class RoundedWeight(RowByRow):
    """The values of a matrix that a run held in 4 or 8 bits."""

    kind: BaseKind

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns rows of the rounded weight, in float32."""
        return decode(encode(self.source.rows(files, first, last), self.kind), self.kind)


def merge_adapter(contents: Mapping[str, Content], adapter: Path) -> dict[str, Content]:
    """Returns the contents with the adapter merged into them.

    Raises ValueError if the adapter refers to a missing tensor, or is of a kind that is not supported.
    """
    config = read_adapter_config(adapter)
    tensors = read_header(file_inside(adapter, ADAPTER_WEIGHTS))
    result = dict(contents)
    stacked = stacked_targets(config)
    for name in sorted(tensors):
        module, kind = _target(name, adapter)
        if experts := _EXPERTS.fullmatch(module):
            if kind == "lora_A":
                up = tensors.get(name.replace(".lora_A.", ".lora_B."))
                target = stacked[0] if experts["inner"] else stacked[-1]
                result |= _merge_stack(contents, experts["module"], target, (tensors[name], up), config)
            continue
        weight = f"{module}.weight"
        if weight not in contents:
            raise ValueError(f"{adapter} adapts {weight}, which the model does not have")
        if kind == "lora_A":
            up = tensors.get(name.replace(".lora_A.", ".lora_B."))
            result[weight] = _merge(contents[weight], tensors[name], up, config, module)
        elif kind == "weight":
            result[weight] = _replace(contents[weight], tensors[name], weight)
    return result


def merge_trained(
    contents: Mapping[str, Content],
    config: Mapping[str, Any],
    names: Iterable[str],
    read: Callable[[str], StoredTensor],
    scale: float,
    *,
    base: BaseKind | None = None,
) -> dict[str, Content]:
    """Returns the contents with a run's adapters merged into them.

    `names` are the adapters' tensors in the run's checkpoint, by the trainer's names. `base`: how the
    run held the matrices of the layers.
    """
    tensors = text_tensors(architecture(config))
    rounded: dict[str, Content] = {}
    if base is not None:
        held = quantised_matrices(architecture(config))
        rounded = {matrix.name: RoundedWeight(contents[matrix.name], base) for matrix in held}
    matrices = {tensor.parameter: tensor.name for tensor in tensors}
    # in the order of the trainer's own exports
    result = {tensor.name: contents[tensor.name] for tensor in tensors}
    result |= {name: Cast(content, content.tensor.dtype) for name, content in rounded.items()}
    for name in names:
        if _DOWN in name and not name.endswith(".weight"):
            module, _, kind = name.partition(f".inner_experts{_DOWN}_")
            layer = module.split(".")[1]
            target = f"experts.{kind}_proj"
            factors = read(name), read(name.replace(_DOWN, _UP))
            experts = f"model.layers.{layer}.mlp.experts"
            result |= merge_experts(contents, experts, target, factors, scale, trained=True)
        elif _DOWN in name:
            matrix = matrices[name.replace(f"{_DOWN}.weight", ".weight")]
            source = rounded.get(matrix, contents[matrix])
            result[matrix] = MergedWeight(source, read(name), read(name.replace(_DOWN, _UP)), scale)
    return result


def _merge_stack(
    contents: Mapping[str, Content],
    module: str,
    target: str,
    factors: tuple[StoredTensor, StoredTensor | None],
    config: Mapping[str, Any],
) -> dict[str, Content]:
    """Returns the weights of a layer's experts with an adapter of peft, whose factors are stacks."""
    (down, up), experts = factors, experts_of(contents, module)
    if up is None:
        raise ValueError(f"the adapter of {module} has no lora_B")
    if not experts or down.shape[0] % experts or up.shape[1] != down.shape[0]:
        raise ValueError(
            f"the adapter of {module} has shapes {up.shape} and {down.shape}, which do not fit {experts} "
            "experts"
        )
    scale = _scale(config, module, down.shape[0] // experts)
    return merge_experts(contents, module, target, (down, up), scale, trained=False)


def _merge(
    content: Content, down: StoredTensor, up: StoredTensor | None, config: Mapping[str, Any], module: str
) -> MergedWeight:
    if up is None:
        raise ValueError(f"the adapter of {module} has no lora_B")
    rank = down.shape[0]
    if down.shape != (rank, content.tensor.shape[-1]) or up.shape != (content.tensor.shape[0], rank):
        raise ValueError(
            f"the adapter of {module} has shapes {up.shape} and {down.shape}, which do not fit a weight of "
            f"shape {content.tensor.shape}"
        )
    return MergedWeight(content, down, up, _scale(config, module, rank))


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """Returns the factor of an adapter's product."""
    alpha: float = _pattern(config.get("alpha_pattern") or {}, module, config["lora_alpha"])
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _replace(content: Content, stored: StoredTensor, name: str) -> Content:
    """Returns the adapter's own copy of a module that was trained as a whole (`modules_to_save`)."""
    if stored.shape != content.tensor.shape:
        raise ValueError(f"the adapter has {name} with shape {stored.shape}, not {content.tensor.shape}")
    return cast(plain(stored), content.tensor.dtype)


def _target(name: str, adapter: Path) -> tuple[str, str]:
    """Returns the module that a tensor of the adapter belongs to, and `lora_A`, `lora_B` or `weight`."""
    match = re.fullmatch(rf"{re.escape(PEFT_PREFIX)}(.+?)\.(lora_A|lora_B)\.weight", name)
    match = match or re.fullmatch(rf"{re.escape(PEFT_PREFIX)}(.+)\.(weight)", name)
    if not match:
        raise ValueError(f"{adapter} has {abbreviated([name])}, a kind of adapter that is not supported")
    return match[1], match[2]


def _pattern(patterns: Mapping[str, float], module: str, default: float) -> float:
    """Returns the value of the first pattern that matches the end of the module's name, as in peft."""
    for pattern, value in patterns.items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            return value
    return default


class MergedFolder(WeightFolder):
    """The merged weights; a context manager."""

    def __init__(self, folder: Path, model: Architecture, adapter: Path) -> None:
        """Opens the files. Raises ValueError if model and adapter do not fit each other."""
        super().__init__(folder, model)
        stored = {name: plain(tensor) for name, tensor in self._tensors.items()}
        merged = merge_adapter(stored, adapter)
        self._merged = {name: content for name, content in merged.items() if content is not stored[name]}

    @property
    def adapted(self) -> Set[str]:
        """The names of the tensors that the adapter changes."""
        return self._merged.keys()

    def read(self, name: str) -> torch.Tensor:
        """Returns the tensor, in the precision of the folder."""
        if (content := self._merged.get(name)) is None:
            return super().read(name)
        return content.rows(self._files, 0, content.tensor.shape[0])
