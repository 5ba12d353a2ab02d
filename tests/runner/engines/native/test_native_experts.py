"""Mixtures of experts in the native engine: the products, and the experts that answers report."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from rlrun.runner.contracts.carriers import RequestOptions
from rlrun.runner.engines.client.answer_fields import read_experts
from rlrun.runner.engines.native.engine.engine import Engine
from rlrun.runner.engines.native.engine.loading import load
from rlrun.runner.engines.native.engine.requests import SampleInProgress, group_samples
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.engines.native.http.protocol import sample_answer
from rlrun.runner.engines.native.model import experts
from tests.runner.engines.engine_cases import new_sample, random_prompts
from tests.tiny_models import make_tiny_model

EXPERTS, CHOSEN = 8, 2


def test_the_grouped_products_of_a_gpu_are_those_of_single_experts() -> None:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(10, 16, generator=generator)
    buffer = torch.randn(4, 3 * 24 * 16, generator=generator)  # as in the engine: other matrices in between
    stack = buffer.as_strided((4, 24, 16), (3 * 24 * 16, 16, 1))
    counts = torch.tensor([3, 0, 6, 1])
    torch.testing.assert_close(
        experts._grouped_products(rows, stack, counts), experts._products(rows, stack, counts)
    )


def test_experts_in_one_buffer_are_stacked_without_a_copy(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, "qwen3_moe", num_experts=EXPERTS)
    weights = load(EngineSetup(str(folder), dtype="float32")).scheduler.model.weights
    one = weights.named["model.layers.1.mlp.experts.3.down_proj.weight"]
    assert weights.experts[1] is not None
    assert weights.experts[1].down[3].data_ptr() == one.data_ptr()


@pytest.mark.parametrize("steps", [None, 3], ids=["undisturbed", "retracted"])
def test_answers_have_the_experts_of_transformers(tmp_path: Path, steps: int | None) -> None:
    folder = make_tiny_model(tmp_path, "qwen3_moe", num_experts=EXPERTS, mlp_only_layers=[0])
    scheduler = load(EngineSetup(str(folder), dtype="float32", max_running=4)).scheduler
    samples = [
        new_sample(prompt, k, f"{i}-{k}", max_new_tokens=9, ignore_eos=True)
        for i, prompt in enumerate(random_prompts(3))
        for k in range(3)
    ]
    for sample in samples:
        sample.options = RequestOptions(return_routed_experts=sample.id != "1-0")
    scheduler.add(group_samples(samples))
    while scheduler.busy:
        for _ in range(steps or 100):
            scheduler.step()
        scheduler.retract_all()
    peer = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for sample in samples:
        meta = sample_answer(sample, {"return_logprob": True}, 0)["meta_info"]
        assert ("routed_experts" in meta) == sample.options.return_routed_experts
        if sample.options.return_routed_experts:
            rows = len(sample.prompt) + len(sample.tokens) - 1
            reported = read_experts(meta, rows, EXPERTS, sample.id)
            assert reported is not None
            assert not reported[:, :CHOSEN].any(), "the first layer is dense"
            np.testing.assert_array_equal(np.sort(reported[:, CHOSEN:]), peer_experts(peer, sample))


def peer_experts(peer: torch.nn.Module, sample: SampleInProgress) -> np.ndarray:
    """Returns the experts `[rows, K]` that transformers chooses in the only sparse layer, in order."""
    tokens = torch.from_numpy(np.concatenate([sample.prompt, sample.tokens])).long()
    with torch.no_grad():
        logits = peer(tokens[None, :-1], output_router_logits=True).router_logits
    assert len(logits) == 1
    return np.sort(logits[0].topk(CHOSEN, -1).indices.numpy())


def test_a_dense_model_has_no_experts_to_report(tmp_path: Path) -> None:
    engine = Engine(load(EngineSetup(str(make_tiny_model(tmp_path)), dtype="float32")))
    sample = new_sample([3, 4])
    sample.options = RequestOptions(return_routed_experts=True)
    with pytest.raises(ValueError, match="return_routed_experts: the model has no experts"):
        engine.check(sample)
