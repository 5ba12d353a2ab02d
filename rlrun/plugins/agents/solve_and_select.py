"""An agent with several conversations: several solvers answer in parallel, then the policy chooses."""

import asyncio
from collections.abc import Sequence
from typing import Any

from pydantic import Field

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.types import Message
from rlrun.specs.sections.section import Section


class SolveAndSelectParams(Section):
    """How many solvers there are, and how the policy is asked to choose."""

    solvers: int = Field(default=2, ge=1)
    """The number of answers that are generated in parallel."""
    ask: str = "Here are answers to the question. Give the best answer, in full."
    """The request to choose, which precedes the answers."""


class SolveAndSelect:
    """Lets the policy answer the prompt several times, then shows it the answers and asks for the best one.

    Everything is trained: each solver's conversation is a sample, and the choice is the last sample.
    """

    Params = SolveAndSelectParams
    api_version = 1

    def __init__(self, params: SolveAndSelectParams) -> None:
        self.params = params

    async def run(self, task: AgentTask) -> dict[str, Any]:
        """Returns `answer`, the text of the choice."""
        import aiohttp  # installed where jobs run; checking a spec does not need it

        headers = {"Authorization": f"Bearer {task.api_key}"}
        patient = aiohttp.ClientTimeout(total=None)  # the execution's own deadline applies
        async with aiohttp.ClientSession(headers=headers, timeout=patient) as client:
            tries = (_ask_policy(client, task, task.messages) for _ in range(self.params.solvers))
            answers = await asyncio.gather(*tries)
            listed = "\n\n".join(f"Answer {number}:\n{text}" for number, text in enumerate(answers, 1))
            question = {"role": "user", "content": f"{self.params.ask}\n\n{listed}"}
            return {"answer": await _ask_policy(client, task, [*task.messages, question])}


async def _ask_policy(client: Any, task: AgentTask, messages: Sequence[Message]) -> str:
    """Returns the policy's answer. Raises RuntimeError if there is none."""
    body = {"model": "policy", "messages": list(messages)}
    async with client.post(f"{task.base_url}/chat/completions", json=body) as response:
        answer = await response.json()
        if response.status != 200:
            raise RuntimeError(f"the policy did not answer: {answer['error']['message']}")
        return str(answer["choices"][0]["message"]["content"])
