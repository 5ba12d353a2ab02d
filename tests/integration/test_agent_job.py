"""A whole job whose agents are programs over the official SDKs: two turns, streamed, in three formats; each
turn has its own reward and weight. Those over chat completions repeat what another served model says.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlrun.runner.records.encoded_arrays import FLOAT_DTYPE, decode_array
from rlrun.runner.records.packed_lines import read_records
from rlrun.runner.records.saved_rollouts import rollout_path
from tests.integration.jobs import Jobs

AGENT = """
import json, sys, time

task, rewards = json.load(sys.stdin), {}
say = task["messages"][0]["content"]
match task["seed"] % 3:
    case 0:
        import os

        from openai import OpenAI

        user = OpenAI(base_url=os.environ["RLRUN_ENGINE_USER_URL"])
        asked = [{"role": "user", "content": say}]
        said = user.chat.completions.create(model="any", messages=asked, max_tokens=2)
        say = said.choices[0].message.content
        messages = [{"role": "user", "content": say}]
        for _ in range(2):
            with OpenAI().chat.completions.create(model="policy", messages=messages, stream=True) as chunks:
                chunks = [chunk for chunk in chunks if chunk.choices]
            answer = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            rewards[chunks[0].id] = len(answer) / 8
            messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": say}]
    case 1:
        from anthropic import Anthropic

        messages = [{"role": "user", "content": say}]
        for _ in range(2):
            with Anthropic().messages.stream(model="policy", max_tokens=6, messages=messages) as stream:
                answer = stream.get_final_message()
            rewards[answer.id] = len(rewards) + task["seed"] % 7
            blocks = [block.model_dump() for block in answer.content]
            messages += [{"role": "assistant", "content": blocks}, {"role": "user", "content": say}]
    case 2:
        from openai import OpenAI

        items = [{"role": "user", "content": say}]
        for _ in range(2):
            asked = {"model": "policy", "input": items, "max_output_tokens": 6, "store": False}
            with OpenAI().responses.create(**asked, stream=True) as events:
                *_, last = events  # completed, or incomplete where an answer has 6 tokens
            rewards[last.response.id] = -len(rewards) / 2 - task["seed"] % 5
            output = [item.model_dump(exclude_none=True) for item in last.response.output]
            items += [*output, {"role": "user", "content": say}]
if task["id"].startswith("2-"):
    hoard = bytearray(512 << 20)
    time.sleep(6000)
first, second = rewards
weights = {first: 0.5, second: task["seed"] % 3}
print(json.dumps({"turn_rewards": rewards, "policy_weights": weights, "wire": task["seed"] % 3}))
"""


def settings(jobs: Jobs, agent: Path) -> dict[str, Any]:
    """Settings of a job with this agent, which also asks a simulated user."""
    return {
        "algorithm__turn_rewards": "to_go",
        "rollout__batch_size": 3,
        "rollout__samples_per_prompt": 2,
        "rollout__max_prompt_tokens": 64,
        "rollout__max_response_tokens": 96,
        "rollout__max_turn_tokens": 6,
        "rewards": [{"type": "noted"}],
        "engines": [{"name": "user", "type": "native", "path": str(jobs.model), "dtype": "float32"}],
        "rollout__function": {
            "type": "agent",
            "command": [sys.executable, str(agent)],
            "max_programs": 3,
            "engines": ["user"],
            "limits": {"memory": 500},
            "cross_entropy": 0.125,
        },
    }


@pytest.fixture
def agent(jobs: Jobs) -> Path:
    path = jobs.folder / "agent.py"
    path.write_text(AGENT)
    return path


def test_programs_over_sdks_train_on_their_own_tokens(jobs: Jobs, agent: Path) -> None:
    ended = jobs.run("agents", trainer__steps=1, **settings(jobs, agent))
    assert ended.code == 0, ended.output
    for line in ended.metrics:
        assert line["rollout/failed"] == 0
        assert line["rollout/info/samples"] == 1.0
        assert 0.0 < line["rollout/info/wire"] < 2.0
        assert line["train/train_rollout_logprob_abs_diff_max"] < 1e-4
        assert line["train/ce_tokens"] > 6
        assert line["train/loss"] == pytest.approx(line["train/pg_loss"] + line["train/ce_loss"], abs=1e-6)
    records = list(read_records(rollout_path(ended.folder.rollouts, 1)))
    assert len(records) == 6
    check_credit(records[:4])
    for record in records[4:]:  # programs that exceeded their memory
        assert (record["reward"], record["info"]["over_limit"]) == (0.0, 1)


def check_credit(records: list[dict[str, Any]]) -> None:
    """The advantage of a turn is that of its reward and those after it, times the turn's weight."""
    for pair in (records[0:2], records[2:4]):
        rewards = np.array([[reward for _, reward in record["turn_rewards"]] for record in pair])
        to_go = np.cumsum(rewards[:, ::-1], axis=1)[:, ::-1]
        assert [record["reward"] for record in pair] == pytest.approx(to_go[:, 0])
        expected = (to_go - to_go.mean(axis=0)) / (to_go[:, 0].std(ddof=1) + 1e-6)
        for record, advantages in zip(pair, expected, strict=True):
            first, second = (end for end, _ in record["turn_rewards"])
            values, weights, mask = (
                decode_array(record[name], FLOAT_DTYPE)
                for name in ("advantages", "policy_weights", "loss_mask")
            )
            trained = [np.arange(first), first + np.flatnonzero(mask[first:second])]
            for tokens, advantage, weight in zip(
                trained, advantages, (0.5, record["info"]["wire"]), strict=True
            ):
                np.testing.assert_allclose(values[tokens], weight * advantage, rtol=1e-5, atol=1e-6)
                assert set(weights[tokens]) == {weight}
