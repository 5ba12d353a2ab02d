"""Other models that a job serves, those of `[[engines]]`: their addresses, and a client that asks them.

reward       engine_addresses(name)              from an environment variable of its process
rollout      session.engine(name).chat(…)
agent        task.engine(name).chat(…), through the agent's endpoint, with the execution's key
environment  task.engine(name).chat(…)
"""

import asyncio
import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

from rlrun.models.json_files import parse_json
from rlrun.plugins.failures import InfrastructureError

VARIABLE = "RLRUN_ENGINES"
_CONTROL = re.compile(r"[<\[](?=[|｜]|/?(?:s|bos|eos|INST|(?:start|end)_of_turn)[>\]])")
"""The beginning of a control token in the notation of common model families: `<|im_end|>`, `</s>`,
`[INST]`."""
_ATTEMPTS = 10
"""How often a request is sent to an engine that does not answer; it may be restarting meanwhile."""
_MAX_PAUSE = 30.0
NO_ANSWER = 502
"""The status that the endpoint of an execution answers after these attempts."""
_MAX_QUOTE_LENGTH = 200


@dataclass(frozen=True, slots=True)
class Address:
    """The address of an engine."""

    url: str
    """The URL without a path: `http://127.0.0.1:30000`."""
    key: str | None = None
    """The key to send as `Authorization: Bearer KEY`; None if the engine requires none."""
    model: str = "default"
    """The name to send as `model` to `/v1/chat/completions`; it also names an adapter that is to be used."""

    @property
    def headers(self) -> dict[str, str]:
        """The headers to send with every request."""
        return {"Authorization": f"Bearer {self.key}"} if self.key else {}

    @property
    def base_url(self) -> str:
        """The base URL for OpenAI's clients, which ends in `/v1`."""
        return f"{self.url}/v1"


class EngineRefusal(ValueError):
    """An engine refused a request, for instance because the conversation is too long for its model."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ServedEngine:
    """Asks a model of `[[engines]]`, with seeds that follow from one seed.

    Example: `await session.engine("user").chat([{"role": "user", "content": "Hi."}], max_tokens=64)`
    """

    def __init__(
        self, address: Address, seed: int, turn: AbstractAsyncContextManager[Any] | None = None
    ) -> None:
        """`turn` is entered while the engine answers: a lock makes executions ask one after the other."""
        self.address = address
        self._seed = seed
        self._turn = turn or nullcontext()
        self._num_calls = 0

    async def chat(self, messages: Sequence[Mapping[str, Any]], **settings: Any) -> str:
        """Returns the text of the model's answer to a conversation.

        `settings` are those of `/v1/chat/completions`, such as `max_tokens`, `temperature` or `stop`. Raises
        EngineRefusal if the engine refuses the request, and InfrastructureError if it does not answer.
        """
        answer = await self.complete({"messages": list(messages), **settings})
        return str(answer["choices"][0]["message"]["content"] or "")

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer to a request in the format of `/v1/chat/completions`.

        The request gets a seed if it has none. Names of control tokens in its messages are broken by a space,
        so that the policy's words cannot end a turn of the engine's model. Raises as `chat` does.
        """
        if body.get("stream"):
            raise EngineRefusal(400, "engines of [[engines]] answer in one piece: ask without `stream`")
        number, self._num_calls = self._num_calls, self._num_calls + 1
        body = {"seed": (self._seed + number) % 2**31, **body, "model": self.address.model}
        if isinstance(body.get("messages"), list):
            body["messages"] = [_harmless(message) for message in body["messages"]]
        failure = ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(min(2.0 ** (attempt - 1), _MAX_PAUSE))
            try:
                async with self._turn:
                    return await self._ask(body)
            except EngineRefusal:
                raise
            except (OSError, ValueError) as error:
                failure = f"{type(error).__name__}: {error}"
        raise InfrastructureError(f"{self.address.url} gave no answer in {_ATTEMPTS} attempts: {failure}")

    async def _ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Returns an answer. Raises EngineRefusal, and OSError or ValueError if another attempt may help."""
        import aiohttp  # not in every interpreter that reads addresses

        url = f"{self.address.base_url}/chat/completions"
        try:
            async with (
                aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http,
                http.post(url, json=body, headers=self.address.headers, allow_redirects=False) as response,
            ):
                text = await response.text()
        except aiohttp.ClientError as error:
            raise OSError(f"{type(error).__name__}: {error}") from error
        message = f"HTTP {response.status}: {text[:_MAX_QUOTE_LENGTH]}"
        if 400 <= response.status < 500 and response.status not in (408, 429):
            raise EngineRefusal(response.status, message)
        if response.status == NO_ANSWER:
            raise InfrastructureError(message)
        if response.status != 200:
            raise OSError(message)
        answer = parse_json(text)
        try:
            finish, _ = (answer["choices"][0][key] for key in ("finish_reason", "message"))
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"not a chat completion: {text[:_MAX_QUOTE_LENGTH]}") from error
        if (
            finish == "abort"
        ):  # SGLang, when the policy's requests are aborted on servers that share an adapter
            raise OSError("the engine aborted the request")
        return dict(answer)


def without_control_tokens(text: str) -> str:
    """Returns the text with a space in everything that looks like the name of a control token.

    An engine's server reads such a name as that token, so a policy could end a turn of the engine's model and
    write the next one itself. The model's tokenizer is not known here.
    """
    return _CONTROL.sub(r"\g<0> ", text)


def engine_addresses(name: str) -> list[Address]:
    """Returns the addresses of the engines named `name` in the spec, at least one.

    Raises ValueError if this job has no such engines, or outside of a reward's process.
    """
    groups = json.loads(os.environ.get(VARIABLE, "{}"))
    if not groups.get(name):
        raise ValueError(f"no engines named {name!r} run here: they are those of [[engines]] of a job's spec")
    return [Address(**fields) for fields in groups[name]]


def as_environment(engines: Mapping[str, Sequence[Address]]) -> dict[str, str]:
    """Returns the environment variable that `engine_addresses` reads."""
    return {
        VARIABLE: json.dumps(
            {name: [asdict(address) for address in group] for name, group in engines.items()}
        )
    }


def _harmless(message: Any) -> Any:
    """Returns a message without names of control tokens in its texts."""
    if not isinstance(message, dict):
        return message
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": without_control_tokens(content)}
    if isinstance(content, list):
        return {**message, "content": [_harmless_part(part) for part in content]}
    return message


def _harmless_part(part: Any) -> Any:
    if isinstance(part, dict) and isinstance(part.get("text"), str):
        return {**part, "text": without_control_tokens(part["text"])}
    return part
