"""`/inference/v1/generate`, as vLLM has it: token ids in and out, for clients that render by themselves."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlrun.plugins.rollouts.agent.answer import Answer, Event
from rlrun.plugins.rollouts.agent.request import (
    AgentRequest,
    RefusedRequest,
    decided_by_job,
    read_limit,
    read_object,
    read_stops,
)
from rlrun.plugins.rollouts.agent.wires.wire import openai_error


class TokenIds:
    """Tokens in and out, without streams."""

    path = "/inference/v1/generate"

    def read(self, body: Any) -> AgentRequest:
        """Returns what a request asks for."""
        body = read_object(body)
        tokens = body.get("token_ids")
        if not isinstance(tokens, list) or not tokens or not all(_is_token(token) for token in tokens):
            raise RefusedRequest("token_ids must be a list of at least one token id")
        if body.get("stream"):
            raise RefusedRequest("tokens are not streamed; set stream to false")
        sampling = read_object(body.get("sampling_params") or {})
        return AgentRequest(
            [],
            max_tokens=read_limit(sampling.get("max_tokens"), "sampling_params.max_tokens"),
            stop=read_stops(sampling.get("stop")),
            model=str(body.get("model") or "policy"),
            tokens=tuple(tokens),
            decided=decided_by_job(sampling) | {"logprobs": None},  # they come with every answer
        )

    def whole(self, answer: Answer, request: AgentRequest) -> Mapping[str, Any]:
        """Returns the body of an answer, with the log-prob of each token."""
        tokens = [int(token) for token in answer.generation.tokens]
        log_probs: list[dict[str, Any]] = [
            {"token": f"token_id:{token}", "logprob": float(log_prob), "bytes": None, "top_logprobs": []}
            for token, log_prob in zip(tokens, answer.generation.log_probs, strict=True)
        ]
        choice = {
            "index": 0,
            "token_ids": tokens,
            "logprobs": {"content": log_probs},
            "weight_versions": [[span.version, span.start, span.end] for span in answer.generation.versions],
            "finish_reason": answer.finish,
        }
        return {"request_id": f"generate-{answer.name}", "choices": [choice]}

    def events(self, answer: Answer, request: AgentRequest) -> Iterator[Event]:
        """Yields nothing: streams are refused."""
        yield from ()

    def error(self, message: str, code: str) -> Mapping[str, Any]:
        """Returns the body of an error."""
        return openai_error(message, code, code)

    def error_event(self, message: str, code: str) -> Event:
        """Returns the event of an error after a stream has begun."""
        return Event(self.error(message, code))


def _is_token(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**31
