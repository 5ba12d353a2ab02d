"""Reads experts that a checkpoint stores as two tensors per layer as one tensor per matrix of each expert.

experts.gate_up_proj [E, 2F, H], experts.down_proj [E, H, F] ─▶ experts.0.gate_proj.weight [F, H], …

Qwen3.5's checkpoints have either form. transformers reads both, and writes the second.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from rlrun.converters.tensors.stored import StoredTensor
from rlrun.models.architecture import Architecture

_GATE_UP, _DOWN = ".mlp.experts.gate_up_proj", ".mlp.experts.down_proj"


def each_expert(tensors: Mapping[str, StoredTensor], model: Architecture) -> dict[str, StoredTensor]:
    """Returns the tensors with one for each matrix of each expert; their bytes remain where they are."""
    if model.experts is None or not model.experts.shared_gate:
        return dict(tensors)
    return dict(split for name, tensor in tensors.items() for split in _split(name, tensor))


def _split(name: str, tensor: StoredTensor) -> Iterator[tuple[str, StoredTensor]]:
    if not name.endswith((_GATE_UP, _DOWN)) or len(tensor.shape) != 3 or tensor.shape[1] % 2:
        yield name, tensor
        return
    prefix = name.rpartition(".")[0]
    for expert in range(tensor.shape[0]):
        matrix = tensor.index(expert)
        if name.endswith(_DOWN):
            yield f"{prefix}.{expert}.down_proj.weight", matrix
            continue
        half = matrix.shape[0] // 2
        yield f"{prefix}.{expert}.gate_proj.weight", _rows(matrix, 0, half)
        yield f"{prefix}.{expert}.up_proj.weight", _rows(matrix, half, 2 * half)


def _rows(tensor: StoredTensor, first: int, last: int) -> StoredTensor:
    """Returns `tensor[first:last]`."""
    chunks = []
    for chunk in tensor.chunks:
        if chunk.offsets[0] < last and first < chunk.offsets[0] + chunk.shape[0]:
            part = chunk.rows(first, last, tensor.dtype.itemsize)
            chunks.append(replace(part, offsets=(part.offsets[0] - first, *part.offsets[1:])))
    return StoredTensor(tensor.dtype, (last - first, *tensor.shape[1:]), tuple(chunks))
