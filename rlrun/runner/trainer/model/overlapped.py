"""Replaces dense layers by torchtitan's whose tensor-parallel exchanges overlap with their products
(`trainer.parallel.async_tensor`).

    tokens of this rank ─▶ gather + product with this rank's columns ─▶ all tokens, this rank's heads
    all tokens, this rank's heads ─▶ product with this rank's rows + reduction ─▶ tokens of this rank
"""

from dataclasses import dataclass
from typing import Any

import torch

from rlrun.runner.trainer.compat.modules import GQAttention, QKVLinear
from rlrun.runner.trainer.compat.overlapped import (
    AllGatherFusedFeedForward,
    AllGatherLinear,
    RowParallelLinear,
    tensor_group,
)


class OverlappedQKV(QKVLinear):
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


def overlap_exchanges(config: Any) -> None:
    """Replaces the projections of attention, and dense feed-forwards, in a model config.

    Experts stay as they are: their ranks exchange tokens, not parts of sums.
    """
    for layer in config.layers:
        attention = layer.attention
        assert isinstance(attention, GQAttention.Config), "check_layout refuses other families"
        qkv, output = attention.qkv_linear, attention.wo
        attention.qkv_linear = OverlappedQKV.Config(head_dim=qkv.head_dim, wq=qkv.wq, wkv=qkv.wkv)
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
