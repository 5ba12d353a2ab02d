"""Measures the memory of one trainer rank with tensors that have no content, and without its peers.

spec, architecture -> the trainer's own model, loss and optimizer, in process groups that do not communicate
-> an optimizer step -> bytes by purpose

`python -m rlrun.runner.trainer.dry_run.rank` gets a pickled `DryRun` from standard input and answers in JSON.
"""

import json
import pickle
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode

from rlrun.converters.tensors.base_blocks import nf4_pairs, nf4_values
from rlrun.models.architecture import Architecture
from rlrun.models.tensor_names import hf_tensors
from rlrun.plugins.protocols import Algorithm
from rlrun.plugins.registry import build
from rlrun.plugins.sampling_mask import SamplingMask
from rlrun.runner.contracts.algorithm_state import step_values
from rlrun.runner.contracts.carriers import TrainSequence
from rlrun.runner.planning.deep_plan import OFFLOADED_PURPOSES, DryRun
from rlrun.runner.trainer.compat.meshes import FakeStore
from rlrun.runner.trainer.dry_run.fakes import even_routing, gpu_kernels, record_logits_apart
from rlrun.runner.trainer.dry_run.memory_trace import (
    COPIES,
    GRADIENTS,
    OPTIMIZER,
    PARAMETERS,
    TEMPORARIES,
    MemoryTrace,
)
from rlrun.runner.trainer.model.build_decoder import allocate, build_model
from rlrun.runner.trainer.model.decoder import PackedDecoder
from rlrun.runner.trainer.model.decoder_options import DecoderOptions
from rlrun.runner.trainer.model.top_tokens import comparison_of
from rlrun.runner.trainer.optim.gradients import gradient_norm
from rlrun.runner.trainer.optim.optimizer import Optimizer
from rlrun.runner.trainer.parameters.parameters import Parameters, freeze, plain_name
from rlrun.runner.trainer.passes.loss_pass import LossPass
from rlrun.runner.trainer.passes.meter import Meter
from rlrun.runner.trainer.passes.packed_model import ModelSettings, PackedModel
from rlrun.runner.trainer.passes.pipeline import make_packed_model
from rlrun.runner.trainer.passes.stopwatch import Stopwatch
from rlrun.runner.trainer.process import build_mesh, stop_process
from rlrun.specs.derived.on_policy_target import rounds_as_target
from rlrun.specs.derived.policy_model import frozen_patterns
from rlrun.specs.derived.sampling_mask import candidates_of
from rlrun.specs.sections.job import Spec

CPU, META = torch.device("cpu"), torch.device("meta")
PLAIN_EXCHANGES = {"token_dispatcher": "standard", "async_tensor": False, "symmetric_memory": False}


def dry_run(request: DryRun) -> dict[str, dict[str, int]]:
    """Returns the bytes by purpose that the rank holds in an optimizer step: the `most` of each purpose, and
    all of them at the `peak` of its device.

    A job with GPUs is traced with the operators that GPUs run. Raises ValueError if the model does not
    fit the layout.
    """
    spec, model = Spec.model_validate_json(request.spec_json), request.model
    algorithm: Algorithm = build("algorithms", spec.algorithm.type, spec.algorithm.params)
    parallel = spec.trainer.parallel
    torch.autograd.set_multithreading_enabled(False)
    with ExitStack() as stack:
        for table in (nf4_values, nf4_pairs):  # kept ones would be without content, too
            stack.callback(table.cache_clear)
        if parallel.world_size > 1:
            store = FakeStore()
            dist.init_process_group("fake", store=store, rank=request.rank, world_size=parallel.world_size)
            stack.callback(stop_process)
        dims = build_mesh(parallel, parallel.world_size)
        dtype = torch.bfloat16 if spec.trainer.dtype == "bfloat16" else torch.float32
        precision = spec.trainer.low_precision
        options = DecoderOptions(
            # a laptop lacks DeepEP, and symmetric memory needs other ranks: plain exchanges stand in for them
            parallel=parallel.model_copy(update=PLAIN_EXCHANGES),
            dtype=dtype,
            device=META,
            checkpointing=spec.trainer.activation_checkpointing,
            router_dtype=spec.trainer.moe.router_dtype,
            head_dtype=spec.trainer.head_dtype,
            lora=spec.trainer.lora_shape,
            precision=precision,
            as_target=rounds_as_target(spec),
        )
        decoders = build_model(model, dims, options)
        trace = MemoryTrace(OFFLOADED_PURPOSES[spec.trainer.offload])
        fake = FakeTensorMode(allow_non_fake_inputs=True)
        for context in (fake, trace, record_logits_apart(trace), even_routing()):
            stack.enter_context(context)
        if spec.cluster.gpus_per_node:
            stack.enter_context(gpu_kernels(trace))
        for decoder in decoders:
            allocate(decoder, CPU, dims)
        settings = ModelSettings(
            spec.rollout.temperature,
            spec.trainer.logits_chunk,
            parallel,
            CPU,
            dtype,
            precision=precision,
            kept_logits=spec.trainer.kept_logits * 2**20,
            as_target=rounds_as_target(spec),
            comparison=comparison_of(spec, algorithm.needs, model.vocab),
        )
        policy = make_packed_model(decoders, model, dims, settings)
        parameters = _parameters(decoders, model, spec)
        _step(spec, algorithm, policy, parameters, trace, request.micro_batches)
    return {"most": dict(trace.most), "peak": dict(trace.peak)}


def _parameters(decoders: Sequence[PackedDecoder], model: Architecture, spec: Spec) -> Parameters:
    """Returns this rank's parameters. A dry run has no peers, so the tensors of other stages are left out."""
    names = {plain_name(name) for decoder in decoders for name, _ in decoder.named_parameters()}
    names |= {plain_name(name) for decoder in decoders for name, _ in decoder.named_buffers()}
    tensors = hf_tensors(model)
    own_tensors = [tensor for tensor in tensors if tensor.parameter in names]
    lora = spec.trainer.lora_shape
    parameters = Parameters(decoders, model, tensors=own_tensors, lora=lora)
    freeze(tensors, frozen_patterns(spec.trainer, model), *parameters.holders)
    return parameters


def _step(  # noqa: PLR0917
    spec: Spec,
    algorithm: Algorithm,
    policy: PackedModel,
    parameters: Parameters,
    trace: MemoryTrace,
    micro_batches: Sequence[Sequence[tuple[int, int]]],
) -> None:
    """Runs the log-probs that come before an optimizer step, which initialise FSDP, then the step."""
    candidates = candidates_of(spec)
    batches = [
        [_sequence(*lengths, algorithm, candidates) for lengths in members] for members in micro_batches
    ]
    trained = {name: parameter for name, parameter in parameters.masters.items() if parameter.requires_grad}
    optimizer = Optimizer(spec.trainer, trained)
    policy.outputs(batches[:1], ["log_probs"])
    compute, masters = parameters.holders
    trace.record_as(compute.values(), COPIES)
    trace.record_as(masters.values(), PARAMETERS)
    with trace.purpose(OPTIMIZER):
        optimizer.tensors()
    trace.restart_maxima()
    loss = LossPass(policy, algorithm, spec.trainer, CPU)
    together = spec.trainer.parallel.pipeline > 1
    for micro_batch_group in [batches] if together else [[batch] for batch in batches]:
        scales = [[1.0] * len(members) for members in micro_batch_group]
        values = step_values(algorithm)
        loss.accumulate(micro_batch_group, scales, values, Meter(), Stopwatch(CPU))
        trace.record_as((parameter.grad for parameter in trained.values()), GRADIENTS)
    with trace.purpose(TEMPORARIES):
        gradient_norm(trained)
        if spec.trainer.optimizer != "adamw_8bit":  # on GPUs its step is compiled, without temporaries
            optimizer.step(spec.trainer.lr)
        parameters.refresh()


def _sequence(prompt: int, response: int, algorithm: Algorithm, candidates: int) -> TrainSequence:
    """Returns a sample with these numbers of tokens; each was drawn from `candidates` ids (0: all ids)."""
    zeros = np.zeros(response, np.float32)
    compared = algorithm.needs.compared_tokens
    return TrainSequence(
        tokens=np.zeros(prompt + response, np.int32),
        prompt_length=prompt,
        loss_mask=np.ones(response, np.float32),
        advantages=zeros,
        rollout_log_probs=zeros,
        execution="",
        reference_log_probs=zeros if algorithm.needs.reference else None,
        teacher_top_ids=np.zeros((response, compared), np.int32) if compared else None,
        teacher_top_log_probs=np.zeros((response, compared + 1), np.float32) if compared else None,
        sampling_mask=_mask(response, candidates) if candidates else None,
    )


def _mask(response: int, candidates: int) -> SamplingMask:
    return SamplingMask(np.zeros(response * candidates, np.int32), np.full(response, candidates, np.int32))


def main() -> None:
    """Answers the process that started this one, with the trace or with the message of a ValueError."""
    request: DryRun = pickle.load(sys.stdin.buffer)
    try:
        answer: dict[str, Any] = dict(dry_run(request))
    except ValueError as error:
        answer = {"error": str(error)}
    sys.stdout.write(f"\n{json.dumps(answer)}\n")


if __name__ == "__main__":
    main()
