"""Tiny random models and a tiny tokenizer in Hugging Face format."""

import importlib
import sys
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    DeepseekV32Config,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    GlmMoeDsaConfig,
    GptOssConfig,
    LlamaConfig,
    MiniMaxM2Config,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
)
from transformers.conversion_mapping import (
    get_checkpoint_conversion_mapping,
    register_checkpoint_conversion_mapping,
)

from rlrun.models.families.by_transformers import TEXT_FAMILIES, TRANSFORMERS
from rlrun.models.families.table import NATIVE

# transformers takes fla's kernels of Gated DeltaNet where fla is installed, and these only run on a GPU
_FLA = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "fla"}
for _name in _FLA:
    del sys.modules[_name]
sys.modules["fla"] = None  # type: ignore[assignment]
for _family in ("qwen3_next", "qwen3_5", "qwen3_5_moe"):
    importlib.import_module(f"transformers.models.{_family}.modeling_{_family}")
del sys.modules["fla"]
sys.modules |= _FLA


class KimiK2Config(DeepseekV3Config):
    """Kimi-K2, whose own class comes with its checkpoints."""

    model_type = "kimi_k2"


class KimiK2Model(DeepseekV3ForCausalLM):
    """DeepSeek-V3 by another name."""

    config_class = KimiK2Config


class MiMoConfig(Qwen2Config):
    """MiMo, whose own class comes with its checkpoints."""

    model_type = "mimo"


class MiMoModel(Qwen2ForCausalLM):
    """Qwen2 by another name; MiMo's class adds layers that predict further tokens."""

    config_class = MiMoConfig


for _config, _model in ((KimiK2Config, KimiK2Model), (MiMoConfig, MiMoModel)):
    AutoConfig.register(_config.model_type, _config)
    AutoModelForCausalLM.register(_config, _model)
register_checkpoint_conversion_mapping("kimi_k2", get_checkpoint_conversion_mapping("deepseek_v3"))

END, PAD = "<|im_end|>", "<|endoftext|>"
END_ID, PAD_ID = 1, 0
CONFIGS = {
    "deepseek_v3": DeepseekV3Config,
    "deepseek_v32": DeepseekV32Config,
    "glm4_moe": Glm4MoeConfig,
    "glm4_moe_lite": Glm4MoeLiteConfig,
    "glm_moe_dsa": GlmMoeDsaConfig,
    "gpt_oss": GptOssConfig,
    "kimi_k2": KimiK2Config,
    "llama": LlamaConfig,
    "mimo": MiMoConfig,
    "minimax_m2": MiniMaxM2Config,
    "qwen2": Qwen2Config,
    "qwen3": Qwen3Config,
    "qwen3_5_moe_text": Qwen3_5MoeTextConfig,
    "qwen3_5_text": Qwen3_5TextConfig,
    "qwen3_moe": Qwen3MoeConfig,
    "qwen3_next": Qwen3NextConfig,
}
FOREIGN = {
    name: type(AutoConfig.for_model(name))
    for name in TRANSFORMERS
    if name not in NATIVE and name not in TEXT_FAMILIES
}
"""Families that only transformers computes for the trainer."""
GEMMA = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 8}
FOREIGN_FIELDS = {
    "cohere": {"logit_scale": 0.5},
    "cohere2": {"logit_scale": 0.5, "layer_types": GEMMA["layer_types"], "sliding_window": 8},
    "cwm": {"bos_token_id": 2},
    "gemma3_text": GEMMA | {"query_pre_attn_scalar": 16},
    "granite": {"logits_scaling": 2.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5},
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "olmoe": {"num_experts": 4, "num_experts_per_tok": 2},
}
"""Fields of the tiny models of such families."""
DEEPSEEK = {
    "num_key_value_heads": 4,
    "head_dim": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 20,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 2,
    "n_group": 4,
    "topk_group": 2,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.5,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "mscale": 1.0,
        "mscale_all_dim": 0.7,
    },
}
GLM = {
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "n_shared_experts": 1,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 32,
    "routed_scaling_factor": 1.5,
    "use_qk_norm": True,
    "attention_bias": True,
}
GLM_LITE = {
    **{
        key: value
        for key, value in DEEPSEEK.items()
        if key not in ("first_k_dense_replace", "rope_parameters")
    },
    "n_group": 1,
    "topk_group": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
DSA = {"index_n_heads": 16, "index_head_dim": 12, "index_topk": 8}
"""An indexer that leaves keys out of short sequences. With 16 heads no two keys have a score of zero, which
is an exact tie."""
MINIMAX = {
    "intermediate_size": 32,
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "rotary_dim": 8,
}
GPT_OSS = {
    "intermediate_size": 32,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "swiglu_limit": 1.0,  # low enough to be reached
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "beta_fast": 32.0,
        "beta_slow": 1.0,
        "truncate": False,
        "original_max_position_embeddings": 128,
    },
}
DELTA_NET = {
    "num_hidden_layers": 4,  # three with Gated DeltaNet, one with attention
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 12,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5},
}
MROPE = {"mrope_section": [2, 1, 1], "mrope_interleaved": True}
"""RoPE of Qwen3.5, whose text has the same position in all three sections."""
SHARED_EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 48,
}
EXPERT_FIELDS = {
    "deepseek_v3": DEEPSEEK,
    "deepseek_v32": DEEPSEEK | DSA,
    "glm4_moe": GLM,
    "glm4_moe_lite": GLM_LITE,
    "glm_moe_dsa": GLM_LITE
    | DSA
    | {"first_k_dense_replace": 1, "index_topk_freq": 2, "index_skip_topk_offset": 1},
    "gpt_oss": GPT_OSS,
    "kimi_k2": DEEPSEEK | {"n_group": 1, "topk_group": 1, "n_shared_experts": 1},
    "minimax_m2": MINIMAX,
}
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_tiny_model(
    folder: Path,
    family: str = "qwen3",
    *,
    tied: bool = False,
    vocab: int = 320,
    seed: int = 0,
    scale: float = 0.2,
    dtype: torch.dtype = torch.float32,
    **config: Any,
) -> Path:
    """Write a random model of one of `CONFIGS` or `FOREIGN` and a byte-level tokenizer; returns `folder`.

    `scale` is the standard deviation of the weights: large enough for distributions that are not flat.
    Further keywords override the config's fields.
    """
    fields: dict[str, Any] = {
        "vocab_size": vocab,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": tied,
        "initializer_range": scale,
        "bos_token_id": None,
        "eos_token_id": END_ID,
        "pad_token_id": PAD_ID,
    }
    if family == "qwen3_moe":
        fields |= {
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "norm_topk_prob": True,
        }
    fields |= EXPERT_FIELDS.get(family, {}) | FOREIGN_FIELDS.get(family, {})
    if family.startswith(("qwen3_5", "qwen3_next")):
        rope = DELTA_NET["rope_parameters"] | (MROPE if family.startswith("qwen3_5") else {})
        fields |= DELTA_NET | {"rope_parameters": rope}
        fields |= {} if family == "qwen3_5_text" else SHARED_EXPERTS
        if family == "qwen3_5_moe_text":
            del fields["intermediate_size"]  # it has no dense feed-forward
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config((CONFIGS | FOREIGN)[family](**(fields | config)), dtype=dtype)
    for name, parameter in model.named_parameters():
        if "norm" in name:  # ones by default, which would hide a norm that is left out
            is_offset = family.startswith("gemma") or "linear_num_key_heads" in fields
            offset = 1.0 if is_offset and "linear_attn" not in name else 0.0
            torch.nn.init.uniform_(parameter, 0.5 - offset, 1.5 - offset)
        if "bias" in name:  # zeros by default
            torch.nn.init.normal_(parameter, 0.0, scale)
    for name, buffer in model.named_buffers():
        if "correction_bias" in name:
            buffer.data = torch.empty(buffer.shape).normal_(0.0, scale)  # float32 in any checkpoint
    model.save_pretrained(folder)
    make_tiny_tokenizer(folder, vocab)
    return folder


def make_tiny_tokenizer(folder: Path, vocab: int = 320) -> None:
    """A tokenizer of bytes, with the special tokens of Qwen3's chat format and fillers up to `vocab`."""
    special = [PAD, END, "<|im_start|>"]
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    assert vocab >= len(special) + len(letters)
    fillers = [f"<|filler_{i}|>" for i in range(vocab - len(special) - len(letters))]
    ids = {token: i for i, token in enumerate([*special, *letters, *fillers])}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=END, pad_token=PAD, additional_special_tokens=["<|im_start|>"]
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
