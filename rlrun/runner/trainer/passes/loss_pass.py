"""The algorithm's loss over an optimizer step's micro-batches: forward, backward, metrics."""

from collections.abc import Mapping, Sequence

import torch

from rlrun.plugins.protocols import Algorithm
from rlrun.plugins.types import LossInputs
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.trainer.passes.meter import Meter
from rlrun.runner.trainer.passes.packed_batch import LossBatch, make_loss_batch
from rlrun.runner.trainer.passes.packed_model import PackedModel
from rlrun.specs.sections.trainer import TrainerSpec

DIFFERENCE = "train/train_rollout_logprob_abs_diff"


class LossPass:
    """Adds gradients to the policy's parameters, and metrics to a meter."""

    def __init__(
        self, policy: PackedModel, algorithm: Algorithm, spec: TrainerSpec, device: torch.device
    ) -> None:
        self._policy, self._algorithm, self._device = policy, algorithm, device
        self._old_is_rollout = spec.old_log_probs == "rollout"

    def accumulate(
        self, batches: Sequence[Sequence[TrainSequence]], scales: Sequence[Sequence[float]], meter: Meter
    ) -> None:
        """Forward and backward of micro-batches; `scales` are the sequences' weights in the step."""

        def loss_of(index: int, log_probs: torch.Tensor, entropy: torch.Tensor) -> torch.Tensor:
            batch = make_loss_batch(batches[index], scales[index], self._old_is_rollout, self._device)
            meter.add({"train/tokens": sum(len(sequence.tokens) for sequence in batches[index])})
            return self._loss(batch, log_probs, entropy, meter)

        meter.lengthen(self._policy.accumulate(batches, loss_of, self._algorithm.needs.entropy_grad))

    def _loss(
        self, batch: LossBatch, log_probs: torch.Tensor, entropy: torch.Tensor, meter: Meter
    ) -> torch.Tensor:
        old = log_probs.detach() if batch.old_log_probs is None else batch.old_log_probs
        token_losses, values = self._evaluate(log_probs, entropy, old, batch)
        loss = (token_losses * batch.weights).sum()
        meter.add({f"train/{name}": (value * batch.weights).sum() for name, value in values.items()})
        meter.add({"train/loss": loss.detach(), "train/response_tokens": batch.mask.sum()})
        if self._algorithm.needs.rollout:
            _compare_with_rollout(log_probs.detach() if self._old_is_rollout else old, batch, meter)
        return loss

    def _evaluate(
        self, log_probs: torch.Tensor, entropy: torch.Tensor, old: torch.Tensor, batch: LossBatch
    ) -> tuple[torch.Tensor, Mapping[str, torch.Tensor]]:
        """Token losses, and token values of the metrics: the algorithm's and our own.

        On tokens that are not trained every model agrees with the policy: infinity times a weight of 0, such
        as k3's where the policy would never have written a tool's answer, would be NaN.
        """
        trained, policy = batch.mask > 0, log_probs.detach()
        old = old.where(trained, policy)
        reference = batch.reference_log_probs
        outputs = self._algorithm.loss(
            LossInputs(
                log_probs=log_probs,
                entropy=entropy,
                old_log_probs=old,
                rollout_log_probs=batch.rollout_log_probs.where(trained, policy),
                reference_log_probs=None if reference is None else reference.where(trained, policy),
                advantages=batch.advantages,
                mask=batch.mask,
                sample=batch.sample,
                num_samples=batch.num_samples,
            )
        )
        values = {**outputs.metrics, "entropy": entropy.detach()}
        if self._algorithm.needs.old_log_probs:
            values["approx_kl"] = (old - log_probs).detach()
        return outputs.loss, values


def _compare_with_rollout(ours: torch.Tensor, batch: LossBatch, meter: Meter) -> None:
    """How far the engine's log-probs are from the trainer's: its old ones, or, where the engine's are the old
    ones, those of the policy as it is trained.
    """
    difference = (ours - batch.rollout_log_probs).abs() * (batch.mask > 0)
    meter.add({DIFFERENCE: (difference * batch.weights).sum()})
    meter.raise_to({f"{DIFFERENCE}_max": difference.max() if len(difference) else 0.0})
