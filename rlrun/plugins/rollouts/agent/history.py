"""Which messages of a request count as messages that the record has: clients change what they send back.

Each rule is a change that was seen in a client and loses nothing that the policy would need to know. What it
allows is compared alone; the policy's tokens stay those that it read and drew.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal

from rlrun.plugins.rollouts.agent.message_images import images_of
from rlrun.plugins.rollouts.agent.messages import content_of
from rlrun.plugins.types import Message

Rule = Literal["call_ids", "white_space", "reminders", "headers"]
RULES: tuple[Rule, ...] = ("call_ids", "white_space", "reminders", "headers")
Key = tuple[str, str, tuple[tuple[str, str], ...]]
"""Role, text, and the name and arguments of each call. Messages with equal keys count as equal."""

_REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>\s*", re.DOTALL)
_HEADER = "x-anthropic-billing-header"


class History:
    """The comparison of messages with those of one execution."""

    def __init__(self, rules: Collection[Rule] = RULES) -> None:
        self._rules = rules
        self._call_ids: dict[str, int] = {}
        """The ids that answers of the policy gave to calls, with their order."""

    def add_answer(self, message: Message) -> None:
        """Remembers the ids of an answer's calls."""
        for call in message.get("tool_calls") or ():
            self._call_ids[call["id"]] = len(self._call_ids)

    def prepared(self, messages: Sequence[Message]) -> list[Message]:
        """Returns the messages as the policy is to see them.

        Results of tools come in the order of their calls, since many templates do not show which call a
        result is of, and Claude Code sends them as they arrive. Without headers that name a client's
        conversation.
        """
        shown = [shown for message in messages if (shown := self._without_header(message)) is not None]
        ordered: list[Message] = []
        results: list[Message] = []
        for message in shown:
            if message.get("role") == "tool":
                results.append(message)
                continue
            ordered += self._in_order(results)
            results = []
            ordered.append(message)
        return [*ordered, *self._in_order(results)]

    def key(self, message: Message) -> Key:
        """Returns the key of a message. Other fields are ignored, since clients add and drop them freely."""
        text = self._text(message)
        calls = message.get("tool_calls") or ()
        ids = [str(call.get("id")) for call in calls]
        if "call_ids" in self._rules and all(one in self._call_ids for one in ids):
            return str(message["role"]), text, tuple(("", one) for one in ids)
        named = ((call["function"]["name"], call["function"].get("arguments", "")) for call in calls)
        return str(message["role"]), text, tuple((str(name), str(arguments)) for name, arguments in named)

    def _text(self, message: Message) -> str:
        """Returns the text of a message, and the digests of its images."""
        content = content_of(message)
        text = content if isinstance(content, str) else "".join(part.get("text", "\0") for part in content)
        if "reminders" in self._rules and message["role"] != "assistant":
            text = _REMINDER.sub("", text)
        if "white_space" in self._rules:
            text = text.strip()
        return "".join([text, *(f"\0{image.digest}" for image in images_of([message]))])

    def _in_order(self, results: Sequence[Message]) -> list[Message]:
        last = len(self._call_ids)
        return sorted(results, key=lambda result: self._call_ids.get(str(result.get("tool_call_id")), last))

    def _without_header(self, message: Message) -> Message | None:
        """Returns a message without such headers; None if nothing is left of it."""
        content = message.get("content")
        if "headers" not in self._rules or not isinstance(content, list):
            return message
        kept = [part for part in content if not _is_header(part)]
        if len(kept) == len(content):
            return message
        return {**message, "content": kept} if kept else None


def _is_header(part: Any) -> bool:
    return isinstance(part, Mapping) and str(part.get("text", "")).startswith(_HEADER)
