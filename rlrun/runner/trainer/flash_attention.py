"""Chooses the kernel behind torch's variable-length attention, for the whole process.

torch's own kernel is FlashAttention 2. FlashAttention 3 is a package of its own, written for Hopper GPUs;
torch registers it in place of its own (`torch.nn.attention.activate_flash_attention_impl`, which torchtitan
calls too).
"""

import torch
from torch.nn.attention import activate_flash_attention_impl

HOPPER = 9
"""The major number of the compute capability of H100, H200 and H800."""


def use_flash_attention(version: str, device: torch.device) -> None:
    """Makes this process use `trainer.flash_attention`. Raises ValueError, with the remedy, if it cannot."""
    if version == "FA2":
        return
    if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] != HOPPER:
        found = torch.cuda.get_device_name(device) if device.type == "cuda" else "a CPU"
        raise ValueError(
            f'trainer.flash_attention = "{version}" needs a Hopper GPU (H100, H200), and this rank has '
            f"{found}: remove trainer.flash_attention"
        )
    try:
        activate_flash_attention_impl(version)
    except (ImportError, RuntimeError) as error:
        raise ValueError(
            f'trainer.flash_attention = "{version}" needs the package flash_attn_3, whose module '
            f"flash_attn_interface cannot be used here ({error}): install it on every node of the trainer, "
            "or remove trainer.flash_attention"
        ) from error
