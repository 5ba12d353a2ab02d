"""What is in a checkpoint."""

import json
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


@dataclass(frozen=True, slots=True)
class Branch:
    """Tensors of one name, numbers aside: the same matrix of every layer, or of every expert."""

    name: str
    """With `*` for the numbers."""
    count: int
    shape: tuple[int, ...]
    """Of the first."""
    dtype: str
    parameters: int


@dataclass(frozen=True, slots=True)
class Description:
    """A checkpoint at a glance."""

    path: str
    format: str
    layout: str
    family: str | None
    step: int | None
    tensors: int
    parameters: int
    """Numbers in the weights; an optimizer's state is not counted."""
    nbytes: int
    """Of all tensors."""
    dtypes: dict[str, int]
    """Parameters by precision."""
    branches: tuple[Branch, ...]

    def as_json(self) -> dict[str, Any]:
        """For scripts."""
        return asdict(self)


def describe(found: Checkpoint) -> Description:
    """Look into a checkpoint; reads headers only. ValueError where it is not in order."""
    if found.format == "dcp":
        folder = DcpFolder(found.folder)
        tensors: Mapping[str, TensorInfo] = folder.tensors
        parts = max(folder.num_chunks(name) for name in tensors)
        layout = f"{folder.num_files} files, tensors in up to {parts} parts"
        step = found.step if found.step is not None else folder.scalar("step")
    else:
        stored = read_tensors(found.folder)
        tensors = {name: TensorInfo(tensor.dtype, tensor.shape) for name, tensor in stored.items()}
        paths = {chunk.path for tensor in stored.values() for chunk in tensor.chunks}
        layout, step = f"{len(paths)} file{'s' if len(paths) > 1 else ''}", None
    weights = {name: tensor for name, tensor in tensors.items() if not is_state(name, tensors)}
    dtypes: Counter[str] = Counter()
    for tensor in weights.values():
        dtypes[_dtype(tensor)] += math.prod(tensor.shape)
    return Description(
        path=str(found.folder),
        format=found.format,
        layout=layout,
        family=_family(found),
        step=step,
        tensors=len(tensors),
        parameters=sum(dtypes.values()),
        nbytes=sum(tensor.nbytes for tensor in tensors.values()),
        dtypes=dict(dtypes.most_common()),
        branches=_branches(tensors),
    )


def is_state(name: str, names: Mapping[str, Any]) -> bool:
    """Whether a tensor is no weight: an optimizer's, a random state, a step."""
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


def _family(found: Checkpoint) -> str | None:
    try:
        config = json.loads((found.model / "config.json").read_text()) if found.model else {}
    except (OSError, ValueError):
        return None
    return config.get("model_type")
