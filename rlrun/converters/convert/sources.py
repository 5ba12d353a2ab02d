"""Reads the tensors of a source of either format by their Hugging Face names."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from rlrun.converters.families.expected_tensors import Lenience
from rlrun.converters.families.families import check_family, is_native, map_to_hf, map_to_parameters
from rlrun.converters.families.lora import BASE_KINDS, LORA_BASE, LORA_SCALE, merge_trained
from rlrun.converters.families.mapping import Mapped, StoredParameters, to_hf
from rlrun.converters.families.megatron import from_megatron, is_megatron
from rlrun.converters.folders.dcp_folder import DcpFolder
from rlrun.converters.folders.hf_folder import is_hf_folder, read_tensors
from rlrun.converters.folders.locate import Checkpoint
from rlrun.converters.quantised.int4 import INT4_GROUP, RoundedWeight
from rlrun.converters.quantised.kinds import dequantise
from rlrun.converters.tensors.content import Content, cast, plain
from rlrun.converters.tensors.precision import keeps_precision, parse_dtype
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import Files, StoredTensor
from rlrun.models.architecture import Architecture
from rlrun.models.config_defaults import text_config
from rlrun.models.config_json import architecture, read_config
from rlrun.models.decoder_config import quantisation, weight_dtype
from rlrun.models.families.table import NATIVE
from rlrun.models.hf_tensor import TRANSFORMERS_EMBEDDING
from rlrun.models.low_precision import has_routed_experts, is_int4_matrix
from rlrun.models.tensor_names import is_beside_policy
from rlrun.models.transformers_models import read_transformers_model

_OWN = "parameters."
"""Prefix of the names of parameters in checkpoints of rlrun's trainer."""
_OTHER_STATE = ("optimizer.", "lr_scheduler.", "dataloader.", "train_state.")
"""Prefixes of the names in torchtitan's own checkpoints that are not parameters."""


def config_of(source: Checkpoint) -> dict[str, Any]:
    """Returns config.json of the source's model. Raises ValueError if the model is unknown."""
    if source.model is None:
        raise ValueError(
            f"{source.folder} does not record its model: add --model, a folder with the model's config.json"
        )
    return read_config(source.model)


def hf_contents(source: Checkpoint) -> dict[str, Content]:
    """Returns all tensors unchanged, even if tensors are missing or unknown."""
    if source.format == "hf":
        return {name: plain(tensor) for name, tensor in read_tensors(source.folder).items()}
    return _from_parameters(source, config_of(source), Lenience(missing=True, unknown=True)).contents


def checked_contents(
    source: Checkpoint,
    config: Mapping[str, Any],
    dtype: torch.dtype | None,
    *,
    wide: bool,
    lenience: Lenience,
) -> Mapped:
    """Returns the tensors, and which ones were ignored. Raises ValueError for missing and unknown tensors.

    `wide`: converts quantised tensors to `dtype` (None: the precision of the config). The tensors of a
    training checkpoint always get that precision.
    """
    if source.format == "hf":
        return _stored_hf(source, config, dtype, wide, lenience)
    mapped = _from_parameters(source, config, lenience)
    precision = dtype or _dtype(config)
    mapped.contents = {
        name: cast_weight(name, content, precision) for name, content in mapped.contents.items()
    }
    return mapped


def optimizer_contents(source: Checkpoint, config: Mapping[str, Any]) -> dict[str, Content]:
    """Returns the optimizer's tensors, named by kind and weight: `exp_avg.model.norm.weight`."""
    folder = DcpFolder(source.folder)
    if is_megatron(folder):
        raise ValueError(
            f"{source.folder} is a checkpoint of Megatron, of which only the weights are read: "
            "remove --optimizer"
        )
    names = folder.tensors
    weights = {name.removeprefix(_OWN) for name in names if name.startswith(_OWN)}
    kinds = {kind for kind, _, weight in (name.partition(".") for name in names) if weight in weights}
    kinds -= {_OWN.removesuffix(".")}
    if not kinds:
        raise ValueError(f"{source.folder} has no optimizer state: remove --optimizer")
    contents: dict[str, Content] = {}
    for kind in sorted(kinds):
        mapped = _from_parameters(source, config, Lenience(missing=True), f"{kind}.")
        contents |= {f"{kind}.{name}": content for name, content in mapped.contents.items()}
    return contents


def cast_weight(name: str, content: Content, dtype: torch.dtype | None) -> Content:
    """Returns a weight in another precision, unless it is quantised, a scale, or never cast."""
    scale = name.endswith(("_scale", "_scale_inv"))
    if dtype is None or scale or content.tensor.dtype.itemsize == 1 or keeps_precision(name):
        return content
    return cast(content, dtype)


def _stored_hf(
    source: Checkpoint, config: Mapping[str, Any], dtype: torch.dtype | None, wide: bool, lenience: Lenience
) -> Mapped:
    """Returns the tensors of a Hugging Face folder. Only those of a known family are checked."""
    contents = hf_contents(source)
    if wide:
        contents = dequantise(contents, config, dtype or _dtype(config))
    elif quantisation(config):
        return Mapped(contents)
    if not is_native(config):
        return Mapped(contents)
    mapped = map_to_parameters(config, contents, str(source.folder), lenience)
    mapped.contents = {name: content for name, content in contents.items() if name not in mapped.unknown}
    return mapped


def _from_parameters(
    source: Checkpoint, config: Mapping[str, Any], lenience: Lenience, prefix: str | None = None
) -> Mapped:
    """Returns the tensors of a distributed checkpoint whose names have a prefix; None means parameters."""
    folder = DcpFolder(source.folder)
    if prefix is None and is_megatron(folder):
        check_family(config)
        return from_megatron(architecture(config), folder, lenience)
    own = any(name.startswith(_OWN) for name in folder.tensors)
    start = prefix if prefix is not None else _OWN if own else ""
    described = {
        name.removeprefix(start): tensor
        for name, tensor in folder.tensors.items()
        if name.startswith(start) and not name.startswith(_OTHER_STATE)
    }

    def read(name: str) -> StoredTensor:
        return folder.read(start + name)

    if LORA_SCALE in folder.tensors:
        if start != _OWN:
            raise ValueError(
                f"{source.folder} has the optimizer's state of adapters, not of weights: remove --optimizer"
            )
        return _merged(source, config, folder, described, read)
    model = _transformers_model(source, described) if own else None
    fixed = _fixed(source, config, model) if start == _OWN else {}
    parameters = StoredParameters(described, read, str(source.folder), own, fixed)
    mapped = map_to_hf(config, parameters, lenience) if model is None else to_hf(model, parameters, lenience)
    if start == _OWN and INT4_GROUP in folder.tensors:
        [group] = plain(folder.read(INT4_GROUP)).rows(Files(), 0, 1).flatten().tolist()
        mapped.contents = _rounded(mapped.contents, group)
    return mapped


def _transformers_model(source: Checkpoint, described: Mapping[str, TensorInfo]) -> Architecture | None:
    """Returns the initial model of a run that trained transformers' layers; None for layers of the trainer.

    The checkpoint has the parameters under transformers' names, and the model's files may have other names.
    """
    if TRANSFORMERS_EMBEDDING not in described:
        return None
    if source.model is None or not is_hf_folder(source.model):
        raise ValueError(
            f"{source.folder} has parameters of transformers' layers: add --model, the folder of the model "
            "that they were trained from, whose files name the tensors"
        )
    return read_transformers_model(source.model)


def _rounded(contents: Mapping[str, Content], group: int) -> dict[str, Content]:
    """Returns the contents of a run that rounds matrices to INT4, rounded as for its products."""
    routed = has_routed_experts(contents)
    return {
        name: RoundedWeight(content, group) if is_int4_matrix(name, routed=routed) else content
        for name, content in contents.items()
    }


def _merged(
    source: Checkpoint,
    config: Mapping[str, Any],
    folder: DcpFolder,
    described: Mapping[str, TensorInfo],
    read: Callable[[str], StoredTensor],
) -> Mapped:
    """Returns the tensors of the initial model, merged with the adapters that a run trained."""
    if source.model is None or not is_hf_folder(source.model):
        raise ValueError(
            f"{source.folder} has only adapters: add --model, the folder of the model that they adapt"
        )
    [scale] = plain(folder.read(LORA_SCALE)).rows(Files(), 0, 1).flatten().tolist()
    contents = _initial_model(source.model, config)
    base = None
    if LORA_BASE in folder.tensors:
        base = BASE_KINDS[int(plain(folder.read(LORA_BASE)).rows(Files(), 0, 1).flatten())]
    return Mapped(merge_trained(contents, config, described, read, scale, base=base))


def _fixed(source: Checkpoint, config: Mapping[str, Any], model: Architecture | None) -> dict[str, Content]:
    """Returns the tensors of the initial model that are not trained, and therefore not in checkpoints."""
    if source.model is None or not is_hf_folder(source.model):
        return {}
    if model is None and config.get("model_type") in NATIVE:
        model = architecture(config)
    return {
        name: content
        for name, content in _initial_model(source.model, config).items()
        if keeps_precision(name) or (model is not None and is_beside_policy(name, model))
    }


def _initial_model(folder: Path, config: Mapping[str, Any]) -> dict[str, Content]:
    """Returns the tensors of the model that a run began with, dequantised where they are quantised."""
    stored = {name: plain(tensor) for name, tensor in read_tensors(folder).items()}
    return dequantise(stored, config, _dtype(config))


def _dtype(config: Mapping[str, Any]) -> torch.dtype:
    """Returns the precision of the weights: in a multimodal checkpoint, of its text model's."""
    return parse_dtype(weight_dtype(text_config(config)))
