"""A content in parts that fit into memory, and as bytes."""

from collections.abc import Iterator

import torch

from rlrun.converters.tensors.content import Content


def blocks(content: Content, block_bytes: int, step: int | None = None) -> Iterator[tuple[int, int]]:
    """Ranges of rows that make up the content, none larger than `block_bytes` unless `step` (the content's
    own) asks for more.
    """
    if not content.tensor.nbytes:
        return
    count = content.tensor.shape[0] if content.tensor.shape else 1
    step = step or content.step
    size = max(1, block_bytes // (row_bytes(content) * step)) * step
    for first in range(0, count, size):
        yield first, min(first + size, count)


def as_bytes(rows: torch.Tensor) -> torch.Tensor:
    """`[bytes]` of some rows."""
    return rows.contiguous().view(-1).view(torch.uint8)


def row_bytes(content: Content) -> int:
    """Bytes of a row; of the whole where it is a scalar."""
    shape = content.tensor.shape
    return content.tensor.nbytes // shape[0] if shape else content.tensor.nbytes
