"""Makes the parts of a policy from its spec: settings, parameters, and which of them are trained."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from rlrun.models.architecture import Architecture
from rlrun.models.tensor_names import hf_tensors
from rlrun.plugins.validation import needs_of
from rlrun.runner.planning.rank_layout import most_routed_tokens
from rlrun.runner.trainer.compat.meshes import ParallelDims
from rlrun.runner.trainer.model.build_decoder import build_model
from rlrun.runner.trainer.model.decoder_options import DecoderOptions
from rlrun.runner.trainer.model.top_tokens import Comparison
from rlrun.runner.trainer.parameters.parameters import EMBEDDING, Parameters, freeze
from rlrun.runner.trainer.passes.packed_model import ModelSettings
from rlrun.specs.derived.lengths import resolved_sample
from rlrun.specs.derived.on_policy_target import rounds_as_target
from rlrun.specs.sections.job import Spec


def records_experts(model: Architecture) -> bool:
    """Returns whether routers record and replay the experts that they choose; transformers' do neither."""
    return bool(model.experts) and not model.stored_tensors


def model_settings(
    spec: Spec,
    model: Architecture,
    dtype: torch.dtype,
    device: torch.device,
    comparison: Comparison | None = None,
) -> ModelSettings:
    """Returns how the policy computes log-probs of packed sequences."""
    return ModelSettings(
        spec.rollout.temperature,
        spec.trainer.logits_chunk,
        spec.trainer.parallel,
        device,
        dtype,
        routed=records_experts(model),
        precision=spec.trainer.low_precision,
        kept_logits=spec.trainer.kept_logits * 2**20,
        share=spec.trainer.share_prefixes,
        as_target=rounds_as_target(spec),
        comparison=comparison,
    )


def policy_parameters(
    spec: Spec,
    decoders: Sequence[torch.nn.Module],
    model: Architecture,
    stages: dist.ProcessGroup | None,
) -> Parameters:
    """Returns the policy's parameters on this rank, without values; `stages`: the group of its pipeline."""
    moe = spec.trainer.moe
    return Parameters(
        decoders,
        model,
        stages=stages,
        on_host=spec.trainer.offload == "all",
        biases=None if moe.balancing == "off" else moe.balancing_export,
        lora=spec.trainer.lora_shape,
        int4_group=spec.trainer.rounded_group,
    )


def trained_parameters(
    parameters: Parameters, model: Architecture, patterns: Sequence[str]
) -> dict[str, torch.nn.Parameter]:
    """Returns the parameters that are not frozen, by name."""
    if parameters.adapters:
        return {name: parameters.masters[name] for name in parameters.masters if name in parameters.adapters}
    frozen = freeze(hf_tensors(model), patterns, *parameters.holders)
    if EMBEDDING in frozen:  # a tied head on another stage is the same tensor of the checkpoint
        frozen |= parameters.copies
        for name in parameters.copies:
            parameters.masters[name].requires_grad_(False)
    return {name: master for name, master in parameters.masters.items() if name not in frozen}


def build_decoders(
    spec: Spec,
    folder: Path,
    model: Architecture,
    *,
    dims: ParallelDims | None,
    dtype: torch.dtype,
    device: torch.device,
) -> list[Any]:
    """Returns the policy's decoder, or its stages on this rank, with undefined parameters."""
    options = _options(spec, dtype, device)
    if spec.model.implementation == "transformers":
        from rlrun.runner.trainer.model.transformers_layers.transformers_decoder import (
            build_transformers_decoder,
        )

        return [build_transformers_decoder(folder, model, dims, options)]
    return build_model(model, dims, options)


def _options(spec: Spec, dtype: torch.dtype, device: torch.device) -> DecoderOptions:
    trainer, longest = spec.trainer, resolved_sample(spec)
    return DecoderOptions(
        parallel=trainer.parallel,
        dtype=dtype,
        device=device,
        checkpointing=trainer.activation_checkpointing,
        on_host=trainer.offload == "all",
        router_dtype=trainer.moe.router_dtype,
        head_dtype=trainer.head_dtype,
        compiled=trainer.compile,
        balanced=trainer.moe.balancing == "bias",
        lora=trainer.lora_shape,
        most_tokens=most_routed_tokens(trainer, needs_of(spec).undivided(longest)),
        precision=trainer.low_precision,
        as_target=rounds_as_target(spec),
    )
