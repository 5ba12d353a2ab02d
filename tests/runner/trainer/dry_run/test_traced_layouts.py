"""What a dry run finds in layouts and kernels that no test can run: many ranks, and those of GPUs."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from rlrun.models.architecture import DeltaNet
from rlrun.models.config_json import read_architecture
from rlrun.models.families.qwen_next import trainer_layers as delta_net
from rlrun.runner.planning.activations import activation_bytes, logit_bytes, score_bytes
from rlrun.runner.planning.deep_plan import DryRun
from rlrun.runner.planning.model_size import parameter_count
from rlrun.runner.planning.rank_share import largest_share, policy_share
from rlrun.runner.trainer.compat.kernels import HAS_TRITON
from rlrun.runner.trainer.dry_run.fakes import gpu_kernels
from rlrun.runner.trainer.dry_run.memory_trace import ACTIVATIONS, MemoryTrace
from rlrun.runner.trainer.dry_run.rank import dry_run
from rlrun.runner.trainer.model.attention import Documents
from rlrun.specs.sections.cluster import ClusterSpec
from tests.runner.trainer.trainer_cases import make_spec
from tests.tiny_models import make_tiny_model


@pytest.fixture(scope="module")
def six_experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("six"), "qwen3_moe", num_experts=6)


@pytest.mark.parametrize(
    "layout",
    [
        {"fsdp": 2},
        {"fsdp": 4},  # two experts on the first three ranks, none on the last
        {"fsdp": 4, "expert": 2},  # three experts over two ranks: two and one
        {"fsdp": 2, "tensor": 2, "expert": 2},
        {"fsdp": 8, "expert": 2},  # more ranks than experts: a part of each
    ],
    ids=str,
)
def test_the_first_rank_keeps_as_many_experts_as_planned(layout: dict[str, Any], six_experts: Path) -> None:
    spec, model = make_spec(six_experts, layout, max_tokens_per_rank=300), read_architecture(six_experts)
    traced = dry_run(DryRun(spec.model_dump_json(), model, 0, (((20, 40),),)))
    planned = largest_share(model, spec.trainer.parallel).parameters * 4
    assert traced["most"]["parameters"] == pytest.approx(planned, rel=0.01)


def test_one_rank_keeps_a_tied_head_once(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, tied=True)
    spec, model = make_spec(folder, {}, max_tokens_per_rank=300), read_architecture(folder)
    traced = dry_run(DryRun(spec.model_dump_json(), model, 0, (((20, 40),),)))
    assert model.tied
    assert traced["most"]["parameters"] == parameter_count(model) * 4
    assert traced["most"]["gradients"] == parameter_count(model) * 4


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_softmax_on_gpus_takes_what_is_planned(dtype: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, vocab_size=20_000)
    spec = make_spec(folder, {}, max_tokens_per_rank=600, dtype=dtype, kept_logits=0)
    model = read_architecture(folder)
    on_gpu = spec.model_copy(update={"cluster": ClusterSpec(gpus_per_node=1)})
    traced = dry_run(DryRun(on_gpu.model_dump_json(), model, 0, (((100, 500),),)))
    planned = logit_bytes(model, spec.trainer, 500)
    assert traced["most"]["logits"] == pytest.approx(planned, rel=0.15)
    assert traced["most"]["logits"] < planned * 1.01


LATENT = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "qk_nope_head_dim": 48,
    "qk_rope_head_dim": 16,
    "v_head_dim": 64,
    "q_lora_rank": 64,
    "kv_lora_rank": 64,
    "moe_intermediate_size": 64,
    "index_topk": 128,
    "index_n_heads": 8,
    "index_head_dim": 32,
}


@pytest.mark.parametrize("family", ["deepseek_v32", "glm_moe_dsa"])
def test_chosen_keys_take_what_is_planned(family: str, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, family, **LATENT)
    spec = make_spec(folder, {}, max_tokens_per_rank=2048, dtype="bfloat16")
    model = read_architecture(folder)
    on_gpu = spec.model_copy(update={"cluster": ClusterSpec(gpus_per_node=1)})
    traced = dry_run(DryRun(on_gpu.model_dump_json(), model, 0, (((100, 924), (100, 924)),)))
    planned = activation_bytes(model, spec.trainer, policy_share(model, spec.trainer), 2048)
    assert traced["most"]["activations"] == pytest.approx(planned - score_bytes(model, 2048), rel=0.1)


@pytest.mark.skipif(not HAS_TRITON, reason="fla needs triton, which CPU wheels of torch lack")
def test_gated_delta_net_on_gpus_keeps_what_fla_keeps(monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(*args: object, **kwargs: object) -> None:
        pytest.fail("plain torch computed the rule")

    monkeypatch.setattr(delta_net, "delta_rule", plain)
    shape = DeltaNet(frozenset(), 2, 4, 32, 16, 4, by_head=False)
    lengths, rule = [100, 540], delta_net.DeltaRule.Config(shape=shape).build()
    tokens, channels, heads = sum(lengths), sum(shape.rows) * 2, 4
    half, trace = {"dtype": torch.bfloat16, "requires_grad": True}, MemoryTrace()
    with FakeTensorMode(allow_non_fake_inputs=True), trace, gpu_kernels(trace):
        given = [torch.empty(1, tokens, channels, **half), torch.empty(1, tokens, heads, **half)]
        decay = torch.empty(1, tokens, heads, requires_grad=True)
        taps, documents = torch.empty(channels, 4, **half), Documents.of(lengths, torch.device("cpu"))
        output = rule(given[0], taps, decay, given[1], documents)
    inputs = 2 * (channels + heads) + 4 * heads
    # queries and keys of length 1, with their lengths; values; summed decay; products of 64 tokens; outputs
    kept = heads * (2 * (32 + 32) + 4 * 2 + 2 * 16 + 4 + 2 * 64 + 2 * 16)
    assert output.shape == (1, tokens, heads, 16)
    assert trace.live[ACTIVATIONS] == pytest.approx(tokens * (inputs + kept), rel=0.002)
