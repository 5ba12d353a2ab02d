"""Converts model families that the trainer does not support, with torchtitan's adapters, one layer at a time.

An adapter converts a dict of tensors in memory. It is first run on tensors without data, which gives all
names and shapes, and shows which tensors are only renamed; these are copied without the adapter. The others
are converted layer by layer, when the first result of a layer is written, and each result is freed after it
is written. Therefore one layer must fit into memory, but not the model.
"""

import importlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rlrun.converters.families.expected_tensors import Lenience
from rlrun.converters.families.mapping import Mapped, StoredParameters, check_names
from rlrun.converters.tensors.content import Content, plain
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import Files
from rlrun.models.checked_values import abbreviated
from rlrun.models.families.table import family_of

_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"
_DERIVED = ".rotary_emb.inv_freq"
_LAYER = re.compile(r"^(.*?)(?:layers|blocks)\.(\d+)\.")
_Table = dict[str, torch.Tensor]
_Convert = Callable[[_Table], _Table]


class AdaptedFamily:
    """A model with the sizes of one of torchtitan's flavors."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Finds the flavors. Raises ValueError if none has the model's sizes, or the family is unknown."""
        self._flavors = list(_flavors(config))

    def to_parameters(self, contents: Mapping[str, Content], where: str, lenience: Lenience) -> Mapped:
        """Maps Hugging Face tensors to torchtitan's parameters."""
        contents = {name: content for name, content in contents.items() if not name.endswith(_DERIVED)}
        # a flavor with a vision tower and one without have the same sizes, so the tensors' names decide
        flavor = min(self._flavors, key=lambda flavor: len(flavor.hf_names() ^ contents.keys()))
        return flavor.to_parameters(contents, where, lenience)

    def to_hf(self, stored: StoredParameters, lenience: Lenience) -> Mapped:
        """Maps torchtitan's parameters to Hugging Face tensors."""
        names = stored.described.keys()
        flavor = min(self._flavors, key=lambda flavor: len(flavor.parameters.keys() ^ names))
        return flavor.to_hf(stored, lenience)


@dataclass(frozen=True, slots=True)
class _Flavor:
    """One of torchtitan's configurations of a family."""

    adapter: Any
    """Its state-dict adapter, with `from_hf` and `to_hf`."""
    parameters: dict[str, TensorInfo]
    buffers: dict[str, TensorInfo]

    def to_parameters(self, contents: Mapping[str, Content], where: str, lenience: Lenience) -> Mapped:
        names = self.hf_names() & contents.keys()
        sources = {name: content for name, content in contents.items() if name in names}
        results: dict[str, Content] = {}
        for group in _groups(sources, partial(self._from_hf, has_head=_any_head(sources))):
            results |= group.results()
        shapes = {name: content.tensor.shape for name, content in results.items() if name not in self.buffers}
        expected = {name: tensor.shape for name, tensor in self.parameters.items()}
        unknown = {name: content.tensor.shape for name, content in contents.items() if name not in names}
        mapped = check_names(expected, shapes | unknown, where, lenience)
        mapped.contents = results | {
            name: _Zeros(tensor) for name, tensor in self.buffers.items() if name not in results
        }
        return mapped

    def to_hf(self, stored: StoredParameters, lenience: Lenience) -> Mapped:
        described = stored.described
        shapes = {name: tensor.shape for name, tensor in described.items() if name not in self.buffers}
        expected = {name: tensor.shape for name, tensor in self.parameters.items()}
        mapped = check_names(expected, shapes, stored.where, lenience)
        names = [name for name in described if name in self.parameters or name in self.buffers]
        contents: dict[str, Content] = {name: plain(stored.read(name)) for name in names}
        for group in _groups(contents, self.adapter.to_hf):
            mapped.contents |= group.results()
        return mapped

    def _from_hf(self, tensors: _Table, has_head: bool) -> _Table:
        """Calls the adapter. Some adapters need a head in every dict, or copy the embedding into one."""
        embedding = any(name.endswith(_EMBEDDING) for name in tensors)
        if _any_head(tensors) or (embedding and not has_head):
            return self.adapter.from_hf(tensors)
        converted: _Table = self.adapter.from_hf(tensors | {_HEAD: torch.empty(0)})
        return {name: tensor for name, tensor in converted.items() if name != _HEAD}

    def hf_names(self) -> set[str]:
        """Returns the Hugging Face names of all tensors of the model."""
        tensors = {name: _meta_tensor(tensor) for name, tensor in (self.parameters | self.buffers).items()}
        return set(self.adapter.to_hf(tensors))


class _AdapterGroup:
    """Tensors that an adapter converts together."""

    def __init__(self, members: dict[str, Content], convert: _Convert) -> None:
        self._members = members
        self._convert = convert
        self._empty = {name: _meta_tensor(content.tensor) for name, content in members.items()}
        self._renamed: dict[str, str] = {}
        self._results: _Table = {}
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
                contents[name] = _AdaptedTensor(self, name, TensorInfo(tensor.dtype, tuple(tensor.shape)))
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


def _groups(contents: Mapping[str, Content], convert: _Convert) -> Iterator[_AdapterGroup]:
    """Returns a group for each layer, and one for each tensor outside of the layers."""
    members: dict[str, dict[str, Content]] = {}
    for name, content in contents.items():
        layer = _LAYER.match(name)
        members.setdefault(layer[0] if layer else name, {})[name] = content
    return (_AdapterGroup(group, convert) for group in members.values())


def _any_head(names: Iterable[str]) -> bool:
    return any(name.endswith(_HEAD) for name in names)


def _flavors(config: Mapping[str, Any]) -> Iterator[_Flavor]:
    """Yields the flavors with the sizes of the config."""
    family = config.get("model_type")
    if (name_of_package := family_of(config).torchtitan_package) is None:
        raise ValueError(f"model_type {family!r} is not supported")
    package = importlib.import_module(f"torchtitan.models.{name_of_package}")
    tables = (value for name, value in vars(package).items() if name.endswith("_configs"))
    registry = next(table for table in tables if isinstance(table, dict))
    text = config.get("text_config") or config
    sizes = (text.get("hidden_size"), text.get("num_hidden_layers"), text.get("vocab_size"))
    has_flavor = False
    for name in registry:
        spec = package.model_registry(name)
        if (spec.model.dim, len(spec.model.layers), spec.model.vocab_size) == sizes:
            has_flavor = True
            yield _flavor(spec)
    if not has_flavor:
        raise ValueError(
            f"torchtitan has no {family} of hidden_size, num_hidden_layers, vocab_size = {sizes}; it has "
            + ", ".join(registry)
        )


def _flavor(spec: Any) -> _Flavor:
    with torch.device("meta"):
        model = spec.model.build()
    buffers = {name for name, _ in model.named_buffers()}
    tensors = {name: TensorInfo(t.dtype, tuple(t.shape)) for name, t in model.state_dict().items()}
    return _Flavor(
        spec.state_dict_adapter(spec.model, None),
        {name: tensor for name, tensor in tensors.items() if name not in buffers},
        {name: tensor for name, tensor in tensors.items() if name in buffers},
    )


@dataclass(frozen=True, slots=True)
class _AdaptedTensor:
    """One tensor that an adapter computes from a group."""

    group: "_AdapterGroup"
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
class _Zeros:
    """A buffer of zeros, for buffers of torchtitan that Hugging Face checkpoints do not have."""

    tensor: TensorInfo
    step: int = 1

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns zeros for rows `first` to `last`."""
        return torch.zeros((last - first, *self.tensor.shape[1:]), dtype=self.tensor.dtype)


def group_bytes(contents: Mapping[str, Content]) -> int:
    """Returns the maximum bytes that one thread holds: the tensors of a group and their results."""
    groups = [content.group for content in contents.values() if isinstance(content, _AdaptedTensor)]
    return max((2 * group.nbytes for group in groups), default=0)


def _meta_tensor(tensor: TensorInfo) -> torch.Tensor:
    """Returns a tensor on the meta device, which has no data."""
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _read_whole(files: Files, content: Content) -> torch.Tensor:
    shape = content.tensor.shape
    return content.rows(files, 0, shape[0] if shape else 1).view(shape)
