"""A program of an agent that outlives a step: it runs on, and its answer continues with newer weights."""

import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from rlrun.plugins.authoring.rollout_testing import LetterChat
from rlrun.plugins.buffers.by_age import AgeParams, Fifo
from rlrun.plugins.generation import Generation
from rlrun.plugins.rollouts.agent.rollout import Agent, AgentParams
from rlrun.plugins.types import Sample, VersionSpan
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.rollouts.filtering import Filters
from rlrun.runner.rollouts.partial import PartialSource
from tests.resolved_specs import resolved_rollout
from tests.runner.loop_fakes import Instant, policy

SPEC = resolved_rollout(
    batch_size=1,
    samples_per_prompt=1,
    oversample=2,
    max_prompt_tokens=500,
    max_response_tokens=500,
    partial=True,
    max_staleness=2,
)
PROGRAM = """
import json, os, sys, urllib.request

task = json.load(sys.stdin)
with open(sys.argv[1], "a") as starts:
    starts.write(task["id"] + "\\n")
messages, answers = list(task["messages"]), []
for _ in range(3 if task["id"] == "0-0" else 1):
    body = json.dumps({"messages": messages}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    message = json.load(urllib.request.urlopen(request))["choices"][0]["message"]
    answers.append(message["content"])
    messages += [message, {"role": "user", "content": "more"}]
print(json.dumps({"answers": answers}))
"""


class StoppingEngines:
    """Answer with four letters. The second answer to prompt 0 stops after two of them until the weights are
    newer, and prompt 1 is answered only then.
    """

    def __init__(self, version: int = 0) -> None:
        self.version = version
        self.requests: list[GenerateRequest] = []
        self.has_begun, self.aborted = asyncio.Event(), asyncio.Event()

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        self.requests.append(request)
        if request.id == "rollout-0-0.1" and not self.version:
            self.has_begun.set()
            await self.aborted.wait()
            return [self._generation("ab", "abort")]
        if request.prompt_index:
            await self.has_begun.wait()
        return [self._generation("cd\0" if request.id.count("-") > 2 else "abcd\0", "stop")]

    async def abort_all(self) -> None:
        self.aborted.set()

    def _generation(self, text: str, finish: str) -> Generation:
        tokens = LetterChat().encode(text)
        log_probs = np.full(len(tokens), -1.0 - self.version, np.float32)
        spans = (VersionSpan(self.version, 0, len(tokens)),)
        return Generation(tokens, log_probs, finish, spans)  # type: ignore[arg-type]


def source(engines: StoppingEngines, starts: Path) -> PartialSource:
    rollout = Agent(AgentParams(command=(sys.executable, "-c", PROGRAM, str(starts))))
    asked = replace(policy(engines, rollout=rollout), tokenizer=LetterChat())  # type: ignore[arg-type]
    return PartialSource(SPEC, asked, Instant(2), Filters([]), Fifo(AgeParams()))  # type: ignore[arg-type]


async def sample_of(rollouts: PartialSource, version: int) -> Sample:
    [group] = (await rollouts.next(version)).groups
    [sample] = group.samples
    return sample


def check(sample: Sample, versions: Sequence[tuple[int, int]]) -> None:
    """The second answer has two letters of each version, and the agent saw it as one."""
    assert sample.info["answers"] == ["abcd"] * 3
    made = sample.loss_mask > 0
    assert "".join(map(chr, sample.tokens[made])) == "abcd\0" * 3
    numbers = np.concatenate([np.full(length, version) for version, length in versions])
    assert sample.log_probs[made].tolist() == (-1.0 - numbers).tolist()


async def test_a_program_that_outlives_a_step_goes_on_in_mid_answer(tmp_path: Path) -> None:
    engines = StoppingEngines()
    rollouts = source(engines, tmp_path / "starts")
    assert (await sample_of(rollouts, 0)).id == "1-0"
    engines.version = 1
    sample = await sample_of(rollouts, 1)
    assert sample.id == "0-0"
    check(sample, [(0, 5 + 2), (1, 3 + 5)])
    assert (tmp_path / "starts").read_text().split().count("0-0") == 1, "one program over both steps"
    await rollouts.close()


async def test_after_a_resume_the_program_starts_again_and_gets_the_answers_that_it_had(
    tmp_path: Path,
) -> None:
    engines = StoppingEngines()
    rollouts = source(engines, tmp_path / "starts")
    await sample_of(rollouts, 0)
    state = json.loads(json.dumps(rollouts.state()))
    await rollouts.close()
    again = StoppingEngines(version=1)
    resumed = source(again, tmp_path / "starts")
    await resumed.restore(state)
    sample = await sample_of(resumed, 1)
    check(sample, [(0, 5 + 2), (1, 3 + 5)])
    first, second = [request.id for request in again.requests if request.prompt_index == 0]
    assert (first, second) == ("rollout-0-0.1-0", "rollout-0-0.2"), "the first answer was not asked for again"
    await resumed.close()
