"""Refuses what an MTP layer is not trained together with (`trainer.mtp_loss`)."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from rlrun.models.config_defaults import with_family_defaults
from rlrun.models.families.table import why_no_mtp
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.job import Spec

MTP_LOSS: KeyPath = ("trainer", "mtp_loss")


def unsupported_with_mtp(spec: Spec) -> Iterator[Finding]:
    """Reports settings that an MTP layer does not support."""
    trainer = spec.trainer
    if not trainer.mtp_loss:
        return
    untried = "an MTP layer was not compared with a reference"
    for path, value, supported, reason in (
        (
            ("model", "implementation"),
            spec.model.implementation,
            "torchtitan",
            "its layers have none",
        ),
        (("trainer", "lora"), trainer.lora, None, "only adapters are trained, and an MTP layer has none"),
        (("trainer", "precision"), trainer.precision, None, f"{untried} in low precision"),
        (("trainer", "compile"), trainer.compile, False, f"{untried} compiled"),
        (
            ("trainer", "parallel", "tensor"),
            trainer.parallel.tensor,
            1,
            "tensor-parallel ranks cut the sequence, and the MTP layer reads the next token",
        ),
        (
            ("trainer", "parallel", "context"),
            trainer.parallel.context,
            1,
            "context-parallel ranks cut the sequence, and the MTP layer reads the next token",
        ),
        (
            ("trainer", "parallel", "pipeline"),
            trainer.parallel.pipeline,
            1,
            "the last stage, which would have the MTP layer, has no embedding",
        ),
    ):
        if value != supported:
            cure = "remove it, or remove trainer.mtp_loss"
            if supported is not None:
                cure = f"set {path[-1]} = {json.dumps(supported)}, or remove trainer.mtp_loss"
            message = f"is not supported with trainer.mtp_loss: {reason}"
            found = None if supported is None else value
            yield Finding(path, message, cure, found=found, related=(MTP_LOSS,))


def mtp_findings(spec: Spec, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Checks that a model has an MTP layer that the trainer computes; `config` is that of `config.json`."""
    if not spec.trainer.mtp_loss or spec.model.implementation == "transformers":
        return
    count = with_family_defaults(config).get("num_nextn_predict_layers")
    reason = why_no_mtp(str(config.get("model_type")), count if isinstance(count, int) else 0)
    if reason is not None:
        yield Finding(
            MTP_LOSS, reason, "remove it", found=spec.trainer.mtp_loss, related=(("model", "path"),)
        )
