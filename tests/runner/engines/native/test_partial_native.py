"""Partial rollouts on the native engine: cut, updated by shared memory, gone on with."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from rlrun.plugins.generation import Generation, Sampling
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.server import NativeServer
from rlrun.runner.prompts.tokenizer import Tokenizer
from rlrun.runner.rollouts.request_resumer import ResumingEngines
from rlrun.runner.rollouts.resumable_request import Decode
from rlrun.runner.weights.carriers.native.shared_memory import SharedWeights
from tests.runner.engines.partial_case import check_a_sample_goes_on_by_new_weights
from tests.tiny_models import make_tiny_model


async def test_a_sample_goes_on_by_new_weights(tmp_path: Path) -> None:
    first, second = (make_tiny_model(tmp_path / str(seed), seed=seed) for seed in (0, 1))
    weights = load_file(second / "model.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    shared = SharedWeights(f"test-{tmp_path.name}", shapes, "float32")
    server = NativeServer(EngineSetup(str(first), dtype="float32", max_running=8, threads=1, job="test"))
    try:
        async with EngineClient(server.start(), own=True) as client:
            update = partial(client.update_weights, shared.write(weights.items(), 4))
            await check_a_sample_goes_on_by_new_weights(
                client, (first, second), update, length=160, atol=1e-4
            )
    finally:
        server.stop()
        shared.close()


class Cutting:
    """Engines that stop every sample after two tokens, as an update of the weights would."""

    def __init__(self, client: EngineClient) -> None:
        self._client = client

    async def generate(self, request: GenerateRequest) -> list[Generation]:
        sampling = replace(request.sampling, max_new_tokens=min(2, request.sampling.max_new_tokens))
        made = await self._client.generate(replace(request, sampling=sampling))
        cut = sampling != request.sampling
        return [replace(one, finish="abort") if cut and one.finish == "length" else one for one in made]


async def test_stops_change_nothing_of_where_stop_strings_end_a_sample(tmp_path: Path) -> None:
    """Samples that are stopped again and again, by the same weights, against samples that never are."""
    folder = make_tiny_model(tmp_path)
    decode = partial(Tokenizer(folder).decode_batch, special=True)
    server = NativeServer(EngineSetup(str(folder), dtype="float32", max_running=8, threads=1, job="test"))
    prompt = np.arange(5, 25, dtype=np.int32)
    free = GenerateRequest("rollout-7", prompt, tuple(range(8)), Sampling(60), prompt_index=7)
    try:
        async with EngineClient(server.start(), own=True) as client:
            texts = [letters(one, decode) for one in await client.generate(free)]
            stops = tuple(text for text in texts if text is not None)
            request = replace(free, sampling=Sampling(60, stop=stops))
            expected = await client.generate(request)
            resumable = ResumingEngines(Cutting(client), decode)  # type: ignore[arg-type]
            found = await resumable.generate(request)
    finally:
        server.stop()
    assert sum(len(one.tokens) < 60 for one in expected) > 4
    assert [one.tokens.tolist() for one in found] == [one.tokens.tolist() for one in expected]
    assert [one.finish for one in found] == [one.finish for one in expected]


def letters(one: Generation, decode: Decode) -> str | None:
    """The text of three neighbouring tokens after the sixth, where they are ASCII."""
    threes = [one.tokens[start : start + 3] for start in range(6, len(one.tokens) - 3)]
    return next((text for text in decode(threes) if len(text) == 3 and text.isascii()), None)
