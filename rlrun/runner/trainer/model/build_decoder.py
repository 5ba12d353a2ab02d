"""Builds torchtitan's decoder for an architecture, laid out over the ranks.

config.json -> Architecture -> torchtitan config -> modules on meta -> stages -> tensor parallel -> FSDP ->
memory
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from rlrun.models.architecture import Architecture
from rlrun.runner.planning.rank_layout import check_layout, stage_layers, stages_of_rank
from rlrun.runner.trainer.compat.data_parallel import shard_data_parallel
from rlrun.runner.trainer.compat.layouts import set_sharding
from rlrun.runner.trainer.compat.meshes import ParallelDims
from rlrun.runner.trainer.compat.recomputation import checkpoint_activations
from rlrun.runner.trainer.model.compiling import compile_layers
from rlrun.runner.trainer.model.decoder import PackedDecoder
from rlrun.runner.trainer.model.model_config import HAS_BIAS, model_config
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
) -> list[PackedDecoder]:
    """The decoder in memory with undefined parameters, sharded over `dims` (None: one rank, nothing sharded);
    with a pipeline the stages that lie on this rank, in order.

    One rank holds its parameters in `dtype`. Several hold float32 shards, and FSDP computes in `dtype`.
    `head`: the config of another head than the policy's. `section`: of the spec, for messages.
    `checkpointing`: `trainer.activation_checkpointing`.
    `on_host`: shards lie in host memory; what one rank computes with stays on its device. `router_dtype`:
    `trainer.moe.router_dtype`. `head_dtype`: `trainer.head_dtype`, of the policy's head. `compiled`:
    `trainer.compile`. `balanced`: experts have a bias that evens out their load.
    """
    config = model_config(model, tied=model.tied and parallel.pipeline == 1)
    config.lm_head.wide = head_dtype == "float32"
    config.lm_head = head or config.lm_head
    _set_experts(config, wide=router_dtype == "float32", balanced=balanced)
    if dims is not None:
        check_layout(model, parallel, section)
        set_sharding(config, parallel)
    ranges = stage_layers(model.layers, parallel.stages)
    place = 0 if dims is None or dims.pp == 1 else dims.get_mesh("pp").get_local_rank()
    decoders = []
    for stage in stages_of_rank(place, parallel):
        with torch.device("meta"), _default_dtype(torch.float32 if dims is not None else dtype):
            decoder: PackedDecoder = config.build()
        _prune(decoder, ranges[stage], first=stage == 0, last=stage == parallel.stages - 1)
        placed = _placed(decoder, dims, dtype, device, checkpointing, on_host=on_host, compiled=compiled)
        decoders.append(placed)
    return decoders


def _set_experts(config: PackedDecoder.Config, *, wide: bool, balanced: bool) -> None:
    """How routers compute, and whether their experts have a bias that the architecture has not."""
    for layer in config.layers:
        if layer.moe is not None:
            layer.moe.router.gate.wide = wide
            if balanced:
                layer.moe.load_balance_coeff = HAS_BIAS


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
