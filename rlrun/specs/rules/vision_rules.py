"""Refuses `trainer.vision_tower` for models without one, from the contents of `config.json`."""

from collections.abc import Iterator, Mapping
from typing import Any

from rlrun.models.config_json import read_vision_tower
from rlrun.models.families.table import WITH_TOWER
from rlrun.specs.problems.findings import Finding
from rlrun.specs.problems.positions import KeyPath
from rlrun.specs.sections.job import Spec

TOWER: KeyPath = ("trainer", "vision_tower")
MODEL: KeyPath = ("model", "path")


def vision_findings(spec: Spec, config: Mapping[str, Any]) -> Iterator[Finding]:
    """Checks that there is a tower for `trainer.vision_tower`."""
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
