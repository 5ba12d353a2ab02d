"""A real SGLang server tells which experts it sent tokens to, and training takes them over."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlrun.runner.contracts.carriers import GenerateRequest, Sampling
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.client.parsing import ModelLimits
from rlrun.runner.engines.sglang.server import SglangServer
from tests.sglang_cpu.servers import ARGUMENTS, tiny_setup
from tests.tiny_models import make_tiny_model

LAYERS, CHOSEN = 2, 2
PROMPT = np.arange(5, 25, dtype=np.int32)
LIMITS = ModelLimits.of({"num_experts": 8}, experts=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "moe", "qwen3_moe", num_experts=8)


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangServer]:
    arguments = ARGUMENTS | {"enable_return_routed_experts": True}
    server = SglangServer(tiny_setup(tmp_path_factory.mktemp("server"), model, arguments=arguments))
    server.start()
    yield server
    server.stop()


def choices(model: Path, tokens: np.ndarray) -> np.ndarray:
    """`[tokens, layers, K]` of transformers' own routers."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    found: list[torch.Tensor] = []
    for layer in network.model.layers:
        layer.mlp.gate.register_forward_hook(lambda _m, _i, output: found.append(output[2]))
    with torch.no_grad():
        network(torch.from_numpy(tokens).long()[None])
    return torch.stack(found, 1).numpy()


@pytest.mark.slow
async def test_experts_come_with_the_tokens(server: SglangServer, model: Path) -> None:
    request = GenerateRequest("r", PROMPT, (1, 2, 3), Sampling(max_new_tokens=24, stop_token_ids=(1,)))
    async with EngineClient(server.url, 120, 60, api_key="sesame", limits=LIMITS) as client:
        generations = await client.generate(request)
        again = await client.generate(request)  # prompts are in the cache now
    for made in [*generations, *again]:
        assert made.experts is not None
        assert made.experts.shape == (len(PROMPT) + len(made.tokens) - 1, LAYERS * CHOSEN)
        theirs = choices(model, np.concatenate([PROMPT, made.tokens])[:-1])
        ours = made.experts.reshape(-1, LAYERS, CHOSEN)
        np.testing.assert_array_equal(np.sort(ours, -1), np.sort(theirs, -1))
