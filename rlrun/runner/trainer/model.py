"""Builds torchtitan's decoder for an architecture, laid out over the ranks.

config.json -> Architecture -> torchtitan config -> modules on meta -> stages -> tensor parallel -> FSDP ->
memory
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rlrun.converters.architecture import Architecture
from rlrun.converters.architecture import Experts as ExpertShape
from rlrun.converters.architecture import LatentAttention as LatentShape
from rlrun.runner.trainer.compat import (
    Embedding,
    GQAttention,
    LatentAttention,
    ParallelDims,
    QKVLinear,
    Qwen3TransformerBlock,
    checkpoint_activations,
    make_moe_config,
    make_routed_experts_config,
    set_sharding,
    shard_data_parallel,
)
from rlrun.runner.trainer.compiling import compile_layers
from rlrun.runner.trainer.decoder import PackedDecoder
from rlrun.runner.trainer.gpt_oss import ClampedExperts, SharedBiasMatrix, SinkAttention
from rlrun.runner.trainer.head import ResponseHead
from rlrun.runner.trainer.layers import Experts, Matrix, Norm, PackedAttention, RouterLinear, SwiGLU
from rlrun.runner.trainer.layout import stage_layers, stages_of
from rlrun.runner.trainer.rope import InterleavedRoPE, TableRoPE
from rlrun.runner.trainer.routing import ReplayRouter
from rlrun.specs.trainer import ParallelSpec

LATENT_NORM_EPS = 1e-6
"""DeepSeek's norms of latent vectors have an epsilon of their own."""
_FROM_CHECKPOINT: dict[str, Any] = {}
"""torchtitan's own initialisation is not used: every parameter is loaded, or drawn by name."""


def build_model(
    model: Architecture,
    dims: ParallelDims | None,
    parallel: ParallelSpec,
    dtype: torch.dtype,
    device: torch.device,
    *,
    head: Any = None,
    section: str = "trainer",
    checkpointing: str = "none",
    on_host: bool = False,
    router_dtype: str = "float32",
    compiled: bool = False,
) -> list[PackedDecoder]:
    """The decoder in memory with undefined parameters, sharded over `dims` (None: one rank, nothing sharded);
    with a pipeline the stages that lie on this rank, in order.

    One rank holds its parameters in `dtype`. Several hold float32 shards, and FSDP computes in `dtype`.
    `head`: the config of another head than the policy's. `section`: of the spec, for messages.
    `checkpointing`: `trainer.activation_checkpointing`.
    `on_host`: shards lie in host memory; what one rank computes with stays on its device. `router_dtype`:
    `trainer.moe.router_dtype`. `compiled`: `trainer.compile`.
    """
    config = model_config(model, tied=model.tied and parallel.pipeline == 1)
    config.lm_head = head or config.lm_head
    for layer in config.layers:
        if layer.moe is not None:
            layer.moe.router.gate.wide = router_dtype == "float32"
    if dims is not None:
        check_layout(model, parallel, section)
        set_sharding(config, parallel)
    ranges = stage_layers(model.layers, parallel.stages)
    place = 0 if dims is None or dims.pp == 1 else dims.get_mesh("pp").get_local_rank()
    decoders = []
    for stage in stages_of(place, parallel):
        with torch.device("meta"), _default_dtype(torch.float32 if dims is not None else dtype):
            decoder: PackedDecoder = config.build()
        _prune(decoder, ranges[stage], first=stage == 0, last=stage == parallel.stages - 1)
        placed = _placed(decoder, dims, dtype, device, checkpointing, on_host=on_host, compiled=compiled)
        decoders.append(placed)
    return decoders


def _prune(decoder: PackedDecoder, layers: range, *, first: bool, last: bool) -> None:
    """Leave what is one stage's."""
    for name in list(decoder.layers.keys()):
        if int(name) not in layers:
            del decoder.layers[name]
    if not first:
        decoder.tok_embeddings = None
    if not last:
        decoder.norm = decoder.lm_head = None


def _placed(
    decoder: PackedDecoder,
    dims: ParallelDims | None,
    dtype: torch.dtype,
    device: torch.device,
    checkpointing: str,
    *,
    on_host: bool,
    compiled: bool,
) -> PackedDecoder:
    """From meta into memory, laid out over the ranks."""
    if dims is not None:
        decoder.parallelize(dims)
        _tie(decoder)
    if checkpointing != "none":
        checkpoint_activations(decoder, checkpointing)
    if compiled:
        compile_layers(decoder)
    if dims is not None:
        shard_data_parallel(decoder, dims, dtype, on_host=on_host)
    decoder.to_empty(device="cpu" if on_host and dims is not None else device)
    if dims is None:
        _tie(decoder)
    for module in decoder.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)
    for buffer in decoder.buffers():
        buffer.zero_()
    placed: PackedDecoder = decoder.train()
    return placed


def check_layout(model: Architecture, parallel: ParallelSpec, section: str = "trainer") -> None:
    """ValueError where the architecture does not divide by the degrees of `[section.parallel]`."""
    sizes = {
        "num_attention_heads": model.heads,
        "num_key_value_heads": model.kv_heads,
        "vocab_size": model.vocab,
        "intermediate_size": model.intermediate,
    }
    if model.experts is not None:
        if parallel.expert == 1:
            sizes["moe_intermediate_size"] = model.experts.intermediate
        if model.experts.count % parallel.expert:
            count = model.experts.count
            raise ValueError(f"trainer.parallel.expert = {parallel.expert} does not divide {count} experts")
    for name, size in sizes.items():
        if size % parallel.tensor:
            raise ValueError(f"{section}.parallel.tensor = {parallel.tensor} does not divide {name} = {size}")
    if parallel.stages > model.layers:
        raise ValueError(
            f"trainer.parallel.pipeline = {parallel.pipeline} with {parallel.pipeline_schedule} needs "
            f"{parallel.stages} layers, the model has {model.layers}"
        )


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
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return SinkAttention.Config(
        n_heads=model.heads,
        n_kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        dim=model.hidden,
        qkv_linear=QKVLinear.Config(
            head_dim=model.head_dim,
            wq=_matrix(model.hidden, queries, bias=True),
            wkv=_matrix(model.hidden, keys, bias=True),
        ),
        wo=SharedBiasMatrix.Config(
            in_features=queries, out_features=model.hidden, bias=True, param_init=_FROM_CHECKPOINT
        ),
        inner_attention=PackedAttention.Config(window=model.window(layer)),
        rope=_rope(model),
        param_init=_FROM_CHECKPOINT,
    )


def _attention(model: Architecture) -> GQAttention.Config:
    queries, keys = model.heads * model.head_dim, model.kv_heads * model.head_dim
    return GQAttention.Config(
        n_heads=model.heads,
        n_kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        dim=model.hidden,
        qkv_linear=QKVLinear.Config(
            head_dim=model.head_dim,
            wq=_matrix(model.hidden, queries, bias=model.qkv_bias),
            wkv=_matrix(model.hidden, keys, bias=model.qkv_bias),
        ),
        wo=_matrix(queries, model.hidden),
        qk_norm=_norm(model.norm_eps, model.head_dim) if model.qk_norm else None,
        inner_attention=PackedAttention.Config(),
        rope=_rope(model),
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
    # torchtitan would move a balancing bias between steps; here it is what the checkpoint has, or none
    return make_moe_config(
        num_experts=experts.count,
        router=router,
        routed_experts=routed,
        shared_experts=_feed_forward(hidden, experts.shared) if experts.shared else None,
        load_balance_coeff=1.0 if experts.correction_bias else None,
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


def _tie(decoder: PackedDecoder) -> None:
    """Sharding and leaving meta make two parameters of a shared one."""
    if decoder.enable_weight_tying:
        decoder.tok_embeddings.weight = decoder.lm_head.weight


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)
