"""Copies a complete set of named tensors into the views that were laid out for them."""

from collections.abc import Iterable

import torch


class SegmentError(ValueError):
    """Raised when weights, or the segment that holds them, differ from what was laid out."""


def copy_all(views: dict[str, torch.Tensor], tensors: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Copies each tensor into the view of its name, converted to the view's dtype; empties `views`.

    Views in host memory can be read when this returns: if tensors come from a GPU, the host waits once, after
    the last of them. Raises SegmentError when a tensor is unknown, comes twice, has another shape, or is
    missing.
    """
    total, copying = len(views), None
    for name, tensor in tensors:
        view = views.pop(name, None)
        if view is None:
            raise SegmentError(f"{name}: not among the weights this segment was laid out for, or sent twice")
        if view.shape != tensor.shape:
            raise SegmentError(
                f"{name} has shape {tuple(tensor.shape)}; the segment was laid out for {tuple(view.shape)}"
            )
        view.copy_(tensor.detach(), non_blocking=True)
        if view.device.type == "cpu" and tensor.is_cuda:
            copying = tensor.device
    if views:
        raise SegmentError(f"{len(views)} of {total} tensors missing, the first: {next(iter(views))}")
    if copying is not None:
        torch.cuda.synchronize(copying)
