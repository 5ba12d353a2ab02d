"""Builds torchtitan's decoder for an architecture, laid out over the ranks.

config.json -> Architecture -> torchtitan config -> modules on meta -> stages -> tensor parallel -> FSDP ->
memory
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from rlrun.models.adapters import LoraShape
from rlrun.models.architecture import Architecture
from rlrun.models.vision import VisionTower, build_tower, fill_tower_buffers
from rlrun.runner.host.cpp_build import find_compiler
from rlrun.runner.planning.rank_layout import check_layout, stages_of_rank
from rlrun.runner.trainer.compat.data_parallel import shard_data_parallel
from rlrun.runner.trainer.compat.device import ON_CPU, has_triton
from rlrun.runner.trainer.compat.experts import exchange_through_buffers
from rlrun.runner.trainer.compat.layouts import set_sharding
from rlrun.runner.trainer.compat.meshes import ParallelDims
from rlrun.runner.trainer.compat.modules import Embedding, GQAttention, QKVLinear, Qwen3TransformerBlock
from rlrun.runner.trainer.compat.overlapped import (
    AllGatherFusedFeedForward,
    AllGatherLinear,
    RowParallelLinear,
    tensor_group,
)
from rlrun.runner.trainer.compat.recomputation import checkpoint_activations, checkpoint_blocks
from rlrun.runner.trainer.model.adapted import AdaptedConfig, freeze_base
from rlrun.runner.trainer.model.decoder import PackedDecoder
from rlrun.runner.trainer.model.decoder_options import DecoderOptions
from rlrun.runner.trainer.model.decoder_parts import (
    FROM_CHECKPOINT,
    HAS_BIAS,
    DecoderParts,
    decoder_parts,
    matrix,
)
from rlrun.runner.trainer.model.head import ResponseHead
from rlrun.runner.trainer.model.low_precision.converted_config import convert_to_low_precision, fill_buffers
from rlrun.runner.trainer.model.mtp_block import MtpBlock
from rlrun.runner.trainer.model.quantised_matrix import hold_as_bytes, quantise_matrices
from rlrun.runner.trainer.model.target import round_as_target
from rlrun.runner.trainer.model.value_head import value_head_config
from rlrun.specs.derived.pipeline_stages import stage_layers
from rlrun.specs.sections.trainer import ParallelSpec


def build_model(
    model: Architecture, dims: ParallelDims | None, options: DecoderOptions
) -> list[PackedDecoder]:
    """Returns this rank's pipeline stages, in order, with undefined parameters; one stage without a pipeline.

    `dims` None: there is a single rank, and nothing is sharded. Raises ValueError if the model does not fit
    the layout.
    """
    parallel = options.parallel
    config = _layer_config(model, dims, options)
    if options.lora is not None:
        config = _adapted(config, model, options.lora, parallel)
    ranges = stage_layers(model.built_layers, parallel)
    pipeline_rank = 0 if dims is None or dims.pp == 1 else dims.get_mesh("pp").get_local_rank()
    decoders = []
    for stage in stages_of_rank(pipeline_rank, parallel):
        with torch.device("meta"), _default_dtype(options.parameter_dtype(sharded=dims is not None)):
            decoder: PackedDecoder = config.build()
        _prune(decoder, ranges[stage], first=stage == 0, last=stage == parallel.stages - 1)
        decoders.append(_materialize(decoder, dims, options, model.tower if stage == 0 else None))
    return decoders


def _layer_config(model: Architecture, dims: ParallelDims | None, options: DecoderOptions) -> Any:
    """Returns torchtitan's config of the whole decoder, sharded if `dims` is given; without adapters."""
    parallel = options.parallel
    config = _model_config(model, tied=model.tied and parallel.pipeline == 1)
    config.lm_head.wide = options.head_dtype == "float32"
    if model.scores:
        config.lm_head = value_head_config(model)
    if options.as_target:
        config = round_as_target(config)
    _set_experts(config, wide=options.router_dtype == "float32", balanced=options.balanced)
    if options.precision is not None:
        config = convert_to_low_precision(config, model, options.precision, parallel)
    if dims is None:
        return config
    check_layout(model, parallel, options.section)
    if parallel.token_dispatcher == "deepep":
        exchange_through_buffers(config, options.most_tokens)
    if parallel.async_tensor:
        _overlap_exchanges(config)
    set_sharding(config, parallel)
    return config


def _adapted(config: Any, model: Architecture, lora: LoraShape, parallel: ParallelSpec) -> AdaptedConfig:
    """Returns a sharded model config with adapters, beside matrices in the precision of `lora.base`."""
    if lora.base is not None:
        config = quantise_matrices(config, model, lora.base, parallel.tensor)
    return AdaptedConfig(config, model, lora)


def _set_experts(config: PackedDecoder.Config, *, wide: bool, balanced: bool) -> None:
    """Sets the routers' precision, and a bias of experts that the architecture may lack."""
    for layer in config.layers:
        if layer.moe is not None:
            layer.moe.router.gate.wide = wide
            if balanced:
                layer.moe.load_balance_coeff = HAS_BIAS


def _prune(decoder: PackedDecoder, layers: range, *, first: bool, last: bool) -> None:
    """Deletes the modules of all other stages."""
    for name in list(decoder.layers.keys()):
        if int(name) not in layers:
            del decoder.layers[name]
    if not first:
        decoder.tok_embeddings = None
    if not last:
        decoder.norm = decoder.lm_head = None


def _materialize(
    decoder: PackedDecoder, dims: ParallelDims | None, options: DecoderOptions, tower: VisionTower | None
) -> PackedDecoder:
    """Lays a decoder on meta out over the ranks, and allocates its memory.

    The order matters: FSDP has to wrap the compiled and checkpointed layers.
    """
    if dims is not None:
        decoder.parallelize(dims)
        _tie(decoder)
    if options.lora is not None:
        # `parallelize` creates the parameters again, in float32, and all of them would be trained
        freeze_base(decoder, options.dtype)
        hold_as_bytes(decoder)
    if options.checkpointing != "none":
        checkpoint_activations(decoder, options.checkpointing)
    if options.compiled:
        _compile_layers(decoder)
    if tower is not None:
        decoder.visual = build_tower(tower, options.parameter_dtype(sharded=dims is not None))
        if options.checkpointing != "none":
            checkpoint_blocks(decoder.visual)
    if dims is not None:
        shard_data_parallel(decoder, dims, options.dtype, options.parallel, on_host=options.on_host)
    allocate(decoder, "cpu" if options.on_host and dims is not None else options.device, dims)
    _zero_buffers(decoder, options)
    trained: PackedDecoder = decoder.train()
    return trained


def _zero_buffers(decoder: PackedDecoder, options: DecoderOptions) -> None:
    """Moves the buffers to the device; those without starting values are zero."""
    for module in decoder.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(options.device)
    for buffer in decoder.buffers():
        buffer.zero_()
    if decoder.visual is not None:
        fill_tower_buffers(decoder.visual, options.device)
    if options.precision is not None and options.precision.name == "nvfp4":
        fill_buffers(decoder, options.device)


def allocate(decoder: PackedDecoder, device: torch.device | str, dims: ParallelDims | None) -> None:
    """Allocates the decoder's parameters anew, without values; a head that was tied stays so."""
    decoder.to_empty(device=device)
    if dims is None:  # FSDP keeps them tied
        _tie(decoder)


def _tie(decoder: PackedDecoder) -> None:
    """Ties embedding and head again: sharding and `to_empty` make two parameters of the shared one."""
    if decoder.enable_weight_tying:
        decoder.tok_embeddings.weight = decoder.lm_head.weight


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Creates parameters in `dtype` within the block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _model_config(model: Architecture, *, tied: bool) -> PackedDecoder.Config:
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


# Replaces dense layers by torchtitan's whose tensor-parallel exchanges overlap with their products
# (`trainer.parallel.async_tensor`).
#
#     tokens of this rank ─▶ gather + product with this rank's columns ─▶ all tokens, this rank's heads
#     all tokens, this rank's heads ─▶ product with this rank's rows + reduction ─▶ tokens of this rank
class _OverlappedQKV(QKVLinear):
    """Projections to queries, keys and values, which gather their input while they multiply.

    torchtitan's own would need one fused matrix with another order of rows. Here the three matrices stay
    apart, and are concatenated for the product: a copy of this rank's columns, in place of three gathers.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(QKVLinear.Config):
        pass

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Maps this rank's tokens `[1, T / ranks, hidden]` to the heads `[1, T, heads / ranks, H]` of all."""
        group = tensor_group()
        assert group is not None, "specs only allow async_tensor with several tensor-parallel ranks"
        linears = self.wq, self.wk, self.wv
        weight = torch.cat([linear.weight for linear in linears])
        bias = None if self.wq.bias is None else torch.cat([linear.bias for linear in linears])
        output = AllGatherLinear.apply(x.squeeze(0), weight, bias, group, group.group_name)
        heads = output.view(1, len(output), -1, self.head_dim)
        counts = [len(linear.weight) // self.head_dim for linear in linears]
        queries, keys, values = heads.split(counts, dim=2)
        return queries.contiguous(), keys.contiguous(), values.contiguous()


def _overlap_exchanges(config: Any) -> None:
    """Replaces the projections of attention, and dense feed-forwards, in a model config.

    Experts stay as they are: their ranks exchange tokens, not parts of sums.
    """
    for layer in config.layers:
        attention = layer.attention
        assert isinstance(attention, GQAttention.Config), "check_layout refuses other families"
        qkv, output = attention.qkv_linear, attention.wo
        attention.qkv_linear = _OverlappedQKV.Config(head_dim=qkv.head_dim, wq=qkv.wq, wkv=qkv.wkv)
        attention.wo = _row_parallel(output)
        if layer.feed_forward is not None:
            dense = layer.feed_forward
            layer.feed_forward = AllGatherFusedFeedForward.Config(w1=dense.w1, w2=dense.w2, w3=dense.w3)


def _row_parallel(matrix: Any) -> RowParallelLinear.Config:
    return RowParallelLinear.Config(
        in_features=matrix.in_features,
        out_features=matrix.out_features,
        bias=matrix.bias,
        param_init=matrix.param_init,
    )


# torch.compile fuses the arithmetic between attention and experts. All layers share one compilation.
# Attention and experts are left out: they already are kernels, and depend on lengths that differ in every
# micro-batch, so that they would be compiled again and again.
def _compile_layers(decoder: PackedDecoder) -> None:
    """Has every layer compiled at its first use. Raises ValueError if this machine cannot compile."""
    check_compiler()
    for block in decoder.layers.values():
        # Inside the checkpoint wrapper, so that recomputation in the backward pass runs compiled code too.
        inner = getattr(block, "_checkpoint_wrapped_module", block)
        _leave_out(inner.attention.inner_attention)
        if inner.moe_enabled:
            _leave_out(inner.moe)
        inner.compile(dynamic=True)


def check_compiler() -> None:
    """Raises ValueError, with the remedy, if torch has no compiler."""
    if ON_CPU and find_compiler() is None:
        raise ValueError(
            "trainer.compile = true needs a C++ compiler, and none was found: install g++, name a compiler "
            "in CXX, or remove trainer.compile"
        )
    if not ON_CPU and not has_triton():
        raise ValueError(
            "trainer.compile = true needs triton, which this environment or GPU lacks: install it, or "
            "remove trainer.compile"
        )


def _leave_out(module: Any) -> None:
    module.forward = torch.compiler.disable(module.forward)
