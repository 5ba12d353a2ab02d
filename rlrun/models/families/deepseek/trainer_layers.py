"""Latent attention of DeepSeek-V3, Kimi-K2 and GLM-4.7-Flash; its module is torchtitan's."""

from typing import Any

from rlrun.models.families.deepseek.family import LATENT_NORM_EPS
from rlrun.runner.trainer.compat.modules import LatentAttention
from rlrun.runner.trainer.model.decoder_parts import FROM_CHECKPOINT, DecoderParts, matrix
from rlrun.runner.trainer.model.layers import Norm, PackedAttention
from rlrun.runner.trainer.model.rope import InterleavedRoPE, TableRoPE


class Parts(DecoderParts):
    """The parts of a decoder with latent attention."""

    def attention(self, layer: int) -> Any:
        """Returns the config of latent attention."""
        return LatentAttention.Config(**self.latent_vectors(), inner_attention=PackedAttention.Config())

    def latent_vectors(self) -> dict[str, Any]:
        """Returns the fields of a config of latent attention, except its inner attention."""
        model, latent = self.model, self.model.latent
        assert latent is not None
        hidden, heads, rank = model.hidden, model.heads, latent.query_rank
        queries = heads * model.head_dim
        return {
            "n_heads": heads,
            "dim": hidden,
            "wq": matrix(hidden, queries) if rank is None else None,
            "wq_a": None if rank is None else matrix(hidden, rank),
            "wq_b": None if rank is None else matrix(rank, queries),
            "wkv_a": matrix(hidden, latent.kv_rank + latent.rotated_dim),
            "wkv_b": matrix(latent.kv_rank, heads * (latent.unrotated_dim + latent.value_dim)),
            "wo": matrix(heads * latent.value_dim, hidden),
            "q_lora_rank": rank or 0,
            "kv_lora_rank": latent.kv_rank,
            "q_norm": _latent_norm(rank or 1),
            "kv_norm": _latent_norm(latent.kv_rank),
            "qk_nope_head_dim": latent.unrotated_dim,
            "qk_rope_head_dim": latent.rotated_dim,
            "v_head_dim": latent.value_dim,
            "rope": self.rope(),
            "mscale": latent.scale_factor,
        }

    def rope(self) -> TableRoPE.Config:
        """Returns the config of RoPE.

        torchtitan's latent attention scales its scores by YaRN's factor; everywhere else the table contains
        it.
        """
        rope_class = InterleavedRoPE if self.model.rope.interleaved else TableRoPE
        stretched = self.model.rope.type == "yarn"
        return rope_class.Config(
            dim=self.model.rotated_dim,
            max_seq_len=self.model.max_positions,
            scaling="yarn" if stretched else "none",
            rope_factor=self.model.rope.factor if stretched else 1.0,
        )


def _latent_norm(size: int) -> Norm.Config:
    return Norm.Config(normalized_shape=size, eps=LATENT_NORM_EPS, param_init=FROM_CHECKPOINT)
