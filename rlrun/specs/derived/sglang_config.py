"""The keys of `config.json` that SGLang reads for Gated DeltaNet, and transformers 5 writes elsewhere.

transformers 5 writes the layers' types, and RoPE's settings in a table of their own. SGLang 0.5.23 reads the
interval of attention layers, and takes a base frequency of 10000 and a rotated quarter of each head where
keys beside that table do not say otherwise, without a word.
"""

from collections.abc import Mapping
from typing import Any

from rlrun.models.attention_config import attention_interval
from rlrun.models.config_defaults import with_family_defaults
from rlrun.models.families.table import family_of

_ROPE_KEYS = ("rope_theta", "partial_rotary_factor")


def missing_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keys that SGLang needs and a `config.json` lacks, or has with another value.

    For a multimodal checkpoint they are in a table `text_config`. Empty for models without Gated DeltaNet.
    """
    filled = with_family_defaults(config)
    if not family_of(filled).recurrent:
        return {}
    is_multimodal = family_of(config).text is not None
    own: Mapping[str, Any] = config["text_config"] if is_multimodal else config
    rope = filled.get("rope_parameters") or {}
    needed = {"full_attention_interval": attention_interval(filled)} | {
        key: rope.get(key) for key in _ROPE_KEYS
    }
    missing = {key: value for key, value in needed.items() if value is not None and own.get(key) != value}
    return {"text_config": missing} if is_multimodal and missing else missing


def with_missing_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a `config.json` with the keys that SGLang needs, too."""
    missing = missing_keys(config)
    if "text_config" in missing:
        return {**config, "text_config": {**config["text_config"], **missing["text_config"]}}
    return {**config, **missing}
