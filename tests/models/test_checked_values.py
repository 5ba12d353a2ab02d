"""Numbers of a config.json that no model has are named before anything is computed from them."""

from typing import Any

import pytest

from rlrun.models.config_json import architecture
from tests.data.published_models import PUBLISHED

CONFIG = {
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 320,
}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hidden_size": 1e308}, r"hidden_size is 1e\+308 in config.json: it must be a whole number"),
        ({"hidden_size": "64"}, "hidden_size is '64'"),
        ({"vocab_size": [320]}, r"vocab_size is \[320\]"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000 .* up to 10000"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        ({"num_attention_heads": -4}, "num_attention_heads is -4"),
        ({"num_experts": 10**30}, "num_experts is 10{30}"),
        ({"rms_norm_eps": "tiny"}, "rms_norm_eps is 'tiny' .* must be a number"),
        ({"rope_theta": float("nan")}, "rope_theta is nan"),
        ({"rope_theta": 10**400}, "rope_theta is 10+…"),
        ({"tie_word_embeddings": [True]}, r"tie_word_embeddings is \[True\] .* must be true or false"),
        ({"rope_scaling": {"rope_type": "linear", "factor": "2"}}, "factor is '2' .* must be a number"),
        ({"dtype": ["bfloat16"]}, r"dtype is \['bfloat16'\]"),
    ],
)
def test_a_number_that_no_model_has_is_named(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        architecture(CONFIG | changes)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"index_topk": "2048"}, "index_topk is '2048' in config.json: it must be a whole number"),
        ({"index_topk": 0}, "index_topk = 0 in config.json must be at least 1"),
        ({"index_topk": -1}, "index_topk is -1"),
        ({"index_n_heads": 0}, "index_n_heads = 0 in config.json must be at least 1"),
        ({"index_n_heads": []}, r"index_n_heads is \[\]"),
        ({"index_head_dim": 10**12}, "index_head_dim is 10+ in"),
        ({"index_topk_freq": 1.5}, "index_topk_freq is 1.5"),
        ({"index_skip_topk_offset": True}, "index_skip_topk_offset is True"),
        ({"num_hidden_layers": 0}, "indexer_types in config.json must be a list of 0 values"),
    ],
)
def test_a_number_that_no_indexer_has_is_named(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        architecture(PUBLISHED["GLM-5.2"][0] | changes)


@pytest.mark.parametrize("value", [[], "151655", -1, 1.5])
@pytest.mark.parametrize("key", ["image_token_id", "video_token_id", "vision_start_token_id"])
def test_a_token_of_images_that_no_model_has_is_named(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{key} is .* in config.json: it must be a whole number"):
        architecture(PUBLISHED["Qwen3-VL-8B"][0] | {key: value})


def test_a_section_of_positions_is_bounded() -> None:
    """Every pair of dimensions of a section is listed."""
    text = CONFIG | {"model_type": "qwen3_vl_text", "rope_parameters": {"mrope_section": [10**9, 1, 1]}}
    with pytest.raises(ValueError, match=r"mrope_section in config.json is .* numbers of pairs"):
        architecture({"model_type": "qwen3_vl", "text_config": text, "vision_config": {}})
