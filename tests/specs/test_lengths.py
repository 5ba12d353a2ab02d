"""How long prompts and samples can get under a spec."""

from typing import Any

import pytest

from rlrun.specs.job import Spec
from rlrun.specs.lengths import fitted, longest_prompt, longest_sample


def spec(rollout: dict[str, Any], engine: dict[str, Any] | None = None, **sections: Any) -> Spec:
    given = {
        "name": "job",
        "model": {"path": "some/model"},
        "data": {"type": "jsonl", "path": "rows.jsonl"},
        "algorithm": {"type": "grpo"},
        "trainer": {"steps": 1},
        "rollout": rollout,
        "engine": engine or {},
        **sections,
    }
    return Spec.model_validate(given)


@pytest.mark.parametrize(
    ("rollout", "engine", "positions", "longest"),
    [
        ({"max_prompt_tokens": 7}, {}, 40960, 7),
        ({}, {}, None, 4096),
        ({}, {}, 40960, 4096),
        ({"max_response_tokens": 64}, {}, 512, 448),
        ({"max_response_tokens": 64}, {"max_cache_tokens": 256}, 512, 192),
        ({"max_response_tokens": 600}, {}, 512, 1),
    ],
)
def test_the_longest_prompt_is_what_the_model_has_room_for(
    rollout: dict[str, Any], engine: dict[str, Any], positions: int | None, longest: int
) -> None:
    job = spec(rollout, engine)
    assert longest_prompt(job, positions) == longest
    assert fitted(job, positions).rollout.prompt_limit == longest


def test_the_longest_evaluation_leaves_the_room_for_prompts() -> None:
    evaluation = {
        "max_response_tokens": 100,
        "datasets": [{"name": "held", "type": "jsonl", "path": "rows.jsonl", "max_response_tokens": 300}],
    }
    job = spec({"max_response_tokens": 64}, eval=evaluation)
    assert longest_prompt(job, 512) == 212
    assert longest_sample(job, 512) == 512
