"""Builds the policy's decoders with the spec's implementation: torchtitan or transformers."""

from pathlib import Path
from typing import Any

import torch

from rlrun.models.architecture import Architecture
from rlrun.plugins.validation import needs_of
from rlrun.runner.planning.rank_layout import most_routed_tokens
from rlrun.runner.trainer.compat.meshes import ParallelDims
from rlrun.runner.trainer.model.build_decoder import build_model
from rlrun.runner.trainer.model.decoder_options import DecoderOptions
from rlrun.specs.derived.lengths import longest_response
from rlrun.specs.derived.on_policy_target import rounds_as_target
from rlrun.specs.sections.job import Spec


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
    trainer, longest = spec.trainer, spec.rollout.max_prompt_tokens + longest_response(spec)
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
        lora=trainer.lora.shape if trainer.lora else None,
        most_tokens=most_routed_tokens(trainer, longest * (2 if needs_of(spec).pairs else 1)),
        precision=trainer.low_precision,
        as_target=rounds_as_target(spec),
    )
