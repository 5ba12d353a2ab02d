"""What an agent asks for, whatever the format of its request."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from rlrun.plugins.generation import Generation, Sampling
from rlrun.plugins.types import Message

MAX_STOPS, MAX_STOP_LENGTH = 32, 1024
"""Limits of a request's stop strings, in number and characters, since every answer is searched for them."""
Settings = Literal["refuse", "ignore"]
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "min_p": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "top_logprobs": (0,),
    "parallel_tool_calls": (True,),
    "tool_choice": ("auto", "none", {"type": "auto"}, {"type": "none"}),
    "response_format": ({"type": "text"},),
}
"""Settings that the job decides, with the values that ask for nothing else than it does."""
_OF_SAMPLING = ("temperature", "top_p", "top_k")
DECIDED = (*_OF_SAMPLING, "seed", *_NEUTRAL)
"""The settings of a request that the job decides. The policy is trained on these tokens, so they are drawn as
the job draws all others, and calls are not forced, since that would take constrained decoding."""


class RefusedRequest(ValueError):
    """A request that cannot be served."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """The parts of a request that have an effect."""

    messages: Sequence[Message]
    """In the form of chat completions; empty if `tokens` are given."""
    tools: Sequence[Mapping[str, Any]] = ()
    """In the form of chat completions."""
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    model: str = "policy"
    """The model's name in the request, which the answer repeats. Every name means the policy."""
    stream: bool = False
    reports_usage: bool = True
    """Whether a stream of chat completions ends with the numbers of tokens."""
    tokens: tuple[int, ...] = ()
    """The tokens of the conversation, from a client that renders it itself."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """What the wire calls functions that are not plain functions, by their names (responses: `custom`, or the
    namespace of a function)."""
    decided: Mapping[str, Any] = field(default_factory=dict)
    """The settings of the request that the job decides."""

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

    def check_decided(self, own: Sampling) -> None:
        """Raises RefusedRequest if the request sets what the job decides to another value than the job's."""
        for name, value in self.decided.items():
            if value is None:
                continue
            if name in _OF_SAMPLING and value == getattr(own, name):
                continue
            if any(value == neutral for neutral in _NEUTRAL.get(name, ())):
                continue
            job = f", {getattr(own, name)}" if name in _OF_SAMPLING else ""
            raise RefusedRequest(
                f"{name} = {value!r} is not the job's{job}: leave it out, or let the job's settings stand "
                'with other_settings = "ignore" under [rollout.function]'
            )


def read_object(body: Any) -> Mapping[str, Any]:
    """Returns the body of a request. Raises RefusedRequest if it is not a JSON object."""
    if not isinstance(body, Mapping):
        raise RefusedRequest("the body must be a JSON object")
    return body


def read_list(value: Any, name: str) -> list[Mapping[str, Any]]:
    """Returns a list of objects. Raises RefusedRequest for anything else."""
    if not isinstance(value, list) or not all(isinstance(one, Mapping) for one in value):
        raise RefusedRequest(f"{name} must be a list of objects")
    return value


def read_limit(value: Any, name: str) -> int | None:
    """Returns a maximum number of tokens. Raises RefusedRequest if it is not a whole number of at least 1."""
    if value is not None and not (type(value) is int and value >= 1):
        raise RefusedRequest(f"{name} must be a whole number, at least 1")
    return value


def read_stops(value: Any) -> tuple[str, ...]:
    """Returns stop strings. Raises RefusedRequest for too many, too long ones, and other values."""
    stops = [value] if isinstance(value, str) else value or []
    if not isinstance(stops, list) or len(stops) > MAX_STOPS or not all(map(_is_stop, stops)):
        longest = f"a string of at most {MAX_STOP_LENGTH} characters"
        raise RefusedRequest(f"stop must be {longest}, or a list of at most {MAX_STOPS}")
    return tuple(stops)


def decided_by_job(body: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the settings of a body that the job decides."""
    return {name: body[name] for name in DECIDED if name in body}


def _is_stop(text: object) -> bool:
    return isinstance(text, str) and 0 < len(text) <= MAX_STOP_LENGTH
