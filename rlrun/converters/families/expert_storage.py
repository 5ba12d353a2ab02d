"""Reads experts that a checkpoint stores as two tensors per layer as one tensor per matrix of each expert.

experts.gate_up_proj [E, 2F, H], experts.down_proj [E, H, F] ─▶ experts.0.gate_proj.weight [F, H], …

Qwen3.5's checkpoints have either form. transformers reads both, and writes the second.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rlrun.models.architecture import Architecture

if TYPE_CHECKING:
    from rlrun.converters.tensors.stored import StoredTensor

Shape = tuple[int, ...]
_GATE_UP, _DOWN = ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"


@dataclass(frozen=True, slots=True)
class ExpertPart:
    """One matrix of one expert: some rows of one entry of a stored tensor. Or a whole tensor."""

    source: str
    """Name of the stored tensor."""
    expert: int | None = None
    """None: the whole tensor."""
    first: int = 0
    last: int = 0

    def shape(self, stored: Shape) -> Shape:
        """Returns the part's shape."""
        return stored if self.expert is None else (self.last - self.first, *stored[2:])

    def of(self, stored: "StoredTensor") -> "StoredTensor":
        """Returns the part of the stored tensor; its bytes remain where they are."""
        if self.expert is None:
            return stored
        return _rows(stored.index(self.expert), self.first, self.last)


def each_expert(tensors: "Mapping[str, StoredTensor]", model: Architecture) -> "dict[str, StoredTensor]":
    """Returns the tensors with one for each matrix of each expert."""
    parts = expert_parts({name: tensor.shape for name, tensor in tensors.items()}, model)
    return {name: part.of(tensors[part.source]) for name, part in parts.items()}


def expert_parts(shapes: Mapping[str, Shape], model: Architecture) -> dict[str, ExpertPart]:
    """Returns what the tensors of a checkpoint hold, with one name for each matrix of each expert."""
    if model.experts is None or not model.experts.shared_gate:
        return {name: ExpertPart(name) for name in shapes}
    return dict(part for name, shape in shapes.items() for part in _split(name, shape))


def _split(name: str, shape: Shape) -> Iterator[tuple[str, ExpertPart]]:
    if not name.endswith((_GATE_UP, _DOWN)) or len(shape) != 3 or shape[1] % 2:
        yield name, ExpertPart(name)
        return
    prefix = name.rpartition(".")[0]
    count, rows, half = shape[0], shape[1], shape[1] // 2
    for expert in range(count):
        if name.endswith(_DOWN):
            yield f"{prefix}.{expert}.down_proj.weight", ExpertPart(name, expert, 0, rows)
            continue
        yield f"{prefix}.{expert}.gate_proj.weight", ExpertPart(name, expert, 0, half)
        yield f"{prefix}.{expert}.up_proj.weight", ExpertPart(name, expert, half, rows)


def _rows(tensor: "StoredTensor", first: int, last: int) -> "StoredTensor":
    """Returns `tensor[first:last]`."""
    chunks = []
    for chunk in tensor.chunks:
        if chunk.offsets[0] < last and first < chunk.offsets[0] + chunk.shape[0]:
            part = chunk.rows(first, last, tensor.dtype.itemsize)
            chunks.append(replace(part, offsets=(part.offsets[0] - first, *part.offsets[1:])))
    return replace(tensor, shape=(last - first, *tensor.shape[1:]), chunks=tuple(chunks))
