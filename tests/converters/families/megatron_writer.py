"""Writes a checkpoint of a random model with Megatron-Core, and what the model computes: `MODEL OUT LOGITS`.

MODEL is a Hugging Face folder, of which only config.json is read. Nothing here is from rlrun. Three calls
need a GPU, and are replaced.
"""

import contextlib
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from megatron.core import dist_checkpointing, parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.tensor_parallel.random import CudaRNGStatesTracker
from megatron.core.transformer.moe import moe_utils
from megatron.core.transformer.transformer_config import TransformerConfig

TOKENS = 24


def main() -> None:
    """Writes the checkpoint and the logits of some tokens."""
    source, out, logits = map(Path, sys.argv[1:])
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    CudaRNGStatesTracker.fork = lambda *_: contextlib.nullcontext()
    moe_utils.te_general_gemm = None  # it is not defined where Transformer Engine is missing
    dist.init_process_group("gloo")
    parallel_state.initialize_model_parallel()
    model = make_model(json.loads((source / "config.json").read_text()))
    out.mkdir()
    dist_checkpointing.save({**model.sharded_state_dict(), "iteration": 1}, str(out))
    tokens = torch.arange(TOKENS).view(1, -1) * 5 % 300
    later = torch.triu(torch.ones(1, 1, TOKENS, TOKENS, dtype=torch.bool), 1)
    with torch.no_grad():
        found = model.eval()(tokens, torch.arange(TOKENS).view(1, -1), later)
    torch.save({"tokens": tokens, "logits": found}, logits)
    dist.destroy_process_group()


def make_model(config: dict) -> GPTModel:
    """Builds the decoder that a config.json of Qwen3 or Qwen3-MoE describes."""
    experts = config.get("num_local_experts", config.get("num_experts"))
    experts = experts if config["model_type"] == "qwen3_moe" else None
    settings = TransformerConfig(
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        num_attention_heads=config["num_attention_heads"],
        num_query_groups=config["num_key_value_heads"],
        kv_channels=config["head_dim"],
        ffn_hidden_size=config["intermediate_size"],
        layernorm_epsilon=config["rms_norm_eps"],
        num_moe_experts=experts,
        moe_ffn_hidden_size=config["moe_intermediate_size"] if experts else None,
        moe_router_topk=config.get("num_experts_per_tok", 2),
        use_cpu_initialization=True,
        init_method_std=0.2,
        gated_linear_unit=True,
        activation_func=torch.nn.functional.silu,
        bias_activation_fusion=False,
        add_bias_linear=False,
        normalization="RMSNorm",
        qk_layernorm=True,
    )
    return GPTModel(
        settings,
        get_gpt_layer_local_spec(num_experts=experts, qk_layernorm=True, normalization="RMSNorm"),
        vocab_size=config["vocab_size"],
        max_sequence_length=config["max_position_embeddings"],
        position_embedding_type="rope",
        rotary_base=config.get("rope_theta", config.get("rope_parameters", {}).get("rope_theta", 10000)),
        share_embeddings_and_output_weights=False,
    )


if __name__ == "__main__":
    main()
