"""Precisions by name, and torch's threads."""

import torch


def parse_dtype(name: str) -> torch.dtype:
    """`"bfloat16"` -> `torch.bfloat16`. ValueError for what is no type of torch."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is no type of torch")
    return dtype


def keeps_precision(name: str) -> bool:
    """Whether a weight keeps its precision whatever the others get: a bias that decides which experts are
    chosen.
    """
    return name.endswith("e_score_correction_bias")


def torch_threads(count: int) -> None:
    """On how many threads torch computes each operation; one where the caller has threads of its own."""
    torch.set_num_threads(count)
