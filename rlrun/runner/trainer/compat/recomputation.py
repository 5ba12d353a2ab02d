"""torchtitan's ways to compute activations again in the backward pass."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

import rlrun.runner.trainer.compat.device  # noqa: F401  (before torchtitan)

# isort: split
from torchtitan.distributed.activation_checkpoint import FullAC, SelectiveAC


class _Selective(SelectiveAC):
    """torchtitan's choice, and the attention of this package on CPU."""

    @dataclass(kw_only=True, slots=True)
    class Config(SelectiveAC.Config):
        pass

    def get_save_ops(self) -> set[Any]:
        own = getattr(torch.ops.rlrun_trainer, "attention", None)
        return super().get_save_ops() | ({own.default} if own else set())


def checkpoint_activations(model: nn.Module, kind: str) -> None:
    """Let every layer compute again in the backward pass what "selective" or "full" does not keep."""
    policy = _Selective if kind == "selective" else FullAC
    # nothing in a decoder draws random numbers
    policy.Config(preserve_rng_state=False).build().apply(model)
