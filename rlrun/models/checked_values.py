"""Checks names, paths and numbers that come from files of unknown origin, before they are used."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MAX_LAYERS = 10_000
_LARGEST = 1 << 31
_LIMITS: Mapping[str, int] = {
    "depth": _MAX_LAYERS,
    "num_hidden_layers": _MAX_LAYERS,
    "num_nextn_predict_layers": _MAX_LAYERS,
    "num_experts": 1 << 20,
    "num_local_experts": 1 << 20,
    "n_routed_experts": 1 << 20,
}
_WHOLE = {
    *_LIMITS,
    *("vocab_size", "hidden_size", "intermediate_size", "max_position_embeddings", "sliding_window"),
    "original_max_position_embeddings",
    *("num_attention_heads", "num_key_value_heads", "head_dim", "n_group", "topk_group"),
    *("moe_intermediate_size", "shared_expert_intermediate_size", "num_experts_per_tok", "n_shared_experts"),
    *("first_k_dense_replace", "decoder_sparse_step", "full_attention_interval", "rotary_dim"),
    *("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id"),
    *("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"),
    *("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim"),
    *("index_n_heads", "index_head_dim", "index_topk", "index_topk_freq", "index_skip_topk_offset"),
    *("linear_conv_kernel_dim", "num_heads", "out_hidden_size", "in_channels", "patch_size"),
    *("temporal_patch_size", "spatial_merge_size", "num_position_embeddings"),
}
"""Keys of whole numbers, of text models and of vision towers."""
_REAL = {
    *("rms_norm_eps", "rope_theta", "initializer_range", "routed_scaling_factor", "partial_rotary_factor"),
    *("factor", "low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor"),
    *("mscale", "mscale_all_dim"),
}
"""Keys of numbers, of models and of their RoPE."""
_FLAGS = {"tie_word_embeddings", "norm_topk_prob"}


def file_inside(folder: Path, name: str) -> Path:
    """Returns the path of the file `name` in a folder.

    Raises ValueError if the name or a link leads out of the folder, and where the file does not exist.
    Links from a snapshot of the Hugging Face cache to its blobs are allowed: both belong to the same model.
    """
    if not name or Path(name).name != name:
        raise ValueError(f"{folder} refers to the file {name!r}, which is not in the folder")
    path = folder / name
    if not path.is_file():
        raise ValueError(f"{folder} lacks {name}; download or copy it again")
    root = folder.resolve()
    allowed_root = root.parent.parent if root.parent.name == "snapshots" else root
    if not path.resolve().is_relative_to(allowed_root):
        raise ValueError(
            f"{path} is a link that leads out of its folder, to {path.resolve()}; put the file there instead"
        )
    return path


def check_tensor_name(name: str, path: Path) -> None:
    """Raises ValueError for a tensor name that could be mistaken for a path or corrupt a terminal."""
    if not name or not name.isprintable() or ".." in name or "/" in name or "\\" in name:
        raise ValueError(f"{path} has a tensor named {name!r}; such a name is not accepted")


def abbreviated(names: list[str]) -> str:
    """Returns the first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def check_numbers(config: Mapping[str, Any], where: str) -> None:
    """Raises ValueError for a number or a flag that no model has. Null and missing keys are accepted.

    A wrong type would be found far from here, and a size of 10^9 would fill the memory: a model's tensors and
    layers are listed one by one.
    """
    for key in sorted(_WHOLE & config.keys()):
        value, most = config[key], _LIMITS.get(key, _LARGEST)
        if value is not None and not (type(value) is int and 0 <= value <= most):
            raise ValueError(f"{key} is {_shown(value)} in {where}: it must be a whole number up to {most}")
    for key in sorted(_REAL & config.keys()):
        value = config[key]
        is_number = type(value) is float or (type(value) is int and abs(value) < _LARGEST)
        if value is not None and not (is_number and math.isfinite(value)):
            raise ValueError(f"{key} is {_shown(value)} in {where}: it must be a number")
    for key in sorted(_FLAGS & config.keys()):
        if not isinstance(config[key], bool | None):
            raise ValueError(f"{key} is {_shown(config[key])} in {where}: it must be true or false")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"
