"""Whole jobs, native engine and trainer, over several turns: what is trained is what the policy made, at the
probability it had.
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rlrun.plugins.rollouts import multi_turn_tools
from rlrun.plugins.rollouts.tool_calls import ToolCall
from rlrun.plugins.types import Group
from rlrun.runner.prompts.tokenizer import Tokenizer
from tests.chat_templates import make_chat_tokenizer
from tests.conftest import InstallPlugin
from tests.local_job import Lines, run_local
from tests.tiny_models import make_tiny_model

SPEC = """
seed = 1
deterministic = true
model = { path = "FAMILY" }
data = { path = "rows.jsonl" }
engine = { dtype = "float32", max_running = 64 }
cluster = { threads = 1 }
checkpoint = { export_hf = false }

[rollout]
batch_size = 2
samples_per_prompt = 4
max_prompt_tokens = 1100
max_response_tokens = 120
stop_token_ids = [40, 50, 60, 70, 80, 90, 100, 110]
function = FUNCTION

[[rewards]]
type = "random"

[trainer]
steps = 2
lr = 1e-3
dtype = "float32"
"""
ECHO = """
    from pydantic import BaseModel, ConfigDict

    class Params(BaseModel):
        model_config = ConfigDict(extra="forbid")

    class Echo:
        Params = Params
        api_version = 1

        def __init__(self, params):
            function = {"name": "echo", "description": "Says it.", "parameters": {"type": "object"}}
            self.schema = {"type": "function", "function": function}

        async def call(self, arguments):
            return "heard"
"""
RESULT = {
    "qwen3": "\n<|im_start|>user\n<tool_response>\nheard\n</tool_response><|im_end|>\n"
    "<|im_start|>assistant\n",
    "llama3": '<|start_header_id|>ipython<|end_header_id|>\n\n"heard"<|eot_id|>'
    "<|start_header_id|>assistant<|end_header_id|>\n\n",
}
END = {"qwen3": "<|im_end|>", "llama3": "<|eot_id|>"}
"""Comes first where the policy did not end its answer itself."""
MODELS = {"qwen3": "qwen3", "llama3": "llama"}


@pytest.fixture
def groups(monkeypatch: pytest.MonkeyPatch) -> list[Group]:
    """What was trained on."""
    seen: list[Group] = []

    def remember(self: Lines, step: int, trained: Sequence[Group], removed: Sequence[Group] = ()) -> None:
        seen.extend(trained)

    monkeypatch.setattr(Lines, "samples", remember)
    return seen


def job(folder: Path, function: str, family: str = "qwen3", runs: int = 1) -> list[Lines]:
    make_tiny_model(folder / family, MODELS[family], max_position_embeddings=1280)
    make_chat_tokenizer(folder / family, family)
    rows = [{"prompt": f"say {number}", "label": ""} for number in range(8)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "job.toml").write_text(SPEC.replace("FAMILY", family).replace("FUNCTION", function))
    return [run_local(folder / "job.toml", folder / f"run-{number}") for number in range(runs)]


def text(tokens: np.ndarray, folder: Path) -> str:
    return Tokenizer(folder).decode_batch([tokens], special=True)[0]


@pytest.mark.parametrize("family", ["qwen3", "llama3"])
def test_tools(
    family: str,
    tmp_path: Path,
    groups: list[Group],
    install_plugin: InstallPlugin,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tiny model calls no tools by itself: here every answer of an even number of characters is a call."""
    install_plugin("tools", "echo", "acme_echo:Echo", ECHO)
    monkeypatch.setattr(
        multi_turn_tools,
        "parse_calls",
        lambda said, syntax, tools: [ToolCall("echo", {})] if len(said) % 2 == 0 else [],
    )
    function = '{ type = "multi_turn_tools", max_turns = 3, tools = [{ type = "echo" }] }'
    first, again = job(tmp_path, function, family, runs=2)
    assert first.curve == again.curve
    for line in first.lines:
        assert line["train/train_rollout_logprob_abs_diff"] < 1e-4
        assert line["rollout/info/turns"] >= 1
    samples = [sample for group in groups for sample in group.samples]
    several = [sample for sample in samples if sample.info["turns"] > 1]
    assert several, "some answers of the tiny model are calls"
    for sample in samples:
        given = text(sample.tokens[sample.loss_mask == 0], tmp_path / family)
        turn = f"({re.escape(END[family])})?{re.escape(RESULT[family])}"
        assert re.fullmatch(f"({turn}){{{sample.info['turns'] - 1}}}", given)
        assert not sample.log_probs[sample.loss_mask == 0].any()
        assert (sample.log_probs[sample.loss_mask == 1] < 0).all()
        assert sample.versions[-1].end == len(sample.tokens)


def test_an_agent_whose_executions_leave_several_samples(tmp_path: Path, groups: list[Group]) -> None:
    function = '{ type = "agent", agent = { type = "solve_and_select", solvers = 2 } }'
    [lines] = job(tmp_path, function)
    for line in lines.lines:
        assert line["train/train_rollout_logprob_abs_diff"] < 1e-4
        assert line["rollout/info/samples"] == 3
    assert [len(group.samples) for group in groups] == [12] * 4
    assert {len({sample.execution_id for sample in group.samples}) for group in groups} == {4}
    chosen = [sample for group in groups for sample in group.samples if sample.id.endswith(".2")]
    assert all("Answer 2:" in text(sample.prompt.tokens, tmp_path / "qwen3") for sample in chosen)
