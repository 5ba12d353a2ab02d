"""Models, specs, ranks and sequences that the checks share: real sizes on a GPU, tiny ones on the CPU."""

import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rlrun.runner.batches.packing import plan_steps
from rlrun.runner.contracts.carriers import TrainerSetup, TrainSequence, TrainStep
from rlrun.runner.host.model_files import ModelFiles
from rlrun.runner.planning.planned_model import resolve_for_job
from rlrun.runner.trainer.parameters import starting_weights
from rlrun.runner.trainer.roles.rank import TrainerRank
from rlrun.specs.sections.job import Spec

ON_GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if ON_GPU else "cpu")
FOLDER = Path(os.environ.get("RLRUN_GPU_CHECK_FOLDER", "/tmp/rlrun-gpu-check"))
THREADS = max(1, min(8, (os.cpu_count() or 1) // 2))

_QWEN3 = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "tie_word_embeddings": True,
}
_MOE = {
    "model_type": "qwen3_moe",
    "architectures": ["Qwen3MoeForCausalLM"],
    "tie_word_embeddings": False,
    "num_experts": 64,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 768,
    "norm_topk_prob": True,
}
_SHAPES: dict[str, dict[str, Any]] = {
    "0.6B": {
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
    },
    "4B": {
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
    },
    "MoE": _MOE
    | {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 12, "num_attention_heads": 16},
    "Next": _MOE
    | {
        "model_type": "qwen3_next",
        "architectures": ["Qwen3NextForCausalLM"],
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "partial_rotary_factor": 0.25,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "shared_expert_intermediate_size": 512,
    },
}
"""Qwen3-0.6B and 4B, a mixture of experts of 2.4B parameters, and a small Qwen3-Next, six of whose eight
layers are Gated DeltaNet."""
_TINY: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 320,
    "initializer_range": 0.2,
}
_TINY_EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 96}
_TINY_DELTA = {
    "num_hidden_layers": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "shared_expert_intermediate_size": 96,
}
_TINY_PARTS = {"MoE": _TINY_EXPERTS, "Next": _TINY_EXPERTS | _TINY_DELTA}


def model_folder(name: str, weights: str = "") -> Path:
    """Returns a folder with the config.json of a shape, and with random weights of dtype `weights` if it is
    not empty.
    """
    folder = FOLDER / f"{name}-{weights or 'config'}"
    if not folder.exists():
        config = _QWEN3 | _SHAPES[name]
        if not ON_GPU:
            config |= _TINY | _TINY_PARTS.get(name, {})
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(config | {"dtype": weights or "bfloat16"}))
        if weights:
            _write_weights(folder, getattr(torch, weights))
    return folder


def _write_weights(folder: Path, dtype: torch.dtype) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(DEVICE):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder), dtype=dtype)
    model.save_pretrained(folder)


def make_spec(folder: Path, *, random_init: bool = False, **trainer: Any) -> Spec:
    """Returns a GRPO spec of this model on one device, with these keys in `[trainer]`."""
    sections = {
        "model": {"path": str(folder), "random_init": random_init},
        "data": {},
        "rollout": {"temperature": 0.7},
        "algorithm": {"type": "grpo"},
        "engine": {"type": "native", "dtype": "bfloat16"},
        "cluster": {"gpus_per_node": 1 if ON_GPU else 0},
        "trainer": {"steps": 1, "lr": 1e-5, "dtype": "bfloat16", "share_prefixes": False, **trainer},
    }
    return resolve_for_job(Spec.model_validate(sections), ModelFiles(folder, None)).spec


def make_rank(spec: Spec, rank: int = 0, ranks: int = 1, port: int = 0) -> TrainerRank:
    """Returns a trainer rank in this process; random weights are drawn on the device, which is faster."""
    starting_weights.random_tensor = _draw
    weights = FOLDER / "weights"
    weights.mkdir(parents=True, exist_ok=True)
    return TrainerRank(
        TrainerSetup(
            spec_json=spec.model_dump_json(),
            model_folder=spec.model.path,
            rank=rank,
            device=DEVICE.type,
            world_size=ranks,
            master_addr="127.0.0.1",
            master_port=port or free_port(),
            threads=THREADS,
            optimizer_steps=100,
            weights_folder=str(weights),
        )
    )


def _draw(tensor: Any, model: Any, seed: int) -> torch.Tensor:
    if len(tensor.shape) == 1:
        return torch.ones(tensor.shape)
    return torch.randn(tensor.shape, device=DEVICE, dtype=torch.bfloat16) * model.initializer_range


def make_sequences(count: int, prompt: int, longest: int, vocabulary: int) -> list[TrainSequence]:
    """Returns sequences with random tokens; a response has between half of `longest` tokens and `longest`."""
    rng = np.random.default_rng(0)
    return [
        TrainSequence(
            tokens=rng.integers(2, vocabulary, prompt + length).astype(np.int32),
            prompt_length=prompt,
            loss_mask=np.ones(length, np.float32),
            advantages=np.full(length, rng.normal(), np.float32),
            rollout_log_probs=np.full(length, -np.log(vocabulary), np.float32),
            execution=str(index),
        )
        for index, length in enumerate(rng.integers(longest // 2, longest + 1, count).tolist())
    ]


def pack_steps(spec: Spec, sequences: list[TrainSequence], data_degree: int = 1) -> list[TrainStep]:
    """Returns one optimizer step over the sequences, packed as the spec says."""
    return plan_steps(
        sequences,
        optimizer_steps=1,
        reduction=spec.trainer.reduction,
        max_batch_tokens=spec.trainer.max_tokens_per_rank,
        max_length=1 << 20,
        max_response_tokens=4096,
        data_degree=data_degree,
        share_prefixes=bool(spec.trainer.share_prefixes),
    )


def synchronize() -> None:
    if ON_GPU:
        torch.cuda.synchronize()


def seconds_of(function: Callable[[], object]) -> float:
    """Returns the seconds of one call, the device's work included."""
    synchronize()
    start = time.perf_counter()
    function()
    synchronize()
    return time.perf_counter() - start


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
