"""Rotary position embedding tables (Su et al. 2021, arXiv:2104.09864), with Llama 3's and linear scaling."""

import math
from collections.abc import Mapping
from typing import Any

import torch


def rope_tables(rope: Mapping[str, Any], head_dim: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines `[length, head_dim / 2]` in float32. Raises ValueError for an unknown `rope_type`."""
    steps = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    frequencies = 1.0 / rope["rope_theta"] ** steps
    kind = rope["rope_type"]
    if kind == "llama3":
        frequencies = _llama3(frequencies, rope)
    elif kind == "linear":
        frequencies = frequencies / rope["factor"]
    elif kind != "default":
        raise ValueError(f"rope_type {kind!r}; the native engine computes default, linear and llama3")
    angles = torch.outer(torch.arange(length, dtype=torch.float32), frequencies)
    return angles.cos().contiguous(), angles.sin().contiguous()


def _llama3(frequencies: torch.Tensor, rope: Mapping[str, Any]) -> torch.Tensor:
    """Stretch long wavelengths by `factor`, keep short ones, blend in between (Llama 3.1)."""
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    original = rope["original_max_position_embeddings"]
    turns = original * frequencies / (2 * math.pi)  # full turns within the original context
    blend = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * frequencies / factor + blend * frequencies
