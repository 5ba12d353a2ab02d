"""A decoder, or one pipeline stage of it, for micro-batches of packed documents."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from rlrun.runner.trainer.compat.modules import Qwen3Model
from rlrun.runner.trainer.model.attention import CutDocuments, Documents
from rlrun.runner.trainer.model.head import HeadQuery
from rlrun.runner.trainer.model.mtp_block import MtpInputs
from rlrun.runner.trainer.model.vision_tower import PackedImages, add_to_images, embed_images, show_images


@dataclass(frozen=True, slots=True)
class DecoderInputs:
    """What the layers of every stage need for a micro-batch, apart from its hidden states."""

    rope: torch.Tensor
    """`[T', 2, H]` rows of `RopeTable`, one per token."""
    documents: Documents | CutDocuments
    query: HeadQuery
    images: PackedImages | None = None
    """The images that the tokens show; None for a model without a vision tower."""
    mtp: MtpInputs | None = None
    """What the MTP layer predicts; None: it does not run."""


def place_of(index: int, device: torch.device) -> torch.Tensor:
    """Returns the number of a micro-batch as a tensor, which torch's pipelines can pass between stages.

    The number is the tensor's length, because reading a value would wait for the device. So would FSDP, which
    copies a module's inputs to the device.
    """
    return torch.empty(index, 0, device=device)


class PackedDecoder(Qwen3Model):
    """Embedding, layers, norm and head; a pipeline stage has only some of them. Set `inputs` before a
    pass.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Qwen3Model.Config):
        mtp: bool = False
        """The last layer is an `MtpBlock`, which is not part of the policy."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.inputs: Sequence[DecoderInputs] = ()
        self._has_mtp = config.mtp
        self.visual: nn.Module | None = None
        """transformers' vision tower (`build_model`); None for a model of text."""

    def forward(self, tokens: torch.Tensor, place: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        """Maps `[1, T']` tokens, or the previous stage's hidden states, to the next stage's input.

        The last stage returns what its head does (`ResponseHead`). `place` is the number of the micro-batch
        (`place_of`).
        """
        inputs = self.inputs[len(place)]
        if self.lm_head is not None:
            self.lm_head.query = inputs.query
        if inputs.images is not None:
            return self._forward_images(tokens, inputs, inputs.images)
        if self._has_mtp:
            return self._forward_mtp(tokens, inputs)
        outputs: torch.Tensor = super().forward(tokens, inputs.rope, inputs.documents)
        return outputs

    def _forward_images(
        self, tokens: torch.Tensor, inputs: DecoderInputs, images: PackedImages
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs a whole decoder as its base class does, with images in the places of their tokens."""
        assert self.visual is not None, "images are packed for models with a vision tower only"
        hidden = self.tok_embeddings(tokens)
        shown, added = embed_images(self.visual, images, hidden.dtype)
        hidden = show_images(hidden, shown, images)
        for index, layer in enumerate(self.layers.values()):
            hidden = layer(hidden, inputs.documents, inputs.rope)
            if index < len(added):
                hidden = add_to_images(hidden, added[index], images)
        outputs: tuple[torch.Tensor, torch.Tensor] = self.lm_head(self.norm(hidden))
        return outputs

    def _forward_mtp(self, tokens: torch.Tensor, inputs: DecoderInputs) -> tuple[torch.Tensor, ...]:
        """Runs a whole decoder as its base class does, and then the MTP layer if it is to predict."""
        *layers, block = self.layers.values()
        hidden = embeddings = self.tok_embeddings(tokens)
        for layer in layers:
            hidden = layer(hidden, inputs.documents, inputs.rope)
        hidden = self.norm(hidden)
        outputs: tuple[torch.Tensor, ...]
        if inputs.mtp is None:
            outputs = self.lm_head(hidden)
            return outputs
        following = block.following(embeddings, inputs.mtp.first)
        states = block((hidden.detach(), following), inputs.documents, inputs.rope)
        outputs = self.lm_head(hidden, mtp=(states, inputs.mtp.query))
        return outputs
