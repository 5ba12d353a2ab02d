"""Families that the trainer does not have: mapped by torchtitan's own adapters, a layer at a time.

An adapter turns a table of tensors into another, in memory. A first pass over tensors without data tells
every name and shape, and which tensors are only renamed: those are copied as they lie. For the others it gets
a layer's tensors when the first of its results is to be written, and the results are let go of as they are
written: what a layer has of them must fit into memory, the model need not.
"""

import importlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rlrun.converters.families.adapted import AdapterGroup, Convert, Table, Zeros, meta_tensor
from rlrun.converters.families.mapping import Lenience, Mapped, check_names
from rlrun.converters.tensors.content import Content, plain
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import StoredTensor

PACKAGES = {
    "kimi_k25": "kimi_k2_7",
    "muse_glimmer": "muse_glimmer",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5",
}
"""torchtitan's package by `model_type`; that of Qwen3.5 needs the package `fla-core`."""
_HEAD, _EMBEDDING = "lm_head.weight", "embed_tokens.weight"
_DERIVED = ".rotary_emb.inv_freq"
_LAYER = re.compile(r"^(.*?)(?:layers|blocks)\.(\d+)\.")


class AdaptedFamily:
    """A model that one of torchtitan's flavors describes."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        """Find the flavors. ValueError where the model has the sizes of none, or its family is not known."""
        self._flavors = list(_flavors(config))

    def to_parameters(self, contents: Mapping[str, Content], where: str, lenience: Lenience) -> Mapped:
        """torchtitan's parameters of Hugging Face tensors."""
        contents = {name: each for name, each in contents.items() if not name.endswith(_DERIVED)}
        # with and without a vision tower, sizes are the same
        flavor = min(self._flavors, key=lambda each: len(each.hf_names() ^ contents.keys()))
        return flavor.to_parameters(contents, where, lenience)

    def to_hf(
        self,
        described: Mapping[str, TensorInfo],
        read: Callable[[str], StoredTensor],
        where: str,
        lenience: Lenience,
    ) -> Mapped:
        """Hugging Face tensors of torchtitan's parameters, which `read` finds."""
        flavor = min(self._flavors, key=lambda each: len(each.parameters.keys() ^ described.keys()))
        return flavor.to_hf(described, read, where, lenience)


@dataclass(frozen=True, slots=True)
class _Flavor:
    adapter: Any
    parameters: dict[str, TensorInfo]
    buffers: dict[str, TensorInfo]

    def to_parameters(self, contents: Mapping[str, Content], where: str, lenience: Lenience) -> Mapped:
        names = self.hf_names() & contents.keys()
        known = {name: content for name, content in contents.items() if name in names}
        made: dict[str, Content] = {}
        for group in _groups(known, partial(self._from_hf, has_head=_any_head(known))):
            made |= group.results()
        shapes = {name: content.tensor.shape for name, content in made.items() if name not in self.buffers}
        expected = {name: tensor.shape for name, tensor in self.parameters.items()}
        unknown = {name: content.tensor.shape for name, content in contents.items() if name not in names}
        mapped = check_names(expected, shapes | unknown, where, lenience)
        mapped.contents = made | {
            name: Zeros(tensor) for name, tensor in self.buffers.items() if name not in made
        }
        return mapped

    def to_hf(
        self,
        described: Mapping[str, TensorInfo],
        read: Callable[[str], StoredTensor],
        where: str,
        lenience: Lenience,
    ) -> Mapped:
        shapes = {name: tensor.shape for name, tensor in described.items() if name not in self.buffers}
        expected = {name: tensor.shape for name, tensor in self.parameters.items()}
        mapped = check_names(expected, shapes, where, lenience)
        known = {name for name in described if name in self.parameters or name in self.buffers}
        contents: dict[str, Content] = {name: plain(read(name)) for name in described if name in known}
        for group in _groups(contents, self.adapter.to_hf):
            mapped.contents |= group.results()
        return mapped

    def _from_hf(self, tensors: Table, has_head: bool) -> Table:
        """Some adapters ask for a head, or copy the embedding's, in every table they get."""
        embedding = any(name.endswith(_EMBEDDING) for name in tensors)
        if _any_head(tensors) or (embedding and not has_head):
            return self.adapter.from_hf(tensors)
        made: Table = self.adapter.from_hf(tensors | {_HEAD: torch.empty(0)})
        return {name: tensor for name, tensor in made.items() if name != _HEAD}

    def hf_names(self) -> set[str]:
        """Every tensor of the model."""
        everything = {name: meta_tensor(tensor) for name, tensor in (self.parameters | self.buffers).items()}
        return set(self.adapter.to_hf(everything))


def _groups(contents: Mapping[str, Content], convert: Convert) -> Iterator[AdapterGroup]:
    members: dict[str, dict[str, Content]] = {}
    for name, content in contents.items():
        layer = _LAYER.match(name)
        members.setdefault(layer[0] if layer else name, {})[name] = content
    return (AdapterGroup(group, convert) for group in members.values())


def _any_head(names: Iterable[str]) -> bool:
    return any(name.endswith(_HEAD) for name in names)


def _flavors(config: Mapping[str, Any]) -> Iterator[_Flavor]:
    """The flavors with the config's sizes."""
    family = config.get("model_type")
    if family not in PACKAGES:
        raise ValueError(f"model_type {family!r} is not supported")
    package = importlib.import_module(f"torchtitan.models.{PACKAGES[family]}")
    tables = (value for name, value in vars(package).items() if name.endswith("_configs"))
    registry = next(table for table in tables if isinstance(table, dict))
    text = config.get("text_config") or config
    wanted = (text.get("hidden_size"), text.get("num_hidden_layers"), text.get("vocab_size"))
    found = False
    for name in registry:
        spec = package.model_registry(name)
        if (spec.model.dim, len(spec.model.layers), spec.model.vocab_size) == wanted:
            found = True
            yield _flavor(spec)
    if not found:
        raise ValueError(
            f"torchtitan has no {family} of hidden_size, num_hidden_layers, vocab_size = {wanted}; it has "
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
