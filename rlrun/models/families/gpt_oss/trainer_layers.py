"""gpt-oss's modules: attention with sinks, and experts with biases and a clamped gate.

Parameters and layouts are torchtitan's; the forward passes are not, for three reasons: its attention loses
the gradient of the log-sum-exp, its experts only compute in bfloat16, and they add the second bias once per
tensor-parallel rank.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from torch.nn.functional import linear

from rlrun.models.architecture import Experts as ExpertShape
from rlrun.models.low_precision import LowPrecision
from rlrun.runner.trainer.compat import experts, modules
from rlrun.runner.trainer.compat.meshes import ParallelDims
from rlrun.runner.trainer.model.attention import Documents
from rlrun.runner.trainer.model.decoder_parts import FROM_CHECKPOINT, DecoderParts
from rlrun.runner.trainer.model.layers import Experts, PackedAttention
from rlrun.runner.trainer.model.low_precision.converted_experts import LowPrecisionProducts
from rlrun.runner.trainer.ops.library import on_gpu
from rlrun.runner.trainer.ops.products import linear_product


class Parts(DecoderParts):
    """The parts of gpt-oss's decoder."""

    def attention(self, layer: int) -> Any:
        """Returns the config of attention with sinks, in the layer's window."""
        model = self.model
        fields = self.grouped_queries() | {
            "wo": SharedBiasMatrix.Config(
                in_features=model.heads * model.head_dim,
                out_features=model.hidden,
                bias=True,
                param_init=FROM_CHECKPOINT,
            ),
            "inner_attention": PackedAttention.Config(window=model.window(layer)),
        }
        return SinkAttention.Config(**fields, param_init=FROM_CHECKPOINT)

    def experts(self, shape: ExpertShape) -> Any:
        """Returns the config of experts with a clamped gate."""
        assert shape.clamped_gate is not None
        return ClampedExperts.Config(
            dim=self.model.hidden,
            hidden_dim=shape.intermediate,
            num_experts=shape.count,
            swiglu_limit=shape.clamped_gate.limit,
            alpha=shape.clamped_gate.alpha,
            param_init=FROM_CHECKPOINT,
        )

    def low_precision_experts(self) -> dict[type, Any]:
        """Returns the classes that replace those of `experts`."""
        return {ClampedExperts: ConvertedClampedExperts}

    def router_bias(self) -> bool:
        """Returns that the router's logits have a bias."""
        return True


class SinkAttention(modules.SinkAttention):
    """Grouped-query attention with one sink per head."""

    @dataclass(kw_only=True, slots=True)
    class Config(modules.SinkAttention.Config):
        pass

    def forward(
        self, x: torch.Tensor, attention_masks: Documents, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Maps `[1, T, hidden]` to `[1, T, hidden]`."""
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
    """A matrix split by inputs: tensor-parallel ranks sum their products, each with its share of the bias."""

    @dataclass(kw_only=True, slots=True)
    class Config(modules.ScaledBiasRowwiseLinear.Config):
        pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Maps `[..., in]` to `[..., out]`."""
        return linear_product(input, _local(self.weight), _local(self.bias) / self.tp_degree)


class ClampedExperts(experts.GptOssGroupedExperts):
    """gpt-oss's experts, in the precision of their input like `layers.Experts`."""

    @dataclass(kw_only=True, slots=True)
    class Config(experts.GptOssGroupedExperts.Config):
        alpha: float
        """The factor of the gate within its sigmoid."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self._alpha = config.alpha
        self._num_column_ranks = 1
        """Number of ranks that each expert's columns are split over."""

    def parallelize(self, parallel_dims: ParallelDims) -> None:
        """Lays the parameters out over the ranks."""
        self._num_column_ranks = parallel_dims.tp if parallel_dims.ep == 1 else 1
        super().parallelize(parallel_dims)

    def forward(self, x_RD: torch.Tensor, num_tokens_per_expert_E: torch.Tensor) -> torch.Tensor:
        """Maps `[R, D]` routed tokens, sorted by expert, to `[R, D]`; padding rows come last."""
        names = ("mlp1_weight_EGD", "mlp1_bias_EG", "mlp2_weight_EDF", "mlp2_bias_ED")
        w1, b1, w2, b2 = (_local(getattr(self, name)) for name in names)
        weights = w1, b1, w2, b2 / self._num_column_ranks  # ranks sum outputs and the bias's gradients
        if on_gpu(x_RD) and x_RD.dtype == torch.bfloat16:
            return self._grouped(x_RD, num_tokens_per_expert_E, *weights)
        counts = Experts.counts(num_tokens_per_expert_E, len(x_RD))
        tokens_by_expert = x_RD.split([*counts, len(x_RD) - sum(counts)])
        outputs = [
            self._product(self._gated(self._product(tokens, w1, b1)), w2, b2)
            for tokens, w1, b1, w2, b2 in zip(
                tokens_by_expert, *(weight.unbind() for weight in weights), strict=False
            )
        ]
        return torch.cat([*outputs, tokens_by_expert[-1] * 0])

    @staticmethod
    def _product(tokens: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        """Multiplies one expert's tokens; low precision replaces this, as it does `_grouped_mm`."""
        return linear(tokens, weight, bias)

    def _grouped(  # noqa: PLR0917
        self,
        x: torch.Tensor,
        counts: torch.Tensor,
        w1: torch.Tensor,
        b1: torch.Tensor,
        w2: torch.Tensor,
        b2: torch.Tensor,
    ) -> torch.Tensor:
        """Computes the same with two grouped products, without waiting for the device to count tokens."""
        ends = counts.cumsum(0, dtype=torch.int32)
        repeats = torch.cat((counts.long(), (len(x) - ends[-1:]).long()))
        # Padding rows get the number behind the last expert, whose bias is zero.
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


class ConvertedClampedExperts(LowPrecisionProducts, ClampedExperts):
    """The experts in low precision."""

    @dataclass(kw_only=True, slots=True)
    class Config(ClampedExperts.Config):
        precision: LowPrecision

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.precision = config.precision


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor
