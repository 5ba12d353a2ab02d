"""Defaults of keys that a config.json leaves out.

tests/models/test_config_json.py holds them to transformers.
"""

from typing import Any

import pytest

from rlrun.models.config_defaults import EXPERT_COUNTS, with_family_defaults


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "gpt_oss"])
@pytest.mark.parametrize("key", EXPERT_COUNTS)
def test_experts_that_are_counted_under_another_name_get_no_default(family: str, key: str) -> None:
    found = with_family_defaults({"model_type": family, key: 8})
    assert [name for name in EXPERT_COUNTS if name in found] == [key]
    assert any(name in with_family_defaults({"model_type": family}) for name in EXPERT_COUNTS)


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "qwen3", "head_dim": 64, "num_key_value_heads": None, "more": [1]},
        {"model_type": "mamba", "state": 3},
        {"model_type": ["qwen3"]},
        {},
    ],
)
def test_keys_of_the_file_keep_their_values(config: dict[str, Any]) -> None:
    found = with_family_defaults(config)
    assert {key: found[key] for key in config} == config
    assert with_family_defaults(found) == found
