"""The client of a running server with OpenAI's `/chat/completions`, whose model is only evaluated.

body, n seeds ─▶ one request with n, or n requests with a seed each ─▶ n answers
                      │ 408, 409, 425, 429, 5xx, no connection, no or a damaged answer
                      └▶ a pause (Retry-After holds back all requests) ─▶ again, within a budget
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import aiohttp

from rlrun.models.json_files import parse_json
from rlrun.plugins.failures import InfrastructureError
from rlrun.plugins.rewards.http_client import MAX_PAUSE, attempts, display_url, read_body, retry_after
from rlrun.runner.contracts.chat_answers import ChatAnswer
from rlrun.runner.contracts.errors import EngineError
from rlrun.runner.host.background import cancel_all
from rlrun.specs.reading.literal_secrets import mask_secrets
from rlrun.specs.sections.evaluation import EvalServerSpec, server_key

_PASSING = frozenset({408, 409, 425, 429})
"""Statuses below 500 after which the same request may succeed."""
_FINAL = frozenset({301, 302, 303, 307, 308, 401, 402, 403, 404, 405})
"""Statuses that every other request would get too: a wrong key, address or model, or no money left."""
_COMPLETE = frozenset(
    {
        None,
        "",
        "stop",
        "eos",
        "eos_token",
        "end_turn",
        "stop_sequence",
        "tool_calls",
        "tool_use",
        "function_call",
    }
)
"""The finish reasons of a whole answer: OpenAI's, and those of TGI, Together and Anthropic."""
_CUT = frozenset({"length", "max_tokens", "model_length"})
"""The finish reasons of an answer that reached its length limit."""
_INTERRUPTED = frozenset({"abort", "aborted", "cancelled", "error", "insufficient_system_resource"})
"""The finish reasons of an answer that the server gave up: vLLM, SGLang, OpenRouter, DeepSeek."""
_QUOTED_CHARS = 300
_MAX_TOKENS = 2**40
"""Servers that count more tokens in an answer are not believed."""
_SEED_RANGE = 2**31
"""Seeds are below this: not every server takes 64 bits."""


class RequestRefused(EngineError):
    """The server refuses one request, for instance because the prompt is too long for the model."""


class ServerRefuses(EngineError):
    """The server refuses every request: the evaluation ends, and a resume continues it."""


class AnswerWithheld(EngineError):
    """The server withheld an answer or a part of it, for instance with a content filter, so that the answer
    says nothing about the model.
    """


class _PassingError(Exception):
    """A failure that may pass. `pause`: the seconds that the server asks to wait."""

    def __init__(self, message: str, pause: float | None = None) -> None:
        super().__init__(message)
        self.pause = pause


class ChatServer:
    """Sends chat completions to one server. Create and use it in one event loop, and `close` it."""

    def __init__(
        self,
        section: EvalServerSpec,
        api_key: str | None = None,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`api_key`: the key itself, which `section` only refers to. Raises ValueError if no header can hold
        it.
        """
        self._section = section
        self._key = None if api_key is None else server_key(api_key)
        self._url = f"{section.url.rstrip('/')}/chat/completions"
        self._sleep, self._clock = sleep, clock
        self._session: aiohttp.ClientSession | None = None
        self._held_until = 0.0
        """The clock's time before which no request is sent, because the server asked for a pause."""
        self._takes_n = True
        self._length_key = "max_tokens"
        self._refusal: ServerRefuses | None = None
        self._is_refused = asyncio.Event()

    async def answers(self, body: Mapping[str, Any], seeds: Sequence[int]) -> list[ChatAnswer]:
        """Returns one answer per seed (rlrun.runner.contracts.chat_answers.ChatModel).

        Several answers are asked for in one request, without a seed: servers do not agree on what a seed
        means there. A server that does not know `n`, or ignores it, gets a request for each answer.
        """
        answers: list[ChatAnswer] = []
        if len(seeds) > 1 and self._takes_n:
            try:
                answers = await self._request({**body, "n": len(seeds)})
            except RequestRefused:
                self._takes_n = False
            self._takes_n = self._takes_n and len(answers) > 1
        missing = seeds[len(answers) :]
        single = [
            asyncio.create_task(self._request({**body, "seed": seed % _SEED_RANGE})) for seed in missing
        ]
        try:
            answers += [answer for [answer, *_] in await asyncio.gather(*single)]
        finally:
            await cancel_all(single)
        return answers[: len(seeds)]

    async def until_refused(self) -> None:
        """Waits until the server refuses every request, and raises its ServerRefuses."""
        await self._is_refused.wait()
        assert self._refusal is not None
        raise self._refusal

    async def close(self) -> None:
        """Closes the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _request(self, body: Mapping[str, Any]) -> list[ChatAnswer]:
        """Returns the choices of one completion, which is asked for again while its failures may pass."""
        failures: list[str] = []
        began = 0.0
        while True:
            if (held := self._held_until - self._clock()) > 0:
                await self._sleep(held)
            try:
                return await self._once(body)
            except _PassingError as error:
                failures.append(self._hidden(str(error)))
                began = began or self._clock()
                pause = min(2.0 ** (len(failures) - 1), MAX_PAUSE) + random.random()
                if error.pause is not None:
                    pause = max(pause, error.pause + random.random())
                    self._held_until = max(self._held_until, self._clock() + error.pause)
                if self._clock() + pause - began > self._section.retry_seconds:
                    raise InfrastructureError(
                        f"{display_url(self._url)} gave no answer in {attempts(len(failures))} "
                        f"(eval.server.retry_seconds = {self._section.retry_seconds:g}); "
                        f"the last: {failures[-1]}"
                    ) from None
                await self._sleep(pause)

    async def _once(self, body: Mapping[str, Any]) -> list[ChatAnswer]:
        """Returns the choices of one completion. Raises _PassingError, RequestRefused or ServerRefuses."""
        sent = {"model": self._section.model, **body} | self._section.extra_body
        if "max_tokens" in sent:
            sent[self._length_key] = sent.pop("max_tokens")
        try:
            async with (
                asyncio.timeout(self._section.timeout),
                # A redirect would send the key to another host.
                self._opened().post(self._url, json=sent, allow_redirects=False) as response,
            ):
                raw, status, headers = await read_body(response), response.status, response.headers
        except TimeoutError:
            raise _PassingError(f"no answer within {self._section.timeout:g} s") from None
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise _PassingError(f"{type(error).__name__}: {error}") from None
        if status != 200:
            text = raw.decode(errors="replace")
            if (location := headers.get("Location")) is not None:
                text = f"it redirects to {location}"
            return await self._refused(body, sent, status, text, retry_after(headers))
        try:
            return _choices(parse_json(raw))
        except _Unreadable as error:
            quote = self._hidden(str(error))[:_QUOTED_CHARS]
            raise _PassingError(f"a damaged answer: not a chat completion: {quote}") from None
        except ValueError as error:
            raise _PassingError(f"a damaged answer: {error}") from None

    async def _refused(
        self, body: Mapping[str, Any], sent: Mapping[str, Any], status: int, text: str, pause: float | None
    ) -> list[ChatAnswer]:
        """Asks again with the server's name of the length limit, or raises what a status means."""
        quote = self._hidden(text)[:_QUOTED_CHARS]  # a cut key would not be found
        if status in _PASSING or status >= 500:
            raise _PassingError(f"HTTP {status}: {quote}", pause)
        if "max_tokens" in sent and "max_completion_tokens" in text:
            self._length_key = "max_completion_tokens"  # what OpenAI's reasoning models call it
            return await self._once(body)
        message = f"{display_url(self._url)} answered with HTTP {status}: {quote}"
        if status not in _FINAL:
            raise RequestRefused(message)
        self._refusal = ServerRefuses(f"{message}. Correct eval.server, and continue with --resume")
        self._is_refused.set()
        raise self._refusal

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}
            self._session = aiohttp.ClientSession(
                headers=headers,
                connector=aiohttp.TCPConnector(limit=0),  # eval.server.concurrency limits samples
                timeout=aiohttp.ClientTimeout(total=None),
            )
        return self._session

    def _hidden(self, text: str) -> str:
        """Returns a text without the key, which some servers echo."""
        return mask_secrets(text if not self._key else text.replace(self._key, "***"))


class _Unreadable(ValueError):
    """JSON that is not a chat completion; the message is its text."""


def _choices(answer: Any) -> list[ChatAnswer]:
    """Returns the choices of a completion. Raises ValueError for anything else, and for an answer that the
    server did not finish.

    Servers count the generated tokens of all choices together, so only a single choice has a number.
    """
    try:
        choices = answer["choices"]
        usage = answer.get("usage") or {}
        count = usage.get("completion_tokens") if len(choices) == 1 else None
        answers = [_answer(choice, count) for choice in choices]
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise _Unreadable(str(answer)) from error
    if not answers:
        raise ValueError("it has no choices")
    return answers


def _answer(choice: Mapping[str, Any], count: Any) -> ChatAnswer:
    message, reason = choice["message"], choice.get("finish_reason")
    if reason in _INTERRUPTED:
        raise ValueError(f"the server did not finish it (finish_reason {reason!r})")
    if reason not in _COMPLETE and reason not in _CUT:
        cause = "the server's content filter" if reason == "content_filter" else "the server"
        raise AnswerWithheld(f"{cause} withheld the answer (finish_reason {str(reason)[:_QUOTED_CHARS]!r})")
    calls, reasoning = (
        message.get("tool_calls") or (),
        message.get("reasoning_content") or message.get("reasoning"),
    )
    if not all(isinstance(call, Mapping) for call in calls):
        raise TypeError("a tool call is not an object")
    is_count = isinstance(count, int) and not isinstance(count, bool) and 0 <= count < _MAX_TOKENS
    return ChatAnswer(
        text=_text(message.get("content")),
        is_cut=reason in _CUT,
        message=message,
        calls=tuple(calls),
        reasoning=reasoning if isinstance(reasoning, str) else None,
        num_tokens=count if is_count else None,
    )


def _text(content: Any) -> str:
    """Returns the text of a message's content. Raises TypeError for anything but a text, parts, or none."""
    if content is None:
        return ""
    if isinstance(content, list):
        return "".join(_text(part.get("text")) for part in content)
    if not isinstance(content, str):
        raise TypeError("the content is neither a text nor a list of parts")
    return content
