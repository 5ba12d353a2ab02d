"""A whole job whose agents are programs over the official SDKs: two turns, streamed, in three formats."""

import sys
from pathlib import Path

import pytest

from tests.integration.jobs import Jobs

AGENT = """
import json, sys

task = json.load(sys.stdin)
say = task["messages"][0]["content"]
match task["seed"] % 3:
    case 0:
        from openai import OpenAI

        messages = [{"role": "user", "content": say}]
        for _ in range(2):
            with OpenAI().chat.completions.create(model="policy", messages=messages, stream=True) as chunks:
                answer = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": say}]
    case 1:
        from anthropic import Anthropic

        messages = [{"role": "user", "content": say}]
        for _ in range(2):
            with Anthropic().messages.stream(model="policy", max_tokens=6, messages=messages) as stream:
                answer = stream.get_final_message()
            blocks = [block.model_dump() for block in answer.content]
            messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": say}]
    case 2:
        from openai import OpenAI

        items = [{"role": "user", "content": say}]
        for _ in range(2):
            asked = {"model": "policy", "input": items, "max_output_tokens": 6, "store": False}
            with OpenAI().responses.create(**asked, stream=True) as events:
                *_, last = events  # completed, or incomplete where an answer has 6 tokens
            output = [item.model_dump(exclude_none=True) for item in last.response.output]
            items += [*output, {"role": "user", "content": say}]
print(json.dumps({"reward": 1.0, "wire": task["seed"] % 3}))
"""


@pytest.fixture
def agent(jobs: Jobs) -> Path:
    path = jobs.folder / "agent.py"
    path.write_text(AGENT)
    return path


def test_programs_over_sdks_train_on_their_own_tokens(jobs: Jobs, agent: Path) -> None:
    ended = jobs.run(
        "agents",
        trainer__steps=1,
        rollout__batch_size=3,
        rollout__samples_per_prompt=2,
        rollout__max_prompt_tokens=64,
        rollout__max_response_tokens=96,
        rollout__max_turn_tokens=6,
        rollout__function={"type": "agent", "command": [sys.executable, str(agent)], "max_programs": 3},
    )
    assert ended.code == 0, ended.output
    for line in ended.metrics:
        assert line["rollout/failed"] == 0
        assert line["rollout/info/samples"] == 1.0
        assert 0.0 < line["rollout/info/wire"] < 2.0
        assert line["train/train_rollout_logprob_abs_diff_max"] < 1e-4
