"""Weights of a trainer with a pipeline of 2 stages × FSDP 2 to real SGLang servers, by each carrier."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from rlrun.plugins.types import VersionSpan
from rlrun.runner.batches.model_handle import ModelHandle
from rlrun.runner.cluster.trainer_group import TrainerGroup
from rlrun.runner.contracts.carriers import GenerateRequest, Sampling, TrainSequence
from rlrun.runner.contracts.weight_updates import StreamedWeights
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.engines.sglang.server import SglangServer
from rlrun.specs.sections.job import Spec
from tests.resolved_specs import resolved
from tests.runner.trainer.trainer_cases import TEMPERATURE, make_sequences, make_spec, plan
from tests.sglang_cpu.servers import ENVIRONMENT, tiny_setup
from tests.sglang_cpu.trainer_ranks import PipedRank, trainer_ranks
from tests.tiny_models import make_tiny_model
from tests.waiting import PATIENCE

LAYOUT = {"pipeline": 2, "fsdp": 2}
DATA_RANKS = [0, 1, 0, 1]
PROMPT = np.arange(5, 25, dtype=np.int32)
CARRIERS: list[dict[str, object]] = [
    {"weight_sync": "tensor"},
    {"weight_sync": "tensor", "weight_bucket": 1},
    {"weight_sync": "tensor", "weight_bucket": 1, "on_devices": True},
    {"weight_sync": "broadcast", "weight_bucket": 1},
    {"weight_sync": "disk", "weight_bucket": 1, "weight_delta": "files"},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Several MiB, so that it takes several buckets."""
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny", vocab=4160)


def spec_of(model: Path, servers: int, carrier: dict[str, object]) -> Spec:
    """`on_devices`: every rank hands over by itself, as on GPUs that it shares with a server's process."""
    spec = make_spec(model, LAYOUT, lr=1e-3)
    engine = {"type": "sglang", "dtype": "float32", "tensor": servers, "weight_check": "all", **carrier}
    cluster = {"gpus_per_node": 4} if engine.pop("on_devices", False) else {}
    return resolved(spec.model_dump() | {"engine": engine | {"count": 1}, "cluster": cluster})


@pytest.fixture(scope="module")
def ranks(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[PipedRank]]:
    with trainer_ranks(make_spec(model, LAYOUT, lr=1e-3), model, tmp_path_factory.mktemp("ranks")) as ranks:
        yield ranks


@pytest.fixture(params=[1, 2])
def server(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[SglangServer]:
    """A server of one rank, or of two."""
    environment = ENVIRONMENT | ({"SGLANG_CPU_OMP_THREADS_BIND": "0|1"} if request.param > 1 else {})
    setup = tiny_setup(
        tmp_path_factory.mktemp("server"), model, tensor=request.param, environment=environment
    )
    server = SglangServer(setup)
    server.start()
    yield server
    server.stop()


def policy_of(trainer: TrainerGroup, spec: Spec) -> ModelHandle:
    return ModelHandle(trainer, "policy", lambda sequences: plan(sequences, spec), DATA_RANKS)


async def differences(
    client: EngineClient, trainer: TrainerGroup, spec: Spec, *, version: int
) -> tuple[float, set[tuple[VersionSpan, ...]]]:
    """Largest difference of the server's log-probs from the trainer's, and the versions of the samples."""
    sampling = Sampling(24, temperature=TEMPERATURE)
    samples = await client.generate(GenerateRequest(f"v{version}", PROMPT, (1, 2, 3, 4), sampling))
    sequences = [
        TrainSequence(
            tokens=np.concatenate([PROMPT, one.tokens]),
            prompt_length=len(PROMPT),
            loss_mask=np.ones(len(one.tokens), np.float32),
            advantages=np.ones(len(one.tokens), np.float32),
            rollout_log_probs=one.log_probs,
            execution=str(number),
        )
        for number, one in enumerate(samples)
    ]
    found = await policy_of(trainer, spec).log_probs(sequences)
    worst = max(float(np.abs(ours - one.log_probs).max()) for ours, one in zip(found, samples, strict=True))
    return worst, {one.versions for one in samples}


@pytest.mark.slow
async def test_log_probs_agree_at_first_and_after_each_sync_by_each_carrier(
    server: SglangServer, ranks: list[PipedRank], model: Path
) -> None:
    tensor = server._setup.tensor
    trainer = TrainerGroup(ranks)
    sequences, version = make_sequences(), 0
    async with EngineClient(server.url, 120, 60, api_key="sesame") as client:
        pool = EnginePool([client])
        for carrier in CARRIERS:
            spec = spec_of(model, tensor, carrier)
            await asyncio.gather(
                *(rank.call("use", spec.model_dump_json(), deadline=PATIENCE) for rank in ranks)
            )
            for _ in range(3):
                if version:
                    await policy_of(trainer, spec).train(sequences)
                version += 1
                update = await trainer.write_weights(version)
                if version % 3 == 0 and isinstance(update, StreamedWeights):
                    await trainer.offload()  # as when an engine is restarted while the trainer sleeps
                assert await pool.update_weights(update) == version
                await trainer.reload()
                worst, versions = await differences(client, trainer, spec, version=version)
                assert worst < 1e-4, (carrier, version)
                assert {span.version for spans in versions for span in spans} == {version}
        await client.leave_groups()
