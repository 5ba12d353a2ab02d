"""Executions of an agent: a class, or a command, that asks the policy through an endpoint of ours."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, model_validator

from rlrun.plugins.agent_task import AgentTask
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.protocols import Agent as AgentPlugin
from rlrun.plugins.registry import build
from rlrun.plugins.rollouts.agent.command_agent import run_command
from rlrun.plugins.rollouts.agent.endpoint import Endpoint, Served
from rlrun.plugins.rollouts.agent.record import Record, Thinking
from rlrun.plugins.rollouts.tool_calls import Syntax
from rlrun.plugins.session import Session
from rlrun.plugins.types import Message, Row, Status
from rlrun.specs.sections.rollout import AgentSpec
from rlrun.specs.sections.section import Section


class AgentParams(Section):
    """Which agent, and how its conversations are recorded."""

    agent: AgentSpec | None = None
    """The agent as a plugin, `[rollout.function.agent]`: `type`, and its own keys beside it."""
    command: tuple[str, ...] | None = Field(default=None, min_length=1)
    """The agent as a program and its arguments, started for each execution: it reads the task as JSON, finds
    OPENAI_BASE_URL and OPENAI_API_KEY set, and may end with a JSON object on its last line of output."""
    environment: tuple[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], ...] = ()
    """Variables of rlrun's own environment that the program gets as well: `["HTTPS_PROXY"]`. It always gets
    PATH, HOME, USER, LOGNAME, SHELL, LANG, LANGUAGE, LC_*, TZ, TMPDIR and TERM; no keys, no tokens."""
    syntax: Syntax = "auto"
    """How the policy writes a tool call: `hermes` (Qwen3), `llama3`, or whichever it looks like."""
    thinking: Thinking = "keep"
    """`keep`: what the policy thought in earlier turns stays in its conversation. `template`: the chat
    template decides, and where it may drop thoughts, after another question, another sample begins."""

    @model_validator(mode="after")
    def _one_agent(self) -> "AgentParams":
        if (self.agent is None) == (self.command is None):
            raise ValueError(
                "needs either a table [rollout.function.agent] or a command, not both or neither"
            )
        if self.environment and self.command is None:
            raise ValueError("environment is for a command; an agent's class runs in rlrun's own process")
        return self


class Agent:
    """Runs an agent for each sample; it talks to the policy as to any OpenAI-compatible server.

    Every conversation that it has with the policy is a training sample with the tokens, log-probs and masks
    that the policy saw and made; those of one execution count once in the loss. What the agent returns is
    noted on each (`info`), where the reward `noted` finds it.
    """

    Params = AgentParams
    api_version = 1
    example: ClassVar[dict[str, Any]] = {"agent": {"type": "solve_and_select"}}

    def __init__(self, params: AgentParams) -> None:
        """PluginError where the agent cannot be made."""
        self.params = params
        self._endpoint = Endpoint()
        self._agent: AgentPlugin | None = None
        if params.agent is not None:
            self._agent = build("agents", params.agent.type, params.agent.params)

    async def run(self, session: Session) -> list[Trajectory]:
        """One execution; what the engines refused fails it, whatever the agent made of that."""
        record = Record(session.chat, self.params.thinking)
        served = Served(session, record, self.params.syntax)
        url = await self._endpoint.url()
        key = self._endpoint.open(served)
        try:
            found = await self._act(_task(session, url, key))
        finally:
            self._endpoint.close_key(key)
            trajectories = record.close()
        if served.error is not None:
            raise served.error
        if not trajectories:
            raise ValueError("the agent asked the policy nothing that it answered")
        for one in trajectories:
            one.info = {**found, "samples": len(trajectories)}
            if served.aborted:
                one.status = Status.ABORTED
        return trajectories

    async def close(self) -> None:
        """End the endpoint, and what the agent keeps."""
        await self._endpoint.close()
        close = getattr(self._agent, "close", None)
        if close is not None:
            await close()

    async def _act(self, task: AgentTask) -> Mapping[str, Any]:
        if self._agent is not None:
            return dict(await self._agent.run(task) or {})
        assert self.params.command is not None, "one of the two is given"
        return await run_command(self.params.command, task, self.params.environment)


def _task(session: Session, url: str, key: str) -> AgentTask:
    row = session.prompt.row
    return AgentTask(session.id, _messages(row), row.label, row.metadata, session.seed, url, key)


def _messages(row: Row) -> list[Message]:
    return [{"role": "user", "content": row.prompt}] if isinstance(row.prompt, str) else list(row.prompt)
