"""The optimizer settings, which the policy's `[trainer]` and the critic's `[critic]` share."""

from typing import Annotated, Literal

from pydantic import Field

from rlrun.specs.sections.section import Section

Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSpec(Section):
    """An optimizer, its learning rate schedule and its gradient clipping."""

    optimizer: Literal["adamw", "adamw_8bit", "sgd", "muon"] = "adamw"
    """The optimizer. `adamw_8bit` holds Adam's two moments in 8 bits each (arXiv:2110.02861, by torchao), so
    in 2 bytes per parameter instead of 8. `muon` orthogonalises the momentum of the layers' matrices, each
    expert's by itself (https://kellerjordan.github.io/posts/muon), scaled so that learning rates of AdamW are
    suitable; embedding, head and norms are updated by AdamW."""
    lr: float = Field(default=1e-6, gt=0)
    """Peak learning rate."""
    betas: tuple[Decay, Decay] = (0.9, 0.98)
    """Decay rates of Adam's first and second moments, each at least 0 and below 1."""
    eps: float = Field(default=1e-8, gt=0)
    """Constant in Adam's denominator."""
    momentum: float = Field(default=0.95, ge=0, lt=1)
    """Decay rate of the gradient's moving average in `sgd` and `muon`."""
    weight_decay: float = Field(default=0.1, ge=0)
    """Decoupled weight decay of matrices. Norms are never decayed."""
    reset_optimizer: Literal["never", "rollout"] = "never"
    """When the optimizer forgets its moments and the count of its bias correction. `rollout`: before the
    first optimizer step of each step, so that gradients of earlier samples do not move the weights."""
    max_grad_norm: float = Field(default=1.0, gt=0)
    """Gradients whose global norm is larger are scaled down to this norm."""
    schedule: Literal["constant", "linear", "cosine", "wsd"] = "constant"
    """Learning rate after the warm-up, over all optimizer steps of the run. `wsd` is constant, then falls
    linearly in the last `decay_steps`."""
    warmup_steps: int = Field(default=0, ge=0)
    """Number of optimizer steps in which the learning rate rises linearly from 0."""
    warmup_ratio: float | None = Field(default=None, ge=0, lt=1)
    """The same number as a share of all optimizer steps of the run, for jobs whose length follows from their
    data. Set at most one of the two. None: `warmup_steps`."""
    decay_steps: int | None = Field(default=None, ge=1)
    """Number of optimizer steps at the end in which `wsd` decays. None: a tenth of all optimizer steps."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate as a share of `lr`, for every schedule except `constant`."""

    def warmup_of(self, total: int) -> int:
        """Returns the number of optimizer steps of the warm-up, of `total`."""
        if self.warmup_ratio is None:
            return self.warmup_steps
        return min(round(self.warmup_ratio * total), max(total - 1, 0))
