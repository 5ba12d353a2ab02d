"""What an MTP layer is asked about a pack, and what its answers are worth.

A response token is predicted from the hidden state two tokens before it and the embedding of the token
between. The loss is the cross-entropy at temperature 1, as Megatron-LM computes it, with the weights of the
policy's loss: masked tokens do not count.
"""

from dataclasses import dataclass

import torch

from rlrun.runner.trainer.model.head import HeadQuery
from rlrun.runner.trainer.model.mtp_block import MtpInputs
from rlrun.runner.trainer.passes.meter import Meter
from rlrun.runner.trainer.passes.packed_batch import LossBatch, Pack


@dataclass(frozen=True, slots=True)
class MtpOutputs:
    """The predictions of a pack's R response tokens, `[R]` float32 each."""

    log_probs: torch.Tensor
    hits: torch.Tensor
    """1 where the token is the most probable one, else 0."""


def mtp_inputs(pack: Pack, chunk: int) -> MtpInputs:
    """Returns what the layer is asked; the logits of `chunk` tokens exist at a time."""
    assert pack.paths is None and pack.own_responses is None, "the rules refuse cut and shared sequences"
    rows = (pack.rows - 1).clamp(min=0)
    return MtpInputs(pack.positions == 0, HeadQuery(rows, pack.targets, 1.0, chunk, hits=True))


def mtp_outputs(pack: Pack, log_probs: torch.Tensor, hits: torch.Tensor) -> MtpOutputs:
    """Returns the layer's answers. The second token of a sequence has no prediction, because no hidden state
    is two tokens before it: its log-prob and hit are 0.
    """
    is_predicted = pack.positions[pack.rows] > 0
    return MtpOutputs(log_probs.where(is_predicted, 0.0), hits.where(is_predicted, 0.0))


def mtp_loss(outputs: MtpOutputs, batch: LossBatch, meter: Meter) -> torch.Tensor:
    """Returns the layer's loss, and adds it and the share of its hits to the metrics."""
    loss = -(outputs.log_probs * batch.weights).sum()
    meter.add({"train/mtp_loss": loss.detach(), "train/mtp_accuracy": (outputs.hits * batch.weights).sum()})
    return loss
