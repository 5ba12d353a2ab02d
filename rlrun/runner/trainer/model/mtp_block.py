"""The layer that predicts the token after the next one (multi-token prediction, MTP).

hidden state of token t ───▶ norm ─┐
embedding of token t + 1 ──▶ norm ─┴─▶ projection ─▶ decoder layer ─▶ norm ─▶ the policy's head: token t + 2

It computes what SGLang 0.5.23 does when it speculates (models/mimo_mtp.py, models/glm4_moe_nextn.py).
"""

from dataclasses import dataclass

import torch

from rlrun.runner.trainer.compat.modules import Linear, Qwen3TransformerBlock, RMSNorm
from rlrun.runner.trainer.model.attention import Documents
from rlrun.runner.trainer.model.head import HeadQuery


@dataclass(frozen=True, slots=True)
class MtpInputs:
    """What an MTP layer needs for a micro-batch, besides hidden states and embeddings."""

    first: torch.Tensor
    """`[T]` bool: the first token of each document."""
    query: HeadQuery
    """The response tokens that the layer predicts."""


class MtpBlock(Qwen3TransformerBlock):
    """A decoder layer with the norms and the projection that surround it."""

    @dataclass(kw_only=True, slots=True)
    class Config(Qwen3TransformerBlock.Config):
        mtp_hidden_norm: RMSNorm.Config
        mtp_token_norm: RMSNorm.Config
        mtp_norm: RMSNorm.Config
        mtp_projection: Linear.Config
        hidden_first: bool
        """As in `MtpLayer`."""
        blind_start: bool
        """As in `MtpLayer`."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.mtp_hidden_norm = config.mtp_hidden_norm.build()
        self.mtp_token_norm = config.mtp_token_norm.build()
        self.mtp_norm = config.mtp_norm.build()
        self.mtp_projection = config.mtp_projection.build()
        self._hidden_first, self._blind_start = config.hidden_first, config.blind_start

    def forward(
        self, x: tuple[torch.Tensor, torch.Tensor], attention_masks: Documents, positions: torch.Tensor
    ) -> torch.Tensor:
        """Returns the `[1, T, hidden]` states from which the head predicts.

        `x` are the policy's normalised hidden states and the embeddings of the tokens that follow, both `[1,
        T, hidden]`; `positions` are rows of a `RopeTable`, as for other layers.
        """
        hidden, following = self.mtp_hidden_norm(x[0]), self.mtp_token_norm(x[1])
        inputs = (hidden, following) if self._hidden_first else (following, hidden)
        states = self.mtp_projection(torch.cat(inputs, dim=-1))
        states = super().forward(states, attention_masks, positions)
        normed: torch.Tensor = self.mtp_norm(states)
        return normed

    def following(self, embeddings: torch.Tensor, first: torch.Tensor) -> torch.Tensor:
        """Returns the embedding of each token's successor, without a gradient, from `[1, T, hidden]` of all
        tokens.

        The last token of a document gets a token of the next one, and is never asked for a prediction.
        """
        shifted = embeddings.detach().roll(-1, dims=1)
        return shifted.masked_fill(first[None, :, None], 0.0) if self._blind_start else shifted
