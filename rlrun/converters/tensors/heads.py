"""Orders the rows of a tensor by head: checkpoints store whole sections, such as queries, keys and values.

section by section  q0 q1 k0 k1 v0 v1   ─▶   by head  q0 k0 v0 q1 k1 v1
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlrun.converters.tensors.content import Content, RowByRow
from rlrun.converters.tensors.stored import Files


def by_head(rows: torch.Tensor, sections: Sequence[int]) -> torch.Tensor:
    """Returns the rows of a tensor that has one section after the other, head by head.

    `sections`: how many rows of each section a head has.
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
class Reordered(RowByRow):
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
    if isinstance(content, Reordered) and content.heads_first != heads_first:
        return content.source
    return Reordered(content, sections, heads_first)
