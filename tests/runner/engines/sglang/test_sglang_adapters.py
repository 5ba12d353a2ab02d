"""A real SGLang server with the adapters of several versions at a time."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from rlrun.converters.families.merged_weights import merge_factors
from rlrun.models.adapters import PEFT_PREFIX, LoraShape, adapter_tensors, adapters
from rlrun.models.config_json import read_architecture
from rlrun.models.tensor_names import hf_tensors
from rlrun.runner.contracts.carriers import GenerateRequest, Generation, Sampling, TrainSequence
from rlrun.runner.contracts.errors import EngineError, JobError
from rlrun.runner.contracts.weight_updates import ServerAdapters
from rlrun.runner.engines.client import wire
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.sglang.server import SglangServer
from rlrun.runner.job.sync_probe import SyncProbe
from rlrun.runner.weights.adapter_writer import AdapterSource, AdapterWriter
from rlrun.specs.sections.job import Spec
from tests.sglang_cpu.log_probs import log_probs_of
from tests.sglang_cpu.servers import ARGUMENTS, tiny_setup
from tests.tiny_models import make_tiny_model

pytestmark = pytest.mark.slow

LORA = LoraShape(4, 3.0, rslora=True)
PROMPT = np.arange(5, 45, dtype=np.int32)
ROOM = 4
SERVER = {"enable_lora": True, "lora_backend": "torch_native", "max_lora_rank": LORA.rank}
SERVER |= {"max_loras_per_batch": ROOM, "max_loaded_loras": ROOM}


class Trainer:
    """Writes adapters that are drawn at random, or adapters of another model."""

    def __init__(self, folder: Path) -> None:
        spec = {"model": {"path": str(folder)}, "data": {}, "engine": {"type": "sglang", "dtype": "float32"}}
        spec |= {"rollout": {"mode": "async", "max_staleness": ROOM - 2}, "trainer": {"steps": 1, "lora": {}}}
        self.architecture = read_architecture(folder)
        stored = load_file(folder / "model.safetensors")
        self.base = {tensor.name: stored[tensor.name] for tensor in hf_tensors(self.architecture)}
        self.factors: dict[str, torch.Tensor] = {}
        tensors = adapter_tensors(adapters(self.architecture, LORA))
        self.shapes = {tensor.name: tensor.shape for tensor in tensors}
        source = AdapterSource(
            0,
            self.architecture,
            LORA,
            self.shapes,
            {name: tuple(tensor.shape) for name, tensor in self.base.items()},
            "float32",
            lambda dtype: iter(self.factors.items()),
            lambda dtype: iter(self.base.items()),
            torch.device("cpu"),
            "test",
        )
        self.writer = AdapterWriter(Spec.model_validate(spec), source)

    def write(self, version: int) -> ServerAdapters:
        generator = torch.Generator().manual_seed(version)
        self.factors = {
            name: torch.randn(shape, generator=generator) * 0.2 for name, shape in self.shapes.items()
        }
        update = self.writer.write(version)
        assert isinstance(update, ServerAdapters)
        return update

    def merged(self) -> dict[str, torch.Tensor]:
        """The model with the adapters that were written last."""
        merged = dict(self.base)
        for name, up in self.factors.items():
            if name.endswith(".lora_B.weight"):
                matrix = name.removeprefix(PEFT_PREFIX).replace(".lora_B", "")
                down = self.factors[name.replace("lora_B", "lora_A")]
                merged[matrix] = merge_factors(self.base[matrix], up, down, LORA.scale)
        return merged


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), vocab=512)


@pytest.fixture
def trainer(model: Path) -> Iterator[Trainer]:
    trainer = Trainer(model)
    yield trainer
    trainer.writer.close()


@pytest.fixture(scope="module")
def server(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SglangServer]:
    targets = sorted({each.target for each in adapters(read_architecture(model), LORA)})
    arguments = ARGUMENTS | SERVER | {"lora_target_modules": targets}
    server = SglangServer(tiny_setup(tmp_path_factory.mktemp("server"), model, arguments=arguments))
    server.start()
    yield server
    server.stop()


@pytest.fixture
async def client(server: SglangServer) -> AsyncIterator[EngineClient]:
    async with EngineClient(server.url, 120, 60, api_key="sesame") as client:
        yield client


def request(name: str, samples: int, tokens: int) -> GenerateRequest:
    return GenerateRequest(name, PROMPT, tuple(range(samples)), Sampling(tokens))


def difference(model: Path, merged: dict[str, torch.Tensor], generation: Generation) -> float:
    """The largest difference between a sample's log-probs and those of a merged model by transformers."""
    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    network.load_state_dict(merged, strict=False)
    expected = log_probs_of(network, np.concatenate([PROMPT, generation.tokens]), len(PROMPT))
    return float(np.abs(expected - generation.log_probs).max())


async def test_three_versions_run_at_once_and_share_no_cache(
    client: EngineClient, trainer: Trainer, model: Path
) -> None:
    running, merged = {}, {}
    for version in (1, 2, 3):
        assert await client.update_weights(trainer.write(version)) == version
        merged[version] = trainer.merged()
        running[version] = asyncio.create_task(client.generate(request(f"long-{version}", 6, 300)))
        await asyncio.sleep(0)
    served = {each["id"] for each in (await client.get("/v1/models"))["data"]}
    assert {"policy-v1", "policy-v2", "policy-v3"} <= served
    for version, task in running.items():
        generations = await task
        assert min(generation.cached_tokens for generation in generations) == 0  # others have the prompt
        for generation in generations:
            assert [span.version for span in generation.versions] == [version]
            assert difference(model, merged[version], generation) < 5e-5
    [again] = await client.generate(request("again", 1, 24))
    assert again.cached_tokens == len(PROMPT) - 1
    assert difference(model, merged[3], again) < 2e-5
    await asyncio.gather(*client._adapters._unloads.values())  # versions that nothing uses
    served = {each["id"] for each in (await client.get("/v1/models"))["data"]}
    assert "policy-v3" in served
    assert not {"policy-v1", "policy-v2"} & served


async def test_scores_are_those_of_the_current_version(
    client: EngineClient, trainer: Trainer, model: Path
) -> None:
    scores = {}
    for version in (4, 5):
        await client.update_weights(trainer.write(version))
        [scores[version]] = await client.score([PROMPT])
        network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
        network.load_state_dict(trainer.merged(), strict=False)
        assert np.abs(scores[version] - log_probs_of(network, PROMPT, 1)).max() < 2e-5
    assert np.abs(scores[4] - scores[5]).max() > 0.1


async def test_a_server_with_another_model_is_refused(client: EngineClient, trainer: Trainer) -> None:
    name = "model.layers.1.self_attn.o_proj.weight"
    trainer.base[name] = trainer.base[name] + 1
    message = f"other bytes than were sent for {name}.*not the one whose adapters"
    with pytest.raises(EngineError, match=message):
        await client.update_weights(trainer.write(6))


async def test_a_server_whose_requests_do_not_name_their_adapters_is_noticed(
    client: EngineClient, trainer: Trainer, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The frozen model answers all requests, as in verl's issue 7495."""

    class Policy:
        data_ranks = (0,)

        async def log_probs(self, sequences: list[TrainSequence], steps: object) -> list[np.ndarray]:
            network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
            network.load_state_dict(trainer.merged(), strict=False)
            return [log_probs_of(network, one.tokens, one.prompt_length) for one in sequences]

    async def score(tokens: np.ndarray) -> dict[str, np.ndarray]:
        return {client.name: (await client.score([tokens]))[0]}

    zeros = np.zeros(len(PROMPT) - 4, np.float32)
    probes = [SyncProbe(Policy(), score, precision="float32") for _ in range(2)]  # type: ignore[arg-type]
    for probe, ignores in zip(probes, (False, True), strict=True):
        probe.choose([TrainSequence(PROMPT, 4, zeros, zeros, zeros, "0")])
        if ignores:
            monkeypatch.setattr(wire, "_adapters", lambda version: {})
        for version in (7, 8):
            await client.update_weights(trainer.write(version + 2 * ignores))
            await probe.score_with_trainer()
            if ignores and version == 8:
                with pytest.raises(JobError, match="confirmed weights 8, and does not generate with them"):
                    await probe.check(version)
            else:
                await probe.check(version)
