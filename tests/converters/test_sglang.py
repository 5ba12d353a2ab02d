"""What was converted, in a real SGLang server on a CPU: its log-probs are transformers'."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlrun.runner.contracts.carriers import GenerateRequest, Sampling
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.sglang.server import SglangServer
from tests.converters.conversions import convert
from tests.sglang_cpu.servers import tiny_setup
from tests.tiny_models import make_tiny_model

pytestmark = pytest.mark.slow
PROMPT = np.arange(5, 25, dtype=np.int32)
ASKED = GenerateRequest("r", PROMPT, (0, 1), Sampling(max_new_tokens=24, stop_token_ids=(1,)))


def expected(model: Path, tokens: np.ndarray) -> np.ndarray:
    """Log-probs of the tokens after the prompt."""
    ids = torch.from_numpy(np.concatenate([PROMPT, tokens])).long()
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        logits = network(ids[None]).logits[0, len(PROMPT) - 1 : -1]
    return logits.log_softmax(-1).gather(1, ids[len(PROMPT) :, None])[:, 0].numpy()


@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3_moe"])
async def test_what_was_converted_there_and_back(family, tmp_path):
    source = make_tiny_model(tmp_path / "hf", family)
    middle = convert(source, "dcp", tmp_path / "dcp", shard_bytes=40_000)
    back = convert(middle, "hf", tmp_path / "back", shard_bytes=40_000)
    server = SglangServer(tiny_setup(tmp_path, back))
    try:
        server.start()
        async with EngineClient(server.url, 120, 60, api_key="sesame") as client:
            generations = await client.generate(ASKED)
    finally:
        server.stop()
    assert sum(len(one.tokens) for one in generations) > 10
    for one in generations:
        assert np.abs(expected(source, one.tokens) - one.log_probs).max() < 1e-4
