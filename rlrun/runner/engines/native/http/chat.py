"""`/v1/chat/completions` of the native engine: messages to a prompt, a sample to an answer.

messages ─▶ the model's chat template ─▶ job ─▶ text
"""

import time
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from rlrun.runner.engines.native.engine.requests import Job, parse_sampling
from rlrun.runner.prompts.tokenizer import Tokenizer

_PASSED_ON = ("temperature", "top_p", "stop")
_READ = {"model", "messages", "max_tokens", "max_completion_tokens", "seed", *_PASSED_ON}


class Chat:
    """Chats with the model of a folder; its tokenizer is read at the first request."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    @cached_property
    def _tokenizer(self) -> Tokenizer:
        return Tokenizer(self._folder)

    def job(self, body: Mapping[str, Any], name: str, seed: int, limit: int) -> Job:
        """What a request asks for; `limit` tokens in all. ValueError naming the key that is wrong."""
        if unknown := sorted(set(body) - _READ):
            raise ValueError(
                f"unknown {', '.join(unknown)}; the native engine knows {', '.join(sorted(_READ))}"
            )
        messages = body.get("messages")
        if not isinstance(messages, list) or not all(isinstance(one, dict) for one in messages):
            raise ValueError("messages must be a list of objects with role and content")
        prompt = self._tokenizer.render(messages)
        sampling = {key: body[key] for key in _PASSED_ON if body.get(key) is not None}
        wanted = body.get("max_completion_tokens") or body.get("max_tokens") or limit - len(prompt)
        params = parse_sampling({**sampling, "max_new_tokens": wanted})
        given = body.get("seed")
        if given is not None and not (isinstance(given, int) and -(2**63) <= given < 2**63):
            raise ValueError(f"seed {given!r} is not a whole number of 64 bits")
        return Job(name, np.asarray(prompt, np.int32), params, seed if given is None else given)

    def answer(self, job: Job, body: Mapping[str, Any]) -> dict[str, Any]:
        """A finished job as a chat completion."""
        assert job.finish is not None, "it is done"
        reason = "stop" if job.finish["type"] == "stop" else "length"
        message = {"role": "assistant", "content": self._tokenizer.decode(job.tokens)}
        prompt, completion = len(job.prompt), len(job.tokens)
        return {
            "id": job.id,
            "object": "chat.completion",
            "created": int(time.time()),
            "model": body.get("model", self._folder),
            "choices": [{"index": 0, "message": message, "finish_reason": reason}],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": completion,
                "total_tokens": prompt + completion,
            },
        }
