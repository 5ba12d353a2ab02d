"""Describes the layer that predicts the token after the next one (multi-token prediction, MTP).

The layer follows the policy's last one. Position t has the final hidden state of token t and the embedding of
token t + 1, and predicts token t + 2 with the policy's own head (DeepSeek-V3, arXiv:2412.19437 § 2.2):

    hidden state ─▶ norm ─┐
    embedding ────▶ norm ─┴─▶ projection ─▶ decoder layer ─▶ norm ─▶ head
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from rlrun.models.hf_tensor import HfTensor

MTP_PROJECTION = "mtp_projection"
"""The name of the projection in the trainer: no other module has it."""
MTP_COPIES = ("embed_tokens.weight", "shared_head.head.weight")
"""Ends of the names of copies of the policy's embedding and head, which some checkpoints store with the
layer. SGLang ignores them, and exports keep them as they were."""


@dataclass(frozen=True, slots=True)
class MtpLayer:
    """How a family's checkpoints store the layer, and what it reads.

    Example (GLM-4.5-Air): `MtpLayer("model.layers.46.", "hnorm", "enorm", "eh_proj", "shared_head.norm")`
    """

    prefix: str
    """The names of its tensors begin with this."""
    hidden_norm: str
    """Name of the norm of hidden states."""
    token_norm: str
    """Name of the norm of embeddings."""
    projection: str
    """Name of the projection of both."""
    final_norm: str
    """Name of the norm before the head."""
    hidden_first: bool = False
    """The projection's input has the hidden state before the embedding."""
    blind_start: bool = False
    """The embedding counts as zero at the first position of a sequence."""

    def tensors(self, hidden: int, parameter: str) -> Iterator[HfTensor]:
        """Yields the tensors besides those of the decoder layer; `parameter` begins the parameters' names."""
        norms = (self.hidden_norm, "hidden_norm"), (self.token_norm, "token_norm"), (self.final_norm, "norm")
        for name, own in norms:
            yield HfTensor(f"{self.prefix}{name}.weight", (hidden,), f"{parameter}mtp_{own}.weight")
        shape = (hidden, 2 * hidden)
        yield HfTensor(f"{self.prefix}{self.projection}.weight", shape, f"{parameter}{MTP_PROJECTION}.weight")

    def in_checkpoint(self, tensor: HfTensor, layer: str) -> HfTensor:
        """Returns a tensor of the decoder layer, whose name begins with `layer`, as checkpoints name it."""
        return replace(tensor, name=self.prefix + tensor.name.removeprefix(layer))
