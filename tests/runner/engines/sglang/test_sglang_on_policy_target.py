"""A real server with `rl_on_policy_target` and a trainer that rounds as it does: equal bit for bit."""

from pathlib import Path

import numpy as np
import pytest
import torch

from rlrun.runner.batches.packing import all_micro_batches
from rlrun.runner.contracts.carriers import GenerateRequest, Generation, Sampling, TrainSequence
from rlrun.runner.engines.client.client import EngineClient
from rlrun.runner.engines.pool.pool import EnginePool
from rlrun.runner.engines.sglang.server import SglangServer
from rlrun.runner.weights import writer
from rlrun.specs.derived.on_policy_target import SERVER_ARGUMENTS
from rlrun.specs.sections.job import Spec
from tests.runner.trainer.trainer_cases import TEMPERATURE, make_rank, plan
from tests.sglang_cpu.policies import LocalPolicy
from tests.sglang_cpu.server_kernels import server_kernels, target_spec
from tests.sglang_cpu.servers import ARGUMENTS, ENVIRONMENT, tiny_setup
from tests.tiny_models import make_tiny_model

ON_CPU = {"attention_backend": "torch_native"}
EXACT = ENVIRONMENT | {
    "SGLANG_CPU_ON_POLICY_TARGET": "1",
    "SGLANG_ROPE_CACHE_FP32": "1",  # as on GPUs
}
SIZES = {"num_hidden_layers": 3, "vocab": 512, "scale": 0.1, "dtype": torch.bfloat16}


async def generate(client: EngineClient, version: int) -> list[tuple[np.ndarray, Generation]]:
    """Prompts of several lengths and their samples, which the server computes together."""
    samples = []
    for number, length in enumerate((40, 7, 23)):
        prompt = np.random.default_rng(number).integers(3, 500, length).astype(np.int32)
        sampling = Sampling(max_new_tokens=10 + 9 * number, temperature=TEMPERATURE, stop_token_ids=(1,))
        request = GenerateRequest(f"{version}-{number}", prompt, (number, 7, 11), sampling)
        samples += [(prompt, one) for one in await client.generate(request)]
    return samples


def sequence_of(prompt: np.ndarray, one: Generation, number: int) -> TrainSequence:
    response = len(one.tokens)
    return TrainSequence(
        tokens=np.concatenate([prompt, one.tokens]).astype(np.int32),
        prompt_length=len(prompt),
        loss_mask=np.ones(response, np.float32),
        advantages=np.linspace(-1, 1, response, dtype=np.float32),
        rollout_log_probs=np.asarray(one.log_probs, np.float32),
        execution=str(number),
    )


def equal_share(folder: Path, sequences: list[TrainSequence], spec: Spec) -> float:
    """The share of tokens whose log-probs are equal; the training step's metric agrees with it."""
    trainer = make_rank(folder, spec)
    steps = plan(sequences, spec)
    log_probs = trainer.policy.log_probs(sequences, all_micro_batches(steps))
    equal = np.concatenate([log_probs[i] == one.rollout_log_probs for i, one in enumerate(sequences)])
    (metrics,) = trainer.policy.train(sequences, steps)
    trainer.close()
    assert metrics["train/grad_norm"] > 0
    assert (metrics["train/train_rollout_logprob_abs_diff_max"] == 0.0) == equal.all()
    return float(equal.mean())


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
async def test_equal_before_and_after_an_update_in_packs_of_any_size(
    tied: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer, "rounds_as_target", lambda spec: True)
    folders = [make_tiny_model(tmp_path / str(seed), seed=seed, tied=tied, **SIZES) for seed in range(2)]  # type: ignore[arg-type]
    setup = tiny_setup(
        tmp_path,
        folders[0],
        dtype="bfloat16",
        arguments=ARGUMENTS | SERVER_ARGUMENTS | ON_CPU,
        environment=EXACT,
    )
    server = SglangServer(setup)
    server.start()
    try:
        async with EngineClient(server.url, 300, 300, api_key="sesame") as client:
            policy, pool = LocalPolicy(folders[0], tmp_path, dtype="bfloat16"), EnginePool([client])
            for version, folder in enumerate(folders):
                if version:
                    await pool.update_weights(policy.write(folder, version))
                samples = await generate(client, version)
                sequences = [sequence_of(*one, number) for number, one in enumerate(samples)]
                for budget, chunk in ((64, 7), (100_000, 4096)):
                    spec = target_spec(folder, max_tokens_per_rank=budget, logits_chunk=chunk)
                    with server_kernels():
                        assert equal_share(folder, sequences, spec) == 1.0
                assert equal_share(folder, sequences, target_spec(folder, exact=False)) < 0.1
    finally:
        server.stop()
