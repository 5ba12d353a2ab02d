"""Builds torchtitan's decoder for an architecture, laid out over the ranks.

config.json -> Architecture -> torchtitan config -> modules on meta -> stages -> tensor parallel -> FSDP ->
memory
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rlrun.models.adapters import LoraShape, check_ranks
from rlrun.models.architecture import Architecture
from rlrun.models.low_precision import LowPrecision
from rlrun.runner.planning.rank_layout import check_layout, stage_layers, stages_of_rank
from rlrun.runner.trainer.compat.data_parallel import shard_data_parallel
from rlrun.runner.trainer.compat.experts import exchange_through_buffers
from rlrun.runner.trainer.compat.layouts import set_sharding
from rlrun.runner.trainer.compat.meshes import ParallelDims
from rlrun.runner.trainer.compat.recomputation import checkpoint_activations
from rlrun.runner.trainer.model.adapted.adapted_config import AdaptedConfig, freeze_base
from rlrun.runner.trainer.model.compiling import compile_layers
from rlrun.runner.trainer.model.decoder import PackedDecoder
from rlrun.runner.trainer.model.low_precision.converted_config import convert_to_low_precision, fill_buffers
from rlrun.runner.trainer.model.model_config import HAS_BIAS, model_config
from rlrun.runner.trainer.model.overlapped import overlap_exchanges
from rlrun.runner.trainer.model.quantised_matrix import hold_as_bytes, quantise_matrices
from rlrun.specs.sections.trainer import ParallelSpec


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
    head_dtype: str = "model",
    compiled: bool = False,
    balanced: bool = False,
    lora: LoraShape | None = None,
    most_tokens: int = 0,
    precision: LowPrecision | None = None,
) -> list[PackedDecoder]:
    """Returns this rank's pipeline stages, in order, with undefined parameters; one stage without a pipeline.

    `dims` None: a single rank, nothing is sharded, and parameters are in `dtype`. Otherwise ranks hold
    float32 shards, except of frozen parameters, and FSDP computes in `dtype`.

    `head`: the config of a head other than the policy's. `section`: the spec's section, for messages.
    `checkpointing`: `trainer.activation_checkpointing`. `on_host`: shards are in host memory; a single rank's
    parameters stay on its device. `router_dtype`: `trainer.moe.router_dtype`. `head_dtype`: the policy's
    `trainer.head_dtype`. `compiled`: `trainer.compile`. `balanced`: experts have a bias that balances their
    load. `lora`: matrices get adapters, and all other parameters are frozen. `most_tokens`: the greatest
    number of tokens of a micro-batch that one rank sends to experts, which exchanges through buffers need.
    `precision`: the layers multiply in low precision where they can.
    """
    config = model_config(model, tied=model.tied and parallel.pipeline == 1)
    config.lm_head.wide = head_dtype == "float32"
    config.lm_head = head or config.lm_head
    _set_experts(config, wide=router_dtype == "float32", balanced=balanced)
    if precision is not None:
        config = convert_to_low_precision(config, model, precision, parallel)
    if dims is not None:
        check_layout(model, parallel, section)
        if parallel.token_dispatcher == "deepep":
            exchange_through_buffers(config, most_tokens)
        if parallel.async_tensor:
            overlap_exchanges(config)
        set_sharding(config, parallel)
    adapted = None if lora is None else _adapted(config, model, lora, parallel)
    ranges = stage_layers(model.layers, parallel)
    pipeline_rank = 0 if dims is None or dims.pp == 1 else dims.get_mesh("pp").get_local_rank()
    decoders = []
    for stage in stages_of_rank(pipeline_rank, parallel):
        with torch.device("meta"), _default_dtype(torch.float32 if dims is not None else dtype):
            decoder: PackedDecoder = config.build() if adapted is None else adapted.build()
        _prune(decoder, ranges[stage], first=stage == 0, last=stage == parallel.stages - 1)
        decoders.append(
            _materialize(
                decoder,
                dims,
                parallel,
                dtype,
                device,
                checkpointing,
                on_host=on_host,
                compiled=compiled,
                adapted=lora is not None,
            )
        )
        if precision is not None:
            fill_buffers(decoders[-1], device)
    return decoders


def _adapted(config: Any, model: Architecture, lora: LoraShape, parallel: ParallelSpec) -> AdaptedConfig:
    """Returns a sharded model config with adapters, beside matrices in the precision of `lora.base`."""
    check_ranks(model, parallel.world_size)
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


def _materialize(  # noqa: PLR0917
    decoder: PackedDecoder,
    dims: ParallelDims | None,
    parallel: ParallelSpec,
    dtype: torch.dtype,
    device: torch.device,
    checkpointing: str,
    *,
    on_host: bool,
    compiled: bool,
    adapted: bool,
) -> PackedDecoder:
    """Lays a decoder on meta out over the ranks, and allocates its memory.

    The order matters: FSDP has to wrap the compiled and checkpointed layers.
    """
    if dims is not None:
        decoder.parallelize(dims)
        _tie(decoder)
    if adapted:
        # `parallelize` creates the parameters again, in float32, and all of them would be trained
        freeze_base(decoder, dtype)
        hold_as_bytes(decoder)
    if checkpointing != "none":
        checkpoint_activations(decoder, checkpointing)
    if compiled:
        compile_layers(decoder)
    if dims is not None:
        shard_data_parallel(decoder, dims, dtype, parallel, on_host=on_host)
    decoder.to_empty(device="cpu" if on_host and dims is not None else device)
    if dims is None:
        _tie(decoder)
    for module in decoder.modules():
        for name, buffer in module._buffers.items():
            module._buffers[name] = None if buffer is None else buffer.to(device)
    for buffer in decoder.buffers():
        buffer.zero_()
    trained: PackedDecoder = decoder.train()
    return trained


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
