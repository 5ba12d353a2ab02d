"""Published models: what their config.json says, and how many parameters they have."""

from collections.abc import Mapping
from typing import Any

import pytest

from rlrun.models.config_json import architecture
from rlrun.models.tensor_names import is_beside_policy
from rlrun.runner.planning.model_size import parameter_count
from rlrun.runner.planning.rank_layout import check_layout
from rlrun.runner.planning.rank_share import largest_share
from rlrun.specs.sections.trainer import ParallelSpec
from tests.data.published_models import PUBLISHED


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_number_of_parameters_is_the_published_one(name: str) -> None:
    config, published = PUBLISHED[name]
    assert parameter_count(architecture(config)) == pytest.approx(published, rel=0.01)


@pytest.mark.parametrize(
    ("name", "parallel", "traced_gib"),
    [
        ("GLM-4.7", {"fsdp": 8, "tensor": 8, "expert": 32}, 24.5),  # 3 of 5 experts
        ("Kimi-K2", {"fsdp": 32, "tensor": 8, "expert": 128}, 20.0),  # 2 of 3 experts
    ],
    ids=["GLM-4.7 on 64", "Kimi-K2 on 256"],
)
def test_the_fullest_rank_holds_what_a_trace_found(
    name: str, parallel: dict[str, int], traced_gib: float
) -> None:
    """`rlrun plan --deep` counted these float32 parameters: FSDP divides experts into whole ones."""
    config, published = PUBLISHED[name]
    model, layout = architecture(config), ParallelSpec.model_validate(parallel)
    check_layout(model, layout)
    share = largest_share(model, layout)
    assert 4 * share.parameters == pytest.approx(traced_gib * 2**30, rel=0.005)
    assert share.parameters > published / layout.world_size
    assert share.layers == model.layers


@pytest.mark.parametrize(
    ("name", "tensor", "is_beside"),
    [
        ("GLM-4.7", "model.layers.92.eh_proj.weight", True),
        ("GLM-4.7", "model.layers.91.input_layernorm.weight", False),
        ("GLM-4.7-Flash", "model.layers.47.embed_tokens.weight", True),
        ("GLM-5.2", "model.layers.77.input_layernorm.weight", False),
        ("GLM-5.2", "model.layers.78.self_attn.indexer.wk.weight", True),
        ("Kimi-K2", "model.layers.61.enorm.weight", True),
        ("MiMo-7B", "model.mtp_layers.0.input_proj.weight", True),
        ("MiMo-7B", "model.layers.36.input_layernorm.weight", False),
        ("MiniMax-M2", "model.layers.62.input_layernorm.weight", False),
    ],
)
def test_layers_that_predict_further_tokens_are_beside_the_policy(
    name: str, tensor: str, is_beside: bool
) -> None:
    assert is_beside_policy(tensor, architecture(PUBLISHED[name][0])) == is_beside


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        (
            "GLM-5",
            {"indexer_rope_interleave": False},
            "indexer_rope_interleave = False in config.json is",
        ),
        ("GLM-5", {"rope_interleave": False}, "rope_interleave = False in config.json is not supported"),
        ("GLM-5", {"q_lora_rank": None}, "q_lora_rank is null in config.json, and the indexer of glm_moe"),
        ("GLM-5", {"index_topk_pattern": "SF" * 39}, "indexer_types in config.json must be a list of 78"),
        ("Kimi-K2", {"scoring_func": "softmax"}, "scoring_func = 'softmax' in config.json is not supported"),
        ("Kimi-K2", {"topk_method": "greedy"}, "topk_method = 'greedy' in config.json is not supported"),
        ("Kimi-K2", {"moe_layer_freq": 2}, "moe_layer_freq = 2 in config.json is not supported"),
        ("Kimi-K2", {"attention_bias": True}, "attention_bias = true in config.json is not supported"),
        ("GLM-4.7-Flash", {"mlp_layer_types": ["dense"]}, "mlp_layer_types in config.json must be a list"),
        ("MiniMax-M2", {"qk_norm_type": "per_head"}, "use_qk_norm and qk_norm_type in config.json must be"),
        ("MiniMax-M2", {"use_routing_bias": False}, "use_routing_bias = False in config.json is not supp"),
        ("MiniMax-M2", {"attn_type_list": [0, 1]}, "attn_type_list in config.json has linear attention"),
        ("MiMo-7B", {"use_sliding_window": True}, "use_sliding_window = true in config.json is not supp"),
    ],
)
def test_variants_that_are_not_computed_are_refused(name: str, keys: Mapping[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        architecture({**PUBLISHED[name][0], **keys})


def test_rope_rotates_the_published_part_of_a_head() -> None:
    rotated = {name: architecture(config).rotated_dim for name, (config, _) in PUBLISHED.items()}
    assert (rotated["GLM-4.7"], rotated["MiniMax-M2"], rotated["MiMo-7B"]) == (64, 64, 128)


def test_layers_of_glm_52_share_the_choice_of_an_indexer() -> None:
    indexers = {name: architecture(PUBLISHED[name][0]).indexer for name in ("GLM-5", "GLM-5.2", "Kimi-K2")}
    assert indexers["Kimi-K2"] is None
    assert indexers["GLM-5"] is not None and indexers["GLM-5"].layers == frozenset(range(78))
    shared = indexers["GLM-5.2"]
    assert shared is not None and sorted(shared.layers) == [0, 1, *range(2, 78, 4)]
    assert [shared.source(layer) for layer in (0, 2, 5, 6, 77)] == [0, 2, 2, 6, 74]


def test_a_stage_begins_with_a_layer_that_chooses_keys() -> None:
    model = architecture(PUBLISHED["GLM-5.2"][0])
    check_layout(model, ParallelSpec(pipeline=8, pipeline_layers=(14, 8, 8, 8, 8, 8, 8, 16)))
    with pytest.raises(ValueError, match="a pipeline stage begins with layer 39, which attends to the keys"):
        check_layout(model, ParallelSpec(pipeline=2))
