"""The objective that policy-gradient algorithms share: the terms that are added to each algorithm's loss.

An algorithm computes its policy loss for each token. `objective` multiplies it by the correction and the
off-policy mask, adds the KL term, subtracts the entropy bonus, adds the penalty on the log of the ratio and
the divergence from a teacher, and collects the metrics:

    loss = policy loss · correction weight · off-policy mask + kl.coef · KL - entropy_coef · entropy
         + log_ratio_coef · (new - old log-prob)² + distillation.coef · divergence

All of these are `[T]` tensors over the response tokens of a micro-batch. The framework masks and reduces
them.
"""

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field, model_validator

from rlrun.plugins.algorithms.adaptive_entropy import COEF, AdaptiveEntropy
from rlrun.plugins.algorithms.correction import Correction, correction_weight, off_policy_mask
from rlrun.plugins.algorithms.kl import KLSection, KLTerm, RewardKLSection, token_kl
from rlrun.plugins.algorithms.policy_loss import clip_loss
from rlrun.plugins.algorithms.shaping import Distillation
from rlrun.plugins.types import LossInputs, LossOutputs, Needs
from rlrun.specs.sections.section import Section


class ObjectiveParams(Section):
    """The parameters of the shared terms; by default none of them is active."""

    kl: KLSection = KLSection()
    """Penalty on the distance to the reference policy."""
    entropy_coef: float = Field(default=0.0, ge=0)
    """Weight of the entropy bonus; 0 only measures the entropy. With `adaptive_entropy`, the first weight."""
    adaptive_entropy: AdaptiveEntropy | None = None
    """Raise the weight of the entropy bonus in each step whose entropy is below a target, and lower it in the
    others, where the bonus does not act; such as `{ target = 0.2 }`. None: `entropy_coef` is fixed."""
    correction: Correction | None = None
    """Importance correction between trainer and engine, such as `{ type = "tis", high = 2.0 }`. None: no
    correction."""
    normalize_advantages: bool = False
    """Scale advantages to zero mean and unit variance over all trained tokens of the step."""
    distillation: Distillation | None = None
    """Subtract the distance to the model of [teacher] from the advantages, such as `{ coef = 1.0 }`, or add
    the divergence from it to the loss. None: no distillation."""
    opsm: float | None = Field(default=None, gt=0)
    """Off-policy sequence masking: leave out whole samples with A < 0 whose mean engine - new log-prob
    exceeds this value. None: no masking."""
    log_ratio_coef: float = Field(default=0.0, ge=0)
    """Weight of (new - old log-prob)² in the loss, which holds the policy near the old one (Kimi K2.5,
    https://arxiv.org/abs/2602.02276). 0: no such term."""
    top_entropy: float | None = Field(default=None, gt=0, le=1)
    """Train the policy loss only on this share of the step's tokens, those of the highest entropy before the
    update (https://arxiv.org/abs/2506.01939 has 0.2). None: on all tokens."""


class SymmetricClip(BaseModel):
    """A base for parameters whose published `clip_high` belongs to the published `clip`.

    Where a spec sets `clip` alone, the published `clip_high` no longer fits, and `clip` bounds both sides.
    """

    @model_validator(mode="before")
    @classmethod
    def _follow_clip(cls, params: Any) -> Any:
        """Replaces the default of `clip_high` by None, which means "as `clip`", where only `clip` is set."""
        if isinstance(params, Mapping) and "clip" in params:
            return {"clip_high": None, **params}
        return params


class ClipParams(ObjectiveParams):
    """The bounds on the ratio of the new to the old policy in PPO's clipped loss."""

    clip: float = Field(default=0.2, gt=0, lt=1)
    """Lower bound of the ratio is 1 - clip."""
    clip_high: float | None = Field(default=None, gt=0)
    """Upper bound of the ratio is 1 + clip_high. None: as `clip`."""
    dual_clip: float | None = Field(default=None, gt=1)
    """Largest ratio that counts for a negative advantage. None: unbounded."""


class PenalisedParams(ClipParams):
    """Adds a KL penalty in the reward, for algorithms that give each token a reward."""

    kl: RewardKLSection = RewardKLSection()
    """Penalty on the distance to the reference policy."""


def needs_of(
    params: ObjectiveParams,
    group_relative: bool,
    *,
    policy_log_probs: bool = False,
    trainer_log_probs: bool = False,
    **further_needs: bool,
) -> Needs:
    """Returns what the framework must provide for the active terms.

    The other arguments are fields of `Needs` that the algorithm requires whatever terms are active.
    """
    in_reward = params.kl.in_reward if isinstance(params.kl, RewardKLSection) else None
    term = params.distillation
    return Needs(
        reference=bool(params.kl.in_loss or in_reward),
        teacher=term is not None,
        divergence=term.divergence.required if term and term.divergence else None,
        policy_log_probs=policy_log_probs
        or bool(term and term.in_advantages)
        or bool(in_reward or (params.correction and params.correction.normalize)),
        current_log_probs=bool(term and term.in_advantages),
        policy_entropies=params.top_entropy is not None or params.adaptive_entropy is not None,
        entropy_grad=params.entropy_coef > 0 or params.adaptive_entropy is not None,
        state=params.adaptive_entropy is not None,
        trainer_log_probs=trainer_log_probs or params.correction is not None,
        group_relative=group_relative,
        **further_needs,
    )


def clipped_objective(params: ClipParams, inputs: LossInputs, log_ratio: Any) -> LossOutputs:
    """Returns PPO's clipped loss with the shared terms.

    `log_ratio` `[T]` is the log of the ratio of the new to the old policy, with gradient.
    """
    return objective(params, inputs, *clip_terms(params, inputs, log_ratio))


def clip_terms(params: ClipParams, inputs: LossInputs, log_ratio: Any) -> tuple[Any, Any]:
    """Returns PPO's clipped loss `[T]`, and 1 on tokens where clipping changed it."""
    high = params.clip if params.clip_high is None else params.clip_high
    return clip_loss(log_ratio.exp(), inputs.advantages, params.clip, high, params.dual_clip)


def objective(params: ObjectiveParams, inputs: LossInputs, pg_loss: Any, clipped: Any) -> LossOutputs:
    """Returns an algorithm's policy loss with the shared terms, and the metrics of both.

    `pg_loss` `[T]` is the policy loss; `clipped` `[T]` is 1 on tokens where clipping changed it. The
    correction and the off-policy mask change the weight of the policy loss only, never that of other terms.
    """
    metrics: dict[str, Any] = {"clip_frac": clipped, "entropy": inputs.entropy.detach()}
    metrics["advantages"] = inputs.advantages
    if params.top_entropy is not None:
        metrics["top_entropy_frac"] = (inputs.advantages != 0).to(inputs.advantages.dtype)
    metrics["approx_kl"] = (inputs.old_log_probs - inputs.log_probs).detach()
    pg_loss = _weigh_off_policy(params, inputs, pg_loss, metrics)
    metrics["pg_loss"] = pg_loss.detach()
    loss = pg_loss
    if params.kl.in_loss is not None:
        loss = _add_kl(params.kl.in_loss, inputs, loss, metrics)
    coef = params.entropy_coef if params.adaptive_entropy is None else inputs.step_values[COEF]
    if coef > 0:
        loss = loss - coef * inputs.entropy
    if params.log_ratio_coef > 0:
        squared = (inputs.log_probs - inputs.old_log_probs) ** 2
        metrics["log_ratio_squared"] = squared.detach()
        loss = loss + params.log_ratio_coef * squared
    if params.distillation is not None and not params.distillation.in_advantages:
        assert inputs.divergence is not None, "needs.divergence was declared"
        metrics["divergence"] = inputs.divergence.detach()
        loss = loss + params.distillation.coef * inputs.divergence
    return LossOutputs(loss=loss, metrics=metrics)


def _weigh_off_policy(
    params: ObjectiveParams, inputs: LossInputs, pg_loss: Any, metrics: dict[str, Any]
) -> Any:
    """Returns the policy loss times the correction's weight and the off-policy mask; adds their metrics."""
    if params.correction is not None:
        correction = correction_weight(params.correction, inputs)
        pg_loss = pg_loss * correction.weight
        metrics |= {"tis/mean": correction.ratio, "tis/clip_frac": correction.outside}
        if params.correction.rejection is not None:
            metrics["tis/reject_frac"] = correction.rejected
        if params.correction.veto is not None:
            metrics["tis/veto_frac"] = correction.vetoed
    if params.opsm is not None:
        keep = off_policy_mask(inputs, params.opsm)
        pg_loss = pg_loss * keep
        metrics["opsm_frac"] = 1 - keep
    return pg_loss


def _add_kl(term: KLTerm, inputs: LossInputs, loss: Any, metrics: dict[str, Any]) -> Any:
    """Returns the loss plus the KL to the reference, which is only measured where its weight is 0."""
    assert inputs.reference_log_probs is not None, "needs.reference was declared"
    divergence = token_kl(term, inputs.log_probs, inputs.reference_log_probs, inputs.old_log_probs)
    if inputs.kl_weights is not None:
        divergence = divergence * inputs.kl_weights
    metrics["kl_loss"] = divergence.detach()
    return loss + term.coef * divergence if term.coef > 0 else loss
