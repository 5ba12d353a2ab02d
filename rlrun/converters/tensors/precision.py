"""Parses names of dtypes, and sets torch's number of threads."""

import torch


def parse_dtype(name: str) -> torch.dtype:
    """Returns the dtype of a name: `torch.bfloat16` for `"bfloat16"`. Raises ValueError for other names."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a torch dtype; for example, use 'bfloat16'")
    return dtype


def keeps_precision(name: str) -> bool:
    """Returns whether a weight is never cast: the bias by which a router chooses experts."""
    return name.endswith("e_score_correction_bias")


def torch_threads(count: int) -> None:
    """Sets the number of threads per torch operation; use 1 if the caller runs several threads."""
    torch.set_num_threads(count)


def is_code(dtype: torch.dtype) -> bool:
    """Returns whether numbers of this type are codes of quantised weights, or their exponents."""
    return dtype.itemsize == 1 or dtype == torch.int32
