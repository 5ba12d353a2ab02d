"""What policy-gradient algorithms share around their own loss: correction, KL, entropy, metrics."""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, model_validator

from rlrun.plugins.algorithms.correction import Correction, correction_weight, off_policy_mask
from rlrun.plugins.algorithms.kl import KLSection, RewardKLSection, token_kl
from rlrun.plugins.algorithms.policy_loss import clip_loss
from rlrun.plugins.algorithms.shaping import Distillation
from rlrun.plugins.types import LossInputs, LossOutputs, Needs
from rlrun.specs.sections.section import Section


class ObjectiveParams(Section):
    """Terms any policy-gradient algorithm can add; by default none."""

    kl: KLSection = KLSection()
    """Distance to the reference policy."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus; 0 measures the entropy and trains nothing with it."""
    correction: Correction | None = None
    """Importance correction between trainer and engine, `{ type = "tis", high = 2.0 }`. None: none."""
    normalize_advantages: bool = False
    """Zero mean and unit variance over all trained tokens of the step."""
    distillation: Distillation | None = None
    """Distance to the model of [teacher], `{ coef = 1.0 }`, taken off the advantages. None: none."""
    opsm: float | None = Field(default=None, gt=0)
    """Leaves out whole samples with A < 0 whose mean engine - new log-prob exceeds this. None: none."""


class SymmetricClip(BaseModel):
    """For parameters with a published default of `clip_high`: it goes with the published `clip` only."""

    @model_validator(mode="before")
    @classmethod
    def _follow_clip(cls, params: Any) -> Any:
        """A `clip` that is given alone bounds both sides."""
        if isinstance(params, Mapping) and "clip" in params:
            return {"clip_high": None, **params}
        return params


class ClipParams(ObjectiveParams):
    """How far the ratio of policy to old policy counts."""

    clip: float = Field(default=0.2, gt=0, lt=1)
    """The ratio counts no lower than 1 - clip."""
    clip_high: float | None = Field(default=None, gt=0)
    """The ratio counts no higher than 1 + clip_high. None: as `clip`."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Largest ratio that counts for a negative advantage. None: unbounded."""


class PenalisedParams(ClipParams):
    """For algorithms whose tokens have rewards of their own, which a KL penalty can lower."""

    kl: RewardKLSection = RewardKLSection()
    """Distance to the reference policy."""


def needs_of(params: ObjectiveParams, group_relative: bool, **others: bool) -> Needs:
    """What the framework must provide for these terms; `others` are further needs by name."""
    in_reward = params.kl.in_reward if isinstance(params.kl, RewardKLSection) else None
    return Needs(
        reference=bool(params.kl.in_loss or in_reward),
        teacher=params.distillation is not None,
        policy_log_probs=bool(params.distillation or in_reward),
        entropy_grad=params.entropy_coef > 0,
        trainer_log_probs=params.correction is not None,
        group_relative=group_relative,
        **others,
    )


def clipped_objective(params: ClipParams, inputs: LossInputs, log_ratio: Any) -> LossOutputs:
    """The clipped loss of `exp(log_ratio)`, `[T]`, with the shared terms around it."""
    high = params.clip if params.clip_high is None else params.clip_high
    pg_loss, clipped = clip_loss(log_ratio.exp(), inputs.advantages, params.clip, high, params.dual_clip)
    return objective(params, inputs, pg_loss, clipped)


def objective(params: ObjectiveParams, inputs: LossInputs, pg_loss: Any, clipped: Any) -> LossOutputs:
    """The algorithm's policy loss `[T]` with the shared terms around it.

    The correction and the off-policy mask weigh the policy loss alone, never KL or entropy.
    """
    metrics: dict[str, Any] = {"clip_frac": clipped, "entropy": inputs.entropy.detach()}
    metrics["advantages"] = inputs.advantages
    metrics["approx_kl"] = (inputs.old_log_probs - inputs.log_probs).detach()
    if params.correction is not None:
        found = correction_weight(params.correction, inputs)
        pg_loss = pg_loss * found.weight
        metrics |= {"tis/mean": found.ratio, "tis/clip_frac": found.outside}
        if params.correction.veto is not None:
            metrics["tis/veto_frac"] = found.vetoed
    if params.opsm is not None:
        keep = off_policy_mask(inputs, params.opsm)
        pg_loss = pg_loss * keep
        metrics["opsm_frac"] = 1 - keep
    metrics["pg_loss"] = pg_loss.detach()
    loss = pg_loss
    if (term := params.kl.in_loss) is not None:
        assert inputs.reference_log_probs is not None, "needs.reference was declared"
        divergence = token_kl(term, inputs.log_probs, inputs.reference_log_probs, inputs.old_log_probs)
        metrics["kl_loss"] = divergence.detach()
        loss = loss + term.coef * divergence if term.coef > 0 else loss
    if params.entropy_coef > 0:
        loss = loss - params.entropy_coef * inputs.entropy
    return LossOutputs(loss=loss, metrics=metrics)
