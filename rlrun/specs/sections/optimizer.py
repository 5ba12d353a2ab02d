"""The optimizer settings, which the policy's `[trainer]` and the critic's `[critic]` share."""

from typing import Annotated, Literal

from pydantic import Field

from rlrun.specs.sections.section import Section

Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerSpec(Section):
    """An optimizer, its learning rate schedule and its gradient clipping."""

    optimizer: Literal["adamw", "adamw_8bit", "adamw_stateless", "sgd", "muon"] = "adamw"
    """The optimizer. `adamw_8bit` holds Adam's two moments in 8 bits each (arXiv:2110.02861, by torchao), so
    in 2 bytes per parameter instead of 8. `adamw_stateless` takes every step as AdamW's first one, and holds
    none. `muon` orthogonalises the momentum of the layers' matrices, each
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
    """Learning rate after the warm-up, over all optimizer steps of the run or the first `schedule_steps`.
    `wsd` is constant, then falls in the last `decay_steps`."""
    schedule_steps: int | None = Field(default=None, ge=1)
    """Number of optimizer steps, warm-up included, after which the schedule has ended: more than the run has,
    where the run is the first part of a longer one, or fewer, where its last steps keep the final learning
    rate. None: all optimizer steps of the run."""
    warmup_steps: int = Field(default=0, ge=0)
    """Number of optimizer steps in which the learning rate rises linearly, from `warmup_start_ratio`."""
    warmup_ratio: float | None = Field(default=None, ge=0, lt=1)
    """The same number as a share of all optimizer steps of the run, for jobs whose length follows from their
    data. Set at most one of the two. None: `warmup_steps`."""
    warmup_start_ratio: float = Field(default=0.0, ge=0, le=1)
    """Learning rate that the warm-up rises from, as a share of `lr`. The first optimizer step is already one
    part of the way above it."""
    decay_steps: int | None = Field(default=None, ge=1)
    """Number of optimizer steps at the end in which `wsd` decays. None: a tenth of the schedule's."""
    decay_curve: Literal["linear", "cosine", "exponential", "sqrt"] = "linear"
    """How `wsd` falls, over the share x of its decay: `linear` is 1 - x, `cosine` half a wave, `exponential`
    2 · 0.5^x - 1, `sqrt` 1 - √x, which falls fastest at first (arXiv:2405.18392)."""
    min_lr_ratio: float = Field(default=0.0, ge=0, le=1)
    """Final learning rate as a share of `lr`, for every schedule except `constant`."""

    def warmup_of(self, total: int) -> int:
        """Returns the number of optimizer steps of the warm-up, of `total`."""
        if self.warmup_ratio is None:
            return self.warmup_steps
        return min(round(self.warmup_ratio * total), max(total - 1, 0))

    def schedule_of(self, total: int) -> int:
        """Returns the optimizer step at which the schedule has ended, in a run of `total`."""
        return self.schedule_steps or total
