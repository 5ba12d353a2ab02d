"""How a decoder computes, and how its parameters are held."""

from dataclasses import dataclass

import torch

from rlrun.models.adapters import LoraShape
from rlrun.models.low_precision import LowPrecision
from rlrun.specs.sections.trainer import ParallelSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderOptions:
    """How a decoder computes, and how its parameters are held.

    Example: `DecoderOptions(parallel=ParallelSpec(), dtype=torch.bfloat16, device=torch.device("cpu"))`
    """

    parallel: ParallelSpec
    dtype: torch.dtype
    """A single rank holds its parameters in it. More ranks hold float32 shards, except of frozen parameters,
    and FSDP computes in it."""
    device: torch.device
    section: str = "trainer"
    """The section of the spec that the layout is from, for messages."""
    checkpointing: str = "none"
    """`trainer.activation_checkpointing`"""
    on_host: bool = False
    """Shards are in host memory. A single rank's parameters stay on its device."""
    router_dtype: str = "float32"
    """`trainer.moe.router_dtype`"""
    head_dtype: str = "model"
    """`trainer.head_dtype` of the policy"""
    compiled: bool = False
    """`trainer.compile`"""
    balanced: bool = False
    """Experts have a bias that balances their load."""
    lora: LoraShape | None = None
    """Matrices have adapters of this shape, and all other parameters are frozen."""
    most_tokens: int = 0
    """Greatest number of tokens of a micro-batch that a rank sends to experts; exchanges through buffers
    need it."""
    precision: LowPrecision | None = None
    """Layers multiply in this precision where they can."""
    as_target: bool = False
    """Layers round where SGLang's `rl_on_policy_target` rounds (rlrun.runner.trainer.model.target)."""

    def parameter_dtype(self, *, sharded: bool) -> torch.dtype:
        """Returns the dtype in which parameters are created."""
        return torch.float32 if sharded else self.dtype
