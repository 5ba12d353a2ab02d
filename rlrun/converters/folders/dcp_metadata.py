"""Reads `.metadata`, the table of contents of a distributed checkpoint, without running code.

The file is a pickle, and a pickle can call any function that it names. rlrun's converter and its trainer both
read it here, which allows only the classes that torch's and Megatron's writers use; these only hold values.
"""

import io
import pickle
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata, planner

from rlrun.models.foreign_files import open_regular

METADATA = ".metadata"
_CLASSES = {
    "Metadata",
    "TensorStorageMetadata",
    "BytesStorageMetadata",
    "TensorProperties",
    "ChunkStorageMetadata",
    "MetadataIndex",
    "StorageMeta",
    "_MEM_FORMAT_ENCODING",
}
_PLANS = {"SavePlan", "WriteItem", "WriteItemType", "TensorWriteData"}
"""Classes of the plans that Megatron's writer keeps beside the table."""


def read_metadata(path: Path) -> metadata.Metadata:
    """Returns the table of contents of a distributed checkpoint.

    Raises ValueError if the file has another format, is damaged, refers to files of other folders, or
    would run code. Raises OSError if it cannot be read.
    """
    with open_regular(path) as file:
        data = file.read()
    try:
        table = _Unpickler(io.BytesIO(data)).load()
        if not isinstance(table, metadata.Metadata):
            raise ValueError(f"it holds a {type(table).__name__}")
        for info in table.storage_data.values():
            _check_plain(info.relative_path)
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"{path} is not the metadata of a checkpoint: {first_line(error)}") from None
    return table


def first_line(error: Exception) -> str:
    """Returns the first line of an error's message, without the explanations that torch adds."""
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _check_plain(name: str) -> None:
    if Path(name).name != name:
        raise ValueError(f"it refers to the file {name!r}, which is not in the folder")


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module == metadata.__name__ and name in _CLASSES:
            return getattr(metadata, name)
        if module == planner.__name__ and name in _PLANS:
            return getattr(planner, name)
        if (module, name) == (filesystem.__name__, "_StorageInfo"):
            return filesystem._StorageInfo
        if (module, name) == ("torch", "Size"):
            return torch.Size
        if (module, name) == ("torch.serialization", "_get_layout"):
            return _layout
        if module in ("pathlib", "pathlib._local") and name in ("PosixPath", "WindowsPath"):
            return PurePosixPath
        if module == "torch" and isinstance(dtype := getattr(torch, name, None), torch.dtype):
            return dtype
        raise pickle.UnpicklingError(f"it holds {module}.{name}, which no metadata needs")


def _layout(name: str) -> torch.layout:
    """Returns the layout that torch's pickles name; only strided tensors are supported."""
    if name != "torch.strided":
        raise ValueError(f"it has a tensor of layout {name}")
    return torch.strided
