"""The algorithm's loss over an optimizer step's micro-batches: forward, backward, metrics."""

from collections.abc import Mapping, Sequence

import torch

from rlrun.plugins.protocols import Algorithm
from rlrun.plugins.types import LossOutputs
from rlrun.runner.contracts.carriers import DIFFERENCE, TrainSequence
from rlrun.runner.contracts.hooks import Hooks
from rlrun.runner.trainer.passes.meter import Meter
from rlrun.runner.trainer.passes.packed_batch import LossBatch, make_loss_batch
from rlrun.runner.trainer.passes.packed_model import MtpOutputs, PackedModel, mtp_loss
from rlrun.runner.trainer.passes.stopwatch import Stopwatch
from rlrun.runner.trainer.passes.token_losses import NO_HOOKS, last_scores, score_losses, token_losses
from rlrun.specs.sections.trainer import TrainerSpec

Outputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]
"""`[R]` log-probs, entropies and, where the algorithm needs them, divergences from the teacher."""


class LossPass:
    """Runs forward and backward passes with an algorithm's loss."""

    def __init__(
        self,
        model: PackedModel,
        algorithm: Algorithm,
        spec: TrainerSpec,
        device: torch.device,
        hooks: Hooks = NO_HOOKS,
    ) -> None:
        self._model, self._algorithm, self._device, self._hooks = model, algorithm, device, hooks
        self._old_is_rollout = spec.old_log_probs == "rollout"
        self._old_is_exact = spec.old_log_probs == "trainer"
        self._mtp_weight = spec.mtp_loss
        self._values: Mapping[str, float] = {}

    def accumulate(
        self,
        batches: Sequence[Sequence[TrainSequence]],
        scales: Sequence[Sequence[float]],
        values: Mapping[str, float],
        meter: Meter,
        stopwatch: Stopwatch,
        *,
        has_cross_entropy: bool = False,
    ) -> None:
        """Adds the micro-batches' gradients to the parameters, their metrics to `meter`, and the times of the
        passes to `stopwatch`.

        `scales` are the sequences' weights in the optimizer step, and `values` the algorithm's numbers of it.
        `has_cross_entropy`: some sequence of the step, perhaps another rank's, has weights for the
        cross-entropy of its tokens.
        """
        self._values = values

        def loss_of(
            index: int,
            log_probs: torch.Tensor,
            entropy: torch.Tensor,
            mtp: MtpOutputs | None = None,
            divergence: torch.Tensor | None = None,
        ) -> torch.Tensor:
            outputs = log_probs, entropy, divergence
            loss, batch = self._measured_loss(batches[index], scales[index], outputs, meter)
            if has_cross_entropy:
                loss = loss + _cross_entropy(batch, log_probs, meter)
            return loss if mtp is None else loss + self._mtp_weight * mtp_loss(mtp, batch, meter)

        self._model.accumulate(batches, loss_of, self._algorithm.needs.entropy_grad, stopwatch)
        if not self._model.has_losses:
            # All ranks reduce the same names: those of a loss, which only a pipeline's last stage computes.
            nothing = torch.zeros(0, device=self._device)
            _, batch = self._measured_loss((), (), (nothing, nothing, nothing), meter)
            if has_cross_entropy:
                _cross_entropy(batch, nothing, meter)

    def _measured_loss(
        self,
        sequences: Sequence[TrainSequence],
        scales: Sequence[float],
        outputs: Outputs,
        meter: Meter,
    ) -> tuple[torch.Tensor, LossBatch]:
        """Returns a micro-batch's loss and its inputs, and adds its metrics to `meter`. The `log_probs` of a
        model that scores are its scores, of every token.
        """
        batch = make_loss_batch(sequences, scales, self._old_is_rollout, self._device)
        meter.add({"train/tokens": sum(len(sequence.tokens) for sequence in sequences)})
        if self._algorithm.needs.scores:
            scores, *_ = outputs
            result = score_losses(self._algorithm, batch, last_scores(scores, sequences))
            return self._reduced(result, batch, meter), batch
        return self._loss(batch, outputs, meter), batch

    def _loss(self, batch: LossBatch, outputs: Outputs, meter: Meter) -> torch.Tensor:
        log_probs, entropy, divergence = outputs
        old = _old_log_probs(batch, log_probs.detach())
        result = token_losses(
            *(self._algorithm, batch, log_probs, entropy, old),
            step_values=self._values,
            divergence=divergence,
            hooks=self._hooks,
        )
        if self._algorithm.needs.rollout:
            _compare_with_rollout(old if self._old_is_exact else log_probs.detach(), batch, meter)
        return self._reduced(result, batch, meter)

    @staticmethod
    def _reduced(result: LossOutputs, batch: LossBatch, meter: Meter) -> torch.Tensor:
        """Returns the loss of a micro-batch, and adds it and the token values to `meter`."""
        loss = (result.loss * batch.weights).sum()
        meter.add_token_means(result.metrics, batch.weights)
        meter.add({"train/loss": loss.detach(), "train/response_tokens": batch.loss_mask.sum()})
        return loss


def _cross_entropy(batch: LossBatch, log_probs: torch.Tensor, meter: Meter) -> torch.Tensor:
    """Returns the weighted cross-entropy of a micro-batch's tokens, and adds it to the metrics."""
    assert batch.cross_entropy is not None, "a step has weights for all sequences or for none"
    loss = -(log_probs * batch.cross_entropy).sum()
    meter.add({"train/loss": loss.detach(), "train/ce_loss": loss.detach()})
    meter.add({"train/ce_tokens": (batch.cross_entropy > 0).sum()})
    return loss


def _old_log_probs(batch: LossBatch, policy: torch.Tensor) -> torch.Tensor:
    """Returns the log-probs of the old policy; `policy` are those of the trained one.

    Interpolated ones are AReaL's approximation of the policy before the update
    (https://arxiv.org/abs/2512.06547): linear in the number of updates since a token was made.
    """
    if batch.proximal_share is not None:
        return batch.rollout_log_probs + batch.proximal_share * (policy - batch.rollout_log_probs)
    return policy if batch.old_log_probs is None else batch.old_log_probs


def _compare_with_rollout(ours: torch.Tensor, batch: LossBatch, meter: Meter) -> None:
    """Adds the difference between the engine's log-probs and the trainer's to the metrics.

    `ours` are the trainer's old log-probs; where it has computed none, those of the trained policy.
    With `true_on_policy`, tokens that older weights made do not count.
    """
    compared = batch.loss_mask if batch.current is None else batch.loss_mask * batch.current
    difference = (ours - batch.rollout_log_probs).abs() * (compared > 0)
    meter.add({DIFFERENCE: (difference * batch.weights).sum()})
    meter.raise_to({f"{DIFFERENCE}_max": difference.max() if len(difference) else 0.0})
