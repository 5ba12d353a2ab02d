"""Lays a decoder's modules out over tensor-, context- and expert-parallel ranks, as torchtitan does."""

from dataclasses import replace
from typing import Any

import rlrun.runner.trainer.compat.device  # noqa: F401  (before torchtitan)

# isort: split
import spmd_types as spmd
from torchtitan.models.common.decoder_sharding import (
    dense_activation_placement,
    dense_param_placement,
    set_decoder_sharding_config,
)
from torchtitan.models.deepseek_v3.model import Attention as LatentAttention
from torchtitan.models.deepseek_v3.sharding import _set_deepseek_v3_layer_sharding
from torchtitan.models.gpt_oss.model import Attention as SinkAttention
from torchtitan.models.gpt_oss.sharding import _set_gpt_oss_layer_sharding
from torchtitan.models.qwen3.sharding import _set_qwen3_layer_sharding
from torchtitan.protocols.sharding import ShardingConfig

from rlrun.specs.sections.trainer import ParallelSpec


def set_sharding(config: Any, parallel: ParallelSpec) -> None:
    """Writes the tensor-, context- and expert-parallel layout of every module into a model config.

    The head's layout differs from torchtitan's: it returns log-probs, which need no layout, in place of
    logits.
    """
    sequence_parallel = parallel.tensor > 1 and parallel.sequence_parallel
    set_decoder_sharding_config(config, enable_sp=sequence_parallel)
    for layer in config.layers:
        shard = _set_qwen3_layer_sharding
        if isinstance(layer.attention, LatentAttention.Config):
            shard = _set_deepseek_v3_layer_sharding
        elif isinstance(layer.attention, SinkAttention.Config):
            shard = _set_gpt_oss_layer_sharding
        shard(layer, enable_sp=sequence_parallel, enable_ep=parallel.expert > 1)
    replicated = dense_activation_placement(tp=spmd.R)
    config.lm_head.sharding_config = ShardingConfig(
        state_shardings=config.lm_head.sharding_config.state_shardings,
        in_src_shardings={"input": replicated},
        in_dst_shardings={"input": replicated},
    )


def split_inputs(head: Any) -> None:
    """Makes tensor-parallel ranks split a head's inputs, not its outputs. Call it before the head is
    parallelised.
    """
    weight = {"weight": dense_param_placement(tp=spmd.S(1))}
    head._sharding_config = replace(head._sharding_config, state_shardings=weight)
