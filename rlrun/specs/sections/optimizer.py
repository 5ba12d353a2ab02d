"""What an optimizer step is: shared by the policy's `[trainer]` and the critic's `[critic]`."""

from typing import Annotated, Literal

from pydantic import Field

from rlrun.specs.sections.section import Section

Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSpec(Section):
    """An optimizer, its learning rate over time, and how large a gradient may be."""

    optimizer: Literal["adamw", "sgd", "muon"] = "adamw"
    """`muon` orthogonalises the momentum of the layers' matrices (https://kellerjordan.github.io/posts/muon),
    scaled so that AdamW's learning rates hold; embedding, head, experts and norms it leaves to AdamW."""
    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate."""
    betas: tuple[Decay, Decay] = (0.9, 0.98)
    """Decay of Adam's first and second moments; each at least 0 and below 1."""
    eps: float = Field(default=1e-8, gt=0)
    """Adam's denominator term."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Decay of the mean gradient of `sgd` and `muon`."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled weight decay of matrices; norms have none."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients are scaled down to this global norm."""
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """Learning rate after warm-up, over all optimizer steps; `wsd` is constant until it falls linearly over
    the last `decay_steps`."""
    warmup_steps: int = Field(default=0, ge=0)
    """Optimizer steps of linear warm-up from 0."""
    decay_steps: int | None = Field(default=None, ge=1)
    """Optimizer steps in which `wsd` falls. None: a tenth of all."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Where all but the constant schedule end, as a share of `lr`."""
