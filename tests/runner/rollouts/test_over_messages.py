"""Rollouts over chat messages: what is sent, and what samples they give."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rlrun.plugins.images import checked_image
from rlrun.plugins.types import Prompt, Row, Sample
from rlrun.runner.contracts.chat_answers import ChatAnswer
from rlrun.runner.contracts.interfaces import RolloutContext
from rlrun.runner.records.metrics import sample_metrics
from rlrun.runner.rollouts.executions import Executions
from rlrun.runner.rollouts.grouping import groups_of
from rlrun.runner.rollouts.over_messages import NoEngines, NoTokenizer, messages_of, over_messages
from rlrun.runner.rollouts.settings import rollout_settings
from rlrun.specs.sections.rollout import RolloutFunctionSpec
from tests.pictures import picture
from tests.resolved_specs import resolved_rollout

PYTHON = {"type": "multi_turn_tools", "tools": [{"type": "python"}], "max_turns": 2}


class Scripted:
    """Answers with a script, and remembers what it was asked."""

    def __init__(self, *answers: ChatAnswer | Exception) -> None:
        self.script = list(answers)
        self.asked: list[tuple[Mapping[str, Any], list[int]]] = []

    async def answers(self, body: Mapping[str, Any], seeds: Sequence[int]) -> list[ChatAnswer]:
        self.asked.append((body, list(seeds)))
        answer = self.script[min(len(self.asked), len(self.script)) - 1]
        if isinstance(answer, Exception):
            raise answer
        return [answer] * len(seeds)


def said(text: str, *, is_cut: bool = False, code: str | None = None, **more: Any) -> ChatAnswer:
    calls = []
    if code is not None:
        arguments = json.dumps({"code": code})
        calls = [{"id": "c1", "type": "function", "function": {"name": "python", "arguments": arguments}}]
    message = {"role": "assistant", "content": text, "tool_calls": calls}
    return ChatAnswer(text, is_cut, message, calls, **more)


def run(model: Scripted, function: dict[str, Any], samples: int = 1, **rollout: Any) -> list[Sample]:
    settings = rollout_settings(resolved_rollout(samples_per_prompt=samples, **rollout))
    section = RolloutFunctionSpec.model_validate(function)
    policy: Any = RolloutContext(
        engines=NoEngines(),  # type: ignore[arg-type]
        tokenizer=NoTokenizer(),  # type: ignore[arg-type]
        grader=None,  # type: ignore[arg-type]
        seed=1,
        rollout=over_messages(model, section, settings, {"extra": 1}),
        deterministic=False,
    )
    prompt = Prompt(Row("r", "2 + 2?"), 0, np.zeros(0, np.int32))

    async def answer() -> list[Sample]:
        executions = await Executions(policy, settings).run(prompt, policy.engines.generate)
        [group] = groups_of([prompt], [executions], policy.tokenizer)
        return group.samples

    return asyncio.run(answer())


def test_the_samples_of_a_prompt_are_asked_for_together() -> None:
    model = Scripted(said("4", num_tokens=2))
    samples = run(model, {}, 3, temperature=0.5, top_k=20, stop=("#",), max_response_tokens=9)
    [(body, seeds)] = model.asked
    assert len(set(seeds)) == 3
    assert body == {
        "max_tokens": 9,
        "temperature": 0.5,
        "top_p": 1.0,
        "top_k": 20,
        "stop": ["#"],
        "extra": 1,
        "messages": [{"role": "user", "content": "2 + 2?"}],
    }
    assert [(one.id, one.text, one.status, len(one.tokens)) for one in samples] == [
        (f"0-{number}", "4", "completed", 0) for number in range(3)
    ]
    metrics = sample_metrics(samples)
    assert metrics["response_len/mean"] == 2  # what the server counted
    assert "log_probs" not in metrics


def test_a_cut_answer_is_truncated_and_lengths_that_nobody_counted_are_no_metric() -> None:
    samples = run(Scripted(said("4 and", is_cut=True)), {})
    assert samples[0].status == "truncated"
    assert not [name for name in sample_metrics(samples) if name.startswith("response_len")]


def test_a_tool_is_called_and_its_result_sent_back() -> None:
    model = Scripted(said("let me see", code="print(2 + 2)", reasoning="hm"), said("4"))
    [sample] = run(model, PYTHON)
    assert (sample.text, sample.status) == ("let me see\n4", "completed")
    assert sample.info == {"reasoning": "hm", "turns": 2, "tool_calls": 1, "tool_errors": 0}
    first, second = (body for body, _ in model.asked)
    assert [tool["function"]["name"] for tool in first["tools"]] == ["python"]
    _, called, result = second["messages"]
    assert called == said("let me see", code="print(2 + 2)").message
    assert (result["role"], result["tool_call_id"]) == ("tool", "c1")
    assert result["content"].strip() == "4"


def test_a_call_after_the_last_turn_truncates_the_sample() -> None:
    [sample] = run(Scripted(said("again", code="print(1)")), PYTHON | {"text": "last"})
    assert (sample.text, sample.status, sample.info["turns"]) == ("again", "truncated", 2)


@pytest.mark.parametrize("arguments", ["{", "[1]", '{"wrong": 1}'])
def test_a_call_that_cannot_be_read_is_answered_with_the_reason(arguments: str) -> None:
    call = {"id": "c1", "function": {"name": "python", "arguments": arguments}}
    model = Scripted(ChatAnswer("", False, {"role": "assistant"}, [call]), said("4"))
    [sample] = run(model, PYTHON)
    assert sample.info["tool_errors"] == 1
    assert model.asked[1][0]["messages"][-1]["content"].startswith("error: ")


def test_a_long_result_is_cut_by_its_characters() -> None:
    model = Scripted(said("", code="print('x' * 100)"), said("4"))
    run(model, PYTHON | {"max_result_tokens": 10})
    content = model.asked[1][0]["messages"][-1]["content"]
    assert content == f"{'x' * 40}… (cut off after 40 characters)"


@pytest.mark.parametrize("function", [{}, PYTHON], ids=["single_turn", "tools"])
def test_a_failure_of_the_server_is_a_failed_sample(function: dict[str, Any]) -> None:
    [sample] = run(Scripted(RuntimeError("gone")), function)
    assert (sample.status, sample.failure) == ("failed", "RuntimeError: gone")


def test_images_are_sent_in_the_messages() -> None:
    image = checked_image(picture())
    parts = [{"type": "image"}, {"type": "text", "text": "what is it?"}]
    row = Row("r", [{"role": "user", "content": parts}], images=(image,))
    [message] = messages_of(row)
    assert message["content"][0] == {"type": "image_url", "image_url": {"url": image.data_url()}}
    assert message["content"][1] == parts[1]
    with pytest.raises(ValueError, match="name more images than the row has"):
        messages_of(Row("r", row.prompt))
