"""Reads a request to `/v1/chat/completions`, and refuses what cannot be served."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from rlrun.plugins.generation import Generation, Sampling

MAX_STOPS, MAX_STOP_LENGTH = 32, 1024
"""Limits of a request's stop strings, in number and characters, since every answer is searched for them."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """The fields of a request that have an effect.

    Temperature and other sampling settings are ignored: the policy is trained on these tokens, so the job's
    settings apply.
    """

    messages: list[Mapping[str, Any]]
    tools: list[Mapping[str, Any]] = field(default_factory=list)
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()

    @classmethod
    def of(cls, body: Any) -> "ChatRequest":
        """Reads the body of a request. Raises ValueError for a request that cannot be served."""
        messages = body.get("messages") if isinstance(body, Mapping) else None
        if not isinstance(messages, list) or not messages:
            raise ValueError("messages must be a list of at least one message")
        if not all(isinstance(message, Mapping) for message in messages):
            raise ValueError("a message must be an object with role and content")
        if body.get("stream"):
            raise ValueError("streaming is not offered; set stream to false")
        if body.get("n") not in (None, 1):
            raise ValueError("n must be 1; ask again for another answer")
        longest = body.get("max_completion_tokens") or body.get("max_tokens")
        if longest is not None and not (type(longest) is int and longest >= 1):
            raise ValueError("max_tokens must be a whole number, at least 1")
        stop = body.get("stop") or []
        stops = [stop] if isinstance(stop, str) else stop
        if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(map(_is_stop, stops)):
            longest_stop = f"a string of at most {MAX_STOP_LENGTH} characters"
            raise ValueError(f"stop must be {longest_stop}, or a list of at most {MAX_STOPS}")
        tools = body.get("tools") if body.get("tool_choice") != "none" else None
        if not isinstance(tools or [], list) or not all(isinstance(tool, Mapping) for tool in tools or ()):
            raise ValueError("tools must be a list of objects")
        return cls(messages, list(tools or ()), longest, tuple(stops))

    def as_ended(self, generation: Generation, room: int) -> Generation:
        """Returns the answer as finished if only the agent's own limit cut it off.

        The job's limits allowed more tokens, so such an answer does not count as truncated.
        """
        limited = self.max_tokens is not None and self.max_tokens < room
        return replace(generation, finish="stop") if limited and generation.finish == "length" else generation

    def sampling(self, own: Sampling, room: int) -> Sampling:
        """Returns the job's sampling settings, with the request's stop strings and the lower length limit."""
        limited = own.limited(min(room, self.max_tokens or room))
        return replace(limited, stop=(*own.stop, *self.stop))


def _is_stop(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= MAX_STOP_LENGTH
