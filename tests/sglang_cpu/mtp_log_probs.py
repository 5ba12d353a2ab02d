"""Log-probs of SGLang's own MTP model of a folder, run by SGLang's interpreter: `FOLDER CASE OUT`.

CASE is a JSON file with the class, as `module:name`, the tokens of a sequence, and the vocabulary's size.
The policy's model runs the sequence as a server would. The MTP model gets its hidden states and the tokens
shifted by one, as in sglang/srt/speculative/eagle_worker_v2.py. Entry i of the result is about token i + 2.
"""

import importlib
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file, save_file
from sglang.benchmark import one_batch
from sglang.srt.managers.schedule_batch import ScheduleBatch
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch
from sglang.srt.model_executor.forward_context import ForwardContext, forward_context
from sglang.srt.runtime_context import SpawnRanks, get_schedule, publish, spawn_world_rank
from sglang.srt.server_args import PortArgs, ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm


def start(folder):
    """Returns the runner of the policy's model."""
    arguments = ServerArgs(
        model_path=folder,
        device="cpu",
        dtype="float32",
        attention_backend="torch_native",
        sampling_backend="pytorch",
        mem_fraction_static=0.2,
        max_total_tokens=2048,
        max_running_requests=4,
        trust_remote_code=True,
        disable_cuda_graph=True,
    )
    arguments.resolve_once()
    one_batch._set_envs_and_config(arguments)
    ranks = SpawnRanks(world_rank=spawn_world_rank(arguments, tp_rank=0, pp_rank=0), gpu_id=0)
    publish(arguments, role="scheduler", ranks=ranks)
    one_batch._init_process_global_configs()
    runner, _ = one_batch.load_model(arguments, PortArgs.init_new(arguments), 0, 0)
    return runner.torch_runner if hasattr(runner, "torch_runner") else runner


def forward_batch_of(runner, tokens):
    """Returns the prefill of one sequence."""
    [request] = one_batch.prepare_synthetic_inputs_for_latency_test(1, len(tokens), [tokens])
    cache = one_batch.TreeCacheNamespace(
        page_size=get_schedule().page_size,
        device=runner.device,
        token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
    )
    batch = ScheduleBatch.init_new(
        reqs=[request],
        req_to_token_pool=runner.req_to_token_pool,
        token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
        tree_cache=cache,
        model_config=runner.model_config,
        enable_overlap=False,
        spec_algorithm=SpeculativeAlgorithm.NONE,
    )
    batch.prepare_for_extend()
    if batch.input_ids is None:
        batch.input_ids = batch.prefill_input_ids_cpu
        batch.prefill_input_ids_cpu = None
    return ForwardBatch.init_new(batch, runner, return_hidden_states_before_norm=False)


@torch.no_grad()
def main():
    folder, case_file, out = sys.argv[1:]
    case = json.loads(Path(case_file).read_text())
    runner, tokens = start(folder), case["tokens"]
    batch = forward_batch_of(runner, tokens)
    batch.capture_hidden_mode = CaptureHiddenMode.FULL
    hidden = runner.forward(batch).logits_output.hidden_states
    module, name = case["class"].split(":")
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    model = getattr(importlib.import_module(module), name)(runner.model.config)
    torch.set_default_dtype(default)
    for parameter in model.parameters():
        parameter.fill_(torch.nan)
    model.load_weights(load_file(f"{folder}/model.safetensors").items())
    model.model.embed_tokens.weight, model.lm_head.weight = runner.model.get_embed_and_head()
    missing = [name for name, parameter in model.named_parameters() if parameter.isnan().any()]
    assert not missing, missing
    batch.spec_info = SimpleNamespace(hidden_states=hidden)
    shifted = torch.tensor([*tokens[1:], 0])
    with forward_context(ForwardContext(attn_backend=runner.attn_backend), forward_batch=batch):
        states = model.model(shifted, batch.positions, batch)
    logits = torch.nn.functional.linear(states, model.lm_head.weight)[: len(tokens) - 2, : case["vocab"]]
    save_file({"log_probs": logits.log_softmax(-1).contiguous()}, out)


main()
