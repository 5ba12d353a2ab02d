"""The tools of a rollout: they run in parallel, each within its deadline, and their results are cut to a
limit.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import ValidationError

from rlrun.plugins.generation import Trajectory
from rlrun.plugins.images import Image, PlacedImage, ToolResult
from rlrun.plugins.protocols import Tool
from rlrun.plugins.registry import build
from rlrun.plugins.rollouts.tool_calls import Malformed, ToolCall
from rlrun.plugins.session import Chat, Session
from rlrun.plugins.types import Message
from rlrun.specs.sections.rollout import ToolSpec

SessionT = TypeVar("SessionT", bound=Session)


@dataclass(frozen=True, slots=True)
class Result:
    """The result of one call, as the policy reads it."""

    message: Message
    failed: bool
    images: tuple[PlacedImage, ...] = ()
    """The images that the message's parts of type image stand for."""


class ToolBox:
    """The tools by the names under which the policy calls them."""

    def __init__(self, specs: Sequence[ToolSpec], timeout: float, max_result_tokens: int) -> None:
        """Raises PluginError for a tool that cannot be created, and ValueError for two tools of the same
        name.
        """
        self._timeout = timeout
        self._max_result_tokens = max_result_tokens
        self._tools: dict[str, Tool] = {}
        self._begun: list[Any] = []
        """The tools that belong to one execution only."""
        for spec in specs:
            tool = build("tools", spec.type, spec.params)
            name = tool.schema["function"]["name"]
            if name in self._tools:
                raise ValueError(f"two tools are named {name!r}")
            self._tools[name] = tool

    def begin(self, session: Session) -> "ToolBox":
        """Returns the tools for one execution, where tools that keep state are replaced by this execution's
        own.
        """
        own = copy(self)
        begun = {name: tool.begin(session) for name, tool in self._tools.items() if hasattr(tool, "begin")}
        own._begun = list(begun.values())
        own._tools = {**self._tools, **begun}
        return own

    async def during(
        self, session: SessionT, talk: Callable[[SessionT, "ToolBox"], Awaitable[Trajectory]]
    ) -> Trajectory:
        """Returns what `talk` makes with the tools of one execution, which then end; `info` also has what
        they noted.
        """
        box = self.begin(session)
        try:
            trajectory = await talk(session, box)
            trajectory.info |= box.info()
            return trajectory
        finally:
            await box.end()

    def info(self) -> dict[str, Any]:
        """Returns the values that the tools of an execution noted."""
        noted = [tool.info() for tool in self._begun if hasattr(tool, "info")]
        return {name: value for info in noted for name, value in info.items()}

    async def end(self) -> None:
        """Closes the tools of an execution."""
        await _close(self._begun)

    @property
    def schemas(self) -> list[Mapping[str, Any]]:
        """The schemas of all tools, for the chat template."""
        return [tool.schema for tool in self._tools.values()]

    async def answer(
        self, calls: Sequence[ToolCall | Malformed], most: int, chat: Chat | None
    ) -> list[Result]:
        """Returns a result for each call, in order; calls beyond the first `most` are not carried out.

        `chat`: None if the model's tokens are not known. Four characters of a result then count as a token,
        and images of tools are refused.
        """
        return await asyncio.gather(
            *(
                self._result(call if place < most else Malformed(f"at most {most} calls in one answer"), chat)
                for place, call in enumerate(calls)
            )
        )

    async def close(self) -> None:
        """Closes the tools."""
        await _close(self._tools.values())

    async def _result(self, call: ToolCall | Malformed, chat: Chat | None) -> Result:
        images: tuple[PlacedImage, ...] = ()
        try:
            result = await self._call(call)
            shown = result if isinstance(result, ToolResult) else ToolResult(result)
            images = _placed(shown.images, chat)
            text, failed = shown.text, False
        except ValidationError as error:
            text, failed = f"error: {_problems(error)}", True
        except ValueError as error:
            text, failed = f"error: {error}", True
        name = call.name if isinstance(call, ToolCall) else "unknown"
        content: Any = self._cut(text, chat)
        if images:
            content = [{"type": "text", "text": content}, *({"type": "image"} for _ in images)]
        return Result({"role": "tool", "name": name, "content": content}, failed, images)

    async def _call(self, call: ToolCall | Malformed) -> str | ToolResult:
        if isinstance(call, Malformed):
            raise ValueError(call.why)
        tool = self._tools.get(call.name)
        if tool is None:
            raise ValueError(f"there is no tool {call.name!r}; tools: {', '.join(self._tools)}")
        try:
            async with asyncio.timeout(self._timeout) as deadline:
                return await tool.call(call.arguments)
        except TimeoutError:
            if not deadline.expired():
                raise
            raise ValueError(f"{call.name} took longer than {self._timeout:g} s") from None

    def _cut(self, text: str, chat: Chat | None) -> str:
        if 4 * len(text) <= self._max_result_tokens:  # a character is four tokens at most
            return text
        if chat is None:
            limit = 4 * self._max_result_tokens
            return text if len(text) <= limit else f"{text[:limit]}… (cut off after {limit} characters)"
        tokens = chat.encode(text)
        if len(tokens) <= self._max_result_tokens:
            return text
        [kept] = chat.decode_batch([tokens[: self._max_result_tokens]], special=True)
        return f"{kept}… (cut off after {self._max_result_tokens} tokens)"


def _placed(images: Sequence[Image], chat: Chat | None) -> tuple[PlacedImage, ...]:
    if images and chat is None:
        raise ValueError("this model cannot be shown the images of tools")
    return chat.place(images) if images and chat is not None else ()


async def _close(tools: Iterable[Tool]) -> None:
    for tool in tools:
        if hasattr(tool, "close"):
            await tool.close()


def _problems(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
