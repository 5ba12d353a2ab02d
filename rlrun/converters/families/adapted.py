"""Tensors that a torchtitan adapter converts in groups, when the first tensor of a group is written."""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

from rlrun.converters.tensors.content import Content
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import Files
from rlrun.models.checked_names import abbreviated

Table = dict[str, torch.Tensor]
Convert = Callable[[Table], Table]


@dataclass(frozen=True, slots=True)
class AdaptedTensor:
    """One tensor that an adapter computes from a group."""

    group: "AdapterGroup"
    name: str
    tensor: TensorInfo
    step: int = 1

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns rows of the tensor. After the last row, the group frees the tensor."""
        whole = self.group.result(files, self.name)
        count = self.tensor.shape[0] if self.tensor.shape else 1
        if last == count:
            self.group.drop(self.name)
        return whole.reshape(count, *self.tensor.shape[1:])[first:last]


@dataclass(frozen=True, slots=True)
class Zeros:
    """A buffer of zeros, for buffers of torchtitan that Hugging Face checkpoints do not have."""

    tensor: TensorInfo
    step: int = 1

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns zeros for rows `first` to `last`."""
        return torch.zeros((last - first, *self.tensor.shape[1:]), dtype=self.tensor.dtype)


class AdapterGroup:
    """Tensors that an adapter converts together."""

    def __init__(self, members: dict[str, Content], convert: Convert) -> None:
        self._members = members
        self._convert = convert
        self._empty = {name: meta_tensor(content.tensor) for name, content in members.items()}
        self._renamed: dict[str, str] = {}
        self._results: Table = {}
        """Converted tensors that have not been written yet."""
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes of the tensors that are read for the conversion."""
        return sum(content.tensor.nbytes for name, content in self._members.items() if self._is_read(name))

    def results(self) -> dict[str, Content]:
        """Returns the contents of the results by name; a tensor that is only renamed keeps its content."""
        try:
            results = self._convert(dict(self._empty))
        except (RuntimeError, LookupError, AssertionError) as error:
            names = abbreviated(list(self._members))
            raise ValueError(f"torchtitan's adapter cannot convert {names}: {error}") from error
        contents: dict[str, Content] = {}
        for name, tensor in results.items():
            source = next((old for old, meta in self._empty.items() if meta is tensor), None)
            if source is not None:
                self._renamed[source] = name
                contents[name] = self._members[source]
            else:
                contents[name] = AdaptedTensor(self, name, TensorInfo(tensor.dtype, tuple(tensor.shape)))
        return contents

    def result(self, files: Files, name: str) -> torch.Tensor:
        """Returns a converted tensor. The first call converts all tensors of the group."""
        with self._lock:
            if name not in self._results:
                self._results = self._convert(
                    {
                        name: _read_whole(files, content) if self._is_read(name) else self._empty[name]
                        for name, content in self._members.items()
                    }
                )
            return self._results[name]

    def drop(self, name: str) -> None:
        """Frees a converted tensor."""
        with self._lock:
            del self._results[name]

    def _is_read(self, name: str) -> bool:
        return name not in self._renamed


def group_bytes(contents: Mapping[str, Content]) -> int:
    """Returns the maximum bytes that one thread holds: the tensors of a group and their results."""
    groups = [content.group for content in contents.values() if isinstance(content, AdaptedTensor)]
    return max((2 * group.nbytes for group in groups), default=0)


def meta_tensor(tensor: TensorInfo) -> torch.Tensor:
    """Returns a tensor on the meta device, which has no data."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _read_whole(files: Files, content: Content) -> torch.Tensor:
    shape = content.tensor.shape
    return content.rows(files, 0, shape[0] if shape else 1).view(shape)
