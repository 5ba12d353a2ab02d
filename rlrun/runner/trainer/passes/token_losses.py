"""The algorithm's loss of each token of a micro-batch, which the trainer reduces and `rlrun conform` compares
with another trainer's.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from rlrun.plugins.protocols import Algorithm
from rlrun.plugins.types import LossInputs, LossOutputs
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.contracts.hooks import Hooks
from rlrun.runner.trainer.passes.packed_batch import LossBatch
from rlrun.runner.trainer.transfers import to_device

NO_HOOKS = Hooks()


def token_losses(
    algorithm: Algorithm,
    batch: LossBatch,
    log_probs: torch.Tensor,
    entropy: torch.Tensor,
    old: torch.Tensor,
    *,
    step_values: Mapping[str, float],
    divergence: torch.Tensor | None = None,
    hooks: Hooks = NO_HOOKS,
) -> LossOutputs:
    """Returns token losses, and token values of the metrics: the algorithm's and rlrun's.

    On tokens that are not trained, every model's log-probs are replaced by the policy's. Otherwise a token
    that the policy would never have written, such as a tool's answer, could have an infinite loss (k3), and
    infinity times its weight of 0 is NaN. The divergence from the teacher, where there is one, is 0 there,
    and in samples that are not distilled.
    """
    trained, policy = batch.loss_mask > 0, log_probs.detach()
    old = old.where(trained, policy)
    reference = batch.reference_log_probs
    distilled = trained if batch.distilled is None else trained & (batch.distilled > 0)
    inputs = LossInputs(
        log_probs=log_probs,
        entropy=entropy,
        old_log_probs=old,
        rollout_log_probs=batch.rollout_log_probs.where(trained, policy),
        reference_log_probs=None if reference is None else reference.where(trained, policy),
        advantages=batch.advantages,
        mask=batch.loss_mask,
        sample=batch.sample,
        num_samples=batch.num_samples,
        marks=batch.marks,
        kl_weights=batch.kl_weights,
        divergence=None if divergence is None else divergence.where(distilled, 0.0),
        step_values=step_values,
    )
    outputs = algorithm.loss(hooks.on_batch(inputs))
    values = {**outputs.metrics, "entropy": entropy.detach()}
    if algorithm.needs.old_log_probs:
        values["approx_kl"] = (old - log_probs).detach()
    return LossOutputs(outputs.loss, values)


def score_losses(algorithm: Algorithm, batch: LossBatch, scores: torch.Tensor) -> LossOutputs:
    """Returns token losses, and the algorithm's token values of the metrics, of a model that gives each
    sample one of `[B]` scores.
    """
    nothing = torch.zeros_like(batch.loss_mask)
    return algorithm.loss(
        LossInputs(
            log_probs=nothing,
            entropy=nothing,
            old_log_probs=nothing,
            rollout_log_probs=nothing,
            reference_log_probs=None,
            advantages=batch.advantages,
            mask=batch.loss_mask,
            sample=batch.sample,
            num_samples=batch.num_samples,
            scores=scores,
        )
    )


def last_scores(scores: torch.Tensor, sequences: Sequence[TrainSequence]) -> torch.Tensor:
    """Returns `[B]` the score of each sequence after its last token, of `[R + B]` before each of its response
    tokens and after the last.
    """
    ends = np.cumsum([len(sequence.loss_mask) + 1 for sequence in sequences], dtype=np.int64) - 1
    return scores.index_select(0, to_device(ends, scores.device))
