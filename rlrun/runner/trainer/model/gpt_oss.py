"""gpt-oss's own modules: attention with sinks, and experts with biases and a clamped gate.

Parameters and layouts are torchtitan's, forward passes are not: its attention loses the gradient of the
log-sum-exp, and its experts compute in bfloat16 alone and count the second bias once for each tensor-parallel
rank.
"""

from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from rlrun.runner.trainer.compat import experts, modules
from rlrun.runner.trainer.compat.meshes import ParallelDims
from rlrun.runner.trainer.cpu_ops.library import on_gpu
from rlrun.runner.trainer.model.attention import Documents
from rlrun.runner.trainer.model.layers import Experts, product


class SinkAttention(modules.SinkAttention):
    """Grouped-query attention with a sink for each head."""

    @dataclass(kw_only=True, slots=True)
    class Config(modules.SinkAttention.Config):
        pass

    def forward(
        self, x: torch.Tensor, attention_masks: Documents, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """`[1, T, hidden]` like its input."""
        query, key, value = self.qkv_linear(x)
        query, key = self.rope(query, key, positions)
        sinks = self.sinks
        if isinstance(sinks, DTensor):
            sinks = sinks.to_local(grad_placements=sinks.placements)
        output = self.inner_attention(
            query,
            key,
            value,
            attention_masks=attention_masks,
            scale=self.softmax_scale,
            enable_gqa=self.enable_gqa,
            sinks=sinks,
        )
        projected: torch.Tensor = self.wo(output.contiguous().flatten(2))
        return projected


class SharedBiasMatrix(modules.ScaledBiasRowwiseLinear):
    """A matrix whose products tensor-parallel ranks add up; each adds its share of the bias."""

    @dataclass(kw_only=True, slots=True)
    class Config(modules.ScaledBiasRowwiseLinear.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """`[..., in]` -> `[..., out]`."""
        return product(input, _local(self.weight), _local(self.bias) / self.tp_degree)


class ClampedExperts(experts.GptOssGroupedExperts):
    """Experts in the precision of their input, as `layers.Experts`."""

    @dataclass(kw_only=True, slots=True)
    class Config(experts.GptOssGroupedExperts.Config):
        alpha: float
        """The gate's slope."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._alpha = config.alpha
        self._ranks = 1
        """That share out each expert's columns."""

    def parallelize(self, parallel_dims: ParallelDims) -> None:
        """Lay the parameters out over the ranks."""
        self._ranks = parallel_dims.tp if parallel_dims.ep == 1 else 1
        super().parallelize(parallel_dims)

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        """`[R, D]` routed tokens sorted by expert; those that fill up come last."""
        names = ("mlp1_weight_EGD", "mlp1_bias_EG", "mlp2_weight_EDF", "mlp2_bias_ED")
        w1, b1, w2, b2 = (_local(getattr(self, name)) for name in names)
        weights = w1, b1, w2, b2 / self._ranks  # outputs are added up, and so are the bias's gradients
        if on_gpu(x_RD) and x_RD.dtype == torch.bfloat16:
            return self._grouped(x_RD, num_tokens_per_expert_E, *weights)
        counts = Experts.counts(num_tokens_per_expert_E, len(x_RD))
        parts = x_RD.split([*counts, len(x_RD) - sum(counts)])
        outputs = [
            linear(self._gated(linear(part, w1, b1)), w2, b2)
            for part, w1, b1, w2, b2 in zip(parts, *(each.unbind() for each in weights), strict=False)
        ]
        return torch.cat([*outputs, parts[-1] * 0])

    def _grouped(  # noqa: PLR0917
        self,
        x: torch.Tensor,
        counts: torch.Tensor,
        w1: torch.Tensor,
        b1: torch.Tensor,
        w2: torch.Tensor,
        b2: torch.Tensor,
    ) -> torch.Tensor:
        """The same as two grouped products, without asking the device how many tokens each expert has."""
        ends = counts.cumsum(0, dtype=torch.int32)
        repeats = torch.cat((counts.long(), (len(x) - ends[-1:]).long()))
        numbers = torch.arange(len(repeats), device=x.device)
        expert = numbers.repeat_interleave(repeats, output_size=len(x))

        def bias(biases: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.pad(biases, (0, 0, 0, 1)).to(x.dtype)[expert]

        both = self._grouped_mm(A=x, B_t=w1.to(x.dtype).transpose(1, 2), offs=ends) + bias(b1)
        product = self._grouped_mm(A=self._gated(both), B_t=w2.to(x.dtype).transpose(1, 2), offs=ends)
        return product + bias(b2)

    def _gated(self, both: torch.Tensor) -> torch.Tensor:
        gate = both[..., 0::2].clamp(max=self.swiglu_limit)
        up = both[..., 1::2].clamp(-self.swiglu_limit, self.swiglu_limit)
        return gate * torch.sigmoid(self._alpha * gate) * (up + 1)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
