"""A reward model as a user makes one: trained from preferences, resumed, exported, served, and used as a
reward.
"""

import json

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from rlrun.plugins.registry import build
from rlrun.plugins.testing import sample
from tests.integration.jobs import Ended, Jobs
from tests.sglang_cpu.servers import ARGUMENTS, ENVIRONMENT, python

GOOD, BAD = "yes", "no no no"
SPEC = """
name = "reward-model"
seed = 1
deterministic = true

[model]
path = "{model}"

[data]
path = "pairs.jsonl"
response_key = "good"
rejected_key = "bad"

[rollout]
max_prompt_tokens = 64
max_response_tokens = 32

[algorithm]
type = "bradley_terry"
center = 0.01

[trainer]
steps = 6
global_batch_size = 8
lr = 3e-3
dtype = "float32"

[cluster]
threads = 1

[checkpoint]
interval = 4
"""


@pytest.fixture(scope="module")
def trained(jobs: Jobs) -> Ended:
    """A job that has trained a reward model, and that ends as if it had been killed and resumed."""
    rows = [{"prompt": f"say {i}", "good": f"{i} {GOOD}", "bad": f"{i} {BAD}"} for i in range(48)]
    (jobs.folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (jobs.folder / "pairs.toml").write_text(SPEC.format(model=jobs.model))
    undisturbed = jobs.run("rm", spec="pairs.toml")
    assert undisturbed.code == 0, undisturbed.output
    undisturbed.rewind(4)
    resumed = jobs.run("rm", "--resume", spec="pairs.toml")
    assert resumed.code == 0, resumed.output
    assert resumed.curve == undisturbed.curve
    return resumed


def test_it_learns_and_transformers_and_the_reward_read_its_export(trained: Ended) -> None:
    assert trained.metrics[0]["train/preferred_frac"] == 0  # a head of zeros prefers none
    assert trained.metrics[-1]["train/preferred_frac"] == 1
    folder = trained.folder.path / "model"
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    model.config.pad_token_id = None
    tokenizer = AutoTokenizer.from_pretrained(folder)
    reward = build("rewards", "reward_model", {"path": str(folder)})
    scores = {}
    for text in (GOOD, BAD):
        held_out = sample(text=f"100 {text}", prompt="say 100")
        chat = [{"role": "user", "content": "say 100"}, {"role": "assistant", "content": f"100 {text}"}]
        tokens = tokenizer.apply_chat_template(chat, tokenize=True, return_dict=False)
        scores[text] = reward.score(held_out)
        assert scores[text] == pytest.approx(model(torch.tensor([tokens])).logits.item(), abs=1e-6)
    assert scores[GOOD] > scores[BAD] + 0.1


@pytest.mark.slow
def test_a_policy_learns_what_it_rewards(jobs: Jobs, trained: Ended) -> None:
    rewards = [{"type": "reward_model", "path": str(trained.folder.path / "model")}]
    ended = jobs.run("policy", rewards=rewards, trainer__steps=8)
    assert ended.code == 0, ended.output
    means = [line["rollout/reward/mean"] for line in ended.metrics]
    assert sum(means[-3:]) > sum(means[:3])


@pytest.mark.slow
def test_sglang_serves_it_with_the_same_scores(jobs: Jobs, trained: Ended) -> None:
    folder = str(trained.folder.path / "model")
    server = {
        "name": "taste",
        "path": folder,
        "type": "sglang",
        "dtype": "float32",
        "python": python(),
        "sglang": ARGUMENTS,
        "environment": ENVIRONMENT,
    }
    served = {"type": "served_reward_model", "path": folder, "engine": "taste", "weight": 1.0}
    local = {"type": "reward_model", "path": folder, "weight": 0.0}
    ended = jobs.run("served", engines=[server], rewards=[served, local], trainer__steps=1)
    assert ended.code == 0, ended.output
    line = ended.metrics[0]
    assert line["rollout/rewards/served_reward_model"] == pytest.approx(
        line["rollout/rewards/reward_model"], abs=1e-5
    )
