"""Builds torchtitan's decoder for an architecture, laid out over the ranks.

config.json -> Architecture -> torchtitan config -> modules on meta -> stages -> tensor parallel -> FSDP ->
memory
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rlrun.models.adapters import LoraShape
from rlrun.models.architecture import Architecture
from rlrun.models.vision import VisionTower, build_tower, fill_tower_buffers
from rlrun.runner.planning.rank_layout import check_layout, stage_layers, stages_of_rank
from rlrun.runner.trainer.compat.data_parallel import shard_data_parallel
from rlrun.runner.trainer.compat.experts import exchange_through_buffers
from rlrun.runner.trainer.compat.layouts import set_sharding
from rlrun.runner.trainer.compat.meshes import ParallelDims
from rlrun.runner.trainer.compat.recomputation import checkpoint_activations, checkpoint_blocks
from rlrun.runner.trainer.model.adapted import AdaptedConfig, freeze_base
from rlrun.runner.trainer.model.compiling import compile_layers
from rlrun.runner.trainer.model.decoder import PackedDecoder
from rlrun.runner.trainer.model.decoder_options import DecoderOptions
from rlrun.runner.trainer.model.decoder_parts import HAS_BIAS
from rlrun.runner.trainer.model.low_precision.converted_config import convert_to_low_precision, fill_buffers
from rlrun.runner.trainer.model.model_config import model_config
from rlrun.runner.trainer.model.overlapped import overlap_exchanges
from rlrun.runner.trainer.model.quantised_matrix import hold_as_bytes, quantise_matrices
from rlrun.runner.trainer.model.target import round_as_target
from rlrun.runner.trainer.model.value_head import value_head_config
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
    config = model_config(model, tied=model.tied and parallel.pipeline == 1)
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
        overlap_exchanges(config)
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
        compile_layers(decoder)
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
