"""A conversation of the policy with tools.

prompt ─▶ answer ─▶ calls? ─no─▶ done
            ▲         │ yes
            └─ results ◀─ tools, side by side
"""

import logging
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from rlrun.plugins.failures import PolicyError
from rlrun.plugins.generation import Trajectory
from rlrun.plugins.rollouts.conversation import TurnByTurn
from rlrun.plugins.rollouts.tool_box import Result, ToolBox
from rlrun.plugins.rollouts.tool_calls import Syntax, parse_calls
from rlrun.plugins.session import Chat, Session
from rlrun.plugins.types import Status
from rlrun.specs.sections.rollout import ToolSpec
from rlrun.specs.sections.section import Section

logger = logging.getLogger(__name__)


class MultiTurnToolsParams(Section):
    """Which tools the policy may call, and how often."""

    tools: Annotated[tuple[ToolSpec, ...], Field(min_length=1)]
    """The tools, `[[rollout.function.tools]]`: `type`, and the parameters of the tool."""
    syntax: Syntax = "auto"
    """How the policy writes tool calls: `hermes` (`<tool_call>{…}</tool_call>`, Qwen3), `qwen3_coder`, `glm`,
    `minimax_m2`, `kimi_k2`, `deepseek_v3`, `mistral`, `gpt_oss`, `llama3` (an answer that is a JSON object
    with name and parameters) or `pythonic` (Llama 4). `auto` recognises each. With `tags`, prompts say
    themselves which tools there are: `<search>words</search>` calls the tool `search` with its first
    argument, and the result follows in the same turn (Search-R1). Let `rollout.stop` end answers at the
    closing tags."""
    result_tag: str = Field(default="information", pattern=r"^\w+$")
    """The tag around results, with `syntax = "tags"`."""
    max_turns: int = Field(default=8, ge=1)
    """Number of answers in an execution; an execution whose last answer still calls a tool is truncated."""
    max_calls: int = Field(default=8, ge=1)
    """Number of calls in one answer that are carried out; for further calls the policy is told so."""
    max_result_tokens: int = Field(default=1024, ge=1)
    """Length limit of one result in tokens; the rest is cut off, and the policy is told."""
    tool_timeout: float = Field(default=30.0, gt=0)
    """Seconds for one call; the policy is told when a call takes longer."""
    cross_entropy: float = Field(default=0.0, ge=0)
    """Weight of the cross-entropy of the results of tools, beside the loss of the policy's own tokens: the
    policy also learns to predict them. Results with images have none. 0: only its own tokens are trained."""
    text: Literal["all", "last"] = "all"
    """What rewards read: everything the policy said, or its last answer."""

    @model_validator(mode="after")
    def _only_tags_have_a_result_tag(self) -> Self:
        if self.syntax != "tags" and "result_tag" in self.model_fields_set:
            raise ValueError('result_tag has no effect without syntax = "tags": delete it')
        return self


class MultiTurnTools:
    """The policy may call tools; their results come back by the chat template, and are not trained.

    The tokens of an answer are kept as the policy made them, and what the template puts between answers is
    added: nothing is tokenised twice. A call that cannot be read, or that a tool refuses (ValueError), is
    answered with the reason. A PolicyError of a tool ends the conversation, which has the error's reward. Any
    other error of a tool fails the execution.
    """

    Params = MultiTurnToolsParams
    api_version = 1
    example: ClassVar[dict[str, Any]] = {"tools": [{"type": "python"}]}

    def __init__(self, params: MultiTurnToolsParams) -> None:
        """Raises PluginError for a tool that cannot be created, and ValueError for two tools of the same
        name.
        """
        self.params = params
        self._box = ToolBox(params.tools, params.tool_timeout, params.max_result_tokens)
        self._schemas = self._box.schemas
        self.tools = [] if params.syntax == "tags" else self._schemas

    async def run(self, session: Session) -> Trajectory:
        """One conversation; `info` has its turns, calls and failed calls, and what tools noted."""
        return await self._box.during(session, self._talk)

    async def close(self) -> None:
        """End the tools."""
        await self._box.close()

    async def _talk(self, session: Session, box: ToolBox) -> Trajectory:
        talk, last_answer, failed, called = TurnByTurn(session, Trajectory(session.prompt.tokens)), "", 0, 0
        trajectory, end = talk.trajectory, dict[str, float]()
        while True:
            answer = await talk.ask()
            last_answer = answer or last_answer
            is_whole = trajectory.status is Status.COMPLETED
            calls = parse_calls(answer, self.params.syntax, self._schemas) if is_whole else []
            if not calls:
                break
            try:
                results = await box.answer(calls, self.params.max_calls, session.chat)
            except PolicyError as error:
                logger.info("execution %s ends with an error of the policy: %s", session.id, error)
                end = error.info()
                break
            called += len(results)
            failed += sum(result.failed for result in results)
            if len(trajectory.turns) == self.params.max_turns or not self._give(talk, results):
                trajectory.status = Status.TRUNCATED
                break
        trajectory.info = {"turns": len(trajectory.turns), "tool_calls": called, "tool_errors": failed, **end}
        if self.params.text == "last":
            trajectory.text = session.chat.plain(last_answer)
        return trajectory

    def _give(self, talk: TurnByTurn, results: Sequence[Result]) -> bool:
        """Adds the results of tools. Returns False, and adds nothing, if they leave no room for an answer."""
        weight = self.params.cross_entropy
        if self.params.syntax == "tags":
            return talk.insert("".join(self._tagged(result, talk.session.chat) for result in results), weight)
        images = [image for result in results for image in result.images]
        return talk.give([result.message for result in results], images, weight)

    def _tagged(self, result: Result, chat: Chat) -> str:
        """Returns a result as text of the policy's turn. Raises ValueError for one with images."""
        if result.images:
            raise ValueError(
                f'the tool {result.message["name"]} returns an image, and syntax = "tags" has none'
            )
        tag = self.params.result_tag
        # Without special tokens first, since removing one may join two halves of the closing tag.
        text = chat.plain(str(result.message["content"]))
        while f"</{tag}>" in text:
            text = text.replace(f"</{tag}>", "")
        text = text.strip()
        return f"\n\n<{tag}>{text}</{tag}>\n\n"
