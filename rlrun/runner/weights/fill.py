"""Copies a complete set of named tensors to where it belongs."""

from collections.abc import Iterable

import torch


class SegmentError(ValueError):
    """Weights, or a segment of them, that are not what was laid out."""


def fill(views: dict[str, torch.Tensor], tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copy each tensor into the view of its name, converting its dtype; `views` is used up.

    SegmentError when a tensor is unknown or given twice, of another shape, or missing.
    """
    total = len(views)
    for name, tensor in tensors:
        view = views.pop(name, None)
        if view is None:
            raise SegmentError(f"{name}: not among the weights this segment was laid out for, or given twice")
        if view.shape != tensor.shape:
            raise SegmentError(f"{name} has shape {tuple(tensor.shape)}, laid out as {tuple(view.shape)}")
        view.copy_(tensor.detach())
    if views:
        raise SegmentError(f"{len(views)} of {total} tensors missing, the first: {next(iter(views))}")
