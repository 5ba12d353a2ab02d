"""Engines that run elsewhere: the job checks that they serve what it needs, and never starts or ends them."""

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

_ASK_SECONDS = 1.0
_START_SECONDS = 10.0
"""For an engine that has to be there when the job starts."""


@dataclass(frozen=True, slots=True)
class ExpectedModel:
    """What an engine has to serve."""

    section: str
    """Of the spec, for messages: `engine`."""
    config: Mapping[str, Any] | None
    """The model's config.json; None: whatever it serves will do."""
    max_length: int | None
    """Tokens of the longest sample; None: of any length."""


class ExternalEngine:
    """One engine at an address; for the supervisor it is `restart`ed by whoever runs it."""

    def __init__(
        self, name: str, url: str, key: str | None, wanted: ExpectedModel, seconds: tuple[float, float, float]
    ) -> None:
        """`seconds`: for a generation, without a sign of life, and until it is back again."""
        self.name = f"{name} at {url}"
        self._short_name = name
        self._url = url
        self._key = reveal(key)
        self._wanted = wanted
        self._generate_seconds, self._timeout, self._back_seconds = seconds

    async def start(self) -> EngineClient:
        """A client. EngineError where nobody answers, or another model is served."""
        return await self._connect(_START_SECONDS)

    async def watch(self) -> None:
        """Return never; EngineGone once it has not answered for the time-out."""
        async with self._client() as client:
            while True:
                await self._reach(client, self._timeout)
                await asyncio.sleep(_ASK_SECONDS)

    async def restart(self) -> EngineClient:
        """Wait until somebody has started it again. EngineError where nobody does, or with another model."""
        return await self._connect(self._back_seconds)

    async def _connect(self, seconds: float) -> EngineClient:
        client = self._client()
        try:
            await self._reach(client, seconds)
            await check_model(client, self.name, self._wanted)
        except BaseException:
            await client.close()
            raise
        return client

    def _client(self) -> EngineClient:
        limits = ModelLimits.of(self._wanted.config or {})
        return EngineClient(
            self._url, self._generate_seconds, api_key=self._key, name=self._short_name, limits=limits
        )

    async def _reach(self, client: EngineClient, seconds: float) -> None:
        until = time.monotonic() + seconds
        while not await client.health():
            if time.monotonic() > until:
                raise EngineGone(
                    f"{self.name} did not answer GET /health in {seconds:g} s: start it, or mend "
                    f"{self._wanted.section}.urls"
                )
            await asyncio.sleep(_ASK_SECONDS)


async def check_model(client: EngineClient, name: str, wanted: ExpectedModel) -> None:
    """EngineError, with what is wrong, unless the engine serves the model that is wanted."""
    info = await client.model_info()
    if not info.get("is_generation", True):
        raise EngineError(f"{name} serves {info.get('model_path')}, which does not generate")
    if wanted.config is not None:
        served, family = info.get("model_type"), wanted.config.get("model_type")
        if served not in (None, family):
            raise EngineError(f"{name} serves a {served} ({info.get('model_path')}), not a {family}")
        await _check_vocabulary(client, name, info, int(wanted.config["vocab_size"]))
    await _check_length(client, name, info, wanted.max_length)


async def _check_vocabulary(client: EngineClient, name: str, info: Mapping[str, Any], size: int) -> None:
    """SGLang does not say how many tokens its model has, but refuses log-probs of one that it has not."""
    found = info.get("vocab_size")
    if found is None:
        too_few, as_many = [await _refuses(client, token) for token in (size - 1, size)]
        if not too_few and as_many:
            return
        found = "fewer" if too_few else "more"
    if found != size:
        raise EngineError(
            f"{name} serves {info.get('model_path')}, whose vocabulary has {found} tokens; the model of the "
            f"spec has {size}"
        )


async def _refuses(client: EngineClient, token: int) -> bool:
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
