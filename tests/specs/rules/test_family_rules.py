"""Data with images is refused where the model reads none, or prompts are made without a chat template."""

from typing import Any

import pytest

from rlrun.specs.derived.conflicts.feature import Job
from rlrun.specs.derived.conflicts.features import MTP, SHARED_PREFIXES
from rlrun.specs.derived.conflicts.reading import conflicts, reasons_against
from rlrun.specs.rules.family_rules import image_findings, mtp_findings
from rlrun.specs.sections.job import Spec

VLM = {"model_type": "qwen2_5_vl", "vision_config": {"depth": 1}}
IMAGES = {"type": "jsonl", "path": "rows.jsonl", "images_key": "images"}
MIMO = {"model_type": "mimo", "num_nextn_predict_layers": 1}


def problems(config: dict[str, Any], **sections: Any) -> list[tuple[str, str]]:
    values = {"model": {"path": "m"}, "data": IMAGES, "trainer": {"steps": 1}, **sections}
    findings = image_findings(Spec.model_validate(values), config)
    return [(".".join(map(str, finding.path)), finding.message) for finding in findings]


@pytest.mark.parametrize(
    ("config", "sections", "problem"),
    [
        ({"model_type": "qwen3"}, {}, "the model's family, qwen3, reads no images"),
        (VLM, {"trainer": {"steps": 1, "vision_tower": "none"}}, "the vision tower is not loaded"),
        ({"model_type": "qwen3_5", "vision_config": {"depth": 1}}, {}, "the vision tower is not loaded"),
        (VLM, {"model": {"path": "m", "implementation": "transformers"}}, "compute text only"),
        (VLM, {"data": {**IMAGES, "apply_chat_template": False}}, "by the chat template"),
    ],
    ids=["text", "none", "not by default", "transformers", "no template"],
)
def test_images_without_use_are_refused(
    config: dict[str, Any], sections: dict[str, Any], problem: str
) -> None:
    [(key, message)] = problems(config, **sections)
    assert key == "data.images_key"
    assert problem in message


def test_images_of_a_vision_model_are_accepted() -> None:
    assert not problems(VLM)
    assert not problems({"model_type": "qwen3"}, data={"type": "jsonl", "path": "rows.jsonl"})


def test_every_dataset_is_checked() -> None:
    mixture = {"type": "mixture", "sources": [{"type": "jsonl", "path": "a"}, IMAGES]}
    evals = {"datasets": [{"name": "held_out", **IMAGES}]}
    keys = [key for key, _ in problems({"model_type": "qwen3"}, data=mixture, eval=evals)]
    assert keys == ["data.sources.1.images_key", "eval.datasets.0.images_key"]


def make_spec(implementation: str = "torchtitan", **trainer: Any) -> Spec:
    return Spec.model_validate(
        {
            "model": {"path": "/model", "implementation": implementation},
            "data": {},
            "algorithm": {"type": "grpo"},
            "trainer": {"steps": 1} | trainer,
        }
    )


@pytest.mark.parametrize(
    ("settings", "paths"),
    [
        ({"parallel": {"fsdp": 2, "replicate": 2, "expert": 2}, "offload": "all"}, []),
        ({"parallel": {"tensor": 2}}, ["trainer.parallel.tensor"]),
        (
            {"parallel": {"context": 2, "pipeline": 2}},
            ["trainer.parallel.context", "trainer.parallel.pipeline"],
        ),
        ({"lora": {"rank": 4}}, ["trainer.lora"]),
        ({"precision": "float8"}, ["trainer.precision"]),
        ({"compile": True}, ["trainer.compile"]),
        ({"implementation": "transformers"}, ["trainer.mtp_loss"]),
    ],
)
def test_settings_that_are_refused(settings: dict[str, Any], paths: list[str]) -> None:
    findings = list(conflicts(Job(make_spec(mtp_loss=0.1, **settings))))
    found = [(".".join(map(str, finding.path)), finding.message) for finding in findings]
    about = [key for key, message in found if key == MTP.name or MTP.name in message]
    assert sorted(about) == sorted(paths)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MIMO, None),
        ({"model_type": "glm4_moe", "num_nextn_predict_layers": 1}, None),
        ({"model_type": "mimo"}, "num_nextn_predict_layers in config.json has to be 1, and is 0"),
        (MIMO | {"num_nextn_predict_layers": 2}, "has to be 1, and is 2"),
        ({"model_type": "deepseek_v3", "num_nextn_predict_layers": 0}, "has to be 1, and is 0"),
        ({"model_type": "qwen3_next"}, "those of qwen3_next were not compared with a reference"),
        ({"model_type": "qwen3"}, "MTP layers are trained for deepseek_v3, glm4_moe, glm4_moe_lite, mimo"),
    ],
)
def test_models_that_are_refused(config: dict[str, Any], message: str | None) -> None:
    messages = [finding.message for finding in mtp_findings(make_spec(mtp_loss=0.1), config)]
    assert len(messages) == (message is not None)
    assert message is None or message in messages[0]
    assert not list(mtp_findings(make_spec(), config))


def test_prefixes_are_not_shared() -> None:
    [reason] = reasons_against(SHARED_PREFIXES, Job(make_spec(mtp_loss=0.1)))
    assert "the MTP layer reads the token that follows" in reason
    assert not list(reasons_against(SHARED_PREFIXES, Job(make_spec())))


@pytest.mark.parametrize(("algorithm", "is_refused"), [("ngram", False), ("mtp", True)])
def test_servers_that_speculate_with_the_layer_get_whole_weights(algorithm: str, is_refused: bool) -> None:
    """SGLang gives every update to the layer's model, which shares embedding and head with the policy."""
    engine = {"type": "sglang", "weight_delta": "elements", "speculative": {"algorithm": algorithm}}
    cluster = {"gpus_per_node": 8, "placement": "disaggregated"}
    job = make_spec().model_dump(exclude_unset=True)
    spec = Spec.model_validate(job | {"engine": engine, "cluster": cluster})
    messages = [f.message for f in conflicts(Job(spec)) if f.path == ("engine", "weight_delta")]
    assert any("MTP" in message for message in messages) == is_refused
