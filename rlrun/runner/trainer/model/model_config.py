"""Translates an architecture into torchtitan's model config, with rlrun's modules where they differ."""

from typing import Any

from rlrun.models.architecture import Architecture
from rlrun.models.architecture import Experts as ExpertShape
from rlrun.runner.trainer.compat.experts import make_moe_config, make_routed_experts_config
from rlrun.runner.trainer.compat.modules import Embedding, Qwen3TransformerBlock
from rlrun.runner.trainer.model.attention_config import FROM_CHECKPOINT, attention_config, matrix, norm
from rlrun.runner.trainer.model.decoder import PackedDecoder
from rlrun.runner.trainer.model.families.delta_net import GatedSwiGLU
from rlrun.runner.trainer.model.families.gpt_oss import ClampedExperts
from rlrun.runner.trainer.model.families.mtp_block import MtpBlock
from rlrun.runner.trainer.model.head import ResponseHead
from rlrun.runner.trainer.model.layers import Experts, RouterLinear, SwiGLU
from rlrun.runner.trainer.model.routing import ReplayRouter

HAS_BIAS = 1.0
"""Any value makes torchtitan give experts a bias. It would be the rate of torchtitan's own balancing, which
is not used: the bias is the checkpoint's, or `ExpertLoad` moves it.
"""


def model_config(model: Architecture, *, tied: bool) -> PackedDecoder.Config:
    """Returns torchtitan's config. All families use Qwen3's blocks; without query and key norms they are
    Llama's.

    `tied`: embedding and head are one parameter.
    """
    return PackedDecoder.Config(
        vocab_size=model.vocab,
        dim=model.hidden,
        norm=norm(model, model.hidden),
        enable_weight_tying=tied,
        layers=[_block(model, layer) for layer in range(model.layers)] + _mtp_blocks(model),
        mtp=model.mtp is not None,
        tok_embeddings=Embedding.Config(
            num_embeddings=model.vocab, embedding_dim=model.hidden, param_init=FROM_CHECKPOINT
        ),
        lm_head=ResponseHead.Config(
            in_features=model.hidden, out_features=model.vocab, param_init=FROM_CHECKPOINT
        ),
    )


def _block(model: Architecture, layer: int) -> Qwen3TransformerBlock.Config:
    return Qwen3TransformerBlock.Config(**_parts(model, layer))


def _mtp_blocks(model: Architecture) -> list[MtpBlock.Config]:
    """Returns the config of the MTP layer, if it is trained."""
    if model.mtp is None:
        return []
    return [
        MtpBlock.Config(
            **_parts(model, model.layers),
            mtp_hidden_norm=norm(model, model.hidden),
            mtp_token_norm=norm(model, model.hidden),
            mtp_norm=norm(model, model.hidden),
            mtp_projection=matrix(2 * model.hidden, model.hidden),
            hidden_first=model.mtp.hidden_first,
            blind_start=model.mtp.blind_start,
        )
    ]


def _parts(model: Architecture, layer: int) -> dict[str, Any]:
    """Returns the configs of a decoder layer's modules."""
    sparse = model.is_sparse(layer)
    return {
        "attention_norm": norm(model, model.hidden),
        "ffn_norm": norm(model, model.hidden),
        "attention": attention_config(model, layer),
        "feed_forward": None if sparse else _feed_forward(model.hidden, model.intermediate),
        "moe": _moe(model.hidden, model.experts) if sparse and model.experts else None,
    }


def _feed_forward(hidden: int, inner: int) -> SwiGLU.Config:
    return SwiGLU.Config(w1=matrix(hidden, inner), w2=matrix(inner, hidden), w3=matrix(hidden, inner))


def _shared_experts(hidden: int, experts: ExpertShape) -> SwiGLU.Config:
    inner = experts.shared
    if not experts.shared_gate:
        return _feed_forward(hidden, inner)
    return GatedSwiGLU.Config(
        w1=matrix(hidden, inner), w2=matrix(inner, hidden), w3=matrix(hidden, inner), gate=matrix(hidden, 1)
    )


def _moe(hidden: int, experts: ExpertShape) -> Any:
    routed = make_routed_experts_config(
        dim=hidden,
        hidden_dim=experts.intermediate,
        num_experts=experts.count,
        top_k=experts.per_token,
        param_init=FROM_CHECKPOINT,
        comm_backend="standard",
    )
    routed.inner_experts = _inner_experts(hidden, experts)
    gate = RouterLinear.Config(
        in_features=hidden,
        out_features=experts.count,
        bias=experts.clamped_gate is not None,
        param_init=FROM_CHECKPOINT,
    )
    router = ReplayRouter.Config(
        num_experts=experts.count,
        gate=gate,
        top_k=experts.per_token,
        score_func=experts.score,
        route_norm=experts.normalize,
        route_scale=experts.scale,
        num_expert_groups=experts.groups if experts.groups > 1 else None,
        num_limited_groups=experts.chosen_groups if experts.groups > 1 else None,
    )
    return make_moe_config(
        num_experts=experts.count,
        router=router,
        routed_experts=routed,
        shared_experts=_shared_experts(hidden, experts) if experts.shared else None,
        load_balance_coeff=HAS_BIAS if experts.correction_bias else None,
    )


def _inner_experts(hidden: int, experts: ExpertShape) -> Experts.Config | ClampedExperts.Config:
    sizes = {"dim": hidden, "hidden_dim": experts.intermediate, "num_experts": experts.count}
    if experts.clamped_gate is None:
        return Experts.Config(**sizes, param_init=FROM_CHECKPOINT)
    return ClampedExperts.Config(
        **sizes,
        swiglu_limit=experts.clamped_gate.limit,
        alpha=experts.clamped_gate.alpha,
        param_init=FROM_CHECKPOINT,
    )
