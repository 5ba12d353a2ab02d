"""What a policy with a vision tower does not offer is refused from config.json alone."""

from typing import Any

import pytest

from rlrun.specs.rules.family_rules import family_findings
from rlrun.specs.sections.job import Spec
from tests.models.test_vision import PUBLISHED

SIZES = {
    "vocab_size": 320,
    "hidden_size": 2048,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
}
QWEN3 = {"model_type": "qwen3"} | SIZES
QWEN3_5 = PUBLISHED | {"model_type": "qwen3_5", "text_config": {"model_type": "qwen3_5_text"} | SIZES}
QWEN3_5_MOE = PUBLISHED | {
    "model_type": "qwen3_5_moe",
    "text_config": {"model_type": "qwen3_5_moe_text"} | SIZES,
}


def found(config: dict[str, Any], parallel: dict[str, int] | None = None, **trainer: Any) -> list[str]:
    spec = Spec.model_validate(
        {
            "model": {"path": "/model"},
            "data": {},
            "algorithm": {"type": "grpo"},
            "trainer": {"steps": 1, "parallel": parallel or {}} | trainer,
        }
    )
    findings = (each for each in family_findings(spec, config) if "vision tower" in each.message)
    return [".".join(map(str, finding.path)) for finding in findings]


@pytest.mark.parametrize(
    ("config", "settings", "paths"),
    [
        (PUBLISHED, {"parallel": {"fsdp": 2, "replicate": 2}, "vision_tower": "trained"}, []),
        (PUBLISHED, {"parallel": {"pipeline": 2}, "vision_tower": "none"}, []),
        (PUBLISHED, {"parallel": {"context": 2}}, ["trainer.parallel.context"]),
        (PUBLISHED, {"parallel": {"pipeline": 2}}, ["trainer.parallel.pipeline"]),
        (QWEN3_5, {"lora": {"rank": 4}, "vision_tower": "frozen"}, ["trainer.lora"]),
        (QWEN3_5, {"parallel": {"context": 2}}, []),
        (QWEN3_5, {"parallel": {"context": 2}, "vision_tower": "frozen"}, ["trainer.parallel.context"]),
        (QWEN3_5_MOE, {"parallel": {"fsdp": 2, "tensor": 2, "expert": 4}, "vision_tower": "trained"}, []),
        (QWEN3, {"vision_tower": "trained"}, ["trainer.vision_tower"]),
        (QWEN3, {"vision_tower": "none"}, []),
    ],
    ids=["data", "no-tower", "context", "pipeline", "lora", "text", "frozen", "experts", "qwen3", "nothing"],
)
def test_what_is_refused(config: dict[str, Any], settings: dict[str, Any], paths: list[str]) -> None:
    assert found(config, **settings) == paths
