"""The memory plan against what is really allocated, and against traced layouts of large models."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlrun.models.architecture import INDEX_SCORES, Architecture
from rlrun.models.config_json import architecture, read_architecture
from rlrun.plugins.sampling_mask import SamplingMask
from rlrun.runner.engines.native.engine.loading import load
from rlrun.runner.engines.native.engine.setup import EngineSetup
from rlrun.runner.planning.activations import score_bytes
from rlrun.runner.planning.memory import cache_copies, optimizer_bytes, size_engine, training_phase
from rlrun.runner.planning.model_size import (
    active_parameters,
    attention_operations,
    parameter_count,
    token_operations,
)
from rlrun.runner.planning.rank_share import largest_share, pipeline_imbalance, rank_shares
from rlrun.runner.planning.storage import checkpoint_bytes, offloaded_bytes
from rlrun.runner.trainer.model.build_decoder import build_model
from rlrun.runner.trainer.model.decoder_options import DecoderOptions
from rlrun.runner.trainer.model.masked_logits import Support
from rlrun.runner.trainer.model.top_tokens import TopTokens
from rlrun.runner.trainer.parameters.parameters import Parameters
from rlrun.specs.sections.trainer import ParallelSpec
from tests.data.published_models import PUBLISHED
from tests.resolved_specs import resolved_engine, resolved_trainer
from tests.tiny_models import make_tiny_model

QWEN = {"vocab_size": 151936, "rms_norm_eps": 1e-6, "max_position_embeddings": 40960, "head_dim": 128}
QWEN3_8B = architecture(
    QWEN
    | {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36}
    | {"num_attention_heads": 32, "num_key_value_heads": 8}
)
QWEN3_30B_A3B = architecture(
    QWEN
    | {"model_type": "qwen3_moe", "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48}
    | {"num_attention_heads": 32, "num_key_value_heads": 4, "moe_intermediate_size": 768}
    | {"num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True}
)
GPT_OSS_20B = architecture(
    {"model_type": "gpt_oss", "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24}
    | {"num_attention_heads": 64, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 201088}
    | {"num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128}
    | {"rms_norm_eps": 1e-5, "max_position_embeddings": 131072}
)
DEEPSEEK_V3 = architecture(
    {"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61}
    | {"num_attention_heads": 128, "vocab_size": 129280}
)
# sizes of torchtitan's 35B-A3B and of transformers' defaults, which are those of Qwen3-Next-80B-A3B
QWEN35_35B_A3B = architecture(
    {
        "model_type": "qwen3_5_moe",
        "tie_word_embeddings": False,
        "text_config": {"vocab_size": 248320, "hidden_size": 2048, "num_hidden_layers": 40}
        | {"num_attention_heads": 16},
    }
)
QWEN3_NEXT = architecture(
    {"model_type": "qwen3_next", "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 5120}
    | {"num_hidden_layers": 48, "num_attention_heads": 16}
)
SMALL = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 6, "num_attention_heads": 8}
SMALL |= {"vocab_size": 4096, "num_experts_per_tok": 4, "moe_intermediate_size": 256}
SMALL_QWEN = SMALL | {"model_type": "qwen3_moe", "num_key_value_heads": 2, "head_dim": 64, "num_experts": 16}
SMALL_DEEPSEEK = (
    SMALL
    | {"model_type": "deepseek_v3", "n_routed_experts": 16, "first_k_dense_replace": 1, "q_lora_rank": 192}
    | {"kv_lora_rank": 128, "qk_nope_head_dim": 64, "qk_rope_head_dim": 32, "v_head_dim": 64}
)
GIB = 2**30


@pytest.mark.parametrize(
    ("model", "total", "active"),
    [
        (QWEN3_8B, 8.19e9, 7.57e9),
        (QWEN3_30B_A3B, 30.53e9, 3.04e9),
        (GPT_OSS_20B, 20.91e9, 3.61e9),
        (QWEN35_35B_A3B, 34.66e9, 2.946e9),
        (QWEN3_NEXT, 79.67e9, 3.564e9),
    ],
    ids=["Qwen3-8B", "Qwen3-30B-A3B", "gpt-oss-20b", "Qwen3.5-35B-A3B", "Qwen3-Next-80B-A3B"],
)
def test_parameters_of_published_models(model: Architecture, total: float, active: float) -> None:
    assert parameter_count(model) == pytest.approx(total, rel=0.001)
    assert active_parameters(model) == pytest.approx(active, rel=0.005)


@pytest.mark.parametrize(
    ("model", "layout", "traced"),
    [
        (QWEN3_8B, {"fsdp": 16, "tensor": 4}, 0.48),
        (QWEN3_30B_A3B, {"pipeline": 2, "tensor": 4, "fsdp": 8, "expert": 8}, 1.78),
    ],
    ids=["Qwen3-8B", "Qwen3-30B-A3B"],
)
def test_a_ranks_parameters_are_those_of_a_traced_run(
    model: Architecture, layout: dict[str, int], traced: float
) -> None:
    """GiB that torchtitan's fake backend allocates on each of 64 ranks."""
    spec = resolved_trainer(steps=1, parallel=ParallelSpec(**layout))
    phase = training_phase(model, spec, gpu=True)
    assert phase.part_bytes("parameters") / GIB == pytest.approx(traced, rel=0.05)
    assert phase.part_bytes("gradients") == phase.part_bytes("parameters")
    assert phase.part_bytes("optimizer") == 2 * phase.part_bytes("parameters")


@pytest.mark.parametrize("layout", [{"fsdp": 4}, {"pipeline": 2, "fsdp": 2}, {"tensor": 2, "context": 2}])
def test_shares_add_up_to_the_model(layout: dict[str, int]) -> None:
    parallel = ParallelSpec(**layout)
    held = sum(share.parameters for share in rank_shares(QWEN3_8B, parallel)) * parallel.world_size
    assert held / parallel.pipeline == pytest.approx(parameter_count(QWEN3_8B), rel=0.001)


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe", "deepseek_v3", "gpt_oss", "qwen3_next"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
def test_training_state_is_as_large_as_planned(tmp_path: Path, family: str, dtype: Any, tied: bool) -> None:
    model = read_architecture(make_tiny_model(tmp_path, family, tied=tied))
    decoders = build_model(
        model,
        None,
        DecoderOptions(parallel=ParallelSpec(), dtype=getattr(torch, dtype), device=torch.device("cpu")),
    )
    parameters = Parameters(decoders, model)
    masters = list(parameters.masters.values())
    for parameter in masters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer = torch.optim.AdamW(masters)
    optimizer.step()
    held = {tensor for holder in parameters.holders for tensor in holder.values()}
    moments = [value for state in optimizer.state.values() for name, value in state.items() if name != "step"]
    phase = training_phase(model, resolved_trainer(steps=1, dtype=dtype), gpu=False)
    assert phase.part_bytes("parameters") == pytest.approx(sum(each.nbytes for each in held), rel=0.1)
    assert phase.part_bytes("gradients") == pytest.approx(sum(each.grad.nbytes for each in masters), rel=0.1)
    assert phase.part_bytes("optimizer") == pytest.approx(sum(each.nbytes for each in moments), rel=0.1)


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_5_text"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("limits", [{"max_running": 5}, {"max_running": 64, "max_cache_tokens": 300}])
def test_an_engine_is_as_large_as_planned(
    tmp_path: Path, family: str, dtype: Any, limits: dict[str, int]
) -> None:
    folder = make_tiny_model(tmp_path, family)
    settings: dict[str, Any] = {"kept_samples": 3, "device": "cpu"} | limits
    setup = EngineSetup(model_folder=str(folder), dtype=dtype, max_length=100, **settings)
    loaded = load(setup)
    cache, states = loaded.scheduler.model.cache, loaded.scheduler.model.recurrent
    planned = size_engine(
        read_architecture(folder), resolved_engine(dtype=dtype, **limits), 100, None, kept=3
    )
    assert planned.cache_tokens == loaded.cache_tokens
    assert planned.phase.part_bytes("KV cache") == pytest.approx(
        cache.keys.nbytes + cache.values.nbytes, rel=0.1
    )
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    assert planned.phase.part_bytes("weights") == pytest.approx(
        stored * (1 if dtype == "float32" else 0.5), rel=0.1
    )
    if states is not None:
        size = sum(tensor.nbytes for tensor in states.tensors)
        assert planned.phase.part_bytes("recurrent states") == size


def test_a_float32_head_takes_copies_and_wider_logits() -> None:
    def logits(**settings: Any) -> int:
        return training_phase(QWEN3_8B, resolved_trainer(steps=1, **settings), gpu=True).part_bytes("logits")

    vocabulary, head = QWEN3_8B.vocab, QWEN3_8B.vocab * QWEN3_8B.hidden
    wide = logits(head_dtype="float32", logits_chunk=512)
    assert wide - logits(logits_chunk=512) == 512 * vocabulary * (12 - 4) + head * (8 - 2) - 64 * 2**20
    assert logits(kept_logits=1000) - logits(kept_logits=0) == 1000 * 2**20
    everything = 8192 * vocabulary * 2
    assert logits(kept_logits=100_000) - logits(kept_logits=0) == everything
    assert logits(head_dtype="float32", dtype="float32") == logits(dtype="float32")
    engines = [size_engine(QWEN3_8B, resolved_engine(), 100, None, head_copy=copy) for copy in (False, True)]
    assert engines[1].phase.bytes - engines[0].phase.bytes == head * 4


def test_sampling_masks_take_their_ids_and_the_excluded_part_of_a_chunk() -> None:
    def masks(candidates: int, chunk: int) -> int:
        spec = resolved_trainer(steps=1, max_tokens_per_rank=1000, logits_chunk=chunk)
        return training_phase(QWEN3_8B, spec, gpu=True, candidates=candidates).part_bytes("sampling masks")

    lengths = np.full(1000, 50, np.int32)
    support = Support.from_mask(SamplingMask(np.zeros(50_000, np.int32), lengths), torch.device("cpu"))
    excluded = torch.zeros(1, QWEN3_8B.vocab + 1, dtype=torch.bool).nbytes
    indices = 3 * 50 * 8  # rows, columns, and columns as they were
    assert masks(50, 1) == support.ids.nbytes + support.lengths.nbytes + excluded + indices
    assert masks(50, 512) - masks(50, 1) == 511 * (excluded + indices)
    assert masks(0, 512) == 0


def test_a_teacher_s_top_tokens_take_their_numbers_and_two_tensors_of_a_chunk_s_logits() -> None:
    def compared(top_k: int, chunk: int, **parallel: int) -> int:
        settings = {"max_tokens_per_rank": 1000, "logits_chunk": chunk, "parallel": parallel}
        phase = training_phase(QWEN3_8B, resolved_trainer(steps=1, **settings), gpu=True, compared=top_k)
        return phase.part_bytes("teacher's top tokens")

    tokens = TopTokens(torch.zeros(1000, 50, dtype=torch.int64), torch.zeros(1000, 51))
    logits = torch.zeros(1, QWEN3_8B.vocab).nbytes
    kept = tokens.ids.nbytes + tokens.log_probs.nbytes
    assert kept + 2 * logits < compared(50, 1) < kept + 2.1 * logits
    assert compared(50, 512) - compared(50, 1) == 511 * (compared(50, 1) - kept)
    assert compared(50, 512, tensor=2) < 0.6 * compared(50, 512)
    assert compared(0, 512) == 0


def test_what_is_offloaded_lies_on_the_host() -> None:
    def state(offload: Any, *, gpu: bool = True, **layout: int) -> list[int]:
        spec = resolved_trainer(steps=1, offload=offload, parallel=ParallelSpec(**layout))
        phase = training_phase(QWEN3_8B, spec, gpu=gpu)
        parts = [phase.part_bytes(name) for name in ("parameters", "gradients", "optimizer")]
        return [*parts, offloaded_bytes(QWEN3_8B, spec)]

    size = parameter_count(QWEN3_8B)
    assert state("none") == [6 * size, 4 * size, 8 * size, 0]
    assert state("optimizer") == [6 * size, 4 * size, 0, 8 * size]
    assert state("all") == [2 * size, 0, 0, 16 * size]
    assert state("all", gpu=False)[:3] == state("none")[:3]
    shard = parameter_count(QWEN3_8B) / 8
    assert state("all", fsdp=8) == pytest.approx([0, 0, 0, 16 * shard], rel=0.01)


@pytest.mark.parametrize(
    ("layers", "work"),
    [(None, [9, 9, 9, 9 + 3.2]), ((10, 10, 10, 6), [10, 10, 10, 6 + 3.2]), ((9, 9, 10, 8), [9, 9, 10, 11.2])],
)
def test_the_busiest_stage_includes_the_head(layers: Any, work: Any) -> None:
    """The head of Qwen3-8B multiplies as much as 3.2 layers."""
    parallel = ParallelSpec(pipeline=4, pipeline_layers=layers)
    expected = max(work) * 4 / sum(work)
    assert pipeline_imbalance(QWEN3_8B, parallel) == pytest.approx(expected, rel=0.01)
    assert pipeline_imbalance(replace(QWEN3_8B, tied=True), parallel) == pytest.approx(expected, rel=0.01)


def test_what_is_frozen_has_no_gradient() -> None:
    share = largest_share(QWEN3_8B, ParallelSpec(), ["model.embed_tokens.*", "lm_head.*"])
    assert share.parameters - share.trained == 2 * 151936 * 4096


@pytest.mark.parametrize(("base", "per_value"), [("nf4", 0.5625), ("int8", 1.0625)])
def test_a_quantised_base_takes_less(base: Any, per_value: float) -> None:
    matrices = 36 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 12288)
    frozen = parameter_count(QWEN3_8B)
    trainer = resolved_trainer(steps=1, lora={"rank": 16, "base": base})
    phase = training_phase(QWEN3_8B, trainer, gpu=True)
    assert phase.part_bytes("frozen parameters") == matrices * per_value + (frozen - matrices) * 2
    assert phase.part_bytes("decoded matrix") == 4096 * 12288 * 6


_ADAPTERS = 36 * 16 * (2 * (4096 + 4096) + 2 * (4096 + 1024) + 3 * (4096 + 12288))
"""Parameters of Qwen3-8B's adapters of rank 16."""
_ATTENTION = 36 * 2 * (4096 * 4096 + 4096 * 1024)
"""Parameters of Qwen3-8B's matrices of attention."""


@pytest.mark.parametrize(
    ("trainer", "saved", "added"),
    [
        ({}, 0, 0),
        ({"freeze": ["*.self_attn.?_proj.*"]}, _ATTENTION, 0),
        ({"freeze": ["model.embed_tokens.*"]}, 0, 0),  # a lookup is no product
        ({"lora": {"rank": 16}}, active_parameters(QWEN3_8B), _ADAPTERS),
    ],
    ids=["whole", "frozen attention", "frozen embedding", "adapters"],
)
def test_frozen_matrices_need_no_weight_gradients(trainer: Any, saved: int, added: int) -> None:
    operations = token_operations(QWEN3_8B, resolved_trainer(steps=1, **trainer))
    assert operations == 6 * (active_parameters(QWEN3_8B) + added) - 2 * saved


@pytest.mark.parametrize(("optimizer", "each"), [("adamw", 8), ("adamw_8bit", 2 + 8 / 256), ("sgd", 4)])
def test_optimizers_differ_in_state(optimizer: Any, each: int) -> None:
    share = largest_share(QWEN3_8B, ParallelSpec())
    assert optimizer_bytes(share, resolved_trainer(steps=1, optimizer=optimizer)) == each * share.trained


@pytest.mark.parametrize("model", [QWEN3_8B, QWEN3_30B_A3B], ids=["dense", "experts"])
def test_muon_keeps_one_moment_of_hidden_matrices(model: Architecture) -> None:
    share = largest_share(model, ParallelSpec())
    bytes_each = optimizer_bytes(share, resolved_trainer(steps=1, optimizer="muon")) / share.trained
    assert 4 < bytes_each < 5


def test_a_cache_takes_half_of_what_is_free_at_most() -> None:
    weights = parameter_count(QWEN3_8B) * 2
    small = size_engine(QWEN3_8B, resolved_engine(), 2048, weights + 8 * GIB)
    assert small.phase.part_bytes("KV cache") == pytest.approx(4 * GIB, rel=0.01)
    assert small.concurrent == small.cache_tokens // 2048 == 14
    assert size_engine(QWEN3_8B, resolved_engine(), 2048, weights).concurrent == 0


DIVIDED_ATTENTION = {"enable_dp_attention": True, "dp_size": 4}


@pytest.mark.parametrize(
    ("model", "tensor", "sglang", "copies"),
    [
        (QWEN3_8B, 1, {}, 1),
        (QWEN3_8B, 8, {}, 1),
        (QWEN3_30B_A3B, 8, {}, 2),
        (DEEPSEEK_V3, 8, {}, 8),
        (DEEPSEEK_V3, 8, DIVIDED_ATTENTION, 2),
        (QWEN3_30B_A3B, 8, DIVIDED_ATTENTION, 1),
        (DEEPSEEK_V3, 2, {"dp_size": 4}, 2),
    ],
    ids=[
        "one rank",
        "a head for each rank",
        "four heads",
        "latent",
        "latent, divided attention",
        "divided attention",
        "copies of the model",
    ],
)
def test_ranks_that_share_a_head_hold_copies_of_its_cache(
    model: Architecture, tensor: int, sglang: dict[str, Any], copies: int
) -> None:
    """As SGLang's ModelConfig.get_num_kv_heads(tensor // attention parts) says."""
    engine = resolved_engine(type="sglang", tensor=tensor, sglang=sglang)
    assert cache_copies(model, engine) == copies
    free = parameter_count(model) * 2 + 4 * GIB
    sizes = [size_engine(model, engine, 2048, free, 1.0, copies=count) for count in (1, copies)]
    assert sizes[1].cache_tokens == pytest.approx(sizes[0].cache_tokens / copies, rel=0.01)


def test_passes_without_gradients_count_where_they_need_more_memory() -> None:
    def activations(budget: int | None) -> int:
        spec = resolved_trainer(activation_checkpointing="full", max_logprob_tokens_per_rank=budget)
        return training_phase(QWEN3_8B, spec, gpu=True).part_bytes("activations")

    assert activations(None) == activations(8192) == activations(16384)
    assert 1.5 < activations(1 << 20) / activations(1 << 19) < 2.1
    assert activations(1 << 19) > activations(None)


def test_activations_shrink_with_the_layout() -> None:
    def activations(**layout: int) -> int:
        spec = resolved_trainer(steps=1, parallel=ParallelSpec(**layout))
        return training_phase(QWEN3_8B, spec, gpu=True).part_bytes("activations")

    assert activations() == activations(fsdp=8)
    # what the products read is gathered whole
    assert activations() / 4 < activations(tensor=4) < activations() / 2.5
    assert activations(pipeline=2) == activations()  # half the layers, of two micro-batches in flight


def cut(model: Architecture, layers: int) -> Architecture:
    """Returns the model with its first layers only."""
    experts = model.experts and replace(
        model.experts, layers=frozenset(layer for layer in model.experts.layers if layer < layers)
    )
    return replace(model, layers=layers, experts=experts)


@pytest.mark.parametrize(
    ("model", "settings", "traced"),
    [
        (cut(QWEN3_8B, 8), {"parallel": {"fsdp": 8, "tensor": 4}, "activation_checkpointing": "none"}, 8.11),
        (cut(QWEN3_8B, 8), {"parallel": {"fsdp": 8}, "activation_checkpointing": "none"}, 26.25),
        (
            cut(QWEN3_30B_A3B, 6),
            {
                "parallel": {"fsdp": 32, "tensor": 2, "expert": 16},
                "activation_checkpointing": "selective",
            },
            5.59,
        ),
        (
            cut(DEEPSEEK_V3, 6),
            {"parallel": {"fsdp": 64, "tensor": 4, "expert": 64}, "activation_checkpointing": "full"},
            10.20,
        ),
    ],
    ids=["Qwen3-8B-tensor", "Qwen3-8B", "Qwen3-30B-A3B", "DeepSeek-V3"],
)
def test_training_is_near_what_a_dry_run_says(
    model: Architecture, settings: dict[str, Any], traced: float
) -> None:
    """GiB of all purposes at the peak of a `dry_run` of eight sequences of 2,048 tokens."""
    spec = resolved_trainer(**({"steps": 1, "max_tokens_per_rank": 16384} | settings))
    phase = training_phase(model, spec, gpu=True)
    planned = phase.bytes - phase.part_bytes("CUDA and NCCL")
    assert planned == pytest.approx(traced * GIB, rel=0.15)


@pytest.mark.parametrize(
    ("name", "layers", "measured"), [("0.6B", 28, 30.61), ("MoE", 12, 59.54)], ids=["Qwen3-0.6B", "MoE"]
)
def test_training_is_near_what_a_gpu_took(name: str, layers: int, measured: float) -> None:
    """GiB of torch's tensors at the peak of a step on an H200, by the GPU kit (docs/gpu.md)."""
    sizes = QWEN | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": layers}
    sizes |= {"num_attention_heads": 16, "num_key_value_heads": 8}
    if name == "MoE":
        sizes |= {"model_type": "qwen3_moe", "tie_word_embeddings": False, "moe_intermediate_size": 768}
        sizes |= {"num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": True}
    else:
        sizes |= {"model_type": "qwen3", "tie_word_embeddings": True}
    spec = resolved_trainer(steps=1, max_tokens_per_rank=16384, activation_checkpointing="none")
    phase = training_phase(architecture(sizes), spec, gpu=True)
    planned = phase.bytes - phase.part_bytes("CUDA and NCCL")
    assert planned == pytest.approx(measured * GIB, rel=0.03)


@pytest.mark.parametrize(
    ("config", "traced"), [(SMALL_QWEN, 656503616), (SMALL_DEEPSEEK, 742929028)], ids=["Qwen3", "DeepSeek"]
)
def test_experts_keep_what_a_dry_run_says_where_nothing_is_computed_again(
    config: dict[str, Any], traced: int
) -> None:
    """Bytes of activations and temporaries at the peak of a `dry_run`, for 3413 tokens."""
    spec = resolved_trainer(steps=1, max_tokens_per_rank=3413, activation_checkpointing="none")
    planned = training_phase(architecture(config), spec, gpu=True).part_bytes("activations")
    assert planned == pytest.approx(traced, rel=0.1)


@pytest.mark.parametrize(
    ("parallel", "traced"),
    [
        ({"fsdp": 8}, 7.01),
        ({"fsdp": 4, "context": 2}, 7.01),
        ({"fsdp": 2, "context": 2, "tensor": 2}, 3.88),
    ],
    ids=str,
)
def test_gated_delta_net_keeps_what_a_dry_run_says(parallel: dict[str, int], traced: float) -> None:
    """GiB of activations and temporaries at the peak of a `dry_run`, for 8,192 tokens on each rank: with two
    context-parallel ranks, of samples of 2,048 tokens that both have a part of.
    """
    model = {"model_type": "qwen3_5_text", "hidden_size": 2048, "intermediate_size": 6144}
    model |= {"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2}
    model |= {"vocab_size": 248320, "linear_num_value_heads": 16}
    settings = {"steps": 1, "max_tokens_per_rank": 8192, "parallel": parallel}
    spec = resolved_trainer(**settings, activation_checkpointing="none")
    planned = training_phase(architecture(model), spec, gpu=True).part_bytes("activations")
    assert planned == pytest.approx(traced * GIB, rel=0.03)


def test_activations_shrink_with_what_is_computed_again() -> None:
    def activations(kind: str, layers: int) -> int:
        spec = resolved_trainer(**({"steps": 1, "activation_checkpointing": kind}))
        model = replace(QWEN3_8B, layers=layers)
        return training_phase(model, spec, gpu=True).part_bytes("activations")

    assert activations("full", 36) < activations("selective", 36) < activations("none", 36)
    hidden = QWEN3_8B.hidden * resolved_trainer(steps=1).max_tokens_per_rank * 2
    assert activations("full", 36) - activations("full", 35) == hidden


@pytest.mark.parametrize(("kind", "traced", "more"), [("none", 21.80, 8 * 5), ("selective", 9.84, 8 + 5)])
def test_a_float32_residual_stream_is_near_what_a_dry_run_says(kind: str, traced: float, more: int) -> None:
    """GiB by `dry_run` of a job with `true_on_policy` on GPUs: eight sequences of 2,048 tokens.

    `more`: the hidden states that the stream takes besides; a feed-forward is as wide as three.
    """
    settings = {"steps": 1, "max_tokens_per_rank": 16384, "parallel": {"fsdp": 8}}
    spec = resolved_trainer(**(settings | {"activation_checkpointing": kind}))
    model = replace(QWEN3_8B, layers=8)
    narrow, wide = (training_phase(model, spec, gpu=True, wide_stream=wide) for wide in (False, True))
    assert wide.part_bytes("activations") == pytest.approx(traced * GIB, rel=0.1)
    assert wide.bytes - narrow.bytes == more * 16384 * QWEN3_8B.hidden * 2


def test_a_checkpoint_has_parameters_and_moments() -> None:
    assert checkpoint_bytes(
        QWEN3_8B, resolved_trainer(steps=1), None, optimizer=True
    ) == 12 * parameter_count(QWEN3_8B)
    assert checkpoint_bytes(
        QWEN3_8B, resolved_trainer(steps=1), None, optimizer=False
    ) == 4 * parameter_count(QWEN3_8B)


def test_micro_batches_of_a_number_of_samples_are_as_long_as_samples_may_be() -> None:
    def activations(**settings: Any) -> int:
        return training_phase(QWEN3_8B, resolved_trainer(steps=1, **settings), 1000, gpu=True).part_bytes(
            "activations"
        )

    assert activations(micro_batch_size=4) == activations(max_tokens_per_rank=4000)
    shared = ParallelSpec(context=2)
    assert activations(micro_batch_size=4, parallel=shared) == activations(max_tokens_per_rank=2000)


def test_indexers_cost_a_forward_pass_and_their_scores() -> None:
    sparse, trainer = architecture(PUBLISHED["GLM-5"][0]), resolved_trainer(steps=1)
    dense = replace(sparse, indexer=None)
    own = parameter_count(sparse) - parameter_count(dense)
    assert own == 78 * (32 * 128 * 2048 + 128 * 6144 + 2 * 128 + 32 * 6144)
    assert token_operations(sparse, trainer) - token_operations(dense, trainer) == 2 * own
    assert attention_operations(sparse, 2048) == attention_operations(dense, 2048)
    scores = 2 * 78 * 32 * 128 * 4096
    assert attention_operations(sparse, 4096) == attention_operations(dense, 4096) * 16 // 6 + scores
    shared = architecture(PUBLISHED["GLM-5.2"][0])
    assert score_bytes(sparse, 2048) == 0 and score_bytes(shared, 8192) == 4 * INDEX_SCORES
