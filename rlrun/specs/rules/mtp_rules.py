"""Refuses `trainer.mtp_loss` for models whose MTP layer the trainer does not compute."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlrun.models.config_defaults import with_family_defaults
from rlrun.models.families.table import why_no_mtp
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.job import Spec

MTP_LOSS: KeyPath = ("trainer", "mtp_loss")


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
