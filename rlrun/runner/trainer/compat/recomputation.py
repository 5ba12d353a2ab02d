"""torchtitan's activation checkpointing: recomputes activations in the backward pass."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import rlrun.runner.trainer.compat.device  # noqa: F401  (before torchtitan)

# isort: split
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC


class _Selective(SelectiveAC):
    """torchtitan's choice of saved results, plus rlrun's attention on CPUs and to chosen keys, and the choice
    of keys, which are expensive to recompute.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):
        pass

    def get_save_ops(self) -> set[Any]:
        names = ("attention", "block_attention", "choose_keys", "sparse_attention")
        own = [getattr(torch.ops.rlrun, name).default for name in names if hasattr(torch.ops.rlrun, name)]
        return super().get_save_ops().union(own)


def checkpoint_activations(model: nn.Module, kind: str) -> None:
    """Makes every layer recompute in the backward pass what the kind, "selective" or "full", does not
    save.
    """
    policy = _Selective if kind == "selective" else FullAC
    # A decoder draws no random numbers.
    policy.Config(preserve_rng_state=False).build().apply(model)


def checkpoint_blocks(tower: nn.Module) -> None:
    """Makes every block of transformers' vision tower recompute all of its activations."""
    blocks: Any = tower.blocks
    for index, block in enumerate(blocks):
        blocks[index] = checkpoint_wrapper(block, preserve_rng_state=False)
