"""The families that only transformers' layers compute (`model.implementation = "transformers"`).

Their sizes come from the usual keys of `config.json` (`rlrun.models.transformers_models`): a row is all that
rlrun knows about one.
"""

from collections.abc import Mapping

from rlrun.models.family import EXPERTS, TENSOR, Config, Support

TEXT_FAMILIES: Mapping[str, str] = {"gemma3": "gemma3_text", "mistral3": "mistral"}
"""`model_type`s of multimodal checkpoints whose text model is read, with the `model_type` of that model. Its
own `model_type`, if there is one, counts."""
SIZES: Mapping[str, Config] = {
    "gemma3_text": {
        "vocab_size": 262208,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131072,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    }
}
"""Sizes that published multimodal checkpoints leave out, by the text model's family."""


def _row(models: str, layouts: frozenset[str] = frozenset()) -> Support:
    return Support(models, layouts, adapters=False, precision=False)


TRANSFORMERS: Mapping[str, Support] = {
    "afmoe": _row("Arcee Trinity"),
    "apertus": _row("Apertus"),
    "arcee": _row("Arcee"),
    "bitnet": _row("BitNet"),
    "cohere": _row("Command R"),
    "cohere2": _row("Command R7B, Command A"),
    "cwm": _row("Code World Model"),
    "ernie4_5": _row("ERNIE 4.5, dense"),
    "exaone4": _row("EXAONE 4"),
    "flex_olmo": _row("FlexOlmo"),
    "gemma": _row("Gemma"),
    "gemma3": _row("Gemma 3, the text model", TENSOR),
    "gemma3_text": _row("Gemma 3", TENSOR),
    "gemma4_text": _row("Gemma 4 without capped logits"),
    "glm": _row("GLM-4 (glm-4-9b)"),
    "glm4": _row("GLM-4-0414"),
    "granite": _row("Granite"),
    "granite_swa": _row("Granite with sliding windows"),
    "helium": _row("Helium"),
    "hunyuan_v1_dense": _row("Hunyuan, dense"),
    "hunyuan_v1_moe": _row("Hunyuan, mixture of experts"),
    "hyperclovax": _row("HyperCLOVA X"),
    "jais2": _row("Jais 2"),
    "llama": _row("Llama 2, 3"),
    "ministral": _row("Ministral"),
    "ministral3": _row("Ministral 3, text"),
    "mistral": _row("Mistral", TENSOR),
    "mistral3": _row("Mistral Small 3, Ministral 3: the text model", TENSOR),
    "mixtral": _row("Mixtral", TENSOR | EXPERTS),
    "olmo": _row("OLMo"),
    "olmo2": _row("OLMo 2"),
    "olmo3": _row("OLMo 3"),
    "olmoe": _row("OLMoE", EXPERTS),
    "phi3": _row("Phi-3, Phi-4"),
    "qwen2": _row("Qwen2, Qwen2.5"),
    "qwen2_moe": _row("Qwen1.5-MoE, Qwen2-MoE"),
    "qwen3": _row("Qwen3"),
    "seed_oss": _row("Seed-OSS"),
    "smollm3": _row("SmolLM3"),
    "starcoder2": _row("StarCoder2"),
}
"""Families by their `model_type`."""
