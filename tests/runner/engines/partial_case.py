"""A sample that continues over a weight update, for tests of every engine."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from rlrun.plugins.generation import Generation, Sampling
from rlrun.runner.contracts.carriers import GenerateRequest
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.rollouts.request_resumer import ResumingEngines

PROMPT = np.arange(5, 25, dtype=np.int32)


async def check_a_sample_goes_on_by_new_weights(
    client: EngineClient,
    models: tuple[Path, Path],
    update: Callable[[], Awaitable[int]],
    *,
    length: int,
    atol: float,
) -> None:
    """`update` brings the engine from the first model to the second and returns the version; `length`: tokens
    of a sample, enough to be cut; `atol`: how far the engine's log-probs may be from transformers'.
    """
    engines = ResumingEngines(EnginePool([client]), lambda batch: [""] * len(batch))
    asked, begun = await cut_samples(engines, length)
    version = await update()
    engines.resume()
    for one, cut in zip(await asked, begun, strict=True):
        assert [(span.start, span.end) for span in one.versions] == [(0, cut), (cut, length)]
        assert one.versions[0].version != one.versions[1].version == version
        for model, span in zip(models, one.versions, strict=True):
            expected = log_probs(model, one)[span.start : span.end]
            np.testing.assert_allclose(one.log_probs[span.start : span.end], expected, atol=atol, rtol=5e-5)


async def cut_samples(
    engines: ResumingEngines, length: int
) -> tuple[asyncio.Task[list[Generation]], list[int]]:
    """Returns a request that is parked with some tokens of each sample, and how many each has.

    On a busy machine a sample may end before the stop reaches the engine: then another request is cut.
    """
    sampling = Sampling(length, min_new_tokens=length)
    for number in range(100):
        request = GenerateRequest(f"rollout-{number}", PROMPT, (1, 2, 3), sampling, prompt_index=number)
        asked = asyncio.create_task(engines.generate(request))
        begun = [0]
        while not all(begun) and not asked.done():
            engines.resume()
            await asyncio.sleep(0.01)
            await engines.stop()
            begun = [len(one.tokens) for one in engines.generations(number)] or [0]
        if max(begun) < length:
            return asked, begun
        engines.resume()
        await asked
    raise AssertionError("no request was cut: all ended before the stop reached the engine")


def log_probs(model: Path, one: Generation) -> np.ndarray:
    """Returns the log-probs of a sample's tokens, computed by transformers."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    ids = torch.from_numpy(np.concatenate([PROMPT, one.tokens])).long()
    with torch.no_grad():
        logits = network(ids[None]).logits[0, len(PROMPT) - 1 : -1]
    return logits.log_softmax(-1).gather(1, ids[len(PROMPT) :, None])[:, 0].numpy()
