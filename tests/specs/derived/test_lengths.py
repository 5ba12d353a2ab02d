"""How long prompts and samples can get under a spec."""

from typing import Any

import pytest

from rlrun.specs.derived.lengths import longest_prompt, longest_sample, resolved_sample
from rlrun.specs.derived.sample_limits import sample_limits
from rlrun.specs.sections.job import Spec
from tests.resolved_specs import resolved


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


@pytest.mark.parametrize(
    ("rollout", "tokens", "seconds"),
    [
        ({}, 1024, 600),
        ({}, 3000, 600),
        ({}, 32768, 6553.6),
        ({"request_timeout": 60.0}, 32768, 60),
    ],
)
def test_long_responses_have_more_time(rollout: dict[str, Any], tokens: int, seconds: float) -> None:
    assert spec(rollout).rollout.seconds_for(tokens) == seconds


@pytest.mark.parametrize(
    ("rollout", "tokens"), [({}, 28), ({"max_turn_tokens": 9}, 9), ({"max_turn_tokens": 99}, 28)]
)
def test_a_turn_is_never_longer_than_its_response(rollout: dict[str, Any], tokens: int) -> None:
    assert spec(rollout).rollout.turn_tokens(28) == tokens


TOOLS = {"type": "multi_turn_tools", "tools": [{"type": "python"}]}


@pytest.mark.parametrize(
    ("rollout", "sections", "sentence"),
    [
        (
            {"max_prompt_tokens": 100, "max_response_tokens": 28},
            {},
            "a sample may have 128 tokens: a prompt of 100 (longer ones are dropped), and a response of "
            "28; it may take 600 s",
        ),
        (
            {"max_response_tokens": 10_000, "max_turn_tokens": 2000, "function": TOOLS},
            {},
            "a sample may have 14096 tokens: a prompt of 4096 (longer ones are dropped), and a response of "
            "10000 over all turns, 2000 per turn; it may take 2000 s",
        ),
        (
            {"max_response_tokens": 10, "function": TOOLS},
            {"eval": {"max_response_tokens": 5000, "datasets": [{"name": "held", "path": "rows.jsonl"}]}},
            "a sample may have 4106 tokens: a prompt of 4096 (longer ones are dropped), and a response of 10 "
            "over all turns, 10 per turn; it may take 600 s (in evaluations 9096 tokens, with a response of "
            "5000, and 1000 s)",
        ),
    ],
)
def test_a_sentence_says_how_long_samples_may_get(
    rollout: dict[str, Any], sections: dict[str, Any], sentence: str
) -> None:
    assert sample_limits(resolved(spec(rollout, **sections)), rollout=True) == sentence


def test_a_sentence_says_which_demonstrations_are_not_trained_on() -> None:
    job = resolved(spec({"max_prompt_tokens": 100, "max_response_tokens": 28}))
    said = sample_limits(job, rollout=False)
    assert said == (
        "a demonstration may have 128 tokens: a prompt of 100 (longer ones are dropped), and a response of "
        "28 (a longer one is a broken row)"
    )


def test_the_longest_evaluation_leaves_the_room_for_prompts() -> None:
    evaluation = {
        "max_response_tokens": 100,
        "datasets": [{"name": "held", "type": "jsonl", "path": "rows.jsonl", "max_response_tokens": 300}],
    }
    job = spec({"max_response_tokens": 64}, eval=evaluation)
    assert longest_prompt(job, 512) == 212
    assert longest_sample(job, 512) == 512


@pytest.mark.parametrize(
    ("section", "dataset", "sample"),
    [
        ({}, {}, 164),
        ({"max_prompt_tokens": 150}, {}, 214),
        ({"max_prompt_tokens": 150}, {"max_prompt_tokens": 10, "max_response_tokens": 200}, 210),
        ({"max_prompt_tokens": 10}, {}, 164),
    ],
)
def test_a_sample_of_an_evaluation_has_a_prompt_of_its_own_length(
    section: dict[str, Any], dataset: dict[str, Any], sample: int
) -> None:
    datasets = [{"name": "held", "type": "jsonl", "path": "rows.jsonl", **dataset}]
    job = spec({"max_prompt_tokens": 100, "max_response_tokens": 64}, eval={**section, "datasets": datasets})
    assert longest_sample(job, 512) == resolved_sample(resolved(job)) == sample
