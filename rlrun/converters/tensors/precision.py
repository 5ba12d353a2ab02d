"""Parses names of types, and sets torch's number of threads."""

import torch


def parse_dtype(name: str) -> torch.dtype:
    """Returns the type of a name, such as `torch.bfloat16` for `"bfloat16"`. Raises ValueError."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a type of torch; for example, use 'bfloat16'")
    return dtype


def keeps_precision(name: str) -> bool:
    """Returns whether a weight is never cast: the bias by which a router chooses experts."""
    return name.endswith("e_score_correction_bias")


def torch_threads(count: int) -> None:
    """Sets the number of threads per torch operation; use 1 if the caller runs several threads."""
    torch.set_num_threads(count)
