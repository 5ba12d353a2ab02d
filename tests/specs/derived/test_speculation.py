"""Which engine has which kind of speculative decoding, and the settings that engines get from it."""

from pathlib import Path

import pytest

from rlrun.models.json_files import read_json
from rlrun.plugins.validation import load_checked_spec
from rlrun.specs.derived.speculation import (
    mtp_layers,
    native_draft_tokens,
    sglang_speculation,
    updated_models,
    verified_tokens,
)
from rlrun.specs.problems.findings import SpecError
from rlrun.specs.rules.family_rules import family_findings

BASE = Path(__file__).parents[1] / "base.toml"
DRAFTS = BASE.parent
NGRAM = ("engine.speculative.algorithm=ngram",)
SGLANG = ("engine.type=sglang",)
EXTERNAL = ("engine.type=external", 'engine.urls=["http://127.0.0.1:1"]')
GPUS = (*SGLANG, "cluster.gpus_per_node=1")
MTP = ("engine.speculative.algorithm=mtp", "model.path=XiaomiMiMo/MiMo-7B-RL")
EAGLE3 = ("engine.speculative.algorithm=eagle3", f"engine.speculative.draft_model={DRAFTS}")
TREE = ("engine.sglang.speculative_num_steps=5", "engine.sglang.speculative_eagle_topk=4")
CUT = ("rollout.top_p=0.9", "rollout.top_k=50")


@pytest.mark.parametrize(
    ("overrides", "key", "message"),
    [
        (("engine.speculative.algorithm=eagle3",), "engine.speculative.algorithm", "guesses from texts only"),
        ((*SGLANG, *NGRAM), "engine.speculative.algorithm", "takes the likeliest tokens"),
        (
            (*GPUS, "engine.speculative.algorithm=eagle3"),
            "engine.speculative.algorithm",
            "guesses with a model of its own",
        ),
        (
            (*NGRAM, f"engine.speculative.draft_model={DRAFTS}"),
            "engine.speculative.draft_model",
            "has no draft model",
        ),
        (("engine.speculative.draft_tokens=4",), "engine.speculative.draft_tokens", "without an algorithm"),
        (
            (*GPUS, *NGRAM, "engine.sglang.speculative_num_draft_tokens=4"),
            "engine.sglang.speculative_num_draft_tokens",
            "set engine.speculative.draft_tokens instead",
        ),
        (
            (*GPUS, "engine.sglang.speculative-algorithm=EAGLE"),
            "engine.sglang.speculative-algorithm",
            "set engine.speculative.algorithm instead",
        ),
        (
            (*GPUS, *MTP, "engine.sglang.speculative_num_steps=3"),
            "engine.sglang.speculative_num_steps",
            "as many steps as tokens",
        ),
        (
            (*GPUS, *MTP, *TREE),
            "engine.sglang.speculative_eagle_topk",
            "needs its number of tokens",
        ),
        ((*GPUS, MTP[0]), "engine.speculative.algorithm", "no layers for multi-token prediction"),
        ((*GPUS, *EAGLE3, "engine.weight_sync=disk"), "engine.weight_sync", "into the draft model, too"),
        (
            (*GPUS, *EAGLE3, "engine.weight_delta=elements", "engine.dtype=bfloat16", "engine.sleep=false"),
            "engine.weight_delta",
            "into the draft model, too",
        ),
        ((*GPUS, *CUT, *NGRAM), "engine.speculative.algorithm", "no sampling masks with speculative"),
        (
            (*EXTERNAL, *NGRAM),
            "engine.speculative",
            "with external engines: only native engines and SGLang servers",
        ),
        (("engine.speculative.draft_tokens=0", *NGRAM), "engine.speculative.draft_tokens", "at least 1"),
    ],
)
def test_what_an_engine_cannot_do_is_refused(overrides: tuple[str, ...], key: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        load_checked_spec([BASE], overrides)
    assert key in str(error.value)
    assert message in str(error.value)


def test_models_with_recurrent_states_are_refused_by_the_native_engine() -> None:
    spec = load_checked_spec([BASE], NGRAM).spec
    sizes = {"vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 4}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 4, "linear_num_key_heads": 2}
    recurrent = {"model_type": "qwen3_5_text"} | sizes | heads
    messages = [finding.message for finding in family_findings(spec, recurrent)]
    assert any("roll the recurrent states" in message for message in messages)
    assert not list(family_findings(spec, read_json(DRAFTS / "tiny/config.json")))


@pytest.mark.parametrize(
    ("config", "count"),
    [
        ({"model_type": "glm4_moe", "num_nextn_predict_layers": 1}, 1),
        ({"model_type": "qwen3_5", "text_config": {"mtp_num_hidden_layers": 1}}, 1),
        ({"model_type": "qwen3_next"}, 1),
        ({"model_type": "kimi_k2", "num_nextn_predict_layers": 0}, 0),
        ({"model_type": "qwen3"}, 0),
    ],
)
def test_layers_for_further_tokens_are_counted(config: dict[str, object], count: int) -> None:
    assert mtp_layers(config) == count


@pytest.mark.parametrize(
    ("overrides", "family", "block", "verified"),
    [
        ((), "qwen3", None, 0),
        (NGRAM, "qwen3", None, 12),
        (MTP, "mimo", None, 4),
        (EAGLE3, "llama", None, 8),
        (("engine.speculative.draft_tokens=6", *EAGLE3), "llama", None, 7),
        (("engine.speculative.algorithm=dflash", EAGLE3[1]), "qwen3", None, 16),
        (("engine.speculative.algorithm=dflash", EAGLE3[1]), "qwen3", 8, 8),
        (("engine.speculative.algorithm=standalone", EAGLE3[1]), "llama", None, 4),
    ],
)
def test_sglangs_defaults_are_known(
    overrides: tuple[str, ...], family: str, block: int | None, verified: int
) -> None:
    section = load_checked_spec([BASE], (*GPUS, *overrides)).spec.engine
    assert verified_tokens(section, family, block) == verified


@pytest.mark.parametrize(
    ("overrides", "models"), [((), "target"), (NGRAM, "target"), (MTP, "all"), (EAGLE3, "target")]
)
def test_only_drafts_within_the_policys_checkpoint_are_updated(
    overrides: tuple[str, ...], models: str
) -> None:
    assert updated_models(load_checked_spec([BASE], (*GPUS, *overrides)).spec.engine) == models


def test_native_engines_get_the_longest_draft() -> None:
    section = load_checked_spec([BASE], NGRAM).spec.engine
    assert native_draft_tokens(section) == 8
    section = load_checked_spec([BASE], (*NGRAM, "engine.speculative.draft_tokens=3")).spec.engine
    assert native_draft_tokens(section) == 3
    assert native_draft_tokens(load_checked_spec([BASE], ()).spec.engine) == 0


@pytest.mark.parametrize(
    ("overrides", "arguments"),
    [
        ((), {}),
        (NGRAM, {"speculative_algorithm": "NGRAM"}),
        (
            (*NGRAM, "engine.speculative.draft_tokens=7"),
            {"speculative_algorithm": "NGRAM", "speculative_num_draft_tokens": 8},
        ),
        (
            (*MTP, "engine.speculative.draft_tokens=4"),
            {
                "speculative_algorithm": "NEXTN",
                "speculative_num_draft_tokens": 5,
                "speculative_num_steps": 4,
                "speculative_eagle_topk": 1,
            },
        ),
        (EAGLE3, {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": str(DRAFTS)}),
    ],
)
def test_servers_get_sglangs_own_arguments(overrides: tuple[str, ...], arguments: dict[str, object]) -> None:
    section = load_checked_spec([BASE], (*GPUS, *overrides)).spec.engine
    assert sglang_speculation(section) == arguments
