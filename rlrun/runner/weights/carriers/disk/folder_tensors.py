"""The tensors in the safetensors files of a folder."""

from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from safetensors import safe_open

from rlrun.converters.tensors.safetensors_format import read_header
from rlrun.runner.weights.tensor_slots import Shapes, check_shapes


class FolderTensors:
    """The tensors of a folder's `*.safetensors`, which are read when they are asked for."""

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
        check_shapes(shapes, needed, self._folder)

    def read(self, into: Mapping[str, torch.Tensor]) -> None:
        """Fills `into`, converting dtypes; one tensor at a time is in memory besides."""
        for name, tensor in into.items():
            tensor.copy_(self._readers[name].get_tensor(name))

    def present(self, names: Iterable[str]) -> dict[str, torch.Tensor]:
        """Returns those of the named tensors that the folder has."""
        return {name: self._readers[name].get_tensor(name) for name in names if name in self._readers}
