"""Compares the tensors of a checkpoint with those that its config requires, by names and shapes alone."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from rlrun.converters.families.expert_storage import expert_parts
from rlrun.converters.folders.hf_folder import entries_of
from rlrun.converters.tensors.safetensors_header import ITEM_BYTES, HeaderEntry
from rlrun.models.architecture import Architecture
from rlrun.models.checked_values import abbreviated
from rlrun.models.config_json import read_config
from rlrun.models.decoder_config import quantisation
from rlrun.models.tensor_names import hf_tensors, is_derived


@dataclass(frozen=True, slots=True)
class Lenience:
    """Which differences between a checkpoint's tensors and its config are accepted."""

    missing: bool = False
    """Whether tensors that the config requires may be missing. They are then missing in the result."""
    unknown: bool = False
    """Whether tensors that are not part of the configured model are ignored."""


STRICT = Lenience()


def check_folder(folder: Path, model: Architecture, further: Collection[str] = ()) -> dict[str, HeaderEntry]:
    """Returns what the headers of a model folder's weights say, by name; reads nothing else.

    `further`: tensors that the folder may also have, whose shapes are not checked. Raises ValueError if the
    weights are damaged, quantised, or not those of the model.
    """
    if settings := quantisation(read_config(folder)):
        raise ValueError(
            f"{folder} is quantised ({settings.get('quant_method')}), and cannot be trained: dequantise it "
            "first, with `rlrun convert hf-to-hf SRC DST --quantize none`, and set model.path to DST"
        )
    entries = entries_of(folder)
    stored = {name: entry.shape for name, entry in entries.items()}
    parts = {
        name: part
        for name, part in expert_parts(stored, model).items()
        if not is_derived(name, model) and name not in further
    }
    shapes = {name: part.shape(stored[part.source]) for name, part in parts.items()}
    check_shapes(hf_shapes(model), shapes, str(folder), STRICT)
    for name, part in parts.items():
        if _is_code(dtype := entries[part.source].dtype):
            raise ValueError(
                f"{name} in {folder} is {dtype}: it is quantised, and config.json does not say how"
            )
    return entries


def check_shapes(
    expected: Mapping[str, tuple[int, ...]],
    shapes: Mapping[str, tuple[int, ...]],
    where: str,
    lenience: Lenience,
) -> tuple[list[str], list[str]]:
    """Returns the missing and the unknown names that are accepted.

    Raises ValueError for all other missing or unknown names, and for wrong shapes.
    """
    missing, unknown = sorted(expected.keys() - shapes), sorted(shapes.keys() - expected)
    if missing and not lenience.missing:
        raise ValueError(f"{where} lacks {abbreviated(missing)}, which its config.json requires")
    if unknown and not lenience.unknown:
        raise ValueError(f"{where} has {abbreviated(unknown)}, which its config.json does not describe")
    for name in expected.keys() & shapes.keys():
        if shapes[name] != expected[name]:
            raise ValueError(
                f"{name} in {where} has shape {shapes[name]}, but its config.json requires {expected[name]}"
            )
    return missing, unknown


def hf_shapes(model: Architecture) -> dict[str, tuple[int, ...]]:
    """Returns the shape of every Hugging Face tensor of the model, in the order of writing."""
    return {tensor.name: tensor.shape for tensor in hf_tensors(model)}


def _is_code(dtype: str) -> bool:
    """Returns what `precision.is_code` does, by safetensors' name of the type."""
    return ITEM_BYTES[dtype] == 1 or dtype == "I32"
