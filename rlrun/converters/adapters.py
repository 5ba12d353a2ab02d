"""Families that the trainer does not have: mapped by torchtitan's own adapters, a layer at a time.

An adapter turns a table of tensors into another, in memory. A first pass over tensors without data tells
every name and shape, and which tensors are only renamed: those are copied as they lie. For the others it gets
a layer's tensors when the first of its results is to be written, and the results are let go of as they are
written: what a layer has of them must fit into memory, the model need not.
"""

import importlib
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rlrun.converters.content import Content, plain
from rlrun.converters.mapping import Lenience, Mapped, check_names
from rlrun.converters.paths import some
from rlrun.converters.safetensors_format import Described
from rlrun.converters.stored import Files, Stored

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

Table = dict[str, torch.Tensor]
Convert = Callable[[Table], Table]


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
        described: Mapping[str, Described],
        read: Callable[[str], Stored],
        where: str,
        lenience: Lenience,
    ) -> Mapped:
        """Hugging Face tensors of torchtitan's parameters, which `read` finds."""
        flavor = min(self._flavors, key=lambda each: len(each.parameters.keys() ^ described.keys()))
        return flavor.to_hf(described, read, where, lenience)


@dataclass(frozen=True, slots=True)
class Adapted:
    """One of the tensors that an adapter makes of a group."""

    group: "_Group"
    name: str
    tensor: Described
    step: int = 1

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Some rows; with the last of them the tensor is let go of."""
        whole = self.group.made(files, self.name)
        count = self.tensor.shape[0] if self.tensor.shape else 1
        if last == count:
            self.group.drop(self.name)
        return whole.reshape(count, *self.tensor.shape[1:])[first:last]


@dataclass(frozen=True, slots=True)
class Zeros:
    """A buffer that Hugging Face does not have, as torchtitan begins with it."""

    tensor: Described
    step: int = 1

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Some rows."""
        return torch.zeros((last - first, *self.tensor.shape[1:]), dtype=self.tensor.dtype)


class _Group:
    """Tensors that are converted together, and the results that are not yet taken."""

    def __init__(self, members: dict[str, Content], convert: Convert) -> None:
        self._members = members
        self._convert = convert
        self._empty = {name: _empty(content.tensor) for name, content in members.items()}
        self._renamed: dict[str, str] = {}
        self._made: Table = {}
        self._lock = threading.Lock()

    @property
    def nbytes(self) -> int:
        """Bytes that are read for it."""
        return sum(content.tensor.nbytes for name, content in self._members.items() if self._is_read(name))

    def results(self) -> dict[str, Content]:
        """What will be made, by name; what is only renamed is itself."""
        try:
            made = self._convert(dict(self._empty))
        except (RuntimeError, LookupError, AssertionError) as error:
            names = some(list(self._members))
            raise ValueError(f"torchtitan's adapter cannot convert {names}: {error}") from error
        contents: dict[str, Content] = {}
        for name, tensor in made.items():
            source = next((old for old, each in self._empty.items() if each is tensor), None)
            if source is not None:
                self._renamed[source] = name
                contents[name] = self._members[source]
            else:
                contents[name] = Adapted(self, name, Described(tensor.dtype, tuple(tensor.shape)))
        return contents

    def made(self, files: Files, name: str) -> torch.Tensor:
        """A result, made with all others unless it is there."""
        with self._lock:
            if name not in self._made:
                self._made = self._convert(
                    {
                        name: _whole(files, content) if self._is_read(name) else self._empty[name]
                        for name, content in self._members.items()
                    }
                )
            return self._made[name]

    def drop(self, name: str) -> None:
        """Let go of a result."""
        with self._lock:
            del self._made[name]

    def _is_read(self, name: str) -> bool:
        return name not in self._renamed


@dataclass(frozen=True, slots=True)
class _Flavor:
    adapter: Any
    parameters: dict[str, Described]
    buffers: dict[str, Described]

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
        described: Mapping[str, Described],
        read: Callable[[str], Stored],
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
        everything = {name: _empty(tensor) for name, tensor in (self.parameters | self.buffers).items()}
        return set(self.adapter.to_hf(everything))


def group_bytes(contents: Mapping[str, Content]) -> int:
    """The most that one thread holds for an adapter: what goes in and what comes out."""
    groups = [content.group for content in contents.values() if isinstance(content, Adapted)]
    return max((2 * group.nbytes for group in groups), default=0)


def _groups(contents: Mapping[str, Content], convert: Convert) -> Iterator[_Group]:
    members: dict[str, dict[str, Content]] = {}
    for name, content in contents.items():
        layer = _LAYER.match(name)
        members.setdefault(layer[0] if layer else name, {})[name] = content
    return (_Group(group, convert) for group in members.values())


def _any_head(names: Iterable[str]) -> bool:
    return any(name.endswith(_HEAD) for name in names)


def _empty(tensor: Described) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, device="meta")


def _whole(files: Files, content: Content) -> torch.Tensor:
    shape = content.tensor.shape
    return content.rows(files, 0, shape[0] if shape else 1).view(shape)


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
    tensors = {name: Described(t.dtype, tuple(t.shape)) for name, t in model.state_dict().items()}
    return _Flavor(
        spec.state_dict_adapter(spec.model, None),
        {name: tensor for name, tensor in tensors.items() if name not in buffers},
        {name: tensor for name, tensor in tensors.items() if name in buffers},
    )
