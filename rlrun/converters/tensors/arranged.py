"""Contents whose rows are others', put elsewhere: side by side, in pairs, transposed."""

import math
from dataclasses import dataclass

import torch

from rlrun.converters.tensors.content import Cast, Content, Plain, RowByRow
from rlrun.converters.tensors.safetensors_format import TensorInfo
from rlrun.converters.tensors.stored import Files, stack


@dataclass(frozen=True, slots=True)
class Stacked:
    """Contents of one shape and type side by side, along a new first dimension."""

    members: tuple[Content, ...]
    step: int = 1

    @property
    def tensor(self) -> TensorInfo:
        """Type and shape."""
        member = self.members[0].tensor
        return TensorInfo(member.dtype, (len(self.members), *member.shape))

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Some members, whole."""
        shape = self.members[0].tensor.shape
        return torch.stack([member.rows(files, 0, shape[0]) for member in self.members[first:last]])


@dataclass(frozen=True, slots=True)
class Paired:
    """Query or key rows in the other order of rotary pairs, head by head.

    Hugging Face keeps the two halves of a rotated pair half a head apart, torchtitan's Llama side by side.
    """

    source: Content
    head: int
    """Rows of a head."""
    side_by_side: bool
    """The order that is made."""

    @property
    def tensor(self) -> TensorInfo:
        """Type and shape."""
        return self.source.tensor

    @property
    def step(self) -> int:
        """A whole head, and what the source needs."""
        return math.lcm(self.head, self.source.step)

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """The heads of the source, each reordered."""
        source = self.source.rows(files, first, last)
        pair = (2, self.head // 2) if self.side_by_side else (self.head // 2, 2)
        heads = source.view(-1, *pair, *source.shape[1:])
        return heads.transpose(1, 2).reshape(source.shape)


@dataclass(frozen=True, slots=True)
class Transposed(RowByRow):
    """Matrices, one for each row of the source, with their own rows and columns exchanged."""

    @property
    def tensor(self) -> TensorInfo:
        """Type and shape."""
        described = self.source.tensor
        return TensorInfo(described.dtype, (described.shape[0], described.shape[2], described.shape[1]))

    def rows(self, files: Files, first: int, last: int) -> torch.Tensor:
        """Some matrices, whole."""
        return self.source.rows(files, first, last).transpose(1, 2).contiguous()


def transpose(content: Content) -> Content:
    """Matrices with rows and columns exchanged; twice is not at all."""
    if isinstance(content, Cast) and isinstance(content.source, Transposed):
        return Cast(content.source.source, content.dtype)
    return content.source if isinstance(content, Transposed) else Transposed(content)


def stack_contents(members: list[Content]) -> Content:
    """Contents along a new first dimension; a copy of bytes where they are."""
    plains = [member for member in members if isinstance(member, Plain)]
    alike = len({(member.dtype, member.stored.dtype) for member in plains}) == 1
    if len(plains) == len(members) and alike:
        return Plain(stack(member.stored for member in plains), plains[0].dtype)
    return Stacked(tuple(members))
