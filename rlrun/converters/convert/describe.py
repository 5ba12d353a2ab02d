"""Describes the tensors of a checkpoint, for `rlrun convert`."""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rlrun.converters.folders.dcp_folder import DcpFolder
from rlrun.converters.folders.hf_folder import read_tensors
from rlrun.converters.folders.locate import Checkpoint
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.models.json_files import read_json_object


@dataclass(frozen=True, slots=True)
class Branch:
    """Tensors whose names differ only in numbers: the same matrix of every layer or expert."""

    name: str
    """The common name, with `*` for the numbers."""
    count: int
    shape: tuple[int, ...]
    """Shape of the first tensor."""
    dtype: str
    parameters: int


@dataclass(frozen=True, slots=True)
class Description:
    """A summary of a checkpoint."""

    path: str
    format: str
    layout: str
    family: str | None
    step: int | None
    tensors: int
    parameters: int
    """Number of parameters, without the optimizer state."""
    nbytes: int
    """Bytes of all tensors."""
    dtypes: dict[str, int]
    """Number of parameters by precision."""
    branches: tuple[Branch, ...]

    def as_json(self) -> dict[str, Any]:
        """Returns the description for `--json`."""
        return asdict(self)


def describe(source: Checkpoint) -> Description:
    """Describes a checkpoint from its headers. Raises ValueError if it is broken."""
    if source.format == "dcp":
        folder = DcpFolder(source.folder)
        tensors: Mapping[str, TensorInfo] = folder.tensors
        num_parts = max(folder.num_chunks(name) for name in tensors)
        layout = f"{folder.num_files} files, tensors in up to {num_parts} parts"
        step = source.step if source.step is not None else folder.scalar("step")
    else:
        stored = read_tensors(source.folder)
        tensors = {name: TensorInfo(tensor.dtype, tensor.shape) for name, tensor in stored.items()}
        paths = {chunk.path for tensor in stored.values() for chunk in tensor.chunks}
        layout, step = f"{len(paths)} file{'s' if len(paths) > 1 else ''}", None
    weights = {name: tensor for name, tensor in tensors.items() if not is_state(name, tensors)}
    dtypes: Counter[str] = Counter()
    for tensor in weights.values():
        dtypes[_dtype(tensor)] += math.prod(tensor.shape)
    return Description(
        path=str(source.folder),
        format=source.format,
        layout=layout,
        family=_family(source),
        step=step,
        tensors=len(tensors),
        parameters=sum(dtypes.values()),
        nbytes=sum(tensor.nbytes for tensor in tensors.values()),
        dtypes=dict(dtypes.most_common()),
        branches=_branches(tensors),
    )


def is_state(name: str, names: Mapping[str, Any]) -> bool:
    """Returns whether a tensor is training state (optimizer, random state, step) rather than a weight."""
    if any(other.startswith("parameters.") for other in names):
        return not name.startswith("parameters.")
    return name.startswith(("optimizer.", "lr_scheduler.", "dataloader.", "train_state."))


def _branches(tensors: Mapping[str, TensorInfo]) -> tuple[Branch, ...]:
    groups: dict[tuple[str, str], list[TensorInfo]] = {}
    for name, tensor in tensors.items():
        pattern = re.sub(r"(?<=\.)\d+(?=\.|$)", "*", name)
        groups.setdefault((pattern, _dtype(tensor)), []).append(tensor)
    return tuple(
        Branch(
            name, len(members), members[0].shape, dtype, sum(math.prod(member.shape) for member in members)
        )
        for (name, dtype), members in groups.items()
    )


def _dtype(tensor: TensorInfo) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _family(source: Checkpoint) -> str | None:
    try:
        config = read_json_object(source.model / "config.json") if source.model else {}
    except (OSError, ValueError):
        return None
    return config.get("model_type")
