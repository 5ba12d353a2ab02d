"""Engines that run elsewhere: the job checks which model they serve, and never starts or ends them."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rlrun.runner.contracts.errors import BadAnswer, EngineError, EngineGone
from rlrun.runner.engines.client.answer_fields import quoted
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.client.parsing import ModelLimits
from rlrun.specs.reading.secret_references import reveal

_POLL_SECONDS = 1.0
_START_SECONDS = 10.0
"""How long an engine may take to answer when the job starts."""


@dataclass(frozen=True, slots=True)
class ExpectedModel:
    """The model that an engine must serve."""

    section: str
    """Section of the spec, for messages: `engine`."""
    config: Mapping[str, Any] | None
    """The model's config.json; None: any model is accepted."""
    max_length: int | None
    """Tokens of the longest sample; None: any limit is accepted."""


class ExternalEngine:
    """One engine at an address. It is restarted by the people who run it; `restart` waits for that."""

    def __init__(
        self,
        name: str,
        url: str,
        key: str | None,
        expected: ExpectedModel,
        seconds: tuple[float, float, float],
    ) -> None:
        """`seconds`: deadline of a generation, time without an answer after which the engine is lost, and
        time that a restart may take.
        """
        self.name = f"{name} at {url}"
        self._short_name = name
        self._url = url
        self._key = reveal(key)
        self._expected = expected
        self._generate_seconds, self._timeout, self._restart_seconds = seconds

    async def start(self) -> EngineClient:
        """Returns a client. Raises EngineError if the engine does not answer or serves another model."""
        return await self._connect(_START_SECONDS)

    async def watch(self) -> None:
        """Never returns; raises EngineGone once the engine has not answered for the time-out."""
        async with self._client() as client:
            while True:
                await self._wait_until_healthy(client, self._timeout)
                await asyncio.sleep(_POLL_SECONDS)

    async def restart(self) -> EngineClient:
        """Waits until the engine was started again, and returns a client.

        Raises EngineError if that takes too long, or the engine serves another model then.
        """
        return await self._connect(self._restart_seconds)

    async def _connect(self, seconds: float) -> EngineClient:
        client = self._client()
        try:
            await self._wait_until_healthy(client, seconds)
            await check_model(client, self.name, self._expected)
            client.own = "channel" in await client.model_info()
        except BaseException:
            await client.close()
            raise
        return client

    def _client(self) -> EngineClient:
        limits = ModelLimits.of(self._expected.config or {})
        return EngineClient(
            self._url, self._generate_seconds, api_key=self._key, name=self._short_name, limits=limits
        )

    async def _wait_until_healthy(self, client: EngineClient, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not await client.health():
            if time.monotonic() > deadline:
                raise EngineGone(
                    f"{self.name} did not answer GET /health in {seconds:g} s: start it, or correct "
                    f"{self._expected.section}.urls"
                )
            await asyncio.sleep(_POLL_SECONDS)


async def check_model(client: EngineClient, name: str, expected: ExpectedModel) -> None:
    """Raises EngineError, saying what differs, unless the engine serves the expected model."""
    info = await client.model_info()
    if not info.get("is_generation", True):
        raise EngineError(f"{name} serves {info.get('model_path')}, which does not generate")
    if expected.config is not None:
        served, family = info.get("model_type"), expected.config.get("model_type")
        if served not in (None, family):
            raise EngineError(f"{name} serves a {served} ({info.get('model_path')}), not a {family}")
        await _check_vocabulary(client, name, info, int(expected.config["vocab_size"]))
    await _check_length(client, name, info, expected.max_length)


async def _check_vocabulary(client: EngineClient, name: str, info: Mapping[str, Any], size: int) -> None:
    """Raises EngineError unless the served model's vocabulary has `size` tokens.

    SGLang does not report the size, but it refuses to compute log-probs of token ids beyond the vocabulary.
    """
    served = info.get("vocab_size")
    if served is None:
        refuses_last, refuses_next = [await _refuses(client, token) for token in (size - 1, size)]
        if not refuses_last and refuses_next:
            return
        served = "fewer" if refuses_last else "more"
    if served != size:
        raise EngineError(
            f"{name} serves {info.get('model_path')}, whose vocabulary has {served} tokens; the model of the "
            f"spec has {size}"
        )


async def _refuses(client: EngineClient, token: int) -> bool:
    """Returns whether the engine says that this token is outside its vocabulary."""
    body = {
        "input_ids": [0],
        "sampling_params": {"max_new_tokens": 1},
        "return_logprob": True,
        "token_ids_logprob": [token],
    }
    try:
        await client.check_request(body)
    except EngineGone:
        raise
    except EngineError as error:
        if "vocabulary" not in str(error):
            raise
        return True
    return False


async def _check_length(
    client: EngineClient, name: str, info: Mapping[str, Any], longest: int | None
) -> None:
    limit = info.get("max_length")
    if limit is None:
        models = (await client.get("/v1/models")).get("data")
        first = models[0] if isinstance(models, list) and models else None
        limit = first.get("max_model_len") if isinstance(first, dict) else None
    if limit is not None and not isinstance(limit, int):
        raise BadAnswer(f"{name} says that it takes {quoted(limit)} tokens, which is not a number")
    if longest is not None and limit is not None and limit < longest:
        raise EngineError(
            f"{name} takes at most {limit} tokens, prompt and response together, and the spec's samples may "
            f"have {longest}: start it with a longer context, or lower rollout.max_response_tokens"
        )
