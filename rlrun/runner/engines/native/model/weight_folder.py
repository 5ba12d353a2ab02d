"""Reads a model's weights from a folder, into memory that is laid out as the engine uses them."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors import safe_open

from rlrun.converters.tensors.safetensors_format import read_header
from rlrun.models.architecture import Architecture
from rlrun.runner.engines.native.model.config import weight_shapes
from rlrun.runner.engines.native.model.layer_weights import Tensors
from rlrun.runner.weights.carriers.native.tensor_slots import end_of, layout, num_bytes

Shapes = Mapping[str, tuple[int, ...]]
"""The shape of each tensor, by its Hugging Face name."""


def allocate(model: Architecture, dtype: torch.dtype, device: torch.device) -> dict[str, torch.Tensor]:
    """Returns uninitialised tensors of the whole model in one buffer, laid out so that `fuse` copies
    nothing.
    """
    slots = layout(weight_shapes(model), str(dtype).removeprefix("torch."))
    buffer = torch.empty(end_of(slots), dtype=torch.uint8, device=device)
    return {
        slot.name: buffer[slot.offset : slot.offset + num_bytes(slot)]
        .view(getattr(torch, slot.dtype))
        .view(slot.shape)
        for slot in slots
    }


class FolderTensors:
    """The tensors of a folder's `*.safetensors`."""

    def __init__(self, folder: str | Path) -> None:
        """Opens the files. Raises ValueError if there are none."""
        files = sorted(Path(folder).glob("*.safetensors"))
        if not files:
            raise ValueError(f"{folder} has no *.safetensors file")
        for file in files:
            read_header(file)  # its errors name the file and what is wrong with it
        opened = [safe_open(str(file), framework="pt") for file in files]
        self._folder = str(folder)
        self._readers = {name: reader for reader in opened for name in reader.keys()}  # noqa: SIM118

    def check(self, needed: Shapes) -> None:
        """Raises ValueError if one of these tensors is missing or has another shape."""
        shapes = {name: tuple(reader.get_slice(name).get_shape()) for name, reader in self._readers.items()}
        check_names(shapes, needed, self._folder)

    def tensors(self, needed: Shapes) -> dict[str, torch.Tensor]:
        """Returns tensors of these names and shapes; ValueError as `check` raises it."""
        self.check(needed)
        return {name: self._readers[name].get_tensor(name) for name in needed}

    def present(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Returns those of the named tensors that the folder has."""
        return {name: self._readers[name].get_tensor(name) for name in names if name in self._readers}


class OpenFolder(FolderTensors):
    """The tensors of a folder that has every weight of a model."""

    def __init__(self, folder: str | Path, model: Architecture) -> None:
        """Opens the files. Raises ValueError if a tensor is missing or has another shape."""
        super().__init__(folder)
        self.check(weight_shapes(model))

    def read(self, into: Tensors) -> None:
        """Fills `into`, converting dtypes; one tensor at a time is in memory besides."""
        for name, tensor in into.items():
            tensor.copy_(self._readers[name].get_tensor(name))


def check_shapes(shapes: Mapping[str, Sequence[int]], model: Architecture, source: str) -> None:
    """Raises ValueError unless `shapes` has every weight of the model; further tensors are ignored."""
    check_names(shapes, weight_shapes(model), source)


def check_names(shapes: Mapping[str, Sequence[int]], needed: Shapes, source: str) -> None:
    """Raises ValueError unless `shapes` has all of these tensors."""
    missing = [name for name in needed if name not in shapes]
    if missing:
        raise ValueError(
            f"{source}: {len(missing)} of {len(needed)} weights are missing, the first is {missing[0]}"
        )
    for name, shape in needed.items():
        if tuple(shapes[name]) != shape:
            raise ValueError(f"{source}: {name} has shape {tuple(shapes[name])}, the model needs {shape}")
