"""Several solvers side by side, and one who chooses: an agent of several conversations."""

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.types import Message
from rlrun.specs.sections.section import Section


class SolveAndSelectParams(Section):
    """How many try."""

    solvers: int = Field(default=2, ge=1)
    """Answers that are made side by side."""
    ask: str = "Here are answers to the question. Give the best answer, in full."
    """What the one who chooses is told, before the answers."""


class SolveAndSelect:
    """The policy answers the prompt several times, then sees its answers and gives the best one.

    All of it is trained: each solver's conversation is a sample, and the choice is the last one.
    """

    Params = SolveAndSelectParams
    api_version = 1

    def __init__(self, params: SolveAndSelectParams) -> None:
        self.params = params

    async def run(self, task: AgentTask) -> dict[str, Any]:
        """`answer`, the text of the choice."""
        import aiohttp  # a job has it; whoever only checks a spec need not

        headers = {"Authorization": f"Bearer {task.api_key}"}
        patient = aiohttp.ClientTimeout(total=None)  # the execution has a deadline of its own
        async with aiohttp.ClientSession(headers=headers, timeout=patient) as client:
            tries = (_said(client, task, task.messages) for _ in range(self.params.solvers))
            answers = await asyncio.gather(*tries)
            listed = "\n\n".join(f"Answer {number}:\n{text}" for number, text in enumerate(answers, 1))
            question = {"role": "user", "content": f"{self.params.ask}\n\n{listed}"}
            return {"answer": await _said(client, task, [*task.messages, question])}


async def _said(client: Any, task: AgentTask, messages: Sequence[Message]) -> str:
    """What the policy answers; RuntimeError where it does not."""
    body = {"model": "policy", "messages": list(messages)}
    async with client.post(f"{task.base_url}/chat/completions", json=body) as response:
        answer = await response.json()
        if response.status != 200:
            raise RuntimeError(f"the policy did not answer: {answer['error']['message']}")
        return str(answer["choices"][0]["message"]["content"])
