"""torchtitan's config of an architecture: which of its modules, and of ours, a decoder is made of."""

from typing import Any

from rlrun.converters.architecture import Architecture
from rlrun.converters.architecture import Experts as ExpertShape
from rlrun.converters.architecture import LatentAttention as LatentShape
from rlrun.runner.trainer.compat import (
    Embedding,
    GQAttention,
    LatentAttention,
    QKVLinear,
    Qwen3TransformerBlock,
    make_moe_config,
    make_routed_experts_config,
)
from rlrun.runner.trainer.decoder import PackedDecoder
from rlrun.runner.trainer.gpt_oss import ClampedExperts, SharedBiasMatrix, SinkAttention
from rlrun.runner.trainer.head import ResponseHead
from rlrun.runner.trainer.layers import Experts, Matrix, Norm, PackedAttention, RouterLinear, SwiGLU
from rlrun.runner.trainer.rope import InterleavedRoPE, TableRoPE
from rlrun.runner.trainer.routing import ReplayRouter

LATENT_NORM_EPS = 1e-6
"""DeepSeek's norms of latent vectors have an epsilon of their own."""
HAS_BIAS = 1.0
"""torchtitan's rate by which it would move the bias of experts between steps, and its way to say that they
have one: here it is what the checkpoint has, or `ExpertLoad` moves it.
"""
_FROM_CHECKPOINT: dict[str, Any] = {}
"""torchtitan's own initialisation is not used: every parameter is loaded, or drawn by name."""


def model_config(model: Architecture, *, tied: bool) -> PackedDecoder.Config:
    """torchtitan's config; Qwen3's blocks without query and key norms are Llama's. `tied`: embedding and head
    are one parameter.
    """
    return PackedDecoder.Config(
        vocab_size=model.vocab,
        dim=model.hidden,
        norm=_norm(model.norm_eps, model.hidden),
        enable_weight_tying=tied,
        layers=[_block(model, layer) for layer in range(model.layers)],
        tok_embeddings=Embedding.Config(
            num_embeddings=model.vocab, embedding_dim=model.hidden, param_init=_FROM_CHECKPOINT
        ),
        lm_head=ResponseHead.Config(
            in_features=model.hidden, out_features=model.vocab, param_init=_FROM_CHECKPOINT
        ),
    )


def _block(model: Architecture, layer: int) -> Qwen3TransformerBlock.Config:
    sparse = model.experts is not None and layer in model.experts.layers
    return Qwen3TransformerBlock.Config(
        attention_norm=_norm(model.norm_eps, model.hidden),
        ffn_norm=_norm(model.norm_eps, model.hidden),
        attention=_attention_of(model, layer),
        feed_forward=None if sparse else _feed_forward(model.hidden, model.intermediate),
        moe=_moe(model.hidden, model.experts) if sparse and model.experts else None,
    )


def _attention_of(
    model: Architecture, layer: int
) -> GQAttention.Config | LatentAttention.Config | SinkAttention.Config:
    if model.latent is not None:
        return _latent_attention(model, model.latent)
    return _sink_attention(model, layer) if model.sinks else _attention(model)


def _sink_attention(model: Architecture, layer: int) -> SinkAttention.Config:
    return SinkAttention.Config(
        n_heads=model.heads,
        n_kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        dim=model.hidden,
        qkv_linear=_qkv(model, bias=True),
        wo=SharedBiasMatrix.Config(
            in_features=model.heads * model.head_dim,
            out_features=model.hidden,
            bias=True,
            param_init=_FROM_CHECKPOINT,
        ),
        inner_attention=PackedAttention.Config(window=model.window(layer)),
        rope=_rope(model),
        param_init=_FROM_CHECKPOINT,
    )


def _attention(model: Architecture) -> GQAttention.Config:
    return GQAttention.Config(
        n_heads=model.heads,
        n_kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        dim=model.hidden,
        qkv_linear=_qkv(model, bias=model.qkv_bias),
        wo=_matrix(model.heads * model.head_dim, model.hidden),
        qk_norm=_norm(model.norm_eps, model.head_dim) if model.qk_norm else None,
        inner_attention=PackedAttention.Config(),
        rope=_rope(model),
    )


def _qkv(model: Architecture, *, bias: bool) -> QKVLinear.Config:
    return QKVLinear.Config(
        head_dim=model.head_dim,
        wq=_matrix(model.hidden, model.heads * model.head_dim, bias=bias),
        wkv=_matrix(model.hidden, model.kv_heads * model.head_dim, bias=bias),
    )


def _latent_attention(model: Architecture, latent: LatentShape) -> LatentAttention.Config:
    hidden, heads, rank = model.hidden, model.heads, latent.query_rank
    queries = heads * model.head_dim
    return LatentAttention.Config(
        n_heads=heads,
        dim=hidden,
        wq=_matrix(hidden, queries) if rank is None else None,
        wq_a=None if rank is None else _matrix(hidden, rank),
        wq_b=None if rank is None else _matrix(rank, queries),
        wkv_a=_matrix(hidden, latent.rank + latent.rotated),
        wkv_b=_matrix(latent.rank, heads * (latent.plain + latent.value)),
        wo=_matrix(heads * latent.value, hidden),
        q_lora_rank=rank or 0,
        kv_lora_rank=latent.rank,
        q_norm=_norm(LATENT_NORM_EPS, rank or 1),
        kv_norm=_norm(LATENT_NORM_EPS, latent.rank),
        qk_nope_head_dim=latent.plain,
        qk_rope_head_dim=latent.rotated,
        v_head_dim=latent.value,
        rope=_rope(model),
        inner_attention=PackedAttention.Config(),
        mscale=latent.scale_factor,
    )


def _rope(model: Architecture) -> TableRoPE.Config:
    kind = InterleavedRoPE if model.rope.interleaved else TableRoPE
    # torchtitan's latent attention takes its scale from here; the table has the others' in it
    stretched = model.rope.type == "yarn" and model.latent is not None
    return kind.Config(
        dim=model.rotated,
        max_seq_len=model.max_positions,
        scaling="yarn" if stretched else "none",
        rope_factor=model.rope.factor if stretched else 1.0,
    )


def _feed_forward(hidden: int, inner: int) -> SwiGLU.Config:
    return SwiGLU.Config(w1=_matrix(hidden, inner), w2=_matrix(inner, hidden), w3=_matrix(hidden, inner))


def _moe(hidden: int, experts: ExpertShape) -> Any:
    routed = make_routed_experts_config(
        dim=hidden,
        hidden_dim=experts.intermediate,
        num_experts=experts.count,
        top_k=experts.per_token,
        param_init=_FROM_CHECKPOINT,
        comm_backend="standard",
    )
    routed.inner_experts = _inner_experts(hidden, experts)
    gate = RouterLinear.Config(
        in_features=hidden,
        out_features=experts.count,
        bias=experts.clamped is not None,
        param_init=_FROM_CHECKPOINT,
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
        shared_experts=_feed_forward(hidden, experts.shared) if experts.shared else None,
        load_balance_coeff=HAS_BIAS if experts.correction_bias else None,
    )


def _inner_experts(hidden: int, experts: ExpertShape) -> Experts.Config | ClampedExperts.Config:
    sizes = {"dim": hidden, "hidden_dim": experts.intermediate, "num_experts": experts.count}
    if experts.clamped is None:
        return Experts.Config(**sizes, param_init=_FROM_CHECKPOINT)
    return ClampedExperts.Config(
        **sizes,
        swiglu_limit=experts.clamped.limit,
        alpha=experts.clamped.alpha,
        param_init=_FROM_CHECKPOINT,
    )


def _matrix(inputs: int, outputs: int, *, bias: bool = False) -> Matrix.Config:
    return Matrix.Config(in_features=inputs, out_features=outputs, bias=bias, param_init=_FROM_CHECKPOINT)


def _norm(eps: float, size: int) -> Norm.Config:
    return Norm.Config(normalized_shape=size, eps=eps, param_init=_FROM_CHECKPOINT)
