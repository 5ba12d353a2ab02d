"""Translates an architecture into torchtitan's model config."""

from typing import Any

from rlrun.models.architecture import Architecture
from rlrun.runner.trainer.compat.modules import Embedding, Qwen3TransformerBlock
from rlrun.runner.trainer.model.decoder import PackedDecoder
from rlrun.runner.trainer.model.decoder_parts import FROM_CHECKPOINT, DecoderParts, decoder_parts, matrix
from rlrun.runner.trainer.model.head import ResponseHead
from rlrun.runner.trainer.model.mtp_block import MtpBlock


def model_config(model: Architecture, *, tied: bool) -> PackedDecoder.Config:
    """Returns torchtitan's config. All families use Qwen3's blocks; without query and key norms they are
    Llama's.

    `tied`: embedding and head are one parameter.
    """
    parts = decoder_parts(model)
    return PackedDecoder.Config(
        vocab_size=model.vocab,
        dim=model.hidden,
        norm=parts.norm(model.hidden),
        enable_weight_tying=tied,
        layers=[_block(parts, layer) for layer in range(model.layers)] + _mtp_blocks(parts),
        mtp=model.mtp is not None,
        tok_embeddings=Embedding.Config(
            num_embeddings=model.vocab, embedding_dim=model.hidden, param_init=FROM_CHECKPOINT
        ),
        lm_head=ResponseHead.Config(
            in_features=model.hidden, out_features=model.vocab, param_init=FROM_CHECKPOINT
        ),
    )


def _block(parts: DecoderParts, layer: int) -> Qwen3TransformerBlock.Config:
    return Qwen3TransformerBlock.Config(**_modules(parts, layer))


def _mtp_blocks(parts: DecoderParts) -> list[MtpBlock.Config]:
    """Returns the config of the MTP layer, if it is trained."""
    model = parts.model
    if model.mtp is None:
        return []
    return [
        MtpBlock.Config(
            **_modules(parts, model.layers),
            mtp_hidden_norm=parts.norm(model.hidden),
            mtp_token_norm=parts.norm(model.hidden),
            mtp_norm=parts.norm(model.hidden),
            mtp_projection=matrix(2 * model.hidden, model.hidden),
            hidden_first=model.mtp.hidden_first,
            blind_start=model.mtp.blind_start,
        )
    ]


def _modules(parts: DecoderParts, layer: int) -> dict[str, Any]:
    """Returns the configs of a decoder layer's modules."""
    model, sparse = parts.model, parts.model.is_sparse(layer)
    return {
        "attention_norm": parts.norm(model.hidden),
        "ffn_norm": parts.norm(model.hidden),
        "attention": parts.attention(layer),
        "feed_forward": None if sparse else parts.feed_forward(model.intermediate),
        "moe": parts.mixture(model.experts) if sparse and model.experts else None,
    }
