"""torchtitan's configs of the parts of a decoder, with rlrun's modules where they differ.

A family whose layers are not a Llama's has a subclass `Parts` of `DecoderParts` in its `trainer_layers`
(`rlrun.models.families`), which overrides what differs.
"""

from importlib import import_module
from typing import Any

from rlrun.models.architecture import Architecture
from rlrun.models.architecture import Experts as ExpertShape
from rlrun.runner.trainer.compat.experts import make_moe_config, make_routed_experts_config
from rlrun.runner.trainer.compat.modules import GQAttention, QKVLinear
from rlrun.runner.trainer.model.layers import (
    Experts,
    Matrix,
    Norm,
    OffsetNorm,
    PackedAttention,
    RouterLinear,
    SwiGLU,
)
from rlrun.runner.trainer.model.low_precision.converted_experts import ConvertedExperts
from rlrun.runner.trainer.model.rope import PartialRoPE, TableRoPE
from rlrun.runner.trainer.model.routing import ReplayRouter

FROM_CHECKPOINT: dict[str, Any] = {}
"""Disables torchtitan's initialisation: every parameter is loaded, or initialised by name."""
HAS_BIAS = 1.0
"""Any value makes torchtitan give experts a bias. It would be the rate of torchtitan's own balancing, which
is not used: the bias is the checkpoint's, or `ExpertLoad` moves it.
"""


def decoder_parts(model: Architecture) -> "DecoderParts":
    """Returns the parts of a model's decoder, those of its family's own layers included."""
    if model.own_layers is None:
        return DecoderParts(model)
    parts: DecoderParts = import_module(f"{model.own_layers}.trainer_layers").Parts(model)
    return parts


class DecoderParts:
    """The parts of a decoder like Llama: grouped-query attention, SwiGLU, and experts with SwiGLU."""

    def __init__(self, model: Architecture) -> None:
        self.model = model

    def norm(self, size: int) -> Norm.Config:
        """Returns the config of one of the model's RMSNorms, over `size` numbers."""
        kind = OffsetNorm if self.model.offset_norms else Norm
        return kind.Config(normalized_shape=size, eps=self.model.norm_eps, param_init=FROM_CHECKPOINT)

    def attention(self, layer: int) -> Any:
        """Returns the config of the attention of layer `layer`."""
        norm = self.norm(self.model.head_dim) if self.model.qk_norm else None
        return GQAttention.Config(**self.grouped_queries(), qk_norm=norm)

    def grouped_queries(self) -> dict[str, Any]:
        """Returns the fields of a config of grouped-query attention, except its norms."""
        model = self.model
        queries = model.heads * model.head_dim
        return {
            "n_heads": model.heads,
            "n_kv_heads": model.kv_heads,
            "head_dim": model.head_dim,
            "dim": model.hidden,
            "qkv_linear": self.projections(queries),
            "wo": matrix(queries, model.hidden),
            "inner_attention": PackedAttention.Config(),
            "rope": self.rope(),
        }

    def projections(self, queries: int) -> QKVLinear.Config:
        """Returns the config of the projections to `queries` numbers, keys and values."""
        model = self.model
        return QKVLinear.Config(
            head_dim=model.head_dim,
            wq=matrix(model.hidden, queries, bias=model.qkv_bias),
            wkv=matrix(model.hidden, model.kv_heads * model.head_dim, bias=model.qkv_bias),
        )

    def rope(self) -> TableRoPE.Config:
        """Returns the config of RoPE; scaling is in the table (`RopeTable`)."""
        rope_class = PartialRoPE if self.model.rotary_dim else TableRoPE
        return rope_class.Config(
            dim=self.model.rotated_dim,
            max_seq_len=self.model.max_positions,
            scaling="none",
            rope_factor=1.0,
        )

    def feed_forward(self, inner: int) -> SwiGLU.Config:
        """Returns the config of a dense feed-forward."""
        hidden = self.model.hidden
        return SwiGLU.Config(w1=matrix(hidden, inner), w2=matrix(inner, hidden), w3=matrix(hidden, inner))

    def shared_experts(self, inner: int) -> SwiGLU.Config:
        """Returns the config of the feed-forward beside the routed experts."""
        return self.feed_forward(inner)

    def experts(self, shape: ExpertShape) -> Any:
        """Returns the config of the routed experts."""
        return Experts.Config(
            dim=self.model.hidden,
            hidden_dim=shape.intermediate,
            num_experts=shape.count,
            param_init=FROM_CHECKPOINT,
        )

    def low_precision_experts(self) -> dict[type, Any]:
        """Returns the classes that replace those of `experts` where `trainer.precision` is set."""
        return {Experts: ConvertedExperts}

    def router_bias(self) -> bool:
        """Returns whether the router's logits have a bias."""
        return False

    def mixture(self, shape: ExpertShape) -> Any:
        """Returns the config of a sparse layer's router and experts."""
        routed = make_routed_experts_config(
            dim=self.model.hidden,
            hidden_dim=shape.intermediate,
            num_experts=shape.count,
            top_k=shape.per_token,
            param_init=FROM_CHECKPOINT,
            comm_backend="standard",
        )
        routed.inner_experts = self.experts(shape)
        gate = RouterLinear.Config(
            in_features=self.model.hidden,
            out_features=shape.count,
            bias=self.router_bias(),
            param_init=FROM_CHECKPOINT,
        )
        router = ReplayRouter.Config(
            num_experts=shape.count,
            gate=gate,
            top_k=shape.per_token,
            score_func=shape.score,
            route_norm=shape.normalize,
            route_scale=shape.scale,
            num_expert_groups=shape.groups if shape.groups > 1 else None,
            num_limited_groups=shape.chosen_groups if shape.groups > 1 else None,
        )
        return make_moe_config(
            num_experts=shape.count,
            router=router,
            routed_experts=routed,
            shared_experts=self.shared_experts(shape.shared) if shape.shared else None,
            load_balance_coeff=HAS_BIAS if shape.correction_bias else None,
        )


def matrix(inputs: int, outputs: int, *, bias: bool = False) -> Matrix.Config:
    """Returns the config of a matrix from `inputs` to `outputs`."""
    return Matrix.Config(in_features=inputs, out_features=outputs, bias=bias, param_init=FROM_CHECKPOINT)
