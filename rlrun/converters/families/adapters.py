"""Converts model families that the trainer does not support, with torchtitan's adapters, one layer at a time.

An adapter converts a dict of tensors in memory. It is first run on tensors without data, which gives all
names and shapes, and shows which tensors are only renamed; these are copied without the adapter. The others
are converted layer by layer, when the first result of a layer is written, and each result is freed after it
is written. Therefore one layer must fit into memory, but not the model.
"""

import importlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rlrun.converters.families.adapted import AdapterGroup, Convert, Table, Zeros, meta_tensor
from rlrun.converters.families.expected_tensors import Lenience
from rlrun.converters.families.mapping import Mapped, StoredParameters, check_names
from rlrun.converters.tensors.content import Content, plain
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.models.families.table import family_of

_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"
_DERIVED = ".rotary_emb.inv_freq"
_LAYER = re.compile(r"^(.*?)(?:layers|blocks)\.(\d+)\.")


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
            name: Zeros(tensor) for name, tensor in self.buffers.items() if name not in results
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

    def _from_hf(self, tensors: Table, has_head: bool) -> Table:
        """Calls the adapter. Some adapters need a head in every dict, or copy the embedding into one."""
        embedding = any(name.endswith(_EMBEDDING) for name in tensors)
        if _any_head(tensors) or (embedding and not has_head):
            return self.adapter.from_hf(tensors)
        converted: Table = self.adapter.from_hf(tensors | {_HEAD: torch.empty(0)})
        return {name: tensor for name, tensor in converted.items() if name != _HEAD}

    def hf_names(self) -> set[str]:
        """Returns the Hugging Face names of all tensors of the model."""
        tensors = {name: meta_tensor(tensor) for name, tensor in (self.parameters | self.buffers).items()}
        return set(self.adapter.to_hf(tensors))


def _groups(contents: Mapping[str, Content], convert: Convert) -> Iterator[AdapterGroup]:
    """Returns a group for each layer, and one for each tensor outside of the layers."""
    members: dict[str, dict[str, Content]] = {}
    for name, content in contents.items():
        layer = _LAYER.match(name)
        members.setdefault(layer[0] if layer else name, {})[name] = content
    return (AdapterGroup(group, convert) for group in members.values())


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
