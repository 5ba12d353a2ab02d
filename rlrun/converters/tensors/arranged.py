"""Contents that rearrange the rows of other contents: stacked, with other rotary pairs, or transposed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlrun.converters.tensors.content import Cast, Content, Plain, RowByRow
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import Files, stack


@dataclass(frozen=True, slots=True)
class Stacked:
    """Contents of one shape and type, stacked along a new first dimension."""

    members: tuple[Content, ...]
    step: int = 1

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        member = self.members[0].tensor
        return TensorInfo(member.dtype, (len(self.members), *member.shape))

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns the members `first` to `last`."""
        shape = self.members[0].tensor.shape
        return torch.stack([member.rows(files, 0, shape[0]) for member in self.members[first:last]])


@dataclass(frozen=True, slots=True)
class Paired(RowByRow):
    """Query or key rows, reordered within each head for another order of rotary pairs.

    Hugging Face stores the two members of a rotated pair half a head apart, torchtitan's Llama side by side.
    """

    head: int
    """Number of rows per head."""
    side_by_side: bool
    """Whether the result, rather than the source, has pairs side by side."""

    @property
    def step(self) -> int:
        """Returns the smallest number of rows that is whole heads and a multiple of the source's step."""
        return math.lcm(self.head, self.source.step)

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns rows of the source, reordered within each head."""
        source = self.source.rows(files, first, last)
        pair = (2, self.head // 2) if self.side_by_side else (self.head // 2, 2)
        heads = source.view(-1, *pair, *source.shape[1:])
        return heads.transpose(1, 2).reshape(source.shape)


@dataclass(frozen=True, slots=True)
class Transposed(RowByRow):
    """The source's matrices, one per index of its first dimension, each transposed."""

    @property
    def tensor(self) -> TensorInfo:
        """The type and shape of the tensor."""
        described = self.source.tensor
        return TensorInfo(described.dtype, (described.shape[0], described.shape[2], described.shape[1]))

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns the matrices `first` to `last`, transposed."""
        return self.source.rows(files, first, last).transpose(1, 2).contiguous()


def transpose(content: Content) -> Content:
    """Returns a content's matrices transposed; transposing twice returns the original content."""
    if isinstance(content, Cast) and isinstance(content.source, Transposed):
        return Cast(content.source.source, content.dtype)
    return content.source if isinstance(content, Transposed) else Transposed(content)


def stack_contents(members: list[Content]) -> Content:
    """Stacks contents along a new first dimension. Stored tensors of one type stay a copy of bytes."""
    plains = [member for member in members if isinstance(member, Plain)]
    alike = len({(member.dtype, member.stored.dtype) for member in plains}) == 1
    if len(plains) == len(members) and alike:
        return Plain(stack(member.stored for member in plains), plains[0].dtype)
    return Stacked(tuple(members))


def by_head(rows: torch.Tensor, sections: Sequence[int]) -> torch.Tensor:
    """Returns the rows of a tensor that has one section after the other, head by head.

    `sections`: how many rows of each section a head has.

    section by section  q0 q1 k0 k1 v0 v1   ─▶   by head  q0 k0 v0 q1 k1 v1
    """
    heads = len(rows) // sum(sections)
    parts = rows.split([heads * size for size in sections])
    return torch.cat([part.unflatten(0, (heads, -1)) for part in parts], dim=1).flatten(0, 1)


def by_section(rows: torch.Tensor, sections: Sequence[int]) -> torch.Tensor:
    """Returns the rows of a tensor that has one head after the other, section by section."""
    heads = len(rows) // sum(sections)
    parts = rows.unflatten(0, (heads, -1)).split(list(sections), dim=1)
    return torch.cat([part.flatten(0, 1) for part in parts])


@dataclass(frozen=True, slots=True)
class _Reordered(RowByRow):
    """A source with its rows ordered by head, or section by section."""

    sections: tuple[int, ...]
    """How many rows of each section a head has."""
    heads_first: bool
    """Whether the result, rather than the source, is ordered by head."""

    @property
    def step(self) -> int:
        """The number of all rows, because every section contributes to each head."""
        return self.source.tensor.shape[0]

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Returns all rows in the other order."""
        order = by_head if self.heads_first else by_section
        return order(self.source.rows(files, first, last), self.sections)


def reorder(content: Content, sections: tuple[int, ...], *, heads_first: bool) -> Content:
    """Returns a content with its rows in another order; reordering back returns the original content."""
    if isinstance(content, _Reordered) and content.heads_first != heads_first:
        return content.source
    return _Reordered(content, sections, heads_first)
