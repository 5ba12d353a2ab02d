"""Lays a decoder's modules out over tensor-, context- and expert-parallel ranks, as torchtitan does."""

from dataclasses import replace
from typing import Any, Literal

import rlrun.runner.trainer.compat.device  # noqa: F401  (before torchtitan)

# isort: split
import spmd_types as spmd
from torchtitan.distributed.parallel_dims import MeshAxisName
from torchtitan.models.common.attention import GQAttention
from torchtitan.models.common.decoder_sharding import (
    colwise_config,
    dense_activation_placement,
    dense_param_placement,
    dense_sequence_parallel_placement,
    norm_config,
    rowwise_config,
    set_decoder_sharding_config,
    set_dense_ffn_sharding,
)
from torchtitan.models.common.moe_sharding import (
    expert_param_placement_dense,
    expert_param_placement_sparse,
    set_moe_sharding_config,
)
from torchtitan.models.deepseek_v3.model import Attention as LatentAttention
from torchtitan.models.deepseek_v3.sharding import _set_deepseek_v3_layer_sharding
from torchtitan.models.gpt_oss.model import Attention as SinkAttention
from torchtitan.models.gpt_oss.sharding import _set_gpt_oss_layer_sharding
from torchtitan.models.qwen3.sharding import _GROUPED_EXPERTS_PARAM_LAYOUT, _set_qwen3_layer_sharding
from torchtitan.protocols.module import Module
from torchtitan.protocols.sharding import ShardingConfig, SpmdLayout

from rlrun.runner.trainer.compat.meshes import ParallelDims
from rlrun.specs.sections.trainer import ParallelSpec


def set_sharding(config: Any, parallel: ParallelSpec) -> None:
    """Writes the tensor-, context- and expert-parallel layout of every module into a model config.

    The head's layout differs from torchtitan's: it returns log-probs, which need no layout, in place of
    logits.
    """
    sequence_parallel = parallel.tensor > 1 and parallel.sequence_parallel
    set_decoder_sharding_config(config, enable_sp=sequence_parallel)
    for layer in config.layers:
        shard: Any = _set_qwen3_layer_sharding
        if isinstance(layer.attention, LatentAttention.Config):
            shard = _set_deepseek_v3_layer_sharding
        elif isinstance(layer.attention, SinkAttention.Config):
            shard = _set_gpt_oss_layer_sharding
        elif not isinstance(layer.attention, GQAttention.Config):
            shard = _set_delta_net_layer_sharding
        shard(layer, enable_sp=sequence_parallel, enable_ep=parallel.expert > 1)
        if getattr(layer.attention, "indexer", None) is not None:
            _set_indexer_sharding(layer.attention.indexer)
        if isinstance(layer.attention, GQAttention.Config) and hasattr(layer.attention, "q_norm"):
            _set_joint_norm_sharding(layer.attention)
        if layer.moe is not None and hasattr(layer.moe.shared_experts, "gate"):
            _set_shared_gate_sharding(layer.moe.shared_experts.gate, enable_sp=sequence_parallel)
        if hasattr(layer, "mtp_projection"):
            _set_mtp_sharding(layer)
    replicated = dense_activation_placement(tp=spmd.R)
    config.lm_head.sharding_config = ShardingConfig(
        state_shardings=config.lm_head.sharding_config.state_shardings,
        in_src_shardings={"input": replicated},
        in_dst_shardings={"input": replicated},
    )


def _set_delta_net_layer_sharding(layer: Any, *, enable_sp: bool, enable_ep: bool) -> None:
    """Splits Gated DeltaNet by heads, as torchtitan's Qwen3.5 does, whose blocks differ."""
    net, norm = layer.attention, norm_config(enable_sp=enable_sp)
    layer.attention_norm.sharding_config = layer.ffn_norm.sharding_config = norm
    hidden = dense_sequence_parallel_placement() if enable_sp else dense_activation_placement(tp=spmd.I)
    by_head = dense_param_placement(tp=spmd.S(0))
    net.sharding_config = ShardingConfig(
        state_shardings={"A_log": by_head, "dt_bias": by_head},
        in_src_shardings={"x_BLD": hidden},
        in_dst_shardings={"x_BLD": dense_activation_placement(tp=spmd.R)},
    )
    for name in [field for field in net.__dataclass_fields__ if field.startswith("in_proj_")]:
        if getattr(net, name) is not None:
            getattr(net, name).sharding_config = colwise_config()
    net.conv1d.sharding_config = ShardingConfig(state_shardings={"weight": by_head})
    net.inner_attention.sharding_config = _tokens_for_heads()
    net.norm.sharding_config = ShardingConfig(state_shardings={"weight": dense_param_placement(tp=spmd.R)})
    net.out_proj.sharding_config = rowwise_config(output_sp=enable_sp)
    if layer.feed_forward is not None:
        set_dense_ffn_sharding(layer.feed_forward, attn_x_layout=hidden, enable_sp=enable_sp)
    if layer.moe is not None:
        set_moe_sharding_config(
            layer.moe,
            enable_ep=enable_ep,
            enable_sp=enable_sp,
            expert_param_layout=_GROUPED_EXPERTS_PARAM_LAYOUT,
        )


def _tokens_for_heads() -> ShardingConfig:
    """Makes context-parallel ranks exchange their tokens for heads, by all-to-all, and back after the rule.

    Within the rule a rank has all tokens of its share of the heads, which tensor parallelism split before.
    spmd_types cannot split the taps alike: its lazy copy of a parameter does not survive FSDP's resizing.
    """
    tokens = dense_activation_placement(tp=spmd.S(2))
    varying: dict[MeshAxisName, Any] = dict.fromkeys(tokens.axes(), spmd.V)
    by_both = (MeshAxisName.DP, None, (MeshAxisName.TP, MeshAxisName.CP))
    heads, inputs = SpmdLayout(varying, by_both), ("qkv", "decay", "beta")
    return ShardingConfig(
        in_src_shardings=dict.fromkeys(inputs, tokens),
        in_dst_shardings=dict.fromkeys(inputs, heads),
        out_src_shardings=SpmdLayout(varying, (*by_both, None)),
        out_dst_shardings=tokens,
    )


def _set_joint_norm_sharding(attention: Any) -> None:
    """Gives each rank the weights of its own heads in norms over all heads."""
    by_head = {"weight": dense_param_placement(tp=spmd.S(0))}
    for norm in (attention.q_norm, attention.k_norm):
        norm.sharding_config = ShardingConfig(state_shardings=by_head)


def _set_indexer_sharding(indexer: Any) -> None:
    """Gives every rank the whole indexer, so that tensor-parallel ranks choose the same keys for their heads;
    context-parallel ranks gather the index keys of all tokens.
    """
    parameters = {"weight": dense_param_placement(tp=spmd.R), "bias": dense_param_placement(tp=spmd.R)}
    for module in (indexer.query, indexer.key, indexer.head_weights, indexer.key_norm):
        module.sharding_config = ShardingConfig(state_shardings=parameters)
    indexer.choice.sharding_config = ShardingConfig(
        in_src_shardings={"key": dense_activation_placement(tp=spmd.R)},
        in_dst_shardings={"key": dense_activation_placement(tp=spmd.R, cp=spmd.R)},
    )


def _set_shared_gate_sharding(gate: Any, *, enable_sp: bool) -> None:
    """Gives every rank the whole gate; its output is cut like that of the feed-forward that it multiplies."""
    whole = dense_activation_placement(tp=spmd.R)
    gate.sharding_config = ShardingConfig(
        state_shardings={"weight": dense_param_placement(tp=spmd.R)},
        out_src_shardings=whole,
        out_dst_shardings=dense_sequence_parallel_placement() if enable_sp else whole,
    )


def _set_mtp_sharding(layer: Any) -> None:
    """Gives every rank the whole projection and the norms around an MTP layer, before FSDP shards them."""
    whole = ShardingConfig(state_shardings={"weight": dense_param_placement(tp=spmd.I)})
    for name in ("mtp_hidden_norm", "mtp_token_norm", "mtp_norm", "mtp_projection"):
        getattr(layer, name).sharding_config = whole


def split_inputs(head: Any) -> None:
    """Makes tensor-parallel ranks split a head's inputs, not its outputs. Call it before the head is
    parallelised.
    """
    weight = {"weight": dense_param_placement(tp=spmd.S(1))}
    head._sharding_config = replace(head._sharding_config, state_shardings=weight)


Placement = Literal["rows", "columns", "same", "same, gradients added up"]
"""How tensor-parallel ranks hold a parameter; with "same", the gradients are the same on all of them."""
_TENSOR_PLACEMENTS = {
    "rows": spmd.S(0),
    "columns": spmd.S(1),
    "same": spmd.I,
    "same, gradients added up": spmd.R,
}


def place_parameter(module: Any, name: str, dims: ParallelDims, placement: Placement) -> None:
    """Lays a parameter of any torch module out over the ranks."""
    parameter = module._parameters[name]
    if parameter is not None:
        layout = dense_param_placement(tp=_TENSOR_PLACEMENTS[placement])
        Module._spmd_distribute_state(module, dims, name, parameter, layout, is_param=True)


def place_expert_parameters(experts: Any, dims: ParallelDims) -> None:
    """Lays the stacks of a layer's experts out: by experts, or without expert parallelism by their width."""
    for name, parameter in list(experts._parameters.items()):
        layout = expert_param_placement_sparse()
        if dims.ep == 1:
            layout = expert_param_placement_dense(tp_placement=_GROUPED_EXPERTS_PARAM_LAYOUT[name])
        Module._spmd_distribute_state(experts, dims, name, parameter, layout, is_param=True)
