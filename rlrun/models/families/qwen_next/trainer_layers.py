"""Gated DeltaNet and gated attention: the layers of Qwen3-Next and Qwen3.5.

hidden ─▶ queries, keys, values ─convolution, delta rule─▶ norm, gated ─▶ out_proj        three layers of four
hidden ─▶ queries with gates, keys, values ─RoPE, attention─▶ gated ─▶ wo           the fourth

The state passes through a sequence in order, and context-parallel ranks have parts of each sequence. They
exchange tokens for heads, like Megatron-LM's ssm/mamba_context_parallel.py and Ulysses (arXiv:2309.14509):

a rank's tokens ─all-to-all─▶ all tokens, a rank's heads ─convolution, rule─▶ all-to-all ─▶ a rank's tokens

torchtitan's own modules compute the same, but only on a GPU, and in blocks that take masks of another form.
bfloat16 on a GPU runs fla's kernels, as in torchtitan; everything else runs plain torch.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from rlrun.models.architecture import DeltaNet as DeltaShape
from rlrun.models.computation.delta_rule import delta_rule, document_convolution, log_decay
from rlrun.runner.trainer.compat.kernels import (
    HAS_TRITON,
    Borders,
    causal_convolution,
    chunk_table,
    chunked_delta_rule,
)
from rlrun.runner.trainer.compat.modules import Conv1d, GQAttention, Module, RMSNorm
from rlrun.runner.trainer.model.attention import CutDocuments, Documents
from rlrun.runner.trainer.model.decoder_parts import FROM_CHECKPOINT, DecoderParts, matrix
from rlrun.runner.trainer.model.layers import Matrix, SwiGLU, local
from rlrun.runner.trainer.ops.elementwise import rms_norm
from rlrun.runner.trainer.ops.library import on_gpu
from rlrun.runner.trainer.transfers import to_device

PROJECTIONS = ("in_proj_qkv", "in_proj_z", "in_proj_b", "in_proj_a", "in_proj_qkvz", "in_proj_ba")
"""The projections of the hidden state: Qwen3.5 has the first four, Qwen3-Next the last two."""


class Parts(DecoderParts):
    """The parts of a decoder with Gated DeltaNet and gated attention."""

    def attention(self, layer: int) -> Any:
        """Returns the config of Gated DeltaNet, or of gated attention."""
        model = self.model
        if model.delta is not None and model.is_delta(layer):
            return self._delta_net(model.delta)
        fields = self.grouped_queries() | {"qkv_linear": self.projections(2 * model.heads * model.head_dim)}
        return GatedAttention.Config(**fields, qk_norm=self.norm(model.head_dim))

    def shared_experts(self, inner: int) -> SwiGLU.Config:
        """Returns the config of the gated feed-forward beside the routed experts."""
        hidden = self.model.hidden
        return GatedSwiGLU.Config(
            w1=matrix(hidden, inner),
            w2=matrix(inner, hidden),
            w3=matrix(hidden, inner),
            gate=matrix(hidden, 1),
        )

    def _delta_net(self, delta: DeltaShape) -> "GatedDeltaNet.Config":
        model = self.model
        tensors = {"qkvz": delta.channels + delta.values, "ba": 2 * delta.value_heads}
        if not delta.by_head:
            heads = delta.value_heads
            tensors = {"qkv": delta.channels, "z": delta.values, "b": heads, "a": heads}
        return GatedDeltaNet.Config(
            shape=delta,
            **{f"in_proj_{name}": matrix(model.hidden, rows) for name, rows in tensors.items()},
            conv1d=Conv1d.Config(
                in_channels=delta.channels,
                out_channels=delta.channels,
                kernel_size=delta.taps,
                groups=delta.channels,
                bias=False,
                param_init=FROM_CHECKPOINT,
            ),
            norm=GatedNorm.Config(
                normalized_shape=delta.value_dim, eps=model.norm_eps, param_init=FROM_CHECKPOINT
            ),
            out_proj=matrix(delta.values, model.hidden),
            inner_attention=DeltaRule.Config(shape=delta),
            param_init=FROM_CHECKPOINT,
        )


class GatedNorm(RMSNorm):
    """RMSNorm whose result is multiplied by the SiLU of a gate."""

    @dataclass(kw_only=True, slots=True)
    class Config(RMSNorm.Config):
        pass

    def forward(self, input: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Returns the normalised and gated `[..., size]`."""
        assert self.eps is not None
        normed = rms_norm(input, local(self.weight), self.eps)
        return (normed * functional.silu(gate.float())).type_as(input)


class DeltaRule(Module):
    """The convolution over queries, keys and values, and the gated delta rule, within documents."""

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        shape: DeltaShape

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._shape = config.shape

    def forward(
        self,
        qkv: torch.Tensor,
        taps: torch.Tensor,
        decay: torch.Tensor,
        beta: torch.Tensor,
        documents: Documents | CutDocuments,
    ) -> torch.Tensor:
        """Maps `[1, T, C]` channels, ordered by head, to `[1, T, N, V]`; `taps` `[C, K]`, others `[1, T, N]`.

        With `CutDocuments`, inputs and result have all ranks' tokens, in the order of the ranks, and this
        rank's heads (`compat.layouts`); `taps` has all heads.
        """
        if isinstance(documents, Documents):
            return self._rule(qkv[0], taps, decay[0], beta[0], documents)[None]
        qkv, decay, beta = (documents.in_pack_order(x) for x in (qkv, decay, beta))
        output = self._rule(qkv[0], documents.own_share(taps), decay[0], beta[0], documents.whole)
        return documents.in_rank_order(output[None])

    def _rule(
        self,
        qkv: torch.Tensor,
        taps: torch.Tensor,
        decay: torch.Tensor,
        beta: torch.Tensor,
        documents: Documents,
    ) -> torch.Tensor:
        """Maps `[T, C]` channels to `[T, N, V]`; `decay` and `beta` are `[T, N]`."""
        borders = None
        if HAS_TRITON and on_gpu(qkv) and qkv.dtype == torch.bfloat16:
            chunks = to_device(chunk_table(documents.lengths), qkv.device)
            borders = Borders(documents.offsets, chunks, documents.lengths)
            mixed = causal_convolution(qkv, taps, borders)
        else:
            mixed = document_convolution(qkv, taps, documents.lengths)
        shape = self._shape
        query, key, value = mixed.unflatten(1, (-1, sum(shape.rows))).split(shape.rows, dim=2)
        value = value.unflatten(2, (shape.repeats, shape.value_dim)).flatten(1, 2)
        if borders is not None:
            return chunked_delta_rule(query, key, value, decay, beta, borders)
        return delta_rule(query, key, value, decay, beta, lengths=documents.lengths)[0]


class GatedDeltaNet(Module):
    """Linear attention with a recurrent state (arXiv:2412.06464).

    Rows of the projections and of the convolution are ordered by key head, so that tensor-parallel ranks
    split them by heads.
    """

    @dataclass(kw_only=True, slots=True)
    class Config(Module.Config):
        shape: DeltaShape
        in_proj_qkv: Matrix.Config | None = None
        in_proj_z: Matrix.Config | None = None
        in_proj_b: Matrix.Config | None = None
        in_proj_a: Matrix.Config | None = None
        in_proj_qkvz: Matrix.Config | None = None
        in_proj_ba: Matrix.Config | None = None
        conv1d: Conv1d.Config
        norm: GatedNorm.Config
        out_proj: Matrix.Config
        inner_attention: DeltaRule.Config

    def __init__(self, config: Config) -> None:
        super().__init__()
        self._shape = config.shape
        for name in PROJECTIONS:
            projection = getattr(config, name)
            if projection is not None:
                setattr(self, name, projection.build())
        self.conv1d = config.conv1d.build()
        self.A_log = nn.Parameter(torch.empty(config.shape.value_heads))
        self.dt_bias = nn.Parameter(torch.empty(config.shape.value_heads))
        self.norm = config.norm.build()
        self.out_proj = config.out_proj.build()
        self.inner_attention = config.inner_attention.build()

    def forward(
        self,
        x_BLD: torch.Tensor,
        attention_masks: Documents | CutDocuments,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Maps `[1, T, hidden]` to `[1, T, hidden]`; positions do not matter."""
        qkv, gate, b, a = self._project(x_BLD)
        decay = log_decay(a, local(self.A_log), local(self.dt_bias))
        taps = local(self.conv1d.weight).squeeze(1)
        output = self.inner_attention(qkv, taps, decay, b.sigmoid(), attention_masks)
        gated = self.norm(output, gate.unflatten(2, (-1, self._shape.value_dim)))
        projected: torch.Tensor = self.out_proj(gated.flatten(2))
        return projected

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Returns channels `[1, T, C]`, gates `[1, T, N · V]`, and `[1, T, N]` for beta and for the decay."""
        if not self._shape.by_head:
            qkv, gate, b, a = (getattr(self, name)(x) for name in PROJECTIONS[:4])
            return qkv, gate, b, a
        channels = sum(self._shape.rows)
        qkvz = self.in_proj_qkvz(x).unflatten(2, (-1, channels + self._shape.rows[2]))
        ba = self.in_proj_ba(x).unflatten(2, (-1, 2 * self._shape.repeats))
        qkv, gate = qkvz.split((channels, self._shape.rows[2]), dim=3)
        b, a = ba.chunk(2, dim=3)
        return qkv.flatten(2), gate.flatten(2), b.flatten(2), a.flatten(2)


class GatedAttention(GQAttention):
    """Grouped-query attention whose output is gated; `wq` yields a head's queries, then its gates."""

    @dataclass(kw_only=True, slots=True)
    class Config(GQAttention.Config):
        pass

    def forward(
        self, x_BLD: torch.Tensor, attention_masks: Documents, positions: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Maps `[1, T, hidden]` to `[1, T, hidden]`."""
        both, key, value = self.qkv_linear(x_BLD)
        query, gate = both.unflatten(2, (-1, 2)).unbind(3)
        assert self.q_norm is not None and self.k_norm is not None
        query, key = self.rope(self.q_norm(query), self.k_norm(key), positions)
        output = self.inner_attention(
            query,
            key,
            value,
            attention_masks=attention_masks,
            scale=self.scaling,
            enable_gqa=self.enable_gqa,
        )
        projected: torch.Tensor = self.wo((output * gate.sigmoid()).flatten(2))
        return projected


class GatedSwiGLU(SwiGLU):
    """A dense feed-forward whose output is multiplied by the sigmoid of one number per token."""

    @dataclass(kw_only=True, slots=True)
    class Config(SwiGLU.Config):
        gate: Matrix.Config

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.gate = config.gate.build()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Maps `[..., hidden]` to `[..., hidden]`."""
        return self.gate(x).sigmoid() * super().forward(x)
