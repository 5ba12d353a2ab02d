"""Splits contents into blocks of rows that fit into memory, and views rows as bytes."""

from collections.abc import Iterator

import torch

from rlrun.converters.tensors.content import Content


def blocks(content: Content, block_bytes: int, step: int | None = None) -> Iterator[tuple[int, int]]:
    """Yields ranges of rows that cover the content.

    A range has at most `block_bytes`, but at least `step` rows (by default the content's step).
    """
    if not content.tensor.nbytes:
        return
    count = content.tensor.shape[0] if content.tensor.shape else 1
    step = step or content.step
    size = max(1, block_bytes // (row_bytes(content) * step)) * step
    for first in range(0, count, size):
        yield first, min(first + size, count)


def as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """Returns rows as a flat tensor of bytes."""
    return rows.contiguous().view(-1).view(torch.uint8)


def row_bytes(content: Content) -> int:
    """Returns the number of bytes per row; for a scalar, of the scalar."""
    shape = content.tensor.shape
    return content.tensor.nbytes // shape[0] if shape else content.tensor.nbytes
