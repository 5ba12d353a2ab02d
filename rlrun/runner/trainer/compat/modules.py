"""The modules of torchtitan that decoders consist of."""

import rlrun.runner.trainer.compat.device  # noqa: F401  (before torchtitan)

# isort: split
from torchtitan.models.common.attention import GQAttention, QKVLinear
from torchtitan.models.common.embedding import Embedding
from torchtitan.models.common.feed_forward import FeedForward
from torchtitan.models.common.linear import Linear, ScaledBiasRowwiseLinear
from torchtitan.models.common.nn_modules import Conv1d, RMSNorm
from torchtitan.models.common.rope import RoPE
from torchtitan.models.deepseek_v3.model import Attention as LatentAttention
from torchtitan.models.gpt_oss.model import Attention as SinkAttention
from torchtitan.models.qwen3.model import Qwen3Model, Qwen3TransformerBlock
from torchtitan.protocols.module import Module

__all__ = [
    "Conv1d",
    "Embedding",
    "FeedForward",
    "GQAttention",
    "LatentAttention",
    "Linear",
    "Module",
    "QKVLinear",
    "Qwen3Model",
    "Qwen3TransformerBlock",
    "RMSNorm",
    "RoPE",
    "ScaledBiasRowwiseLinear",
    "SinkAttention",
]
