"""Whether prefixes are shared where a spec leaves it open."""

from dataclasses import replace

import pytest

from rlrun.models.config_json import architecture
from rlrun.specs.derived.conflicts.features import SHARED_PREFIXES
from rlrun.specs.derived.conflicts.reading import reason_against_model
from rlrun.specs.derived.shared_prefixes import choose_sharing
from rlrun.specs.sections.job import Spec
from tests.resolved_specs import resolved

MODEL = architecture(
    {
        "model_type": "qwen3",
        "vocab_size": 64,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "intermediate_size": 64,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1e4,
        "tie_word_embeddings": True,
    }
)
WINDOWS = replace(MODEL, family="gpt_oss", windows=(128, None))


def spec(**sections):
    rollout = {"max_prompt_tokens": 1024, "max_response_tokens": 1024} | sections.pop("rollout", {})
    return Spec.model_validate({"model": {"path": "m"}, "data": {}, "rollout": rollout} | sections)


ON = {
    "groups": ({}, {}, "8 samples share a prompt; 1.8 times fewer tokens with prompts of 1,024 tokens"),
    "long prompts": (
        {"rollout": {"max_prompt_tokens": 8192}},
        {},
        "8 samples share a prompt; 4.5 times fewer tokens with prompts of 8,192 tokens",
    ),
    "prompts that are a small part of the longest samples": (
        {"rollout": {"max_prompt_tokens": 32}},
        {},
        "8 samples share a prompt; no fewer tokens with prompts of 32 tokens and responses of 1,024, the "
        "longest; prompts of fewer than 32 tokens, or than 10 % of a sample, are not shared",
    ),
    "pairs": ({}, {"rollout": False, "pairs": True}, "2 samples share a prompt; 1.3 times fewer"),
    "an agent": (
        {"rollout": {"samples_per_prompt": 1, "function": {"type": "agent"}}},
        {},
        "the conversations of an execution may have",
    ),
    "all layouts but context": (
        {"trainer": {"compile": True, "parallel": {"fsdp": 2, "tensor": 2, "pipeline": 2, "expert": 2}}},
        {},
        "8 samples share a prompt",
    ),
}
OFF = {
    "short prompts": ({"rollout": {"max_prompt_tokens": 31}}, {}, "prompts have fewer than 32 tokens"),
    "one sample": ({"rollout": {"samples_per_prompt": 1}}, {}, "each prompt has one sample"),
    "demonstrations": ({}, {"rollout": False}, "each demonstration has a prompt of its own"),
    "context parallelism": (
        {"trainer": {"parallel": {"context": 2}}},
        {},
        "context-parallel ranks cut sequences",
    ),
    "GPUs": ({"cluster": {"gpus_per_node": 1}}, {}, "what it gains on GPUs is not measured"),
    "windows": ({}, {"models": [WINDOWS]}, "gpt_oss: some layers see a window"),
    "the teacher's windows": ({}, {"models": [MODEL, WINDOWS]}, "gpt_oss: some layers see a window"),
}


def choose(sections, needs):
    needs = {"models": [MODEL], "rollout": True, "pairs": False} | needs
    return choose_sharing(spec(**sections), needs.pop("models"), **needs)


@pytest.mark.parametrize("case", ON)
def test_prefixes_are_shared(case):
    sections, needs, reason = ON[case]
    choice = choose(sections, needs)
    assert choice.on
    assert str(choice).startswith(f"trainer.share_prefixes is on: {reason}")


@pytest.mark.parametrize("case", OFF)
def test_prefixes_are_not_shared(case):
    sections, needs, reason = OFF[case]
    choice = choose(sections, needs)
    assert not choice.on
    assert str(choice).startswith(f"trainer.share_prefixes is off: {reason}")


def test_the_choice_becomes_the_setting():
    for model, on in ((MODEL, True), (WINDOWS, False)):
        assert resolved(spec(), model).trainer.share_prefixes is on
    assert reason_against_model(SHARED_PREFIXES, MODEL) is None
