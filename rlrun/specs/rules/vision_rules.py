"""Refuses what a policy with a vision tower does not offer, from the contents of `config.json`."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlrun.models.config_json import read_vision_tower
from rlrun.models.families.table import WITH_TOWER
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.job import Spec

TOWER: KeyPath = ("trainer", "vision_tower")
MODEL: KeyPath = ("model", "path")
_UNSUPPORTED: Mapping[str, str] = {
    "tensor": "tensor-parallel ranks cut the sequence, and the tower's embeddings are not cut with it",
    "context": "context-parallel ranks have parts of an image's tokens",
    "pipeline": "only the first stage would have images, and later stages expect text",
}
"""Why the degrees of `[trainer.parallel]` have to be 1 if samples have images."""
_UNTRIED: Mapping[str, str] = {
    "lora": "adapters beside a vision tower were not compared with peft",
    "precision": "low precision beside a vision tower was not compared with bfloat16",
    "share_prefixes": "a shared prompt with images was not compared with separate ones",
}
"""Why these keys of `[trainer]` are refused if samples have images."""


def vision_findings(spec: Spec, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Checks `trainer.vision_tower`, and what is not supported together with a tower."""
    setting, family = spec.trainer.given("vision_tower"), config.get("model_type")
    try:
        tower = read_vision_tower(config)
    except (KeyError, TypeError):
        return  # reported when the architecture is read
    if tower is None or spec.model.implementation == "transformers":
        if setting in {"frozen", "trained"}:
            families = ", ".join(WITH_TOWER)
            message = f"the {family} model has no vision tower that is computed here"
            yield Finding(TOWER, message, f"remove it; families with one: {families}", related=(MODEL,))
        return
    if setting == "none" or (setting is None and not tower.loaded):
        return
    cure = 'use 1, or set trainer.vision_tower = "none" if no sample has images'
    for name, reason in _UNSUPPORTED.items():
        degree = getattr(spec.trainer.parallel, name)
        if degree > 1:
            path: KeyPath = ("trainer", "parallel", name)
            yield Finding(path, f"{reason} (vision tower)", cure, found=degree, related=(TOWER, MODEL))
    for name, reason in _UNTRIED.items():
        if spec.trainer.given(name):
            cure = 'remove it, or set trainer.vision_tower = "none" if no sample has images'
            yield Finding(("trainer", name), reason, cure, related=(TOWER, MODEL))
