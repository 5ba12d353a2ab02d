"""Engines that run elsewhere: what is checked of them before they are used."""

import socket
from collections.abc import Mapping
from typing import Any

import pytest

from rlrun.runner.contracts.errors import EngineError, EngineGone
from rlrun.runner.engines.client import external
from rlrun.runner.engines.client.external import ExpectedModel, ExternalEngine, check_model

CONFIG = {"model_type": "qwen3", "vocab_size": 256}


class SglangLike:
    """Answers as an SGLang server does, which keeps the size of its vocabulary to itself."""

    def __init__(self, vocabulary: int, context: int) -> None:
        self.vocabulary, self.context = vocabulary, context

    async def model_info(self) -> dict[str, Any]:
        return {"model_path": "m", "is_generation": True, "model_type": "qwen3"}

    async def get(self, path: str) -> dict[str, Any]:
        assert path == "/v1/models"
        return {"data": [{"max_model_len": self.context}]}

    async def check_request(self, body: Mapping[str, Any]) -> None:
        if body["token_ids_logprob"][0] >= self.vocabulary:
            raise EngineError("answered 400: token_ids_logprob contains out-of-vocabulary token id")


@pytest.fixture
def vocabulary(server: Any) -> int:
    return int(server._engine.loaded.architecture.vocab)


async def start(url: str, wanted: ExpectedModel) -> None:
    client = await ExternalEngine("engine 0", url, None, wanted, (60.0, 60.0, 60.0)).start()
    await client.close()


async def test_one_that_serves_the_model_is_taken(server: Any, vocabulary: int) -> None:
    await start(server.url, ExpectedModel("engine", CONFIG | {"vocab_size": vocabulary}, 64))


@pytest.mark.parametrize(
    ("config", "longest", "error"),
    [
        ({"vocab_size": 255}, 64, "vocabulary has .* tokens; the model of the spec has 255"),
        ({"model_type": "llama"}, 64, r"serves a qwen3 .*, not a llama"),
        ({}, 10**6, "takes at most 8192 tokens, .* may have 1000000"),
    ],
)
async def test_one_that_serves_another_model_is_not(
    config: dict[str, Any], longest: int, error: str, server: Any, vocabulary: int
) -> None:
    wanted = ExpectedModel("engine", CONFIG | {"vocab_size": vocabulary} | config, longest)
    with pytest.raises(EngineError, match=error):
        await start(server.url, wanted)


async def test_the_error_of_an_unreachable_engine_has_its_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external, "_START_SECONDS", 0.0)
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{one.getsockname()[1]}"
    with pytest.raises(EngineGone, match=r"engine 0 at http.* did not answer .* correct engine\.urls"):
        await start(url, ExpectedModel("engine", None, None))


@pytest.mark.parametrize(("has", "error"), [(256, None), (255, "fewer"), (257, "more")])
async def test_a_vocabulary_that_is_not_told_is_found_out(has: int, error: str | None) -> None:
    client, wanted = SglangLike(has, 64), ExpectedModel("engine", CONFIG, 64)
    if error is None:
        await check_model(client, "engine 0", wanted)  # type: ignore[arg-type]
        return
    with pytest.raises(EngineError, match=f"vocabulary has {error} tokens"):
        await check_model(client, "engine 0", wanted)  # type: ignore[arg-type]


async def test_a_context_that_is_too_short_is_an_error(vocabulary: int) -> None:
    with pytest.raises(EngineError, match="takes at most 32 tokens"):
        await check_model(SglangLike(256, 32), "engine 0", ExpectedModel("engine", CONFIG, 64))  # type: ignore[arg-type]
