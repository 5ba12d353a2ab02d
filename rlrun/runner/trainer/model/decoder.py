"""A decoder, or a stage of one, that reads what belongs to a micro-batch of packed documents."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from rlrun.runner.trainer.compat.modules import Qwen3Model
from rlrun.runner.trainer.model.attention import CutDocuments, Documents
from rlrun.runner.trainer.model.head import HeadQuery


@dataclass(frozen=True, slots=True)
class DecoderInputs:
    """What the layers of every stage need of a micro-batch beside its hidden states."""

    rope: torch.Tensor
    """`[T', 2, H]` rows of the table of rotations."""
    documents: Documents | CutDocuments
    query: HeadQuery


def place_of(index: int) -> torch.Tensor:
    """The number of a micro-batch as a tensor, which pipelines pass along, that no device has to be asked
    for: it has `index` rows of nothing.
    """
    return torch.empty(index, 0)


class PackedDecoder(Qwen3Model):
    """Embedding, layers, norm and head; a pipeline's stage lacks what others have. Set `inputs` first."""

    @dataclass(kw_only=True, slots=True)
    class Config(Qwen3Model.Config):
        pass

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.inputs: Sequence[DecoderInputs] = ()

    def forward(
        self, tokens: torch.Tensor, place: torch.Tensor
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        """`[1, T']` tokens, or hidden states of the stage before, of the micro-batch `place_of` names.

        Log-probs and entropies (`ResponseHead`), or hidden states for the stage after.
        """
        inputs = self.inputs[len(place)]
        if self.lm_head is not None:
            self.lm_head.query = inputs.query
        outputs: torch.Tensor = super().forward(tokens, inputs.rope, inputs.documents)
        return outputs
