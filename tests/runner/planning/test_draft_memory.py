"""Draft models are counted from their config.json as SGLang 0.5.23 builds them, and their caches with the
server's own.
"""

import json
from math import prod
from pathlib import Path
from typing import Any

import pytest

from rlrun.models.architecture import Architecture
from rlrun.models.config_json import architecture, with_mtp_layer
from rlrun.plugins.validation import needs_of
from rlrun.runner.planning.engine_memory import policy_engine_memory
from rlrun.runner.planning.hardware import GIB, find_gpu
from rlrun.runner.planning.memory import EngineMemory
from rlrun.runner.planning.model_size import parameter_count
from rlrun.runner.planning.plan import POLICY_NAME, make_plan
from rlrun.runner.planning.planned_model import draft_models
from rlrun.runner.planning.served_weights import DraftModel, draft_model
from rlrun.runner.planning.step_time import PlannedJob, default_workload
from rlrun.specs.sections.engine import SpeculativeSpec
from tests.data.published_models import PUBLISHED
from tests.resolved_specs import resolved
from tests.runner.planning.test_memory import DEEPSEEK_V3, QWEN3_8B, QWEN35_35B_A3B

LLAMA = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 1,
    "vocab_size": 128256,
}
MLP = [(14336, 4096)] * 2 + [(4096, 14336)]
NARROW = [(4096, 4096), (1024, 4096), (1024, 4096), (4096, 4096), *MLP]
WIDE = [(4096, 8192), (1024, 8192), (1024, 8192), (4096, 4096), *MLP]
"""The matrices of a layer; the first of EAGLE3 has two inputs."""


def numbers(*shapes: tuple[int, ...]) -> int:
    return sum(map(prod, shapes))


@pytest.mark.parametrize(
    ("algorithm", "config", "expected"),
    [
        ("eagle", LLAMA, DraftModel(numbers(*NARROW, (4096, 8192), (1, 4096)), 2048, 8)),
        (
            "eagle3",
            LLAMA | {"draft_vocab_size": 32000},
            DraftModel(numbers(*WIDE, (4096, 3 * 4096), (32000, 4096), (4, 4096)), 2048, 8),
        ),
        (
            "eagle3",
            LLAMA
            | {"target_hidden_size": 5120, "eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 9]}},
            DraftModel(numbers(*WIDE, (4096, 2 * 5120), (4, 4096)), 2048, 8),
        ),
        (
            "dflash",
            LLAMA
            | {"num_hidden_layers": 5, "block_size": 16, "dflash_config": {"target_layer_ids": [1, 9, 17]}},
            DraftModel(numbers(*NARROW * 5, (4096, 3 * 4096), (5 * 2 + 2, 4096), (10, 128)), 5 * 2048, 8, 16),
        ),
    ],
    ids=["eagle", "eagle3", "eagle3 of another width", "dflash"],
)
def test_drafts_that_read_hidden_states(
    algorithm: Any, config: dict[str, Any], expected: DraftModel, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = SpeculativeSpec(algorithm=algorithm, draft_model=str(tmp_path))
    assert draft_model(spec, QWEN3_8B, {}) == expected


@pytest.mark.parametrize(
    ("model", "config", "parameters", "cached", "heads"),
    [
        (architecture(PUBLISHED["MiMo-7B"][0]), {"num_nextn_predict_layers": 1}, 0.211e9, 2 * 8 * 128, 8),
        (DEEPSEEK_V3, {"num_nextn_predict_layers": 1}, 11.6e9, 512 + 64, 1),
        (DEEPSEEK_V3, {"num_nextn_predict_layers": 2}, 23.2e9, 2 * (512 + 64), 1),
    ],
    ids=["dense", "experts and latent attention", "two layers"],
)
def test_layers_for_further_tokens(
    model: Architecture, config: dict[str, int], parameters: float, cached: int, heads: int
) -> None:
    found = draft_model(SpeculativeSpec(algorithm="mtp"), model, config)
    assert found is not None
    assert found.parameters == pytest.approx(parameters, rel=0.01)
    assert (found.cached, found.heads) == (cached, heads)


def test_a_model_of_its_own_has_embedding_and_head(tmp_path: Path) -> None:
    config = PUBLISHED["MiMo-7B"][0]
    (tmp_path / "config.json").write_text(json.dumps(config))
    spec = SpeculativeSpec(algorithm="standalone", draft_model=str(tmp_path))
    found = draft_model(spec, QWEN3_8B, {})
    assert found == DraftModel(parameter_count(architecture(config)), 36 * 2 * 8 * 128, 8)


def test_a_config_without_a_size_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"hidden_size": 64}))
    spec = SpeculativeSpec(algorithm="eagle3", draft_model=str(tmp_path))
    with pytest.raises(ValueError, match="has no 'num_hidden_layers'"):
        draft_model(spec, QWEN3_8B, {})


def engine_memory(model: Architecture, drafts: dict[str, DraftModel], **engine: Any) -> EngineMemory:
    """One server with 40 GiB for each GPU's weights and caches, and samples of 1,024 tokens."""
    document = {
        "model": {"path": "policy"},
        "data": {},
        "rollout": {"max_prompt_tokens": 512, "max_response_tokens": 512},
        "trainer": {"steps": 1},
        "cluster": {"gpus_per_node": 1 + engine.get("tensor", 1), "placement": "disaggregated"},
        "engine": {"type": "sglang", "max_running": 64} | engine,
    }
    spec = resolved(document)
    gpu, load = find_gpu("H100-80GB"), default_workload(spec)
    job = PlannedJob(spec, make_plan(spec, cores=8), needs_of(spec), model, gpu, load, drafts=drafts)
    memory, _ = policy_engine_memory(job, 40 * GIB)
    assert memory is not None
    return memory


DRAFT = DraftModel(400_000_000, 2048, 8)
EAGLE3 = {"algorithm": "eagle3", "draft_model": "/draft"}


def test_a_draft_model_takes_room_from_the_cache() -> None:
    without = engine_memory(QWEN3_8B, {}, max_running=1024)
    drafted = engine_memory(QWEN3_8B, {POLICY_NAME: DRAFT}, max_running=1024, speculative=EAGLE3)
    phase = drafted.phase
    assert phase.part_bytes("draft model") == 800_000_000
    token = 36 * 2 * 8 * 128 * 2
    assert phase.part_bytes("draft KV cache") * token == phase.part_bytes("KV cache") * 2 * DRAFT.cached
    room = 40 * GIB - phase.part_bytes("weights") - phase.part_bytes("draft model")
    assert drafted.cache_tokens == pytest.approx(room / (token + 4096), rel=1e-3)
    assert drafted.cache_tokens < without.cache_tokens
    # four tokens of 1,024 samples, and the cache of two passes
    assert phase.part_bytes("verified logits") == 1024 * 4 * 151936 * 8
    assert drafted.requested_tokens - without.requested_tokens == 1024 * 2 * 4


def test_a_trained_layer_for_further_tokens_is_counted_once() -> None:
    model = architecture(PUBLISHED["MiMo-7B"][0] | {"num_nextn_predict_layers": 1})
    memory = engine_memory(with_mtp_layer(model), {})
    assert memory.phase.part_bytes("weights") == 2 * parameter_count(model)


def test_texts_that_guess_take_logits_only() -> None:
    phase = engine_memory(QWEN3_8B, {}, speculative={"algorithm": "ngram"}).phase
    assert [part.name for part in phase.parts] == ["weights", "KV cache", "verified logits"]
    assert phase.part_bytes("verified logits") == 64 * 12 * 151936 * 8


def test_ranks_beyond_the_drafts_heads_hold_copies() -> None:
    settings = {"tensor": 4, "speculative": EAGLE3 | {"draft_tokens": 3}}
    phase = engine_memory(QWEN3_8B, {POLICY_NAME: DraftModel(1, 512, 2)}, **settings).phase
    token = 36 * 2 * 8 * 128 * 2
    assert phase.part_bytes("draft KV cache") * token == phase.part_bytes("KV cache") * 2 * 512 * 2


def test_recurrent_states_are_kept_for_every_verified_token() -> None:
    states = [
        engine_memory(QWEN35_35B_A3B, {}, tensor=2, **settings).phase.part_bytes("recurrent states")
        for settings in ({}, {"speculative": {"algorithm": "ngram", "draft_tokens": 3}})
    ]
    assert states[1] == 5 * states[0]


def test_the_plan_reads_the_drafts_of_all_servers(tmp_path: Path) -> None:
    policy, draft = tmp_path / "policy", tmp_path / "draft"
    for folder, config in ((policy, PUBLISHED["MiMo-7B"][0]), (draft, LLAMA)):
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(config))
    model = architecture(PUBLISHED["MiMo-7B"][0])
    document = {
        "model": {"path": str(policy)},
        "data": {},
        "trainer": {"steps": 1},
        "engine": {"type": "sglang", "speculative": {"algorithm": "mtp"}},
        "engines": [
            {"name": "judge", "type": "sglang", "path": str(policy)}
            | {"speculative": {"algorithm": "eagle", "draft_model": str(draft)}},
            {"name": "other", "type": "sglang", "path": str(policy)},
        ],
    }
    spec = resolved(document)
    found = draft_models(spec, model, {"judge": model, "other": model})
    assert {name: each.parameters // 10**6 for name, each in found.items()} == {"engine": 210, "judge": 251}
