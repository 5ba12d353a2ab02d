"""Reads a model folder in Hugging Face format: its tensors, and the small files beside them."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlrun.converters.tensors.safetensors_header import HeaderEntry, read_entries
from rlrun.models.checked_values import abbreviated, file_inside
from rlrun.models.json_files import read_json

if TYPE_CHECKING:
    from rlrun.converters.tensors.stored import StoredTensor

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
_SUFFIXES_BESIDE_WEIGHTS = {".json", ".jinja", ".txt", ".model", ".py", ".tiktoken"}
"""File extensions of config, generation config, tokenizer, templates, and the code of custom models."""


def is_hf_folder(folder: Path) -> bool:
    """Returns whether the folder has weights in safetensors files under their usual names."""
    return (folder / INDEX).exists() or (folder / SINGLE).exists()


def read_tensors(folder: Path) -> "dict[str, StoredTensor]":
    """Returns all tensors of the folder by name. Raises ValueError as `entries_of` does."""
    from rlrun.converters.tensors.safetensors_format import stored_tensors  # imports torch

    return stored_tensors(entries_of(folder))


def entries_of(folder: Path) -> dict[str, HeaderEntry]:
    """Returns what the headers say of all tensors of the folder, by name. It needs no torch.

    Raises ValueError if files are missing, broken, or do not match the index.
    """
    index = _read_index(folder)
    entries: dict[str, HeaderEntry] = {}
    for file in sorted(set(index.values())) if index is not None else [SINGLE]:
        for name, entry in read_entries(file_inside(folder, file)).items():
            if index is not None and index.get(name) != file:
                raise ValueError(f"{folder / file} holds {name}, which {INDEX} places in {index.get(name)}")
            entries[name] = entry
    if index is not None and (missing := sorted(index.keys() - entries.keys())):
        raise ValueError(f"{folder} lacks {abbreviated(missing)}, which {INDEX} lists; download it again")
    if not entries:
        raise ValueError(f"{folder} has no tensors")
    return entries


def files_beside_weights(folder: Path) -> dict[str, Path]:
    """Returns config, tokenizer, templates and other small files, by name."""
    return {
        path.name: file_inside(folder, path.name)
        for path in sorted(folder.iterdir())
        if path.suffix in _SUFFIXES_BESIDE_WEIGHTS
        and not path.name.endswith(".index.json")
        and path.is_file()
    }


def _read_index(folder: Path) -> dict[str, str] | None:
    if not (folder / INDEX).exists():
        if (folder / SINGLE).exists():
            return None
        raise ValueError(
            f"{folder} has no {SINGLE} and no {INDEX}; give a folder with safetensors, or set "
            "model.random_init"
        )
    try:
        index: Any = read_json(file_inside(folder, INDEX))["weight_map"]
    except (ValueError, KeyError, TypeError):
        raise ValueError(
            f"{folder / INDEX} is not an index of a model: its weight_map cannot be read"
        ) from None
    if not isinstance(index, dict) or not all(isinstance(file, str) for file in index.values()):
        raise ValueError(
            f"{folder / INDEX} is not an index of a model: weight_map must give a file for each tensor"
        )
    if missing := sorted({file for file in index.values() if not (folder / file).exists()}):
        raise ValueError(f"{folder} lacks {abbreviated(missing)}, which {INDEX} lists; download it again")
    return index
